// A CUDA error of the caller's own stays the last error while Escrow polls work that is not done.
#include <gtest/gtest.h>

#include "escrow/core/error.hpp"
#include "escrow/core/event.hpp"
#include "escrow/pool.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"

namespace escrow {
namespace {

using test::must;

// A test with work in flight on one stream, and an error that the caller has not looked at yet.
class LastError : public testing::Test {
 protected:
  ~LastError() override {
    flag_.raise();
    static_cast<void>(cudaStreamSynchronize(busy_));
    static_cast<void>(cudaGetLastError());
  }

  void keep_busy() { must(test::launch_wait_flag(busy_, flag_.get())); }
  void make_error() {
    ASSERT_NE(cudaEventQuery(nullptr), cudaSuccess);
    earlier_ = cudaPeekAtLastError();
    ASSERT_NE(earlier_, cudaSuccess);
  }

  test::pinned_flag flag_;
  test::owned_stream busy_ = test::make_stream();
  test::owned_stream other_ = test::make_stream();
  cudaError_t earlier_ = cudaSuccess;
};

TEST_F(LastError, IsNeitherSetNorClearedByAnEventThatIsNotReady) {
  event ready;
  keep_busy();
  ready.ref().record(busy_);
  EXPECT_EQ(cudaEventQuery(ready.get()), cudaErrorNotReady);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  make_error();
  EXPECT_FALSE(succeeded(cudaEventQuery(ready.get())));
  EXPECT_EQ(cudaPeekAtLastError(), earlier_);
  EXPECT_FALSE(ready.ref().is_done());
  EXPECT_EQ(cudaGetLastError(), earlier_);
}

TEST_F(LastError, SurvivesAClaimWhileASlotIsInUse) {
  int made = 0;
  resource_pool<int> pool({.slots_max = 4}, [&] { return made++; });
  {
    auto const lease = pool.claim(busy_);
    keep_busy();
  }
  make_error();
  static_cast<void>(pool.claim(other_));
  EXPECT_EQ(cudaGetLastError(), earlier_);
  EXPECT_EQ(made, 2) << "the claim looked at a slot that was in use";
  flag_.raise();
}

}  // namespace
}  // namespace escrow
