// References go from the graph to the scope and back; at no step are they without a holder.
#include "hoist_scope.hpp"

#include <algorithm>

#include "escrow/core/error.hpp"
#include "escrow/detail/deleter_core.hpp"
#include "escrow/detail/graph_registry.hpp"
#include "escrow/detail/retry_cleanup.hpp"

namespace escrow {

hoist_scope::hoist_scope(graph_survey const& survey) : is_bare_(survey.is_complete()) {
  std::vector<reference_set*> all;
  for (auto const& on : survey.known) {
    for (auto const& each : graph_registry::global().seal(on.id)) {
      placed_.push_back({on.graph, on.id, each.set, each.object});
      all.push_back(each.set);
    }
  }
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  for (reference_set* const each : all) sets_.emplace_back(*each);
  try {
    for (; off_ < placed_.size(); ++off_) take_off(placed_[off_]);
  } catch (...) {
    put_back_all();
    throw;
  }
}

hoist_scope::~hoist_scope() {
  put_back_all();
}

void hoist_scope::take_off(taken const& each) {
  check(cudaUserObjectRetain(each.object, 1), "cudaUserObjectRetain");
  cudaError_t const status = cudaGraphReleaseUserObject(each.graph, each.object, 1);
  if (status == cudaSuccess) return;
  release_object(each.object, each.set->core());
  check(status, "cudaGraphReleaseUserObject");
}

void hoist_scope::put_back_all() noexcept {
  for (; off_ != 0; --off_) {
    taken const& each = placed_[off_ - 1];
    cudaError_t status = cudaSuccess;
    bool const is_back = retry_cleanup([&] {
      status = cudaGraphRetainUserObject(each.graph, each.object, 1, cudaGraphUserObjectMove);
      return status;
    });
    if (is_back) continue;
    // The reference is leaked, since nothing will tell when the graph is destroyed.
    deleter_core& core = each.set->core();
    core.count_leaked();
    core.report(status, "cudaGraphRetainUserObject");
  }
}

void hoist_scope::keep_off() noexcept {
  for (; off_ != 0; --off_) {
    taken const& each = placed_[off_ - 1];
    graph_registry::global().remove(*each.set, each.graph_id);
    release_object(each.object, each.set->core());
  }
}

}  // namespace escrow
