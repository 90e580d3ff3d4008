// Blocks by size, their bytes, and what is given back.
#include "scratch_state.hpp"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"

namespace escrow::inline v0_1 {

namespace {

constexpr std::size_t step_max = std::size_t{2} << 20;

}  // namespace

std::size_t scratch_pool::block_bytes(std::size_t bytes) noexcept {
  std::size_t const least = std::max(bytes, bytes_min);
  std::size_t const step = std::min(std::bit_floor(least - 1) / 4, step_max);
  return (least + step - 1) / step * step;
}

slot_pool& scratch_pool::state::of(char const* call, std::size_t bytes) {
  std::size_t const size = block_bytes(bytes);
  // Consecutive sizes have different hashes: their number, four for each power of two.
  auto const power = static_cast<std::size_t>(std::bit_width(size) - 1);
  std::size_t const step = std::min(std::bit_floor(size) / 4, step_max);
  auto& first = by_size[(4 * power + size / step) % by_size.size()];
  size_class* const newest = first.load(std::memory_order_acquire);
  for (size_class* each = newest; each != nullptr; each = each->next) {
    if (each->bytes == size) return slots_of(*each);
  }
  std::lock_guard const lock(mutex);
  if (is_closed) {
    throw usage_error(call, "the pool \"" + label_of(size) + "\" is closed",
                      "claim before close_for()");
  }
  size_class* const now = first.load(std::memory_order_relaxed);  // written under the lock
  for (size_class* each = now; each != newest; each = each->next) {
    if (each->bytes == size) return slots_of(*each);
  }
  pool_options its = options;
  its.label = label_of(size);
  auto made = std::make_unique<size_class>(size_class{size, std::nullopt, now});
  made->pool.emplace(blocks(core, its, [this, size] { return make(size); }, {}, {}));
  core = &slots_of(*made).core();
  slots_of(*made).share(shared_from_this(), size);
  first.store(made.get(), std::memory_order_release);
  return slots_of(*made.release());
}

bool scratch_pool::state::reserve(std::size_t bytes) noexcept {
  std::size_t now = reserved.load(std::memory_order_relaxed);
  do {
    if (bytes > policy.bytes_max || now > policy.bytes_max - bytes) return false;
  } while (!reserved.compare_exchange_weak(now, now + bytes, std::memory_order_relaxed));
  return true;
}

device_block scratch_pool::state::make(std::size_t bytes) {
  device_block made(bytes, policy.source);
  std::size_t const now = total.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  grown.fetch_add(1, std::memory_order_relaxed);
  std::size_t most = peak.load(std::memory_order_relaxed);
  while (most < now && !peak.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
  }
  return made;
}

void scratch_pool::state::give_back(std::size_t bytes, bool was_made) noexcept {
  if (was_made) {
    total.fetch_sub(bytes, std::memory_order_relaxed);
    returned.fetch_add(1, std::memory_order_relaxed);
  }
  given_back.fetch_add(1, std::memory_order_relaxed);  // before there is room: see moves()
  reserved.fetch_sub(bytes, std::memory_order_relaxed);
}

bool scratch_pool::state::make_room(std::size_t bytes, bool is_out_of_memory) {
  if (is_out_of_memory) return trim(0) != 0;
  return bytes <= policy.bytes_max && trim(policy.bytes_max - bytes) != 0;
}

void scratch_pool::state::record_deferred(stream_ref stream, std::uint64_t stream_id) noexcept {
  for_each([&](size_class& each) { slots_of(each).record_deferred(stream, stream_id); });
}

void scratch_pool::state::give_all(stream_use const& on) noexcept {
  for_each([&](size_class& each) { slots_of(each).give_all(on); });
}

bool scratch_pool::state::is_room_coming(std::size_t bytes) noexcept {
  if (bytes > policy.bytes_max) return false;
  bool has_busy = false;
  std::size_t existing = 0;
  for_each([&](size_class& each) {
    has_busy = has_busy || slots_of(each).has_busy();
    existing += slots_of(each).stats().slots * each.bytes;
  });
  return has_busy || reserved.load(std::memory_order_relaxed) > existing;
}

std::uint64_t scratch_pool::state::moves() noexcept {
  std::uint64_t sum = given_back.load(std::memory_order_relaxed);
  for_each([&sum](size_class& each) { sum += slots_of(each).puts(); });
  return sum;
}

claimed_slot scratch_pool::state::claim_existing(char const* call, std::size_t bytes,
                                                 stream_ref stream, source_location where) {
  bool const is_captured =
      detail::called_at(call, where, [&] { return usable_capture_of(call, stream).is_active(); });
  if (!is_captured) return {};
  std::vector<size_class*> fitting;
  for_each([&](size_class& each) {
    if (each.bytes >= bytes) fitting.push_back(&each);
  });
  std::ranges::sort(fitting, {}, &size_class::bytes);
  for (size_class* const each : fitting) {
    claimed_slot const found = slots_of(*each).claim_existing(call, stream, where);
    if (found.what != nullptr) return found;
  }
  return {};
}

std::size_t scratch_pool::state::trim(std::size_t keep_bytes) {
  std::size_t freed = 0;
  for_each([&](size_class& each) {
    std::size_t const now = reserved.load(std::memory_order_relaxed);
    if (now <= keep_bytes) return;
    std::size_t const count_max = (now - keep_bytes + each.bytes - 1) / each.bytes;
    freed += slots_of(each).destroy_done(count_max) * each.bytes;
  });
  return freed;
}

void scratch_pool::state::give_back_unused() noexcept {
  clock::duration const now = clock::now().time_since_epoch();
  clock::duration last = checked_at.load(std::memory_order_relaxed);
  if (now - last < policy.idle_max) return;
  if (!checked_at.compare_exchange_strong(last, now, std::memory_order_relaxed)) return;
  for_each([](size_class& each) { slots_of(each).retire_unused(); });
}

scratch_stats scratch_pool::state::stats() const noexcept {
  scratch_stats now{.bytes = total.load(std::memory_order_relaxed),
                    .bytes_peak = peak.load(std::memory_order_relaxed),
                    .grown = grown.load(std::memory_order_relaxed),
                    .returned = returned.load(std::memory_order_relaxed)};
  for_each([&now](size_class& each) {
    pool_stats const its = slots_of(each).stats();
    std::size_t const idle = its.idle;
    now.bytes_idle += idle * each.bytes;
    now.bytes_unrecorded += its.unrecorded * each.bytes;
    now.bytes_in_graphs += its.in_graphs * each.bytes;
    if (its.slots > idle + its.in_graphs) {
      now.bytes_in_use += (its.slots - idle - its.in_graphs) * each.bytes;
    }
  });
  return now;
}

std::vector<holder> scratch_pool::state::holders() const {
  std::vector<holder> result;
  for_each([&result](size_class& each) {
    std::ranges::move(slots_of(each).holders(), std::back_inserter(result));
  });
  return result;
}

std::string scratch_pool::state::describe_claim(std::size_t bytes, source_location where,
                                                std::string const& named) const {
  scratch_stats const now = stats();
  std::string text =
      "claimed at " + std::string(where.file_name()) + ":" + std::to_string(where.line()) + ": " +
      std::to_string(bytes) + " bytes of \"" + label_of(block_bytes(bytes)) + "\"; \"" +
      options.label + "\" has " + std::to_string(now.bytes) + " bytes: leases hold " +
      std::to_string(now.bytes_in_use) + ", graphs hold " + std::to_string(now.bytes_in_graphs) +
      ", work may still run on " + std::to_string(now.bytes_idle) + " free ones";
  if (policy.bytes_max != scratch_policy{}.bytes_max) {
    text += "; scratch_policy::bytes_max is " + std::to_string(policy.bytes_max);
  }
  std::size_t count = 0;
  for (holder const& each : holders()) {
    if (each.label == named) continue;
    if (++count > 16) break;  // longer texts are not read
    text += "; \"" + each.label + "\": " + escrow::describe(each);
  }
  return text;
}

}  // namespace escrow::inline v0_1
