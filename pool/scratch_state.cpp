// Blocks by size, their bytes, and what is given back; the functions of scratch_pool,
// scratch_claimer and scratch_pools.
#include "escrow/pool/scratch_pool.hpp"

#include <algorithm>
#include <bit>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/device.hpp"
#include "scratch_state.hpp"

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
  auto const find = [size](size_class* each) {
    while (each != nullptr && each->bytes != size) each = each->next;
    return each;
  };
  if (size_class* const known = find(first.load(std::memory_order_acquire))) {
    return slots_of(*known);
  }
  std::lock_guard const lock(mutex);
  if (is_closed) {
    throw usage_error(call, "the pool \"" + label_of(size) + "\" is closed",
                      "claim before close_for()");
  }
  size_class* const newest = first.load(std::memory_order_relaxed);  // written under the lock
  if (size_class* const known = find(newest)) return slots_of(*known);
  pool_options its = options;
  its.label = label_of(size);
  auto made = std::make_unique<size_class>(size_class{size, std::nullopt, newest});
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
  std::size_t const now = reserved.load(std::memory_order_relaxed);
  std::size_t most = peak.load(std::memory_order_relaxed);
  while (most < now && !peak.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
  }
  return made;
}

void scratch_pool::state::give_back(std::size_t bytes, bool was_made) noexcept {
  if (was_made) returned.fetch_add(1, std::memory_order_relaxed);
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

claimed_slot scratch_pool::state::claim_existing(claim_request const& asked, std::size_t bytes) {
  bool const is_captured = detail::called_at(asked.call, asked.where, [&] {
    return usable_capture_of(asked.call, asked.stream).is_active();
  });
  if (!is_captured) return {};
  std::vector<size_class*> fitting;
  for_each([&](size_class& each) {
    if (each.bytes >= bytes) fitting.push_back(&each);
  });
  std::ranges::sort(fitting, {}, &size_class::bytes);
  for (size_class* const each : fitting) {
    claimed_slot const found = slots_of(*each).claim_existing(asked);
    if (found.what != nullptr) return found;
  }
  return {};
}

void scratch_pool::state::close() noexcept {
  {
    std::lock_guard const lock(mutex);
    is_closed = true;
  }
  for_each([](size_class& each) { slots_of(each).close(); });
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

std::shared_ptr<scratch_pool::state> scratch_pool::make_state(pool_options const& options,
                                                              scratch_policy const& policy) {
  auto made = std::make_shared<state>(options, policy);
  if (!policy.source.allocate || !policy.source.free) {
    throw usage_error("scratch_pool", "`policy.source` lacks a function",
                      "give both, allocate and free");
  }
  if (options.device == -1) made->options.device = current_device();
  // The pools of the sizes end with the last owner of this: the scratch_pool or a claimer. Their
  // slots keep the state beyond that.
  std::shared_ptr<void> const owner(nullptr, [made](void*) {
    made->for_each([](state::size_class& each) { each.pool.reset(); });
  });
  made->of("scratch_pool", bytes_min);  // checks the device
  return {owner, made.get()};
}

scratch_pool::scratch_pool(scratch_pool&&) noexcept = default;
scratch_pool& scratch_pool::operator=(scratch_pool&& other) noexcept {
  scratch_pool taken(std::move(other));
  std::swap(state_, taken.state_);
  return *this;
}
scratch_pool::~scratch_pool() {
  if (state_ != nullptr) state_->close();
}

lease<device_block> scratch_pool::claim(stream_ref stream, std::size_t bytes,
                                        source_location where) {
  claim_request const asked{"scratch_pool::claim", stream, where};
  return state_->claim(asked, bytes, [&] { return state_->of(asked.call, bytes).claim(asked); });
}

scratch_claimer scratch_pool::on(stream_ref stream, source_location where) {
  return {state_, stream, where};
}

scratch_claimer::scratch_claimer(std::shared_ptr<scratch_pool::state> pool, stream_ref stream,
                                 source_location where)
    : pool_(std::move(pool)), stream_(stream.get()) {
  static_cast<void>(of("scratch_pool::on", scratch_pool::bytes_min, where));  // checks the stream
}

scratch_claimer::scratch_claimer(scratch_claimer&&) noexcept = default;
scratch_claimer& scratch_claimer::operator=(scratch_claimer&&) noexcept = default;
scratch_claimer::~scratch_claimer() = default;

claimer_slots& scratch_claimer::of(char const* call, std::size_t bytes, source_location where) {
  std::size_t const size = scratch_pool::block_bytes(bytes);
  auto const known = sizes_.find(size);
  if (known != sizes_.end()) [[likely]]
    return known->second;
  device_scope const current(pool_->options.device);  // the null stream is the current device's
  return sizes_.try_emplace(size, call, pool_->of(call, size), stream_, where).first->second;
}

lease<device_block> scratch_claimer::claim(std::size_t bytes, source_location where) {
  constexpr char const* call = "scratch_claimer::claim";
  if (pool_ == nullptr) claimer_slots::refuse_moved_from(call);
  std::optional<device_scope> device;  // of the stream: all sizes are asked about it
  if (is_ambiguous(stream_)) {
    static_cast<void>(sizes_.begin()->second.require_pool(call));  // on its thread
    detail::called_at(call, where, [&] { device.emplace(pool_->options.device); });
  }
  return pool_->claim({call, stream_, where}, bytes,
                      [&] { return of(call, bytes, where).claim(call, where); });
}

void scratch_claimer::flush(source_location where) {
  constexpr char const* call = "scratch_claimer::flush";
  if (pool_ == nullptr) claimer_slots::refuse_moved_from(call);
  for (auto& [size, claims] : sizes_) claims.flush(call, where);
}

std::size_t scratch_pool::trim(std::size_t keep_bytes) {
  return state_->trim(keep_bytes);
}

std::vector<holder> scratch_pool::close_for(std::chrono::nanoseconds timeout) {
  auto const begin = state::clock::now();
  std::vector<holder> result;
  state_->close();  // all, before waiting for the first
  state_->for_each([&](auto& each) {
    auto const left =
        std::max(timeout - (state::clock::now() - begin), std::chrono::nanoseconds(0));
    std::ranges::move(each.pool->close_for(left), std::back_inserter(result));
  });
  return result;
}

std::size_t scratch_pool::bytes() const noexcept {
  return state_->reserved.load(std::memory_order_relaxed);
}

std::size_t scratch_pools::device_count() {
  int devices = 0;
  check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  return static_cast<std::size_t>(devices);
}

scratch_pool& scratch_pools::on(int device) {
  if (device < 0 || static_cast<std::size_t>(device) >= places_.size()) {
    throw cuda_error(cudaErrorInvalidDevice, "cudaSetDevice");
  }
  place& its = places_[static_cast<std::size_t>(device)];
  std::call_once(its.is_made, [&] {
    pool_options chosen = options_;
    chosen.device = device;
    its.pool.emplace(chosen, policy_);
  });
  return *its.pool;
}

}  // namespace escrow::inline v0_1
