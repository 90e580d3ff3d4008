// cudaStreamPerThread in captures: each thread has its own, and several may be part of one capture.
#include <functional>
#include <optional>
#include <semaphore>
#include <thread>
#include <utility>

#include "capture_fixture.hpp"

namespace escrow::test {
namespace {

/// A thread that does what it is told and is there until its end, so that its stream is, too.
class other_thread {
 public:
  other_thread() = default;
  other_thread(other_thread const&) = delete;
  other_thread& operator=(other_thread const&) = delete;
  ~other_thread() {
    call_ = nullptr;
    is_told_.release();
    thread_.join();
  }

  /// Returns when the call is over.
  void run(std::function<void()> call) {
    call_ = std::move(call);
    is_told_.release();
    ASSERT_TRUE(is_done_.try_acquire_for(generous));
  }

 private:
  void work() {
    while (true) {
      if (!is_told_.try_acquire_for(generous)) continue;
      if (!call_) return;
      call_();
      is_done_.release();
    }
  }

  std::function<void()> call_;  // handed to and fro by the semaphores
  std::binary_semaphore is_told_{0};
  std::binary_semaphore is_done_{0};
  std::thread thread_{&other_thread::work, this};
};

class ThreadStream : public captured_pool_test {
 protected:
  owned_stream stream = make_stream();
  other_thread other;
};

TEST_F(ThreadStream, OfTheCaptureIsABranchOfWhichTheNextClaimTakesNotice) {
  block_pool pool = make_pool(4);
  capture captured{stream, cudaStreamCaptureModeRelaxed};
  must(launch_tiny(stream));
  order(stream, cudaStreamPerThread);
  {
    block_lease held = pool.claim(stream);
    held.record_stream(cudaStreamPerThread);
    fill(held, cudaStreamPerThread, 3);
  }
  EXPECT_NE(pool.claim(stream)->number(), 0);  // the branch may still use it
  order(cudaStreamPerThread, stream);
  {
    block_lease const one = pool.claim(stream);
    block_lease const two = pool.claim(stream);
    EXPECT_EQ(one->number() + two->number(), 1);  // both serve again
  }
  EXPECT_EQ(captured.end(), cudaSuccess);
}

TEST_F(ThreadStream, OfOneThreadIsNotMistakenForAnothersOfTheSameCapture) {
  block_pool pool = make_pool(4);
  capture captured{stream, cudaStreamCaptureModeRelaxed};
  must(launch_tiny(stream));
  order(stream, cudaStreamPerThread);
  block_lease held = pool.claim(stream);
  held.record_stream(cudaStreamPerThread);
  fill(held, cudaStreamPerThread, 3);
  std::string text;
  other.run([&] {
    order(stream, cudaStreamPerThread);  // the other thread's, into the same capture
    text = message_of<usage_error>([&] { held.release(); });
    order(cudaStreamPerThread, stream);
  });
  EXPECT_NE(text.find("record_stream"), std::string::npos) << text;
  ASSERT_TRUE(held);
  EXPECT_TRUE(captured.is_active());
  held.release();
  EXPECT_NE(pool.claim(stream)->number(), 0);  // the branch of this thread was not joined
  order(cudaStreamPerThread, stream);
  EXPECT_EQ(captured.end(), cudaSuccess);
}

TEST_F(ThreadStream, AClaimOnOneThreadsIsNotReleasedOnAnothersOfTheSameCapture) {
  block_pool pool = make_pool(4);
  capture captured{stream, cudaStreamCaptureModeRelaxed};
  must(launch_tiny(stream));
  order(stream, cudaStreamPerThread);
  block_lease held = pool.claim(cudaStreamPerThread);
  fill(held, cudaStreamPerThread, 3);
  std::string text;
  other.run([&] {
    order(stream, cudaStreamPerThread);
    text = message_of<usage_error>([&] { held.release(); });
    order(cudaStreamPerThread, stream);
  });
  EXPECT_NE(text.find("cudaStreamPerThread"), std::string::npos) << text;
  ASSERT_TRUE(held);
  held.release();
  EXPECT_NE(pool.claim(stream)->number(), 0);
  order(cudaStreamPerThread, stream);
  EXPECT_EQ(pool.stats().in_graphs, 2u);
  EXPECT_EQ(captured.end(), cudaSuccess);
}

TEST_F(ThreadStream, AClaimOnACapturingOneIsNotReleasedOnAnothersThatIsIdle) {
  block_pool pool = make_pool(4);
  capture captured{cudaStreamPerThread, cudaStreamCaptureModeRelaxed};
  block_lease held = pool.claim(cudaStreamPerThread);
  fill(held, cudaStreamPerThread, 3);
  std::string text;
  other.run([&] { text = message_of<usage_error>([&] { held.release(); }); });
  EXPECT_NE(text.find("cudaStreamPerThread"), std::string::npos) << text;
  ASSERT_TRUE(held);
  held.release();
  EXPECT_EQ(pool.claim(cudaStreamPerThread)->number(), 0);
  EXPECT_EQ(captured.end(), cudaSuccess);
}

TEST_F(ThreadStream, OfTheCaptureMayStillBeInUseWhenTheLeaseOutlivesTheCapture) {
  pinned_flag flag;
  block_pool pool = make_pool(1);
  capture captured{stream, cudaStreamCaptureModeRelaxed};
  must(launch_tiny(stream));
  order(stream, cudaStreamPerThread);
  block_lease held = pool.claim(stream);
  held.record_stream(cudaStreamPerThread);
  fill(held, cudaStreamPerThread, 3);
  order(cudaStreamPerThread, stream);
  must(captured.end());
  captured.graph().reset();
  must(launch_wait_flag(cudaStreamPerThread, flag.get()));
  fill(held, cudaStreamPerThread, 5);
  other.run([&] { EXPECT_THROW(held.release(), usage_error); });
  ASSERT_TRUE(held);
  EXPECT_NO_THROW(held.release());
  owned_stream const third = make_stream();
  block_lease next = pool.claim(third);
  check(next, third, 5, mismatches);
  EXPECT_TRUE(stays_false([&] { return is_idle(third); }));
  flag.raise();
  sync(third);
  EXPECT_EQ(mismatches.load(), 0);
  EXPECT_EQ(pool.stats().deferred, 0u);
}

TEST_F(ThreadStream, OfALeaseThatEndsOnAnotherThreadWhileItsStreamCapturesIsRecordedAfterwards) {
  block_pool pool = make_pool(1);
  std::optional<block_lease> held = pool.claim(stream);
  held->record_stream(cudaStreamPerThread);
  capture captured{stream, cudaStreamCaptureModeRelaxed};
  other.run([&] { held.reset(); });
  EXPECT_EQ(worker->stats().leaked, 0u);
  EXPECT_EQ(pool.stats().deferred, 1u);
  must(captured.end());
  captured.graph().reset();
  ASSERT_TRUE(drained());
  EXPECT_FALSE(pool.try_claim(stream).has_value()) << "this thread's stream is missing";
  EXPECT_TRUE(pool.try_claim(cudaStreamPerThread).has_value());
  EXPECT_EQ(pool.stats().deferred, 0u);
}

TEST_F(ThreadStream, AndTheLegacyOneAreRefusedWhereTheyAreNotPartOfTheCapture) {
  block_pool pool = make_pool(1);
  capture captured{stream, cudaStreamCaptureModeGlobal};
  block_lease held = pool.claim(stream);
  for (cudaStream_t const outside : {cudaStreamPerThread, cudaStreamLegacy, cudaStream_t{}}) {
    std::string const text = message_of<usage_error>([&] { held.record_stream(outside); });
    EXPECT_NE(text.find("record_stream"), std::string::npos) << text;
    EXPECT_NE(text.find("not part of the capture"), std::string::npos) << text;
    EXPECT_TRUE(captured.is_active());
    ASSERT_TRUE(held);
  }
  held.release();
  EXPECT_EQ(pool.claim(stream)->number(), 0);
  EXPECT_EQ(captured.end(), cudaSuccess);
}

TEST_F(ThreadStream, ThatCapturesIsRefusedForALeaseFromOutside) {
  block_pool pool = make_pool(1);
  block_lease held = pool.claim(stream);
  capture captured{cudaStreamPerThread, cudaStreamCaptureModeGlobal};
  std::string const text =
      message_of<usage_error>([&] { held.record_stream(cudaStreamPerThread); });
  EXPECT_NE(text.find("claimed outside"), std::string::npos) << text;
  EXPECT_TRUE(captured.is_active());
  held.release();
  EXPECT_EQ(captured.end(), cudaSuccess);
  EXPECT_EQ(pool.claim(stream)->number(), 0);
}

}  // namespace
}  // namespace escrow::test
