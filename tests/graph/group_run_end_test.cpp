// SPDX-License-Identifier: Apache-2.0
// The end of a sharing_group::run() comes after all uses of its leases, or the call is refused.
#include <functional>
#include <thread>

#include "arena_world.hpp"

namespace escrow::test {
namespace {

class GroupRunEnd : public group_scratch_world {
 protected:
  /// In a call on stream `one`: a lease that stream two uses for a while.
  [[nodiscard]] lease<device_block> use_on_two() {
    auto held = scratch().claim(one, 4096);
    fill(held, one, 6);
    owned_event const filled = make_event();
    must(cudaEventRecord(filled, one));
    must(cudaStreamWaitEvent(two, filled, 0));
    held.record_stream(two);
    must(launch_sleep(two, 20'000));
    check(held, two, 6);
    return held;
  }
};

TEST_F(GroupRunEnd, ComesAfterWhatEndedOnAnotherThread) {
  graph_exec other(captured([&](cudaStream_t on) { use_scratch(scratch(), on, 5); }));
  using held_lease = std::optional<lease<device_block>>;
  std::vector<std::function<void(held_lease&)>> const ways{
      [](held_lease& held) { held->release(); }, [](held_lease& held) { held.reset(); },
      [&](held_lease& held) { held->release(two); }};
  for (auto const& end : ways) {
    group->run(one, [&] {
      held_lease held = use_on_two();
      std::jthread([&] { end(held); }).join();
    });
    other.launch(three);
    sync_all();
  }
  EXPECT_EQ(scratch().stats().bytes_deferred, 0U);
}

TEST_F(GroupRunEnd, TrimLeavesWhatItsWorkUsesWhereLaterClaimsAreElsewhere) {
  auto const claim_twice = [&] {
    hold_up(one);
    {
      auto const first = scratch().claim(one, 32 * mebibyte);
      fill(scratch().claim(one, 64 * mebibyte), one, 1);  // behind it
    }
    fill(scratch().claim(one, 64 * mebibyte), one, 2);  // and now in front
  };
  group->run(one, claim_twice);
  scratch().trim();
  EXPECT_EQ(mebibytes(), 96U);
  group->run(two, [&] {
    fill(scratch().claim(two, mebibyte), two, 3);
    scratch().trim();
    EXPECT_EQ(mebibytes(), 96U);
  });
  flag.raise();
  sync_all();
  EXPECT_TRUE(drained());
  scratch().trim();
  EXPECT_EQ(mebibytes(), 0U);
}

#ifdef ESCROW_TEST_RUNTIME_SIM
TEST_F(GroupRunEnd, RefusesWhatEndedWhereItCannotBeRecorded) {
  std::vector<std::function<void()>> const calls{
      [&] {  // the worker records nothing unasked
        worker->retire(one.get(), use_on_two());
        sync(one);
        EXPECT_TRUE(wait_until([&] { return scratch().stats().bytes_deferred != 0; }));
      },
      [&] {
        auto held = use_on_two();
        sim::fail_call_here("cudaEventRecord", cudaErrorUnknown, 1, 100);
        sim::fail_call_here("cudaStreamSynchronize", cudaErrorUnknown, 1, 100);
        EXPECT_THROW(held.release(), cuda_error);
        sim::clear_faults();
      },
      [&] {
        std::optional held(scratch().claim(one, 4096));
        std::jthread([&] { held->record_stream(cudaStreamPerThread); }).join();
        EXPECT_THROW(held->release(), usage_error);
        held.reset();
      }};
  errors_expected = true;
  for (auto const& call : calls) {
    expect_error<usage_error>([&] { group->run(one, call); },
                              {"sharing_group::run", "group_run_end_test.cpp",
                               "could not be recorded", "on the thread of the call"});
    sync_all();
  }
}

TEST_F(GroupRunEnd, WaitsAgainWhereAReleaseCouldNot) {
  graph_exec other(captured([&](cudaStream_t on) { use_scratch(scratch(), on, 5); }));
  group->run(one, [&] {
    auto held = use_on_two();
    errors_expected = true;
    sim::fail_call_here("cudaStreamWaitEvent", cudaErrorUnknown, 1, 100);
    sim::fail_call_here("cudaEventSynchronize", cudaErrorUnknown, 1, 100);
    held.release();
    sim::clear_faults();
  });
  other.launch(three);
  sync_all();
}

TEST_F(GroupRunEnd, WaitsOnTheHostForAUseThatCannotBeRecorded) {
  graph_exec other(captured([&](cudaStream_t on) { use_scratch(scratch(), on, 5); }));
  group->run(one, [&] {
    auto held = use_on_two();
    errors_expected = true;
    sim::fail_call_here("cudaEventRecord", cudaErrorUnknown, 1, 100);
    EXPECT_THROW(held.release(), cuda_error);
    sim::clear_faults();
  });
  other.launch(three);
  sync_all();
}
#endif

}  // namespace
}  // namespace escrow::test
