// How much idle memory a pool keeps, and what goes first.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "device_store.hpp"
#include "escrow/core/capture.hpp"
#include "escrow/internal/device.hpp"
#include "slot_pool_state.hpp"

namespace escrow::inline v0_1 {

slot* slot_pool::state::grow(size_class& of, search_result& seen, stream_use const* own) {
  std::size_t const now = reserved.load(std::memory_order_relaxed);
  bool const may_make = seen.failure == nullptr && of.slots.existing() < slots_max;
  if (keep_factor == 0 || !may_make || now + of.bytes <= device_store::kept_min) {
    return make_slot(of, seen);
  }
  // What a lease has beyond its claim does not make the pool keep more.
  std::size_t const in_use = bytes_alive(true);
  std::size_t const beyond = std::min(in_use, surplus.load(std::memory_order_relaxed));
  std::size_t const most = peak.note(in_use - beyond + of.bytes);
  // The factor may be infinite.
  constexpr auto no_limit = static_cast<double>(std::numeric_limits<std::int64_t>::max());
  double const product = std::min(keep_factor * static_cast<double>(most), no_limit / 2);
  auto const of_peak = static_cast<std::size_t>(product);
  std::size_t const kept_max = std::max(of_peak, device_store::kept_min);
  if (bytes_alive(false) + of.bytes > kept_max) {
    slot* const larger = own != nullptr ? take_larger(of, *own) : nullptr;
    if (larger != nullptr) {
      larger->surplus_ = larger->of_.bytes - of.bytes;
      surplus.fetch_add(larger->surplus_, std::memory_order_relaxed);
      return larger;
    }
    free_idle(of, kept_max);
  }
  return make_slot(of, seen);
}

std::size_t slot_pool::state::bytes_alive(bool is_in_use) noexcept {
  std::size_t sum = 0;
  for_each_size([&](size_class& each) {
    std::size_t const alive = each.slots.alive();
    if (alive == 0) return;
    std::size_t const idle = is_in_use ? each.free.count().listed : 0;
    sum += (alive - std::min(alive, idle)) * each.bytes;
  });
  return sum;
}

slot* slot_pool::state::take_larger(size_class const& of, stream_use const& own) {
  constexpr std::size_t larger_max = 4;
  for (size_class* each = of.larger(); each != nullptr; each = each->larger()) {
    if (each->bytes / larger_max > of.bytes) break;
    if (each->slots.alive() == 0) continue;
    if (slot* const found = take_own(*each, own)) return found;
    if (slot* const found = each->free.take_newest(free_lists::idle)) return found;
  }
  return nullptr;
}

void slot_pool::state::free_idle(size_class const& of, std::size_t kept_max) {
  device_scope const device(options.device);
  relaxed_capture_scope const relaxed;
  std::size_t left = bytes_alive(false);
  // Other threads may take what this one finds.
  for (std::size_t tries = slots_of(smallest, true); tries != 0; --tries) {
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
    for_each_size([&](size_class& each) {
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
      if (!unused->is_done_ && !is_done(*unused)) {
        destroy(*unused);  // after its work, by the worker
        continue;
      }
      from->slots.begin_end();
    }
    destroy_slot(*unused);
  }
}

}  // namespace escrow::inline v0_1
