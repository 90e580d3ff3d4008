// Bugs planted one at a time: an operation with a weaker order.
#include <cstdio>

#include "checker.hpp"

namespace escrow::model {

namespace {

std::vector<std::memory_order> weaker(std::memory_order order) {
  switch (order) {
    case std::memory_order_seq_cst:
      return {std::memory_order_acq_rel, std::memory_order_relaxed};
    case std::memory_order_acq_rel:
      return {std::memory_order_acquire, std::memory_order_release};
    case std::memory_order_acquire:
    case std::memory_order_release:
      return {std::memory_order_relaxed};
    default:
      return {};
  }
}

}  // namespace

std::vector<planted> plant_each(options const& how, program const& explored) {
  options first = how;
  first.lists_sites = true;
  report const all = explore(first, explored);
  std::vector<planted> result;
  for (site const& at : all.sites) {
    for (std::memory_order const to : weaker(at.order)) {
      options weakened = how;
      weakened.planted = weakening{at, to};
      result.push_back({*weakened.planted, explore(weakened, explored)});
    }
  }
  return result;
}

void print(planted const& each) {
  site const& at = each.bug.at;
  std::printf("  %-34s %-16s %-16s %s -> %s: ", at.function.substr(0, 60).c_str(),
              at.location.c_str(), at.operation.c_str(), name_of(at.order), name_of(each.bug.to));
  if (each.found.error.empty()) {
    std::printf("harmless here, %llu executions\n",
                static_cast<unsigned long long>(each.found.executions));
  } else {
    std::printf("found by execution %llu: %s\n",
                static_cast<unsigned long long>(each.found.executions),
                each.found.error.substr(0, 70).c_str());
  }
}

}  // namespace escrow::model
