// References go from graph to us and back; at no step does nobody hold them.
#include "hoist_scope.hpp"

#include <algorithm>
#include <memory>

#include "escrow/core/error.hpp"
#include "escrow/deleter/graph_registry.hpp"
#include "escrow/deleter/release_hub.hpp"
#include "escrow/deleter/user_object.hpp"
#include "escrow/detail/retry_cleanup.hpp"

namespace escrow {

namespace {

using single = graph_registry::single;

void place_bundle(identified_graph const& on, std::span<single const> singles) {
  std::vector<graph_reference*> parts;
  parts.reserve(singles.size());
  for (single const& each : singles) parts.push_back(each.node);
  struct let_go {
    void operator()(graph_bundle* made) const noexcept { made->let_go(); }
  };
  std::unique_ptr<graph_bundle, let_go> const bundle(
      &graph_bundle::make(singles.front().node->hub(), std::move(parts)));
  user_object object(*bundle);
  object.move_to(on.graph, on.id);
}

// Bundles the references of one deleter, takes them off, and adds to `stayed` those that did not
// go. Returns the error of the last of them.
cudaError_t bundle_group(identified_graph const& on, std::span<single const> group,
                         std::vector<single>& stayed) {
  place_bundle(on, group);
  cudaError_t error = cudaSuccess;
  for (single const& each : group) {
    // The last reference to the user object may go here, and its destroy callback run: the bundle
    // holds what it lets go.
    cudaError_t status = cudaSuccess;
    bool const is_off = retry_cleanup([&] {
      status = cudaGraphReleaseUserObject(on.graph, each.object, 1);
      return status;
    });
    if (is_off) continue;
    error = status;
    stayed.push_back(each);
  }
  return error;
}

cudaError_t bundle_singles(identified_graph const& on) {
  graph_registry& registry = graph_registry::global();
  if (!registry.has_singles(on.id)) return cudaSuccess;
  std::vector<single> left = registry.take_singles(on.id);
  std::vector<single> stayed;
  cudaError_t error = cudaSuccess;
  try {
    stayed.reserve(left.size());
    while (!left.empty()) {
      release_hub const* const hub = &left.back().node->hub();
      auto const group = std::partition(
          left.begin(), left.end(), [hub](single const& each) { return &each.node->hub() != hub; });
      cudaError_t const status = bundle_group(on, {group, left.end()}, stayed);
      if (status != cudaSuccess) error = status;
      left.erase(group, left.end());
    }
  } catch (...) {
    // Allocates nothing: what stayed has room for all, or could not even be given room.
    if (stayed.empty()) {
      stayed.swap(left);
    } else {
      stayed.insert(stayed.end(), left.begin(), left.end());
    }
    registry.keep_singles(on.id, std::move(stayed));
    throw;
  }
  registry.keep_singles(on.id, std::move(stayed));
  return error;
}

}  // namespace

cudaError_t bundle_references(graph_survey const& survey) {
  cudaError_t error = cudaSuccess;
  for (auto const& each : survey.known) {
    cudaError_t const status = bundle_singles(each);
    if (status != cudaSuccess) error = status;
  }
  return error;
}

hoist_scope::hoist_scope(graph_survey const& survey)
    : is_bare_(bundle_references(survey) == cudaSuccess && survey.is_complete()) {
  for (auto const& on : survey.known) {
    for (auto const& each : graph_registry::global().bundles_of(on.id)) {
      placed_.push_back({on.graph, on.id, each.bundle, each.object});
      bundles_.push_back(each.bundle);
    }
  }
  std::ranges::sort(bundles_);
  bundles_.erase(std::unique(bundles_.begin(), bundles_.end()), bundles_.end());
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
  release_object(each.object, each.bundle->hub());
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
    // Our own reference stays for ever, since nobody will tell us when the graph goes.
    release_hub& hub = each.bundle->hub();
    hub.count_held();
    hub.report(status, "cudaGraphRetainUserObject");
  }
}

void hoist_scope::keep_off() noexcept {
  for (; off_ != 0; --off_) {
    taken const& each = placed_[off_ - 1];
    graph_registry::global().withdraw(*each.bundle, each.graph_id);
    release_object(each.object, each.bundle->hub());
  }
}

}  // namespace escrow
