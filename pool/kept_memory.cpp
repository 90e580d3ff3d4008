// SPDX-License-Identifier: Apache-2.0
// How much idle memory a pool keeps, what goes first, and what is given back when.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <limits>

#include "device_store.hpp"
#include "escrow/core/capture.hpp"
#include "escrow/internal/device.hpp"
#include "slot_pool_state.hpp"

namespace escrow::inline v0_2 {

void slot_pool::state::free_idle(size_class const& of, std::size_t kept_max) {
  device_scope const device(options.device);
  relaxed_capture_scope const relaxed;
  std::size_t left = sizes.bytes_alive(false);
  // Other threads may take what this one finds.
  for (std::size_t tries = sizes.existing(sizes.smallest, true); tries != 0; --tries) {
    if (left + of.bytes <= kept_max) return;
    // The least recently used, but the largest last, which serves most sizes. Of its own size
    // there is one only if other streams use that.
    size_class* from = nullptr;
    size_class* largest = nullptr;
    std::uint64_t oldest = std::numeric_limits<std::uint64_t>::max();
    auto const look_at = [&](size_class& each) {
      std::uint64_t const released = each.free.oldest_release();
      if (released >= oldest) return;
      oldest = released;
      from = &each;
    };
    sizes.for_each([&](size_class& each) {
      if (&each == &of || each.free.lists() == 0) return;
      if (largest != nullptr) look_at(*largest);
      largest = &each;
    });
    if (from == nullptr) from = largest;
    if (from == nullptr) return;
    slot* unused = nullptr;
    {
      shrinking const listed(*from);
      unused = from->free.take_oldest();
      if (unused == nullptr) continue;
      left -= std::min(left, from->bytes);
      from->given_up.fetch_add(1, std::memory_order_relaxed);
      if (!unused->is_done_ && !is_done(*unused)) {
        destroy(*unused);  // after its work, by the worker
        continue;
      }
      from->slots.begin_end();
    }
    destroy_slot(*unused);
  }
}

std::size_t slot_pool::state::destroy_done(size_class& of, std::size_t count_max) {
  device_scope const device(options.device);
  relaxed_capture_scope const relaxed;
  search_pass pass = next_pass();
  std::size_t count = 0;
  for (; count < count_max; ++count) {
    pass.has_asked_execs = false;
    slot* done = nullptr;
    {
      shrinking const listed(of);
      done = take_idle(of, pass);
      if (done == nullptr) break;
      of.slots.begin_end();
    }
    destroy_slot(*done);
  }
  return count;
}

std::size_t slot_pool::bytes() const noexcept {
  return state_->sizes.bytes();
}

std::size_t slot_pool::trim(std::size_t keep_bytes, bool is_to_device) {
  state& in = *state_;
  std::size_t freed = 0;
  in.sizes.for_each([&](size_class& each) {
    std::size_t const now = in.sizes.bytes();
    if (now <= keep_bytes) return;
    std::size_t const count_max = (now - keep_bytes + each.bytes - 1) / each.bytes;
    freed += in.destroy_done(each, count_max) * each.bytes;
  });
  if (is_to_device) {
    if (auto const its = in.known_arena()) freed += its->trim();
    static_cast<void>(device_store::global().trim(in.options.device));
  }
  return freed;
}

std::size_t slot_pool::trim_all(int device, slot_pool const* but) noexcept {
  std::size_t freed = 0;
  try {
    for (auto const& each : state::all()) {
      bool const has_device_memory =
          *each->source != '\0' && !each->is_host_ordered.load(std::memory_order_relaxed);
      if (each->options.device != device || !has_device_memory || &each->owner == but) continue;
      freed += each->owner.trim(0);
    }
  } catch (std::exception const&) {
    // The rest stays idle.
  }
  return freed;
}

void slot_pool::state::retire_unused_now() noexcept {
  auto const now = std::chrono::steady_clock::now().time_since_epoch();
  auto checked = checked_at.load(std::memory_order_relaxed);
  if (now - checked < unused_max) return;
  if (!checked_at.compare_exchange_strong(checked, now, std::memory_order_relaxed)) return;
  // Relaxed: numbers.
  std::uint64_t const last =
      releases_seen.exchange(releases.load(std::memory_order_relaxed), std::memory_order_relaxed);
  swept_to.store(last, std::memory_order_relaxed);
  // What is not used by the next call is unused then.
  sizes.for_each([&](size_class& each) { claimers.ask(each); });
  // Acquire: the last sweep has left the node.
  if (is_sweep_due.exchange(true, std::memory_order_acquire)) return;
  references.fetch_add(1, std::memory_order_relaxed);  // relaxed: the owner has one
  sweep_on_worker.push();
}

void slot_pool::state::sweep(reclaimable& node) noexcept {
  state& in = static_cast<worker_node&>(node).of;
  in.is_sweep_due.store(false, std::memory_order_release);  // first: the next one may be pushed
  std::uint64_t const last = in.swept_to.load(std::memory_order_relaxed);
  in.sizes.for_each([&](size_class& each) {
    while (true) {
      slot* unused = nullptr;
      {
        shrinking const listed(each);
        unused = each.free.take_oldest(last);
        if (unused == nullptr) return;
        if (!unused->is_done_ && !is_done(*unused)) {
          in.destroy(*unused);  // after its work
          continue;
        }
        each.slots.begin_end();
      }
      try {
        device_scope const device(in.options.device);
        destroy_slot(*unused);
      } catch (std::exception const&) {
        unused->push();
      }
    }
  });
  in.drop_reference();
}

}  // namespace escrow::inline v0_2
