// SPDX-License-Identifier: Apache-2.0
// What memory work has used, until the host knows that it is done, or later work stands for it.
#pragma once

#include "order.hpp"
#include "work.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

namespace escrow::sim::model {

struct exec_state;
struct op;

// Bytes that work has used.
struct touch {
  access what;
  moment when;
  cudaStream_t on = nullptr;
  bool is_of_launch = false;
};

// Memory of a lease, or of a launch's arena or slot of captures.
struct lease_use {
  exec_state const* exec = nullptr;  // null: of no launch; only ever compared
  std::uint64_t number = 0;          // of a lease
  std::uint64_t last = 0;            // of a launch: of its slot's leases, as it was enqueued
  std::shared_ptr<op> ends_with;
  kernel_code const* code = nullptr;
  char const* what = nullptr;  // if it is no kernel
  cudaStream_t on = nullptr;
};

// Of one memory: its uses, and the last lease of which there was work, whose first makes it new.
struct lease_uses {
  std::vector<lease_use> all = {};
  std::uint64_t made_new = 0;
  std::weak_ptr<op> first = {};
};

struct used_memory {
  using touches = std::vector<touch>;

  // Of up to so many bytes each, by their begin; and the longer ones.
  static constexpr std::size_t short_max = std::size_t{1} << 16;
  std::map<std::uintptr_t, touches> short_ones;
  touches long_ones;
  std::unordered_map<void const*, lease_uses> leases;  // by memory_lease::memory
  std::size_t leases_max = 64;  // before those are looked for that are of no use any more

  // The memory is gone.
  void forget(void const* begin, std::size_t bytes);
};

}  // namespace escrow::sim::model
