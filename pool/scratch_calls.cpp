// Public functions of scratch_pool, scratch_claimer and scratch_pools.
#include "escrow/pool/scratch_pool.hpp"

#include <algorithm>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/json.hpp"
#include "scratch_state.hpp"

namespace escrow::inline v0_1 {

std::shared_ptr<scratch_pool::state> scratch_pool::make_state(pool_options const& options,
                                                              scratch_policy const& policy) {
  auto made = std::make_shared<state>(options, policy);
  if (!policy.source.allocate || !policy.source.free) {
    throw usage_error("scratch_pool", "`policy.source` lacks a function",
                      "give both, allocate and free");
  }
  if (options.device < 0) made->options.device = current_device();
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
  if (state_ == nullptr) return;
  {
    std::lock_guard const lock(state_->mutex);
    state_->is_closed = true;
  }
  state_->for_each([](auto& each) { state::slots_of(each).close(); });
}

lease<device_block> scratch_pool::claim(stream_ref stream, std::size_t bytes,
                                        source_location where) {
  constexpr char const* call = "scratch_pool::claim";
  return state_->claim(call, bytes, stream, where,
                       [&] { return state_->of(call, bytes).claim(call, stream, where); });
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
  return pool_->claim(call, bytes, stream_, where,
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
  {
    std::lock_guard const lock(state_->mutex);
    state_->is_closed = true;
  }
  // Close all before waiting for the first.
  state_->for_each([](auto& each) { state::slots_of(each).close(); });
  state_->for_each([&](auto& each) {
    auto const left =
        std::max(timeout - (state::clock::now() - begin), std::chrono::nanoseconds(0));
    std::ranges::move(each.pool->close_for(left), std::back_inserter(result));
  });
  return result;
}

std::size_t scratch_pool::bytes() const noexcept {
  return state_->total.load(std::memory_order_relaxed);
}

std::vector<holder> scratch_pool::holders() const {
  return state_->holders();
}

scratch_stats scratch_pool::stats() const noexcept {
  return state_->stats();
}

std::string scratch_pool::describe() const {
  pool_options const& options = state_->options;
  std::string text = "scratch pool \"" + options.label + "\" on device " +
                     std::to_string(options.device) + ": " + to_json(stats());
  for (holder const& each : holders()) {
    text += "\n  \"" + each.label + "\": " + escrow::describe(each);
  }
  return text;
}

std::string to_json(scratch_stats const& stats) {
  return json_of({{"bytes", stats.bytes},
                  {"bytes_in_use", stats.bytes_in_use},
                  {"bytes_idle", stats.bytes_idle},
                  {"bytes_in_graphs", stats.bytes_in_graphs},
                  {"bytes_unrecorded", stats.bytes_unrecorded},
                  {"bytes_peak", stats.bytes_peak},
                  {"grown", stats.grown},
                  {"returned", stats.returned}});
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
