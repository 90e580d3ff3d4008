// cudaDeviceReset: with nothing of Escrow's alive on the device, the process goes on and ends; with
// everything alive, nothing hangs, nothing is destroyed twice, and what is lost is counted.
#include <escrow/graph.hpp>

#include <thread>

#include "clean_end.hpp"
#include "six_things.hpp"

namespace escrow::test {
namespace {

int reset_after_all_has_ended() {
  {
    pinned_ints gate;
    gate.store(0, 1);
    pinned_ints mismatches;
    owned_stream const other = make_stream();
    six_things alive(exec_kind::bare, gate, mismatches, other);
    for (thing each : all_things) alive.end(each);
    must(wait_until([&] { return alive.are_all_gone_once(); }), "all is destroyed");
    deleter::global().retire(stream_ref(other.get()), probe(make_fate()));
    deleter::global().drain();
    must(cudaDeviceSynchronize());
  }
  must(cudaDeviceReset());
  owned_stream const stream = make_stream();
  must(launch_tiny(stream));
  must(cudaStreamSynchronize(stream));
  return 0;  // the global deleter is left to the end of the process
}
child_case const after_all("reset_after_all_has_ended", &reset_after_all_has_ended);

TEST(DeviceReset, AfterAllHasEndedIsFine) {
  expect_clean_end("reset_after_all_has_ended");
}

#ifdef ESCROW_TEST_RUNTIME_SIM
// Not on a GPU: CUDA leaves undefined what it does with a handle from before, and others have seen
// it crash. The simulated runtime says cudaErrorInvalidResourceHandle.

// Not the stream first: that is the caller's, and dead.
template <thing first>
int reset_with_everything_alive() {
  pinned_ints gate;
  pinned_ints mismatches;
  owned_stream other = make_stream();
  // Polled, so that it first looks after the reset. Left behind with what is lost.
  static deleter& polled = *new deleter(deleter_options{.own_worker = false});
  six_things alive(exec_kind::bare, gate, mismatches, other);
  fate_ptr const after_event = make_fate();
  fate_ptr const after_stream = make_fate();
  owned_event ready = make_event();
  must(launch_wait_flag(other, gate.data()));
  must(cudaEventRecord(ready, other));
  polled.retire_after(ready.get(), probe(after_event));
  for (int i = 0; i < 3; ++i) polled.retire(stream_ref(other.get()), probe(after_stream));
  std::thread opening([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds{5});
    gate.store(0, 1);  // the reset waits for the device
  });
  must(cudaDeviceReset());
  opening.join();
  alive.end(first);
  for (thing each : all_things) {
    if (each != first) alive.end(each);
  }
  must(polled.drain_for(generous), "a drain ends");
  must(!after_event->was_destroyed() && !after_stream->was_destroyed(), "nobody knows of the work");
  must(polled.stats().leaked == 4, "what was pending is kept for ever, and counted");
  must(polled.stats().pending == 0, "no dead event is asked about again");
  must(polled.stats().errors == 4, "each was reported");
  must(stays_false([&] { return alive.is_one_gone_twice(); }), "nothing is destroyed twice");
  static_cast<void>(ready.release());
  static_cast<void>(other.release());
  return 0;
}

class DeviceResetWithEverythingAlive : public testing::TestWithParam<thing> {};

child_case const resets[] = {
    {"reset_lease_first", &reset_with_everything_alive<thing::lease>},
    {"reset_pool_first", &reset_with_everything_alive<thing::pool>},
    {"reset_deleter_first", &reset_with_everything_alive<thing::deleter>},
    {"reset_graph_first", &reset_with_everything_alive<thing::graph>},
    {"reset_exec_first", &reset_with_everything_alive<thing::exec>},
};

TEST_P(DeviceResetWithEverythingAlive, LeavesTheEndOfAllBounded) {
  expect_clean_end(std::string{"reset_"} + name_of(GetParam()) + "_first");
}

INSTANTIATE_TEST_SUITE_P(First, DeviceResetWithEverythingAlive,
                         testing::Values(thing::lease, thing::pool, thing::deleter, thing::graph,
                                         thing::exec),
                         [](auto const& one) { return std::string{name_of(one.param)}; });
#endif

}  // namespace
}  // namespace escrow::test
