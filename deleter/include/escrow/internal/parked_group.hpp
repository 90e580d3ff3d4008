// SPDX-License-Identifier: Apache-2.0
// Sharing groups that are parked, and calls that must not begin meanwhile.
#pragma once

#include <memory>
#include <vector>

#include "escrow/internal/launch_order.hpp"

namespace escrow::inline v0_2 {

// Throws usage_error: `call` needs the memory of the group.
[[noreturn]] void refuse_parked(char const* call, group_order const& group);

// Whether any group of the process is parked. For calls that need not be exact.
[[nodiscard]] bool is_any_parked() noexcept;
// One more is, or one fewer.
void count_parked(int change) noexcept;

// What: groups that stay unparked during a call that lets CUDA see addresses of their memory.
// Thread safety: its thread's.
// Lifetime: inside of the call; sharing_group::park() waits for it.
class group_pins {
 public:
  group_pins() = default;
  group_pins(group_pins&&) noexcept = default;
  ~group_pins();

  // One more, if the order is a group's. Throws usage_error, naming `call`, if that is parked;
  // std::bad_alloc.
  void add(char const* call, std::shared_ptr<launch_order> const& order);

 private:
  std::vector<std::shared_ptr<launch_order>> pinned_;
};

// A new group, which all_groups() has while it lives. Throws std::bad_alloc.
[[nodiscard]] std::shared_ptr<group_order> make_group(sharing_options options);
// The oldest first. Any thread. Throws std::bad_alloc.
[[nodiscard]] std::vector<std::shared_ptr<group_order>> all_groups();

}  // namespace escrow::inline v0_2
