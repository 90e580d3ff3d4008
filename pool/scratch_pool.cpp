// One pool per power of two, created on first use.
#include "escrow/pool/scratch_pool.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <mutex>
#include <string>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/detail/device.hpp"
#include "escrow/detail/retry_cleanup.hpp"

namespace escrow::inline v0_1 {

device_block::device_block(std::size_t bytes) : bytes_(bytes) {
  check(cudaMalloc(&data_, bytes), "cudaMalloc");
}

device_block::~device_block() {
  if (data_ != nullptr) retry_cleanup([this] { return cudaFree(data_); });
}

namespace {

using blocks = resource_pool<device_block>;

constexpr char const* claim_name = "scratch_pool::claim";  // in errors

constexpr std::size_t smallest = std::bit_width(scratch_pool::bytes_min) - 1;
constexpr std::size_t sizes = std::bit_width(scratch_pool::bytes_max) - smallest;

std::size_t size_index(std::size_t bytes) noexcept {
  return static_cast<std::size_t>(std::bit_width(std::max(bytes, scratch_pool::bytes_min) - 1)) -
         smallest;
}

}  // namespace

struct ESCROW_LOCAL scratch_pool::state {
  explicit state(pool_options given) : options(std::move(given)) {}
  state(state&&) = delete;
  ~state() {
    for (auto const& each : made) delete each.load(std::memory_order_acquire);
  }

  blocks& of(std::size_t bytes);  // the pool for claims of `bytes`
  // The pool's label in errors and holders.
  [[nodiscard]] std::string label_of(std::size_t size) const {
    return options.label + " of " + std::to_string(size) + " bytes";
  }

  pool_options options;
  // Guards pool creation and `is_closed`. Held while one is created, which runs no destructor.
  std::mutex mutex;
  bool is_closed = false;
  // Owned, by size. Stored with release under the lock, acquired by claims without it.
  std::array<std::atomic<blocks*>, sizes> made{};
};

blocks& scratch_pool::state::of(std::size_t bytes) {
  std::size_t const index = size_index(bytes);
  if (blocks* const ready = made[index].load(std::memory_order_acquire)) return *ready;
  std::size_t const size = std::size_t{1} << (index + smallest);
  std::lock_guard const lock(mutex);
  if (is_closed) {
    throw usage_error(claim_name, "the pool \"" + label_of(size) + "\" is closed",
                      "claim before close_for()");
  }
  blocks* its = made[index].load(std::memory_order_acquire);
  if (its == nullptr) {
    pool_options each = options;
    each.label = label_of(size);
    its = new blocks(each, [size] { return device_block(size); });
    made[index].store(its, std::memory_order_release);
  }
  return *its;
}

scratch_pool::scratch_pool(pool_options const& options) : state_(std::make_unique<state>(options)) {
  if (options.device < 0) state_->options.device = current_device();
  state_->of(bytes_min);  // checks the device
}

scratch_pool::scratch_pool(scratch_pool&&) noexcept = default;
scratch_pool& scratch_pool::operator=(scratch_pool&&) noexcept = default;
scratch_pool::~scratch_pool() = default;

lease<device_block> scratch_pool::claim(stream_ref stream, std::size_t bytes,
                                        source_location where) {
  if (bytes > bytes_max) {
    throw usage_error(claim_name, "`bytes` is " + std::to_string(bytes),
                      "claim at most scratch_pool::bytes_max");
  }
  return state_->of(bytes).claim_as(claim_name, stream, where);
}

std::vector<holder> scratch_pool::close_for(std::chrono::nanoseconds timeout) {
  using clock = std::chrono::steady_clock;
  auto const begin = clock::now();
  std::vector<holder> result;
  {
    std::lock_guard const lock(state_->mutex);
    state_->is_closed = true;
  }
  // Close all before waiting for the first.
  for (auto const& each : state_->made) {
    if (blocks* const pool = each.load(std::memory_order_acquire)) pool->slots_->close();
  }
  for (auto const& each : state_->made) {
    blocks* const pool = each.load(std::memory_order_acquire);
    if (pool == nullptr) continue;
    auto const left = std::max(timeout - (clock::now() - begin), std::chrono::nanoseconds(0));
    std::ranges::move(pool->close_for(left), std::back_inserter(result));
  }
  return result;
}

std::size_t scratch_pool::bytes() const noexcept {
  std::size_t total = 0;
  for (std::size_t index = 0; index < sizes; ++index) {
    blocks const* const pool = state_->made[index].load(std::memory_order_acquire);
    if (pool != nullptr) total += pool->stats().slots << (index + smallest);
  }
  return total;
}

}  // namespace escrow::inline v0_1
