// SPDX-License-Identifier: Apache-2.0
// An arena's pages go, its addresses stay.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>

#include "arena.hpp"
#include "device_store.hpp"
#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/launch_order.hpp"
#include "escrow/internal/own_stream.hpp"
#include "escrow/internal/retry_cleanup.hpp"
#include "escrow/pool/device_memory.hpp"
#include "slot_pool_state.hpp"

namespace escrow::inline v0_2 {

// Waits, which the caller of park() asked for. A copy that failed to be waited for is before.
void arena::copy(void* to, void const* from, std::size_t bytes) {
  if (copying_ == nullptr) copying_ = std::make_unique<own_stream>();
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, copying_->get()), "cudaMemcpyAsync");
  end_copies();
}

void arena::end_copies() {
  if (copying_ == nullptr) return;
  auto const wait = [this] { return cudaStreamSynchronize(copying_->get()); };
  check(retry_cleanup(wait), "cudaStreamSynchronize");
  copying_.reset();
}

arena::use arena::used() {
  std::lock_guard const lock(mutex_);
  return used_now();
}

arena::use arena::used_now() const {
  auto const name_of = [](arena_place const& place) {
    return " of \"" + place.of->label + "\"" + detail::line_text(" (claimed at ", place.where, ")");
  };
  for (arena_place const* const each : taken_) {
    if (each->its_state != arena_place::state::taken) continue;  // its lease has ended
    return {"a lease" + name_of(*each) + " lives in the group's arena",
            "release it before; if it was retired, wait for its stream"};
  }
  for (auto const& [graph, its] : graphs_) {
    for (arena_place const& each : its.places) {
      // Relaxed: see there.
      if (each.held_outside.load(std::memory_order_relaxed) == 0) continue;
      return {"a graph of another capture, or a node, has the memory of a lease" + name_of(each) +
                  " in the group's arena",
              "destroy that graph and its execs before"};
    }
  }
  return {};
}

arena::use arena::close() {
  {
    std::lock_guard const lock(mutex_);
    if (use found = used_now(); !found.problem.empty()) return found;
    is_closed_ = true;
  }
  end_rests(nullptr);
  std::lock_guard const mapping(mapping_);  // what was mapping or trimming has ended
  return {};
}

void arena::reopen() noexcept {
  std::lock_guard const mapping(mapping_);
  std::lock_guard const lock(mutex_);
  mapped_.store(range_.mapped(), std::memory_order_relaxed);
  is_closed_ = false;
}

std::size_t arena::park(bool keep_contents) {
  device_scope const current(device_);
  relaxed_capture_scope const relaxed;
  {
    std::lock_guard const lock(mutex_);
    parked_ = std::min(bytes(), extent());
  }
  saved_ = 0;
  end_copies();
  if (keep_contents && parked_ != 0) {
    if (contents_ == nullptr || contents_->size() < parked_) {
      contents_.reset();
      contents_ = std::make_shared<device_block>(parked_, memory_source::pinned_host());
    }
    copy(contents_->data(), range_.begin(), parked_);
    saved_ = parked_;
  }
  std::lock_guard const mapping(mapping_);
  if (range_.held() == 0) return 0;
  try {
    std::size_t const given_back = range_.unmap_all();
    mapped_.store(0, std::memory_order_relaxed);
    return given_back;
  } catch (cuda_error const& failed) {
    if (range_.is_whole()) throw;
    throw cuda_error(failed.status(), failed.api(), source_location::current(),
                     "the memory could not be mapped again either: the group stays parked, and "
                     "keeps it; unpark() may be tried");
  }
}

std::size_t arena::unpark() {
  device_scope const current(device_);
  relaxed_capture_scope const relaxed;
  std::size_t needed = 0;
  {
    std::lock_guard const lock(mutex_);
    needed = std::min(parked_, extent());  // graphs may have ended
  }
  auto const map = [&] {
    std::lock_guard const mapping(mapping_);
    range_.map_again(needed);
    mapped_.store(range_.held(), std::memory_order_relaxed);
  };
  try {
    map();
  } catch (cuda_error const& failed) {
    // Idle memory may be what is missing, as for a claim.
    if (failed.status() != cudaErrorMemoryAllocation) throw;
    if (slot_pool::trim_all(device_) + device_store::global().trim(device_) == 0) throw;
    map();
  }
  // If that fails, the group stays parked, with its memory mapped.
  if (saved_ != 0) copy(range_.begin(), contents_->data(), std::min(saved_, needed));
  saved_ = 0;
  return bytes();
}

std::size_t arena::trim_pools(group_order const& group) noexcept {
  std::size_t freed = 0;
  try {
    for (auto const& each : slot_pool::state::all()) {
      // Memory of other sources may be expensive to free.
      bool const is_its = each->in_arena.may_be && each->options.group->order().get() == &group;
      if (is_its) freed += each->owner.trim(0, true);
    }
  } catch (std::exception const&) {
    // The rest stays idle.
  }
  return freed;
}

}  // namespace escrow::inline v0_2
