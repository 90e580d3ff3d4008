// SPDX-License-Identifier: Apache-2.0
// The pins of calls, and the list of all groups.
#include "escrow/internal/parked_group.hpp"

#include <atomic>
#include <mutex>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/detail/shared_count.hpp"
#include "escrow/internal/never_destroyed.hpp"

namespace escrow::inline v0_2 {

namespace {

struct group_list {
  std::mutex mutex;  // guards the list; no group ends under it
  std::vector<std::weak_ptr<group_order>> groups;
};

group_list& listed() {
  static never_destroyed<group_list> only;
  return *only;
}

std::atomic<int> parked{0};  // relaxed: see is_any_parked()

}  // namespace

void refuse_parked(char const* call, group_order const& group) {
  throw usage_error(call, "the sharing group \"" + group.options.label + "\" is parked",
                    "unpark() it first");
}

bool is_any_parked() noexcept {
  return parked.load(std::memory_order_relaxed) != 0;
}

void count_parked(int change) noexcept {
  parked.fetch_add(change, std::memory_order_relaxed);
}

group_order::~group_order() {
  if (is_parked.load(std::memory_order_relaxed)) count_parked(-1);  // nobody else has it
}

void group_pins::add(char const* call, std::shared_ptr<launch_order> const& order) {
  if (order->group == nullptr) return;
  pinned_.push_back(order);
  // Both sequentially consistent, as in park(): it sees the pin, or this that it parks.
  order->group->pins.fetch_add(1, std::memory_order_seq_cst);
  if (order->group->is_parked.load(std::memory_order_seq_cst)) {
    refuse_parked(call, *order->group);  // the destructor takes the pin back
  }
}

group_pins::~group_pins() {
  // Release: what the call did with the addresses is over for park().
  for (auto const& each : pinned_) each->group->pins.fetch_sub(1, std::memory_order_release);
}

std::shared_ptr<group_order> make_group(sharing_options options) {
  auto made = make_apart<group_order>(std::move(options));
  group_list& all = listed();
  std::lock_guard const lock(all.mutex);
  std::erase_if(all.groups, [](auto const& each) { return each.expired(); });
  all.groups.push_back(made);
  return made;
}

std::vector<std::shared_ptr<group_order>> all_groups() {
  std::vector<std::shared_ptr<group_order>> living;
  group_list& all = listed();
  std::lock_guard const lock(all.mutex);
  living.reserve(all.groups.size());  // first: none may end under the lock
  for (auto const& each : all.groups) {
    if (auto known = each.lock()) living.push_back(std::move(known));
  }
  return living;
}

}  // namespace escrow::inline v0_2
