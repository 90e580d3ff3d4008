// What the loads of the long run share: a deleter, pools on each device, counts and latencies.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <escrow/deleter.hpp>
#include <escrow/graph.hpp>
#include <escrow/nodes.hpp>
#include <escrow/pool.hpp>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "capturing.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "latency.hpp"
#include "memory.hpp"

namespace escrow::test {

using dice = std::minstd_rand;

/// Kinds of operations that are counted.
enum class deed { claim, retire, share, scratch, capture, launch, build, pool, plain, count };
inline constexpr std::array deed_names{"claims",       "retirements", "shares",
                                       "scratch",      "captures",    "launches",
                                       "graphs built", "pools",       "plain execs"};
inline constexpr std::size_t deeds = static_cast<std::size_t>(deed::count);

/// How many objects were made and destroyed.
struct tally {
  std::atomic<std::uint64_t> made{0};
  std::atomic<std::uint64_t> destroyed{0};
};

/// An owner that counts itself, with some memory of its own.
class counted {
 public:
  explicit counted(tally& all) : all_(&all), memory_(new std::array<char, 64>) {
    all.made.fetch_add(1, std::memory_order_relaxed);
  }
  counted(counted&& other) noexcept
      : all_(std::exchange(other.all_, nullptr)), memory_(std::move(other.memory_)) {}
  counted& operator=(counted&&) = delete;
  ~counted() {
    if (all_ != nullptr) all_->destroyed.fetch_add(1, std::memory_order_release);
  }

 private:
  tally* all_;
  std::unique_ptr<std::array<char, 64>> memory_;
};

/// What the pools have: device memory, counted.
struct pooled {
  explicit pooled(tally& all) : memory(bytes), one(all) {}
  static constexpr std::size_t bytes = 4096;
  static constexpr std::size_t length = bytes / sizeof(int);

  [[nodiscard]] int* data() const { return static_cast<int*>(memory.data()); }

  device_block memory;
  counted one;
};
using pooled_pool = resource_pool<pooled>;

/// What everything goes through, on all devices.
struct world {
  explicit world(bool leaks_on_purpose) : leaks(leaks_on_purpose) {}

  void did(deed what) {
    done[static_cast<std::size_t>(what)].fetch_add(1, std::memory_order_relaxed);
    if (leaks) leaked = new std::array<char, 100>;
  }
  [[nodiscard]] double count_of(deed what) const {
    return static_cast<double>(
        done[static_cast<std::size_t>(what)].load(std::memory_order_relaxed));
  }
  [[nodiscard]] bool ends() const { return stop.load(std::memory_order_relaxed); }
  /// So that nobody is ever far ahead of a deleter.
  void catch_up(deleter& behind) {
    if (!behind.drain_for(std::chrono::seconds(30))) fail("a drain took more than 30 s");
  }
  /// The first failure ends the run.
  void fail(std::string what) {
    std::lock_guard const lock(mutex);
    if (failure.empty()) failure = std::move(what);
    stop.store(true, std::memory_order_relaxed);
  }
  [[nodiscard]] std::string failed() {
    std::lock_guard const lock(mutex);
    return failure;
  }
  [[nodiscard]] deleter_options reporting() {
    deleter_options chosen;
    chosen.on_error = [this](std::exception const& error) { fail(error.what()); };
    return chosen;
  }

  bool const leaks;
  std::atomic<std::array<char, 100>*> leaked{nullptr};
  tally objects;
  std::array<std::atomic<std::uint64_t>, deeds> done{};
  latency claims;
  latency launches;
  latency retirements;
  std::atomic<bool> stop{false};
  deleter worker{reporting()};
  deleter freer{reporting()};  // what ends with cudaFree, which waits for the device

 private:
  std::mutex mutex;  // guards failure
  std::string failure;
};

/// What the loads of one device share.
struct site {
  site(int its_device, world& all)
      : device(its_device),
        pool(options(its_device, all), [&all] { return pooled(all.objects); }),
        scratch(options(its_device, all)) {}

  static pool_options options(int device, world& all) {
    return {.slots_max = 64,
            .device = device,
            .host_wait_max = std::chrono::seconds(20),
            .label = "long run",
            .deleter = &all.worker};
  }

  int device;
  pinned_ints cells{4};  // made and freed while nobody captures
  pooled_pool pool;
  scratch_pool scratch;
};

/// For calls that a capture of another thread would not survive.
template <class Call>
auto relaxed(Call call) {
  thread_mode_scope const scope{cudaStreamCaptureModeRelaxed};
  return call();
}

inline void sync_relaxed(cudaStream_t stream) {
  relaxed([&] { must(cudaStreamSynchronize(stream)); });
}

/// One kind of load: runs on a thread of its own, with the site's device current, until
/// world::ends().
using load = void (*)(world&, site&, dice&);

void claim_and_release(world& all, site& here, dice& random);
void retire_eagerly(world& all, site& here, dice& random);
void share_with_streams(world& all, site& here, dice& random);
void use_scratch(world& all, site& here, dice& random);
void capture_and_relaunch(world& all, site& here, dice& random);
void build_and_change(world& all, site& here, dice& random);
void come_and_go(world& all, site& here, dice& random);

}  // namespace escrow::test
