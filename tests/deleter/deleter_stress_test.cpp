// Many threads, streams, captures and launches retire at random: every owner is destroyed exactly
// once and never early.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "capturing.hpp"
#include "escrow/core/capture.hpp"
#include "escrow/deleter/deleter.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "stress_time.hpp"
#include "wait_until.hpp"

namespace escrow {
namespace {

struct tally {
  std::atomic<std::uint64_t> made{0};
  std::atomic<std::uint64_t> destroyed{0};
  std::atomic<std::uint64_t> early{0};
};

// Owns a counter that kernels add to; `expected` additions must have happened when it is destroyed.
class counter_owner {
 public:
  counter_owner(tally& all, test::pinned_ints& cells, std::size_t index,
                std::shared_ptr<std::atomic<int>> expected)
      : all_(&all), cells_(&cells), index_(index), expected_(std::move(expected)) {
    all_->made.fetch_add(1, std::memory_order_relaxed);
  }
  counter_owner(counter_owner&&) noexcept = default;
  ~counter_owner() {
    if (expected_ == nullptr) return;
    if (cells_->load(index_) != expected_->load(std::memory_order_acquire)) {
      all_->early.fetch_add(1, std::memory_order_relaxed);
    }
    all_->destroyed.fetch_add(1, std::memory_order_release);
  }

 private:
  tally* all_;
  test::pinned_ints* cells_;
  std::size_t index_;
  std::shared_ptr<std::atomic<int>> expected_;
};

// What one thread does; its cells are its own and used once each.
class actor {
 public:
  static constexpr std::size_t cells_max = 200'000;

  actor(deleter& its, tally& all, unsigned seed)
      : deleter_(its), all_(all), cells_(cells_max), random_(seed) {
    for (auto& stream : streams_) stream = test::make_stream();
  }

  void run(std::chrono::steady_clock::time_point end) {
    while (std::chrono::steady_clock::now() < end && next_ + 16 < cells_max) step();
  }
  // Not while others capture: it would kill a Global capture.
  void sync() const {
    for (auto const& stream : streams_) test::must(cudaStreamSynchronize(stream));
  }

 private:
  void step() {
    switch (random_() % 6) {
      case 0:
      case 1:
        return eager();
      case 2:
        return after_event();
      case 3:
        return captured();
      case 4:
        return deleter_.retire(owner(next_++, 0));
      default:
        return chained();
    }
  }

  [[nodiscard]] cudaStream_t stream() { return streams_[random_() % streams_.size()]; }
  [[nodiscard]] counter_owner owner(std::size_t cell, int expected) {
    return {all_, cells_, cell, std::make_shared<std::atomic<int>>(expected)};
  }

  void eager() {
    cudaStream_t const on = stream();
    std::size_t const cell = next_++;
    int const launches = 1 + static_cast<int>(random_() % 3);
    for (int i = 0; i < launches; ++i) test::must(test::launch_add(on, cells_.data() + cell, 1));
    deleter_.retire(on, owner(cell, launches));
  }

  void after_event() {
    cudaStream_t const on = stream();
    std::size_t const cell = next_++;
    auto event = std::make_shared<test::owned_event>(test::make_event());
    test::must(test::launch_add(on, cells_.data() + cell, 1));
    test::must(cudaEventRecord(*event, on));
    cudaEvent_t const ready = *event;
    deleter_.retire_after(ready, [kept = std::move(event), last = owner(cell, 1)] {});
  }

  // Captured, instantiated up to twice, launched up to three times each, and let go in any order.
  void captured() {
    cudaStream_t const on = stream();
    std::size_t const cell = next_++;
    auto const expected = std::make_shared<std::atomic<int>>(0);
    static constexpr std::array modes{cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                                      cudaStreamCaptureModeRelaxed};
    test::capture capturing(on, modes[random_() % modes.size()]);
    test::must(test::launch_add(on, cells_.data() + cell, 1));
    deleter_.retire(on, counter_owner(all_, cells_, cell, expected));
    test::must(capturing.end());
    relaxed_capture_scope const relaxed;  // others capture in Global mode meanwhile
    std::vector<test::owned_exec> execs;
    for (std::uint64_t i = random_() % 3; i != 0; --i) {
      execs.push_back(test::instantiate(capturing.graph()));
    }
    if (random_() % 2 == 0) capturing.graph().reset();
    for (test::owned_exec const& exec : execs) {
      for (std::uint64_t i = random_() % 4; i != 0; --i) {
        expected->fetch_add(1, std::memory_order_release);
        test::must(cudaGraphLaunch(exec, stream()));
      }
    }
  }

  // An owner that retires the next one from its destructor.
  void chained() {
    struct link {
      link(deleter& d, counter_owner&& o) : its(&d), inner(new counter_owner(std::move(o))) {}
      link(link&&) noexcept = default;
      ~link() {
        if (inner != nullptr) its->retire(std::move(inner));
      }
      deleter* its;
      std::unique_ptr<counter_owner> inner;
    };
    cudaStream_t const on = stream();
    std::size_t const cell = next_++;
    test::must(test::launch_add(on, cells_.data() + cell, 1));
    deleter_.retire(on, link(deleter_, owner(cell, 1)));
  }

  deleter& deleter_;
  tally& all_;
  test::pinned_ints cells_;
  std::mt19937_64 random_;
  std::size_t next_ = 0;
  std::array<test::owned_stream, 3> streams_;
};

void run_actors(std::vector<std::unique_ptr<actor>> const& actors, std::chrono::milliseconds time) {
  auto const end = std::chrono::steady_clock::now() + time;
  std::vector<std::thread> threads;
  for (auto const& one : actors) threads.emplace_back([&one, end] { one->run(end); });
  for (std::thread& thread : threads) thread.join();
  for (auto const& one : actors) one->sync();
}

TEST(DeleterStress, EveryOwnerIsDestroyedOnceAndNeverEarly) {
  tally all;
  deleter its;
  std::vector<std::unique_ptr<actor>> actors;
  for (unsigned i = 0; i < 4; ++i) actors.push_back(std::make_unique<actor>(its, all, i + 1));
  run_actors(actors, test::stress_time() / 2);
  its.drain();
  EXPECT_TRUE(test::wait_until([&] {
    return all.destroyed.load(std::memory_order_acquire) == all.made.load();
  })) << all.destroyed
      << " of " << all.made;
  EXPECT_EQ(all.early, 0U);
  EXPECT_GT(all.made, 100U);
  EXPECT_TRUE(its.stop_for(test::generous));
  EXPECT_EQ(its.stats().leaked, 0U);
  EXPECT_EQ(its.stats().errors, 0U);
}

// Deleters end while CUDA still gives back what their graphs held.
TEST(DeleterStress, DeletersThatEndAtAnyMomentLeaveNothing) {
  tally all;
  test::pinned_ints cells(1);
  test::owned_stream const stream = test::make_stream();
  auto const end = std::chrono::steady_clock::now() + test::stress_time() / 2;
  std::mt19937_64 random(7);
  auto const expected = std::make_shared<std::atomic<int>>(0);
  while (std::chrono::steady_clock::now() < end) {
    deleter its(deleter_options{.own_worker = random() % 4 != 0,
                                .poll_interval_min = std::chrono::microseconds(5),
                                .poll_interval_max = std::chrono::microseconds(20)});
    test::capture capturing(stream, cudaStreamCaptureModeThreadLocal);
    test::must(test::launch_tiny(stream));
    for (std::uint64_t i = random() % 4; i != 0; --i) {
      its.retire(stream, counter_owner(all, cells, 0, expected));
    }
    test::must(capturing.end());
    test::owned_exec exec = test::instantiate(capturing.graph());
    test::must(cudaGraphLaunch(exec, stream));
    if (random() % 2 == 0) test::must(cudaStreamSynchronize(stream));
    its.retire(stream, counter_owner(all, cells, 0, expected));
    capturing.graph().reset();
    exec.reset();
    if (random() % 2 == 0) {
      static_cast<void>(test::wait_until([&] { return its.stats().in_graphs == 0; },
                                         std::chrono::milliseconds(random() % 2)));
    }
  }
  EXPECT_TRUE(test::wait_until([&] {
    return all.destroyed.load(std::memory_order_acquire) == all.made.load();
  })) << all.destroyed
      << " of " << all.made;
  EXPECT_EQ(all.early, 0U);
}

}  // namespace
}  // namespace escrow
