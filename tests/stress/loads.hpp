// Everything that a program does with the library, as loads that run beside each other: the long
// run measures them, and no capture may be harmed by them.
#pragma once

#include <algorithm>
#include <bit>
#include <escrow/nodes.hpp>
#include <mutex>
#include <string>

#include "stress_world.hpp"

namespace escrow::test {

/// Kinds of operations that are counted.
enum class deed { claim, retire, share, scratch, capture, launch, build, pool, plain, count };
inline constexpr std::array deed_names{"claims",       "retirements", "shares",
                                       "scratch",      "captures",    "launches",
                                       "graphs built", "pools",       "plain execs"};
inline constexpr std::size_t deeds = static_cast<std::size_t>(deed::count);

/// How long calls take: a histogram with steps of a sixteenth. Any thread may add while another
/// takes what came so far. Relaxed: they are counts.
class latency {
 public:
  /// Times `call`, and returns what it returns.
  template <class Call>
  auto time(Call call) {
    struct timer {
      latency& to;
      std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
      ~timer() { to.add(std::chrono::steady_clock::now() - begin); }
    } const running{*this};
    return call();
  }
  /// p50, p99 and p99.9 of what came since the last call, in microseconds.
  [[nodiscard]] std::array<double, 3> take() {
    std::array<std::uint64_t, buckets> counts{};
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < buckets; ++i) {
      total += counts[i] = counts_[i].exchange(0, std::memory_order_relaxed);
    }
    auto const at = [&](double share) {
      auto left = static_cast<std::int64_t>(static_cast<double>(total) * share);
      std::size_t i = 0;
      while (i < buckets && (left -= static_cast<std::int64_t>(counts[i])) >= 0) ++i;
      if (i == buckets) return 0.0;
      double const ns = static_cast<double>(i < 32 ? i : (i % 16 + 16) << (i / 16 - 1));
      return ns / 1000;
    };
    return {at(0.5), at(0.99), at(0.999)};
  }

 private:
  static constexpr std::size_t buckets = 640;  // up to some minutes

  void add(std::chrono::nanoseconds taken) {
    auto const ns = static_cast<std::uint64_t>(taken.count());
    auto const shift = std::max<std::size_t>(static_cast<std::size_t>(std::bit_width(ns)), 5) - 5;
    std::size_t const bucket = ns < 16 ? ns : shift * 16 + static_cast<std::size_t>(ns >> shift);
    counts_[std::min(buckets - 1, bucket)].fetch_add(1, std::memory_order_relaxed);
  }

  std::array<std::atomic<std::uint64_t>, buckets> counts_{};
};

/// What all loads go through, on all devices.
struct load_arena {
  void did(deed what) {
    done[static_cast<std::size_t>(what)].fetch_add(1, std::memory_order_relaxed);
    if (leaks) leaked = new std::array<char, 100>;
  }
  [[nodiscard]] std::uint64_t count_of(deed what) const {
    return done[static_cast<std::size_t>(what)].load(std::memory_order_relaxed);
  }
  /// So that nobody is ever far ahead of a deleter.
  void catch_up(deleter& behind) {
    if (!behind.drain_for(std::chrono::seconds(30))) fail("a drain took more than 30 s");
  }
  /// The first failure ends the run.
  void fail(std::string what) {
    std::lock_guard const lock(mutex_);
    if (failure_.empty()) failure_ = std::move(what);
    counts.stop.store(true, std::memory_order_relaxed);
  }
  [[nodiscard]] std::string failed() {
    std::lock_guard const lock(mutex_);
    return failure_;
  }
  [[nodiscard]] deleter_options reporting() {
    deleter_options chosen;
    chosen.on_error = [this](std::exception const& error) { fail(error.what()); };
    return chosen;
  }
  [[nodiscard]] owner new_owner() { return {counts, none}; }

  bool leaks = false;              // 100 bytes at each operation
  bool may_exhaust = false;        // whether others hold so many slots that a claim may fail
  std::uint64_t relaunches = 200;  // up to ten times as many of one exec
  std::atomic<std::array<char, 100>*> leaked{nullptr};
  std::array<std::atomic<std::uint64_t>, deeds> done{};
  latency claims;
  latency launches;
  latency retirements;

 private:
  std::mutex mutex_;  // guards failure_
  std::string failure_;

 public:
  pinned_ints cells{4};
  work const none{cells, 3};
  arena counts{worker, cells};
  deleter worker{reporting()};
  deleter freer{reporting()};  // what ends with cudaFree, which waits for the device
};

/// What the pools have: device memory, counted.
struct pooled {
  static constexpr std::size_t bytes = 4096;
  explicit pooled(load_arena& all) : memory(bytes), one(all.new_owner()) {}
  [[nodiscard]] int* data() const { return static_cast<int*>(memory.data()); }

  device_block memory;
  owner one;
};
using pooled_pool = resource_pool<pooled>;

/// What the loads of one device share. Made and destroyed while nobody captures.
struct site {
  site(int its_device, load_arena& all)
      : device(its_device),
        pool(options(its_device, all), [&all] { return pooled(all); }),
        scratch(options(its_device, all)) {}

  static pool_options options(int device, load_arena& all) {
    return {.slots_max = 64,
            .device = device,
            .host_wait_max = std::chrono::milliseconds(all.may_exhaust ? 1 : 20'000),
            .label = "loads",
            .deleter = &all.worker};
  }

  int device;
  pinned_ints cells{4};
  pooled_pool pool;
  scratch_pool scratch;
};

/// One thread with one kind of load, of which it does round after round.
class loader : public actor {
 public:
  using load = void (loader::*)();

  loader(load_arena& all, site& here, std::uint64_t number, load its)
      : actor(all.counts, number, 32), all_(all), here_(here), load_(its) {
    sync_interval_ = 64;
  }
  /// Until the arena stops. A failure stops it.
  void run_on_device() {
    try {
      must(cudaSetDevice(here_.device));
      run();
    } catch (std::exception const& error) {
      all_.fail(error.what());
    }
  }

  void claim_and_release();
  void retire_eagerly();
  void share_with_streams();
  void use_scratch();
  void capture_and_relaunch();
  void build_and_change();
  void come_and_go();
  /// What a library may do, also in a capture.
  void enqueue(stream_ref on);
  [[nodiscard]] cudaStream_t stream() const { return streams_[0]; }

 private:
  void step() override {
    try {
      (this->*load_)();
    } catch (pool_exhausted const&) {
      if (!all_.may_exhaust) throw;
    }
    ++rounds_;
  }

  void fill_with(cudaStream_t on, device_block const& memory, int value) {
    must(launch_fill(on, static_cast<int*>(memory.data()), 16, value));
  }
  /// A block that kernels take for integers. Freed by the worker, or by whoever has the last share.
  [[nodiscard]] std::shared_ptr<int> shared_block() {
    auto block =
        relaxed([this] { return make_stream_shared_by<device_block>(all_.freer, pooled::bytes); });
    int* const data = static_cast<int*>(block->data());
    return {std::move(block), data};
  }
  [[nodiscard]] graph captured(cudaStream_t stream) {
    graph result = escrow::capture(
        stream, [this](stream_ref on) { enqueue(on); }, any_mode());
    all_.did(deed::capture);
    return result;
  }
  void launch_often(graph_exec& exec, std::uint64_t times, cudaStream_t on) {
    for (std::uint64_t i = 0; i < times; ++i) {
      all_.launches.time([&] { exec.launch(on); });
      all_.did(deed::launch);
      if (i % 32 == 31) sync_streams();
    }
  }

  load_arena& all_;
  site& here_;
  load load_;
  unsigned rounds_ = 0;
  kernel const fills_{kernel_address(kernel_id::fill)};
  kernel const adds_{kernel_address(kernel_id::add)};
};

inline constexpr std::array<std::pair<char const*, loader::load>, 7> all_loads{{
    {"claim_and_release", &loader::claim_and_release},
    {"retire_eagerly", &loader::retire_eagerly},
    {"share_with_streams", &loader::share_with_streams},
    {"use_scratch", &loader::use_scratch},
    {"capture_and_relaunch", &loader::capture_and_relaunch},
    {"build_and_change", &loader::build_and_change},
    {"come_and_go", &loader::come_and_go},
}};

}  // namespace escrow::test
