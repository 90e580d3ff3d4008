// Graphs that are built by hand: nodes that record events, and nodes that wait for them.
#include <optional>

#include "build_fixture.hpp"
#include "wait_until.hpp"

namespace escrow::test {
namespace {

class BuildEvents : public build_test {};

TEST_F(BuildEvents, AnEventNodeLeadsBackToItsSharedEvent) {
  shared_event const made = shared_event::make(cudaEventDisableTiming | cudaEventBlockingSync);
  node const recorded = build(built_).add(record_node(made));
  node const waited = recorded.add(wait_node(made));
  EXPECT_EQ(type_of(recorded), cudaGraphNodeTypeEventRecord);
  EXPECT_EQ(type_of(waited), cudaGraphNodeTypeWaitEvent);
  for (node const& each : {recorded, waited}) {
    EXPECT_EQ(event_of(each), made.get());
    std::optional<shared_event> const found = shared_event::find(event_of(each));
    ASSERT_TRUE(found);
    EXPECT_EQ(*found, made);
    EXPECT_EQ(found->flags(), cudaEventDisableTiming | cudaEventBlockingSync);
    EXPECT_EQ(found->device(), 0);
  }
}

TEST_F(BuildEvents, AnEventThatIsNotSharedLeadsNowhere) {
  owned_event const borrowed = make_event();
  node const recorded = build(built_)
                            .add(record_node(event_ref(borrowed.get())))
                            .add(wait_node(event_ref(borrowed.get())));
  EXPECT_EQ(event_of(recorded), borrowed.get());
  EXPECT_FALSE(shared_event::find(event_of(recorded)));
  cudaEvent_t const gone = shared_event::make().get();
  EXPECT_FALSE(shared_event::find(gone));
  EXPECT_FALSE(shared_event::find(nullptr));
}

TEST_F(BuildEvents, AnEventIsReadyWhenWhatItsNodeWaitsForIsDone) {
  shared_event const event = shared_event::make();
  build(built_)
      .add(kernel_node(function_of<int volatile*>(kernel_id::wait_flag), {}, flag_.get()))
      .add(record_node(event));
  graph_exec exec(built_);
  exec.launch(stream_);
  EXPECT_EQ(cudaEventQuery(event.get()), cudaErrorNotReady);
  static_cast<void>(cudaGetLastError());
  flag_.raise();
  must(cudaStreamSynchronize(stream_));
  EXPECT_EQ(cudaEventQuery(event.get()), cudaSuccess);
}

TEST_F(BuildEvents, ANodeThatWaitsForAnEventHoldsUpWhatFollows) {
  owned_event const event = make_event();
  add_to(build(built_).add(wait_node(event_ref(event.get()))), 0, 1);
  graph_exec exec(built_);
  run(exec);  // an event that was not recorded holds up nothing, and the kernel is loaded
  EXPECT_EQ(cells_.load(), 1);
  must(launch_wait_flag(other_stream_, flag_.get()));
  must(cudaEventRecord(event, other_stream_));
  exec.launch(stream_);
  EXPECT_TRUE(stays_false([&] { return has_finished(stream_); }));
  EXPECT_EQ(cells_.load(), 1);
  flag_.raise();
  must(cudaStreamSynchronize(stream_));
  EXPECT_EQ(cells_.load(), 2);
}

}  // namespace
}  // namespace escrow::test
