// The law of destroy callbacks: no CUDA call, no allocation, no lock and no wait, however far
// behind the worker is. callback_audit_test has all that makes user objects, and CUDA's own thread.
#include <unistd.h>

#include <sys/syscall.h>

#include <chrono>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "callback_watch.hpp"
#include "deep.hpp"
#include "world.hpp"

namespace escrow::test {
namespace {

void expect_clean(callback_deeds const& deeds) {
  EXPECT_EQ(deeds.allocations, 0U);
  EXPECT_EQ(deeds.locks, 0U);
  EXPECT_EQ(deeds.cuda_calls, 0U);
  // A sanitizer's own locks may sleep.
  EXPECT_EQ(is_sanitized ? 0U : deeds.switches, 0U);
}

class CallbackLaw : public world {
 protected:
  struct count_up {
    void operator()(std::atomic<int>* it) const { it->fetch_add(1, std::memory_order_release); }
  };

  void SetUp() override { forget_deeds(); }
  [[nodiscard]] owned_graph graph_with(int owners) {
    owned_graph graph = tiny_graph();
    for (int i = 0; i < owners; ++i) {
      worker->retire(graph.get(), std::unique_ptr<std::atomic<int>, count_up>(&destroyed));
    }
    return graph;
  }
  [[nodiscard]] bool are_destroyed(int owners) {
    return wait_until([&] { return destroyed.load(std::memory_order_acquire) == owners; },
                      std::chrono::seconds(60));
  }

  std::atomic<int> destroyed{0};
};

// First the watch itself: it must see what it is there to see.
TEST_F(CallbackLaw, TheWatchSeesEachForbiddenDeed) {
  // Not by new, which a compiler may leave out.
  misbehave_in_callback([] { ::operator delete(::operator new(16)); });
  EXPECT_GT(deeds_in_callbacks().allocations, 0U);
  misbehave_in_callback([] {
    static std::mutex mutex;
    std::lock_guard const lock(mutex);
  });
  EXPECT_GT(deeds_in_callbacks().locks, 0U);
  misbehave_in_callback([] { static_cast<void>(::syscall(SYS_gettid)); });
  EXPECT_GT(deeds_in_callbacks().system_calls, 0U);
  misbehave_in_callback([] { static_cast<void>(cudaEventQuery(nullptr)); });
  EXPECT_GT(deeds_in_callbacks().cuda_calls, 0U);
  static_cast<void>(cudaGetLastError());
  misbehave_in_callback([] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
  EXPECT_GT(deeds_in_callbacks().switches, 0U);
  EXPECT_EQ(deeds_in_callbacks().callbacks, 5U);
}

TEST_F(CallbackLaw, ASleepingWorkerIsWokenByAtMostOneSystemCallACallback) {
  for (int round = 1; round <= 20; ++round) {
    // The worker sleeps a millisecond after its last work.
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    forget_deeds();
    static_cast<void>(graph_with(1));
    EXPECT_TRUE(are_destroyed(round));
    EXPECT_LE(deeds_in_callbacks().system_calls, 1U);
    expect_clean(deeds_in_callbacks());
  }
}

// A queue that is long, or a worker that was blocked for long, is no reason to allocate or to wait.
TEST_F(CallbackLaw, HoldsWhileTheWorkerIsBlockedAndManyOwnersArePending) {
  constexpr int graphs = 20;
  int const owners_each = is_sanitized ? 2'000 : deep_size(2'500, 50'000);
  int const owners = graphs * owners_each;
  std::vector<owned_graph> made;
  for (int i = 0; i < graphs; ++i) made.push_back(graph_with(owners_each));
  worker->retire(probe(make_fate([this] {
    is_blocking.store(true);
    EXPECT_TRUE(wait_until([this] { return may_end.load(); }, std::chrono::minutes(5)));
  })));
  ASSERT_TRUE(wait_until([this] { return is_blocking.load(); }));
  auto const begin = std::chrono::steady_clock::now();
  forget_deeds();
  made.clear();
  EXPECT_EQ(deeds_in_callbacks().callbacks, static_cast<std::uint64_t>(owners));
  EXPECT_EQ(deeds_in_callbacks().system_calls, 0U) << "the worker is awake and needs no wake-up";
  expect_clean(deeds_in_callbacks());
  std::this_thread::sleep_until(begin + std::chrono::milliseconds(300));
  static_cast<void>(graph_with(100));  // still blocked
  expect_clean(deeds_in_callbacks());
  EXPECT_EQ(destroyed, 0);
  may_end.store(true);
  EXPECT_TRUE(are_destroyed(owners + 100));
  EXPECT_TRUE(worker->stop_for(generous));
}

}  // namespace
}  // namespace escrow::test
