// One pool per size, created on first use, and the memory that they share.
#include "escrow/pool/scratch_pool.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/detail/device.hpp"
#include "escrow/detail/json.hpp"

namespace escrow::inline v0_1 {

namespace {

using blocks = resource_pool<device_block>;
using clock = std::chrono::steady_clock;

constexpr char const* claim_name = "scratch_pool::claim";  // in errors
constexpr std::size_t step_max = std::size_t{2} << 20;

}  // namespace

std::size_t scratch_pool::block_bytes(std::size_t bytes) noexcept {
  std::size_t const least = std::max(bytes, bytes_min);
  std::size_t const step = std::min(std::bit_floor(least - 1) / 4, step_max);
  return (least + step - 1) / step * step;
}

struct ESCROW_LOCAL scratch_pool::state final : memory_budget, std::enable_shared_from_this<state> {
  state(pool_options given, scratch_policy const& chosen)
      : options(std::move(given)), policy(chosen), checked_at(clock::now().time_since_epoch()) {}
  ~state() {
    for_each([](size_class& each) { delete &each; });
  }

  struct size_class {
    std::size_t bytes;           // of each block
    std::optional<blocks> pool;  // until the scratch_pool is destroyed
    size_class* next;            // with the same hash
  };

  // The pool for claims of `bytes`. Never removed: found without a lock.
  blocks& of(std::size_t bytes);
  template <class Call>
  void for_each(Call call) const {
    for (auto const& first : by_size) {
      for (size_class* next = first.load(std::memory_order_acquire); next != nullptr;) {
        call(*std::exchange(next, next->next));
      }
    }
  }
  // In a capture: the smallest block that fits, of those that graphs hold. Else an empty claim. An
  // idle one that is larger than asked for stays: eager claims would make it once more.
  [[nodiscard]] claimed_slot claim_existing(std::size_t bytes, stream_ref stream,
                                            source_location where);
  static slot_pool& slots_of(size_class& each) noexcept { return *each.pool->slots_; }
  // The pool's label in errors and holders.
  [[nodiscard]] std::string label_of(std::size_t size) const {
    return options.label + " of " + std::to_string(size) + " bytes";
  }

  std::size_t trim(std::size_t keep_bytes);
  void give_back_unused() noexcept;  // see scratch_policy::idle_max
  // What uses the memory, for the errors of a claim. `named`: the label of a pool whose holders the
  // error has named already.
  [[nodiscard]] std::string describe_claim(std::size_t bytes, source_location where,
                                           std::string const& named = {}) const;
  [[nodiscard]] std::vector<holder> holders() const;
  [[nodiscard]] scratch_stats stats() const noexcept;

  bool reserve(std::size_t bytes) noexcept override;
  device_block make(std::size_t bytes);
  void give_back(std::size_t bytes, bool was_made) noexcept override;
  bool make_room(std::size_t bytes, bool is_out_of_memory) override;
  bool is_room_coming(std::size_t bytes) noexcept override;
  std::uint64_t moves() noexcept override;

  pool_options options;
  scratch_policy const policy;
  // Guards the creation of sizes, `core` and `is_closed`. Held while a size is created, which runs
  // no destructor.
  std::mutex mutex;
  // That of the pools, which use it, and so keep it when the deleter is gone. Null before the
  // first.
  deleter_core* core = nullptr;
  bool is_closed = false;
  // Owned, by size. Stored with release under the lock, acquired by claims without it.
  std::array<std::atomic<size_class*>, 256> by_size{};

  // Bytes and counts. Relaxed: the memory itself is ordered by what allocates and frees it.
  std::atomic<std::size_t> reserved{0};  // for blocks, and for those that are being made
  std::atomic<std::size_t> total{0};     // of blocks
  std::atomic<std::size_t> peak{0};
  std::atomic<std::uint64_t> grown{0};
  std::atomic<std::uint64_t> returned{0};
  std::atomic<std::uint64_t> given_back{0};  // the same, and what was reserved in vain
  std::atomic<clock::duration> checked_at;   // for idle blocks; relaxed: a time
};

blocks& scratch_pool::state::of(std::size_t bytes) {
  std::size_t const size = block_bytes(bytes);
  // Consecutive sizes have different hashes: their number, four for each power of two.
  auto const power = static_cast<std::size_t>(std::bit_width(size) - 1);
  std::size_t const step = std::min(std::bit_floor(size) / 4, step_max);
  auto& first = by_size[(4 * power + size / step) % by_size.size()];
  size_class* const newest = first.load(std::memory_order_acquire);
  for (size_class* each = newest; each != nullptr; each = each->next) {
    if (each->bytes == size) return *each->pool;
  }
  std::lock_guard const lock(mutex);
  if (is_closed) {
    throw usage_error(claim_name, "the pool \"" + label_of(size) + "\" is closed",
                      "claim before close_for()");
  }
  size_class* const now = first.load(std::memory_order_relaxed);  // written under the lock
  for (size_class* each = now; each != newest; each = each->next) {
    if (each->bytes == size) return *each->pool;
  }
  pool_options its = options;
  its.label = label_of(size);
  auto made = std::make_unique<size_class>(
      size_class{size, blocks(core, its, [this, size] { return make(size); }, {}, {}), now});
  core = &slots_of(*made).core();
  slots_of(*made).share(shared_from_this(), size);
  first.store(made.get(), std::memory_order_release);
  return *made.release()->pool;
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

claimed_slot scratch_pool::state::claim_existing(std::size_t bytes, stream_ref stream,
                                                 source_location where) {
  bool const is_captured = detail::called_at(
      claim_name, where, [&] { return usable_capture_of(claim_name, stream).is_active(); });
  if (!is_captured) return {};
  std::vector<size_class*> fitting;
  for_each([&](size_class& each) {
    if (each.bytes >= bytes) fitting.push_back(&each);
  });
  std::ranges::sort(fitting, {}, &size_class::bytes);
  for (size_class* const each : fitting) {
    claimed_slot const found = slots_of(*each).claim_existing(claim_name, stream, where);
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
    std::size_t const idle = slots_of(each).free_slots();
    now.bytes_idle += idle * each.bytes;
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

std::shared_ptr<scratch_pool::state> scratch_pool::make_state(pool_options const& options,
                                                              scratch_policy const& policy) {
  auto made = std::make_shared<state>(options, policy);
  if (!policy.source.allocate || !policy.source.free) {
    throw usage_error("scratch_pool", "`policy.source` lacks a function",
                      "give both, allocate and free");
  }
  if (options.device < 0) made->options.device = current_device();
  made->of(bytes_min);  // checks the device
  return made;
}

scratch_pool::scratch_pool(scratch_pool&&) noexcept = default;
scratch_pool& scratch_pool::operator=(scratch_pool&& other) noexcept {
  scratch_pool taken(std::move(other));
  std::swap(state_, taken.state_);
  return *this;
}
scratch_pool::~scratch_pool() {
  // The state remains until the last block is freed.
  if (state_ != nullptr) state_->for_each([](auto& each) { each.pool.reset(); });
}

lease<device_block> scratch_pool::claim(stream_ref stream, std::size_t bytes,
                                        source_location where) {
  if (bytes > bytes_max) {
    throw usage_error(claim_name, "`bytes` is " + std::to_string(bytes),
                      "claim at most scratch_pool::bytes_max");
  }
  if (state_->policy.idle_max.count() != 0) state_->give_back_unused();
  try {
    if (state_->options.group) {
      claimed_slot const shared = state_->claim_existing(bytes, stream, where);
      if (shared.what != nullptr) return lease<device_block>(shared);
    }
    return state_->of(bytes).claim_as(claim_name, stream, where);
  } catch (pool_exhausted const& error) {
    throw pool_exhausted(
        std::string(error.what()) + "; " +
        state_->describe_claim(bytes, where, state_->label_of(block_bytes(bytes))));
  } catch (cuda_error const& error) {
    if (error.status() != cudaErrorMemoryAllocation) throw;
    throw cuda_error(error.status(), error.api(), where, state_->describe_claim(bytes, where));
  }
}

std::size_t scratch_pool::trim(std::size_t keep_bytes) {
  return state_->trim(keep_bytes);
}

std::vector<holder> scratch_pool::close_for(std::chrono::nanoseconds timeout) {
  auto const begin = clock::now();
  std::vector<holder> result;
  {
    std::lock_guard const lock(state_->mutex);
    state_->is_closed = true;
  }
  // Close all before waiting for the first.
  state_->for_each([](auto& each) { state::slots_of(each).close(); });
  state_->for_each([&](auto& each) {
    auto const left = std::max(timeout - (clock::now() - begin), std::chrono::nanoseconds(0));
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
    check(cudaErrorInvalidDevice, "cudaSetDevice");
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
