// SPDX-License-Identifier: Apache-2.0
// Which sizes there are, and how their bytes are counted.
#include "pool_sizes.hpp"

#include <algorithm>
#include <bit>

#include "escrow/core/error.hpp"
#include "escrow/pool/scratch_pool.hpp"

namespace escrow::inline v0_2 {

namespace {

constexpr std::size_t step_max = std::size_t{2} << 20;

std::string text_of(std::string const& label, std::size_t bytes) {
  return label + " of " + std::to_string(bytes) + " bytes";
}

}  // namespace

std::size_t scratch_pool::block_bytes(std::size_t bytes) noexcept {
  std::size_t const least = std::max(bytes, bytes_min);
  std::size_t const step = std::min(std::bit_floor(least - 1) / 4, step_max);
  std::size_t const more = (step - least % step) % step;
  return least + std::min(more, std::numeric_limits<std::size_t>::max() - least);
}

pool_sizes::pool_sizes(std::string label, std::size_t smallest_bytes, std::size_t most)
    : bytes_max(most),
      smallest(smallest_bytes, smallest_bytes != 0 ? text_of(label, smallest_bytes) : label),
      label_(std::move(label)) {}

pool_sizes::~pool_sizes() {
  size_class* next = smallest.next.load(std::memory_order_relaxed);  // no other user
  while (next != nullptr) {
    std::unique_ptr<size_class> const each(next);
    next = each->next.load(std::memory_order_relaxed);
  }
}

std::string pool_sizes::label_of(std::size_t bytes) const {
  return text_of(label_, bytes);
}

size_class* pool_sizes::larger_for(char const* call, std::size_t bytes) {
  if (bytes > scratch_pool::bytes_max) {
    throw usage_error(
        call, "`bytes` is " + detail::size_text(bytes),
        "claim at most scratch_pool::bytes_max (" + std::to_string(scratch_pool::bytes_max) + ")");
  }
  std::size_t const size = scratch_pool::block_bytes(bytes);
  // Consecutive sizes have different hashes: their number, four for each power of two.
  auto const power = static_cast<std::size_t>(std::bit_width(size) - 1);
  std::size_t const step = std::min(std::bit_floor(size) / 4, step_max);
  auto& last_used = last_used_[(4 * power + size / step) % last_used_.size()];
  size_class* its = last_used.load(std::memory_order_acquire);
  if (its != nullptr) tell_taken(its);
  if (its != nullptr && its->bytes == size) return its;
  std::lock_guard const lock(mutex_);
  if (is_closed()) return nullptr;
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
  return its;
}

void pool_sizes::close() noexcept {
  std::lock_guard const lock(mutex_);
  is_closed_.store(true, std::memory_order_relaxed);
}

bool pool_sizes::reserve(size_class const& of, std::size_t left_to_others) noexcept {
  std::size_t const for_all = bytes_max - std::min(bytes_max, bytes_leaked());
  std::size_t const most = for_all - std::min(for_all, left_to_others);
  std::size_t now = reserved_.load(std::memory_order_relaxed);
  do {
    if (of.bytes > most || now > most - of.bytes) return false;
  } while (!reserved_.compare_exchange_weak(now, now + of.bytes, std::memory_order_relaxed));
  return true;
}

void pool_sizes::give_back(size_class const& of, end how) noexcept {
  if (how == end::destroyed) returned_.fetch_add(1, std::memory_order_relaxed);
  if (how == end::leaked) leaked_.fetch_add(of.bytes_each(), std::memory_order_relaxed);
  given_back_.fetch_add(1, std::memory_order_relaxed);       // before there is room: see moves()
  reserved_.fetch_sub(of.bytes, std::memory_order_release);  // see look_for_room()
}

void pool_sizes::look_for_room(search_result& seen) noexcept {
  std::size_t existing = 0;
  for_each([&](size_class& each) {
    seen.is_on_its_way |= each.is_any_on_its_way();
    seen.is_busy |= each.free.lists() != 0;
    existing += each.slots.existing() * each.bytes;
  });
  // Acquire: if the room has come just now, moves() tells afterwards.
  seen.is_on_its_way |= reserved_.load(std::memory_order_acquire) > existing;
}

std::uint64_t pool_sizes::moves(size_class& of, bool is_of_all) noexcept {
  std::uint64_t sum = given_back_.load(std::memory_order_relaxed);
  auto const add = [&sum](size_class& each) { sum += each.free.count().puts; };
  is_of_all ? for_each(add) : add(of);
  return sum;
}

std::size_t pool_sizes::existing(size_class& of, bool is_of_all) noexcept {
  std::size_t sum = 0;
  auto const add = [&sum](size_class& each) { sum += each.slots.existing(); };
  is_of_all ? for_each(add) : add(of);
  return sum;
}

std::size_t pool_sizes::bytes_alive(bool is_in_use) noexcept {
  std::size_t sum = 0;
  for_each([&](size_class& each) {
    std::size_t const alive = each.slots.alive();
    if (alive == 0) return;
    std::size_t const idle = is_in_use ? each.free.count().listed : 0;
    sum += (alive - std::min(alive, idle)) * each.bytes;
  });
  return sum;
}

void pool_sizes::note_peak() noexcept {
  raise_to(bytes_peak_, bytes());
}

}  // namespace escrow::inline v0_2
