// The law of destroy callbacks: no CUDA call, no allocation, no lock and no wait, however far
// behind the worker is.
#include <gtest/gtest.h>
#include <unistd.h>

#include <sys/syscall.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "build_graph.hpp"
#include "callback_watch.hpp"
#include "escrow/deleter/deleter.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "stress_time.hpp"
#include "wait_until.hpp"

namespace escrow {
namespace {

constexpr int graphs = 20;
constexpr int objects_each = test::is_sanitized ? 2'000 : 50'000;
constexpr int objects = graphs * objects_each;

// Counts its destruction.
class counted {
 public:
  explicit counted(std::atomic<int>& destroyed) : destroyed_(&destroyed) {}
  counted(counted&& other) noexcept : destroyed_(std::exchange(other.destroyed_, nullptr)) {}
  counted& operator=(counted&&) = delete;
  ~counted() {
    if (destroyed_ != nullptr) destroyed_->fetch_add(1, std::memory_order_release);
  }

 private:
  std::atomic<int>* destroyed_;
};

// Keeps the worker in its destructor until it is let go.
class blocker {
 public:
  struct state {
    std::atomic<bool> entered{false};
    std::atomic<bool> let_go{false};
  };
  explicit blocker(state& it) : state_(&it) {}
  blocker(blocker&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
  blocker& operator=(blocker&&) = delete;
  ~blocker() {
    if (state_ == nullptr) return;
    state_->entered.store(true, std::memory_order_release);
    while (!state_->let_go.load(std::memory_order_acquire)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

 private:
  state* state_;
};

void expect_clean(test::callback_deeds const& deeds) {
  EXPECT_EQ(deeds.allocations, 0U);
  EXPECT_EQ(deeds.locks, 0U);
  EXPECT_EQ(deeds.cuda_calls, 0U);
  // A sanitizer's own locks may sleep.
  EXPECT_EQ(test::is_sanitized ? 0U : deeds.switches, 0U);
}

class CallbackLaw : public testing::Test {
 protected:
  void SetUp() override {
    stream_ = test::make_stream();
    test::forget_deeds();
  }
  void TearDown() override { let_go_.let_go.store(true, std::memory_order_release); }

  [[nodiscard]] test::owned_graph graph_with(int count) {
    test::owned_graph graph = test::tiny_graph();
    for (int i = 0; i < count; ++i) deleter_.retire(graph.get(), counted(destroyed_));
    return graph;
  }
  void block_worker() {
    deleter_.retire(blocker(let_go_));
    ASSERT_TRUE(test::wait_until([this] { return let_go_.entered.load(); }));
  }
  [[nodiscard]] bool all_destroyed(int count) {
    return test::wait_until(
        [this, count] { return destroyed_.load(std::memory_order_acquire) == count; },
        std::chrono::seconds(60));
  }

  test::owned_stream stream_;
  blocker::state let_go_;
  std::atomic<int> destroyed_{0};
  deleter deleter_;
};

// First the watch itself: it must see what it is there to see.
TEST_F(CallbackLaw, TheWatchSeesEachForbiddenDeed) {
  // Not by new, which a compiler may leave out.
  test::misbehave_in_callback([] { ::operator delete(::operator new(16)); });
  EXPECT_GT(test::deeds_in_callbacks().allocations, 0U);
  test::misbehave_in_callback([] {
    static std::mutex mutex;
    std::lock_guard const lock(mutex);
  });
  EXPECT_GT(test::deeds_in_callbacks().locks, 0U);
  test::misbehave_in_callback([] { static_cast<void>(::syscall(SYS_gettid)); });
  EXPECT_GT(test::deeds_in_callbacks().system_calls, 0U);
  test::misbehave_in_callback([] { static_cast<void>(cudaEventQuery(nullptr)); });
  EXPECT_GT(test::deeds_in_callbacks().cuda_calls, 0U);
  static_cast<void>(cudaGetLastError());
  test::misbehave_in_callback([] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
  EXPECT_GT(test::deeds_in_callbacks().switches, 0U);
  EXPECT_EQ(test::deeds_in_callbacks().callbacks, 5U);
}

TEST_F(CallbackLaw, HoldsOnTheThreadThatDestroysTheGraph) {
  constexpr int count = 1000;
  static_cast<void>(graph_with(count));
  EXPECT_TRUE(all_destroyed(count));
  test::callback_deeds const deeds = test::deeds_in_callbacks();
  EXPECT_EQ(deeds.callbacks, static_cast<std::uint64_t>(count));
  expect_clean(deeds);
}

TEST_F(CallbackLaw, HoldsOnCudasOwnThread) {
  constexpr int count = 1000;
  test::owned_graph graph = graph_with(count);
  test::owned_exec exec = test::instantiate(graph);
  graph.reset();  // so that the exec has the last references
  test::must(cudaGraphLaunch(exec, stream_));
  exec.reset();
  EXPECT_TRUE(all_destroyed(count));
  test::callback_deeds const deeds = test::deeds_in_callbacks();
  EXPECT_EQ(deeds.callbacks, static_cast<std::uint64_t>(count));
  EXPECT_EQ(deeds.elsewhere, static_cast<std::uint64_t>(count));
  expect_clean(deeds);
}

TEST_F(CallbackLaw, ASleepingWorkerIsWokenByAtMostOneSystemCallACallback) {
  for (int round = 1; round <= 20; ++round) {
    // The worker sleeps a millisecond after its last work.
    static_cast<void>(test::wait_until([] { return false; }, std::chrono::milliseconds(5)));
    test::forget_deeds();
    static_cast<void>(graph_with(1));
    EXPECT_TRUE(all_destroyed(round));
    EXPECT_LE(test::deeds_in_callbacks().system_calls, 1U);
    expect_clean(test::deeds_in_callbacks());
  }
}

TEST_F(CallbackLaw, HoldsWhileTheWorkerIsStuckAndAMillionItemsArePending) {
  std::vector<test::owned_graph> made;
  made.reserve(graphs);
  for (int i = 0; i < graphs; ++i) made.push_back(graph_with(objects_each));
  block_worker();
  auto const begin = std::chrono::steady_clock::now();
  test::forget_deeds();
  made.clear();
  test::callback_deeds const deeds = test::deeds_in_callbacks();
  EXPECT_EQ(deeds.callbacks, static_cast<std::uint64_t>(objects));
  EXPECT_EQ(deeds.system_calls, 0U) << "the worker is awake and needs no wake-up";
  expect_clean(deeds);
  EXPECT_EQ(destroyed_, 0);
  static_cast<void>(test::wait_until([begin] {
    return std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(300);
  }));
  static_cast<void>(graph_with(100));  // still stuck, for 300 ms now
  expect_clean(test::deeds_in_callbacks());
  let_go_.let_go.store(true, std::memory_order_release);
  EXPECT_TRUE(all_destroyed(objects + 100));
  EXPECT_TRUE(deleter_.stop_for(test::generous));
}

}  // namespace
}  // namespace escrow
