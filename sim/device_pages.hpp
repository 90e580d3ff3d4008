// SPDX-License-Identifier: Apache-2.0
// What is known of the pages of the device's memory, and, if memory is apart, of pinned memory.
#pragma once

#include <signal.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_set>

#include "pinned_pages.hpp"
#include "work_pages.hpp"

namespace escrow::sim::model {

struct device_pages {
  std::mutex mutex;  // guards all below; nothing that is called under it takes a lock
  work_pages of_work = {};
  pinned_pages pinned = {};
  std::unordered_set<std::uintptr_t> fenced = {};  // memory that is not apart, by its begin
  std::size_t at_work = 0;
  std::size_t bodies = 0;          // of kernels that run
  std::uint64_t bodies_begun = 0;  // so far
  bool is_watched = false;
  struct sigaction others = {};  // the handler before
};

// Never destroyed: the device may work until the process ends.
inline device_pages& memory_pages() {
  static auto* const its = new device_pages;
  return *its;
}

}  // namespace escrow::sim::model
