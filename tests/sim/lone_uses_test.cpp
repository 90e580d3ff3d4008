// SPDX-License-Identifier: Apache-2.0
// Two threads in what one at a time may use: told, unless something keeps one of them out.
#include <chrono>
#include <escrow/graph.hpp>
#include <escrow/pool.hpp>
#include <functional>
#include <latch>
#include <mutex>
#include <optional>
#include <thread>

#include "deep.hpp"
#include "handles.hpp"

namespace escrow::test {
namespace {

using namespace std::chrono_literals;

class LoneUse : public testing::Test {
 protected:
  LoneUse() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  void SetUp() override {
    if (built_with_tsan) GTEST_SKIP() << "ThreadSanitizer reports it";
  }

  // Each of two threads does so again and again, for so long that they do it at the same time.
  static void by_two_threads(std::function<void()> const& use, std::chrono::milliseconds time) {
    std::latch both(2);
    auto const uses = [&] {
      both.arrive_and_wait();
      auto const end = std::chrono::steady_clock::now() + time;
      while (std::chrono::steady_clock::now() < end) use();
    };
    std::thread other(uses);
    uses();
    other.join();
  }
  static void beside_each_other(std::function<void()> const& use) { by_two_threads(use, 2s); }
  static void in_turn(std::function<void()> const& use) {
    std::mutex mutex;
    auto const use_alone = [&] {
      std::lock_guard const lock(mutex);
      use();
    };
    by_two_threads(use_alone, 50ms);
  }
  [[nodiscard]] graph_exec exec_of_a_fill() {
    return graph_exec(escrow::capture(stream.get(), [this](stream_ref s) {
      auto const block = pool.claim<int>(s, 64);
      escrow::check(cudaMemsetAsync(block.data(), 0, 256, s.get()), "cudaMemsetAsync");
    }));
  }

  scratch_pool pool;
  owned_stream stream = make_stream();
};

TEST_F(LoneUse, OfAnExecByTwoThreadsIsToldWithBothCalls) {
  graph_exec exec = exec_of_a_fill();
  auto const use = [&] { exec.launch(stream.get()); };
  EXPECT_DEATH(
      beside_each_other(use),
      "graph_exec::launch on thread .* beside graph_exec::launch on thread .*, of one "
      "object: .*one thread at a time; give each thread its own, or let both lock a mutex");
  in_turn(use);
}

TEST_F(LoneUse, OfAnExecSetByTwoThreadsIsTold) {
  exec_set set;
  auto const of_size = [&](std::size_t n) {
    return set.add(escrow::capture(stream.get(), [&](stream_ref s) {
      escrow::check(cudaMemsetAsync(pool.claim<int>(s, n).data(), 0, 4, s.get()),
                    "cudaMemsetAsync");
    }));
  };
  auto const member = of_size(64);
  auto const use = [&] { set.launch(member, stream.get()); };
  EXPECT_DEATH(beside_each_other(use), "exec_set::launch on thread .* beside exec_set::launch");
  in_turn(use);
}

TEST_F(LoneUse, OfAClaimerByTwoThreadsIsTold) {
  auto local = pool.on(stream.get());
  auto const use = [&] { static_cast<void>(local.claim(256)); };
  EXPECT_DEATH(beside_each_other(use), "claimer::claim on thread .* beside ");
  in_turn(use);
}

TEST_F(LoneUse, OfALeaseThatEachThreadEndsInTurnIsRight) {
  std::optional<lease<device_block>> last;
  in_turn([&] { last.emplace(pool.claim(stream.get(), 256)); });
}

}  // namespace
}  // namespace escrow::test
