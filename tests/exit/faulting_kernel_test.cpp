// A kernel writes to an illegal address, launched by a graph_exec, by a plain exec, or eagerly:
// from then on claims throw the fault, nothing hangs, and everything is destroyed once. The fault
// ruins its process, so that each case has one of its own.
#include <string>
#include <thread>
#include <vector>

#include "../support/child_cases.hpp"
#include "clean_end.hpp"
#include "faulting_world.hpp"

namespace escrow::test {
namespace {

using namespace std::chrono_literals;

constexpr int as_expected = 42;

template <faulty which>
int claims_throw() {
  faulting_world world(which);
  world.break_device();
  for (cudaStream_t on : {world.stream.get(), world.other.get()}) {
    must_throw_the_fault("claim", [&] { static_cast<void>(world.pool->claim(on)); });
    must_throw_the_fault("try_claim", [&] { static_cast<void>(world.pool->try_claim(on)); });
    must_throw_the_fault("try_claim_for",
                         [&] { static_cast<void>(world.pool->try_claim_for(on, 60s)); });
  }
  must(world.counts->made.load() == 2, "no resource was made");
  return as_expected;
}

template <faulty which>
int a_waiting_claim_is_told() {
  faulting_world world(which);
  std::vector<block_lease> out;
  while (auto claimed = world.pool->try_claim(world.other.get()))
    out.push_back(std::move(*claimed));
  std::atomic<bool> is_waiting{false};
  std::thread waiting([&] {
    is_waiting.store(true);
    must_throw_the_fault("a claim that waits", [&] {
      static_cast<void>(world.pool->try_claim_for(world.other.get(), 60s));
    });
  });
  must(wait_until([&] { return is_waiting.load(); }), "the thread waits");
  std::this_thread::sleep_for(5ms);
  world.break_device();
  waiting.join();
  return as_expected;
}

template <faulty which>
int nothing_is_handed_out_again() {
  faulting_world world(which);
  world.break_device();
  must(world.pool->stats().deferred == 0, "the lease is out");
  try {
    world.held->release();
  } catch (cuda_error const& error) {
    must_be(error.status(), fault);
  }
  world.held.reset();
  must(world.pool->stats().deferred == 0, "no record is awaited where nothing runs any more");
  must_throw_the_fault("claim", [&] { static_cast<void>(world.pool->claim(world.other.get())); });
  auto const holders = world.pool->close_for(10ms);
  must(holders.size() == 1, "the graph is the only holder");
  must(holders[0].capture_id == world.source.id(), "it is named by its capture");
  must(holders[0].slots == 1 && holders[0].label == "blocks", "with its slot and the label");
  must(world.pool->stats().deferred == 0, "the closed pool has given up what it kept");
  world.end_holders();
  must(world.pool->close_for(generous).empty(), "all has come back");
  must(world.own.drain_for(generous), "the drain ends");
  must(world.counts->alive() == 0, "both resources are destroyed");
  return as_expected;
}

template <faulty which>
int owners_go_once() {
  faulting_world world(which);
  std::atomic<bool> is_drained{false};
  pinned_ints gate;
  must(launch_wait_flag(world.other, gate.data()));
  world.own.retire(stream_ref(world.other.get()), probe(make_fate()));
  std::thread draining([&] {
    world.own.drain();  // behind a kernel that only the fault ends
    is_drained.store(true);
  });
  world.break_device();
  must(wait_until([&] { return is_drained.load(); }), "a drain that waits for the device ends");
  draining.join();
  must(world.in_graph->times() == 0, "the graph keeps its owner");
  world.end_holders();
  must(wait_until([&] { return world.all_owners_went_once(); }), "each owner goes once");
  must(world.in_graph->thread_name == "escrow", "on the worker");
  must(world.own.drain_for(generous), "the drain ends");
  world.pool.reset();
  must(wait_until([&] { return world.counts->alive() == 0; }), "each resource goes once");
  must(world.own.stats().leaked == 0, "nothing is kept for ever");
  must(world.own.stop_for(generous), "nothing is owed");
  return as_expected;
}

/// What an operation on a broken device may do: throw the fault, or work.
template <class Call>
bool succeeds_or_throws_the_fault(Call&& call) {
  try {
    std::forward<Call>(call)();
    return true;
  } catch (cuda_error const& error) {
    must_be(error.status(), fault);
    return false;
  }
}

template <faulty which>
int operations_keep_their_contracts() {
  faulting_world world(which);
  world.break_device();
  fate_ptr const fate = make_fate();
  {
    probe owner(fate);
    bool const is_taken = succeeds_or_throws_the_fault(
        [&] { world.own.retire(stream_ref(world.stream.get()), std::move(owner)); });
    // NOLINTNEXTLINE(bugprone-use-after-move): that is the question
    must(owner.is_owner() != is_taken, "a retire that throws leaves the owner with the caller");
  }
  must_throw_the_fault("graph_exec::launch", [&] { world.bare->launch(world.stream.get()); });
  must_throw_the_fault("capture", [&] {
    static_cast<void>(escrow::capture(world.stream.get(), [](stream_ref) {}));
  });
  static_cast<void>(succeeds_or_throws_the_fault([&] { world.bare->update(world.source); }));
  static_cast<void>(succeeds_or_throws_the_fault([&] { graph const copy = world.source.clone(); }));
  static_cast<void>(succeeds_or_throws_the_fault([&] { graph_exec const more(world.source); }));
  static_cast<void>(succeeds_or_throws_the_fault(
      [&] { world.own.retire(world.source.get(), probe(make_fate())); }));
  static_cast<void>(succeeds_or_throws_the_fault([&] { hoist(world.source).release(); }));
  must(world.in_graph->times() == 0, "none of them has let go of what the graph holds");
  world.end_holders();
  must(wait_until([&] { return fate->times() == 1 && world.all_owners_went_once(); }),
       "each owner goes once");
  return as_expected;
}

template <faulty which>
int an_open_capture_ends() {
  faulting_world world(which);
  fate_ptr const fate = make_fate();
  must(cudaStreamBeginCapture(world.other, cudaStreamCaptureModeRelaxed));
  std::optional<block_lease> claimed = world.pool->claim(world.other.get());
  fill(*claimed, world.other, 3);
  world.own.retire(stream_ref(world.other.get()), probe(fate));
  world.break_device();
  must_throw_the_fault("claim", [&] { static_cast<void>(world.pool->claim(world.other.get())); });
  claimed.reset();
  cudaGraph_t captured = nullptr;
  // Whether CUDA hands the graph out, destroys it or forgets it, the rest goes on.
  if (cudaStreamEndCapture(world.other, &captured) == cudaSuccess) {
    must(cudaGraphDestroy(captured));
  }
  static_cast<void>(cudaGetLastError());
  world.end_holders();
  must(wait_until([&] { return world.all_owners_went_once(); }), "each owner goes once");
  must(world.own.drain_for(generous), "the drain ends");
  must(world.pool->close_for(10ms).size() <= 1, "the capture is the only one that may hold a slot");
  must(fate->times() <= 1, "its owner goes once at most");
  return as_expected;
}

template <faulty which>
int exits() {
  static faulting_world world(which);
  world.break_device();
  return as_expected;
}

template <faulty which>
void add_cases(std::vector<named_case>& all, std::string const& launched) {
  all.push_back({"ClaimsThrowTheFault" + launched, &claims_throw<which>});
  all.push_back({"AClaimThatWaitsIsTold" + launched, &a_waiting_claim_is_told<which>});
  all.push_back({"NothingIsHandedOutAgain" + launched, &nothing_is_handed_out_again<which>});
  all.push_back({"OwnersGoOnce" + launched, &owners_go_once<which>});
  all.push_back(
      {"OperationsKeepTheirContracts" + launched, &operations_keep_their_contracts<which>});
  all.push_back({"AnOpenCaptureEnds" + launched, &an_open_capture_ends<which>});
  all.push_back({"TheProcessExits" + launched, &exits<which>});
}

std::vector<named_case> all_cases() {
  std::vector<named_case> all;
  add_cases<faulty::bare_exec>(all, "_GraphExec");
  add_cases<faulty::plain_exec>(all, "_PlainExec");
  add_cases<faulty::eager>(all, "_Eager");
  return all;
}

std::vector<named_case> const fault_cases = register_cases(all_cases());

class FaultingKernel : public testing::TestWithParam<named_case> {};

TEST_P(FaultingKernel, LeavesEverythingBounded) {
  expect_clean_end(GetParam().name, as_expected);
}

INSTANTIATE_TEST_SUITE_P(After, FaultingKernel, testing::ValuesIn(fault_cases), &name_of_case);

}  // namespace
}  // namespace escrow::test
