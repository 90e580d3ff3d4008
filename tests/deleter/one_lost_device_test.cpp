// The one device that is in use is lost: nothing runs any more, and every owner is given back.
#include <gtest/gtest.h>

#include <escrow/sim.hpp>
#include <utility>
#include <vector>

#include "build_graph.hpp"
#include "escrow/deleter/deleter.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "owners.hpp"

namespace escrow {
namespace {

using test::make_fate;
using test::probe;

// No test here may use another device: once a process has, nothing is known after a fault.
class OneLostDevice : public testing::Test {
 protected:
  ~OneLostDevice() override { sim::clear_faults(); }

  test::pinned_flag flag_;
  test::owned_stream stream_ = test::make_stream();
  deleter deleter_;
};

TEST_F(OneLostDevice, GivesItsOwnersBack) {
  std::vector<test::fate_ptr> fates;
  test::must(test::launch_wait_flag(stream_, flag_.get()));
  for (int i = 0; i < 10; ++i) deleter_.retire(stream_, probe(fates.emplace_back(make_fate())));
  test::owned_event const recorded = test::make_event();
  test::must(cudaEventRecord(recorded, stream_));
  deleter_.retire_after(recorded.get(), probe(fates.emplace_back(make_fate())));
  sim::fail_device(0, cudaErrorIllegalAddress);
  EXPECT_TRUE(deleter_.drain_for(test::generous));
  for (auto const& fate : fates) EXPECT_EQ(fate->times(), 1);
  EXPECT_GE(deleter_.stats().errors, 1U);
}

TEST_F(OneLostDevice, LetsGraphsGiveBack) {
  auto const fate = make_fate();
  test::owned_graph graph = test::tiny_graph();
  deleter_.retire(graph.get(), probe(fate));
  sim::fail_device(0, cudaErrorIllegalAddress);
  graph.reset();
  EXPECT_TRUE(fate->wait());
  EXPECT_TRUE(deleter_.stop_for(test::generous));
}

TEST_F(OneLostDevice, LosesNoOwnerAtAnyMoment) {
  for (int moment = 0; moment < 4; ++moment) {
    SCOPED_TRACE(moment);
    test::pinned_flag flag;
    deleter its;
    auto const eager = make_fate();
    auto const owed = make_fate();
    auto const late = make_fate();
    auto const lose = [moment](int now) {
      if (moment == now) sim::fail_device(0, cudaErrorIllegalAddress);
    };
    {
      probe late_owner(late);
      test::owned_graph graph = test::tiny_graph();
      test::must(test::launch_wait_flag(stream_, flag.get()));
      its.retire(graph.get(), probe(owed));
      its.retire(stream_, probe(eager));
      lose(0);
      if (moment == 0) {
        EXPECT_THROW(its.retire(stream_, std::move(late_owner)), cuda_error);
        EXPECT_TRUE(late_owner.is_owner());  // NOLINT(bugprone-use-after-move)
      } else {
        its.retire(stream_, std::move(late_owner));
      }
      lose(1);
      if (moment > 1) {
        flag.raise();
        EXPECT_TRUE(its.drain_for(test::generous));
      }
      lose(2);
      graph.reset();
      lose(3);
      EXPECT_TRUE(its.drain_for(test::generous)) << "a drain hangs on a lost device";
      EXPECT_TRUE(owed->wait());
    }
    EXPECT_EQ(eager->times() + owed->times() + late->times(), 3);
    sim::clear_faults();
    auto const after = make_fate();
    deleter fresh;
    fresh.retire(stream_, probe(after));
    EXPECT_TRUE(fresh.drain_for(test::generous));
    EXPECT_EQ(after->times(), 1);
  }
}

}  // namespace
}  // namespace escrow
