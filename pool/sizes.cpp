// The sizes of a pool's slots, the limit of their bytes, and what is given back.
#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "device_store.hpp"
#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/pool/scratch_pool.hpp"
#include "slot_pool_state.hpp"

namespace escrow::inline v0_1 {

namespace {

constexpr std::size_t step_max = std::size_t{2} << 20;

}  // namespace

std::size_t scratch_pool::block_bytes(std::size_t bytes) noexcept {
  std::size_t const least = std::max(bytes, bytes_min);
  std::size_t const step = std::min(std::bit_floor(least - 1) / 4, step_max);
  std::size_t const more = (step - least % step) % step;
  return least + std::min(more, std::numeric_limits<std::size_t>::max() - least);
}

std::string slot_pool::state::label_of(std::size_t size) const {
  return options.label + " of " + std::to_string(size) + " bytes";
}

size_class& slot_pool::state::larger_size_for(char const* call, std::size_t bytes,
                                              stream_ref stream) {
  if (bytes > scratch_pool::bytes_max) {
    throw usage_error(
        call, "`bytes` is " + std::to_string(bytes),
        "claim at most scratch_pool::bytes_max (" + std::to_string(scratch_pool::bytes_max) + ")");
  }
  std::size_t const size = scratch_pool::block_bytes(bytes);
  // Consecutive sizes have different hashes: their number, four for each power of two.
  auto const power = static_cast<std::size_t>(std::bit_width(size) - 1);
  std::size_t const step = std::min(std::bit_floor(size) / 4, step_max);
  auto& last_used = by_size[(4 * power + size / step) % by_size.size()];
  size_class* its = last_used.load(std::memory_order_acquire);
  if (its != nullptr) tell_taken(its);
  if (its != nullptr && its->bytes == size) return *its;
  std::unique_lock lock(sizes_mutex);
  if (is_closed.load(std::memory_order_relaxed)) {
    lock.unlock();
    throw_closed(call, label_of(size), stream);
  }
  std::atomic<size_class*>* at = &smallest.next;
  // Relaxed: written under the lock.
  while ((its = at->load(std::memory_order_relaxed)) != nullptr && its->bytes < size) {
    at = &its->next;
  }
  if (its == nullptr || its->bytes != size) {
    auto* const made = new size_class(size, label_of(size));
    made->next.store(std::exchange(its, made), std::memory_order_relaxed);
    tell_handed_over(made);
    at->store(made, std::memory_order_release);
  }
  last_used.store(its, std::memory_order_release);
  return *its;
}

bool slot_pool::state::reserve(size_class const& of, bool has_turn) noexcept {
  // Relaxed: who misses it takes the room of one more slot, and the search is repeated.
  std::size_t const left_to_turn = has_turn ? 0 : turns.room_of_turn();
  std::size_t const most = bytes_max - std::min(bytes_max, left_to_turn);
  std::size_t now = reserved.load(std::memory_order_relaxed);
  do {
    if (of.bytes > most || now > most - of.bytes) return false;
  } while (!reserved.compare_exchange_weak(now, now + of.bytes, std::memory_order_relaxed));
  return true;
}

void slot_pool::state::give_back(size_class const& of, bool was_made) noexcept {
  if (was_made) returned.fetch_add(1, std::memory_order_relaxed);
  given_back.fetch_add(1, std::memory_order_relaxed);       // before there is room: see moves()
  reserved.fetch_sub(of.bytes, std::memory_order_release);  // see is_room_coming()
}

void slot_pool::state::look_for_room(search_result& seen) noexcept {
  std::size_t existing = 0;
  for_each_size([&](size_class& each) {
    seen.is_on_its_way |= each.is_any_on_its_way();
    seen.is_busy |= each.free.lists() != 0;
    existing += each.slots.existing() * each.bytes;
  });
  // Acquire: if the room has come just now, moves() tells afterwards.
  seen.is_on_its_way |= reserved.load(std::memory_order_acquire) > existing;
}

std::uint64_t slot_pool::state::moves(size_class& of, bool is_of_all) noexcept {
  std::uint64_t sum = given_back.load(std::memory_order_relaxed) + reuse.moves();
  auto const add = [&sum](size_class& each) { sum += each.free.count().puts; };
  is_of_all ? for_each_size(add) : add(of);
  return sum;
}

std::size_t slot_pool::state::slots_of(size_class& of, bool is_of_all) noexcept {
  std::size_t sum = 0;
  auto const add = [&sum](size_class& each) { sum += each.slots.existing(); };
  is_of_all ? for_each_size(add) : add(of);
  return sum;
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
  return state_->reserved.load(std::memory_order_relaxed);
}

std::size_t slot_pool::trim(std::size_t keep_bytes, bool is_to_device) {
  state& in = *state_;
  std::size_t freed = 0;
  in.for_each_size([&](size_class& each) {
    std::size_t const now = in.reserved.load(std::memory_order_relaxed);
    if (now <= keep_bytes) return;
    std::size_t const count_max = (now - keep_bytes + each.bytes - 1) / each.bytes;
    freed += in.destroy_done(each, count_max) * each.bytes;
  });
  if (is_to_device && in.in_arena.may_be) {
    if (auto const its = arena::known(*in.options.group->order())) freed += its->trim();
  }
  if (is_to_device) static_cast<void>(device_store::global().trim(in.options.device));
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
  for_each_size([&](size_class& each) { claimers.ask(each); });
  // Acquire: the last sweep has left the node.
  if (is_sweep_due.exchange(true, std::memory_order_acquire)) return;
  references.fetch_add(1, std::memory_order_relaxed);  // relaxed: the owner has one
  sweep_on_worker.push();
}

void slot_pool::state::sweep(reclaimable& node) noexcept {
  state& in = static_cast<worker_node&>(node).of;
  in.is_sweep_due.store(false, std::memory_order_release);  // first: the next one may be pushed
  std::uint64_t const last = in.swept_to.load(std::memory_order_relaxed);
  in.for_each_size([&](size_class& each) {
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

}  // namespace escrow::inline v0_1
