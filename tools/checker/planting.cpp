// SPDX-License-Identifier: Apache-2.0
// Bugs planted one at a time: an operation with a weaker order.
#include <algorithm>
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

std::set<site> sites_of(options how, program const& explored) {
  how.lists_sites = true;
  how.random = std::min<std::uint64_t>(how.random, 100);
  return explore(how, explored).sites;
}

}  // namespace

std::vector<planted> plant_each(options const& how, program const& explored) {
  std::vector<planted> result;
  for (site const& at : sites_of(how, explored)) {
    for (std::memory_order const to : weaker(at.order)) {
      options weakened = how;
      weakened.planted = weakening{at, to};
      result.push_back({*weakened.planted, explore(weakened, explored)});
    }
  }
  return result;
}

bool finds_planted(options const& how, program const& explored, std::string const& function,
                   std::memory_order from, std::memory_order to) {
  for (site const& at : sites_of(how, explored)) {
    if (at.function != function || at.order != from) continue;
    options weakened = how;
    weakened.planted = weakening{at, to};
    planted const each{*weakened.planted, explore(weakened, explored)};
    print(each);
    if (!each.found.error.empty()) return true;
  }
  return false;
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
