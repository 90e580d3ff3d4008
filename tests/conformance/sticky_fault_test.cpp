// What still works after a sticky device fault. The fault ruins
// its process's context, so each case runs in a process of its own.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "build_graph.hpp"
#include "child_cases.hpp"
#include "handles.hpp"
#include "memory.hpp"
#include "witness.hpp"

namespace escrow::test {
namespace {

constexpr auto fault = cudaErrorIllegalAddress;
constexpr int as_expected = 42;

void break_device(cudaStream_t stream) {
  must(launch_illegal_address(stream));
  must_be(cudaStreamSynchronize(stream), fault);
}

// Each of the next returns the status of one call on a device that has failed.
cudaError_t malloc_status(cudaStream_t stream, cudaEvent_t) {
  break_device(stream);
  void* memory = nullptr;
  return cudaMalloc(&memory, 64);
}

cudaError_t event_query_status(cudaStream_t stream, cudaEvent_t event) {
  break_device(stream);
  return cudaEventQuery(event);
}

cudaError_t event_destroy_status(cudaStream_t stream, cudaEvent_t) {
  cudaEvent_t doomed = make_event().release();
  break_device(stream);
  return cudaEventDestroy(doomed);
}

cudaError_t is_capturing_status(cudaStream_t stream, cudaEvent_t) {
  break_device(stream);
  cudaStreamCaptureStatus status{};
  return cudaStreamIsCapturing(stream, &status);
}

template <cudaError_t (*status_of)(cudaStream_t, cudaEvent_t)>
int expect_fault() {
  owned_stream const stream = make_stream();
  owned_event const event = make_event();
  must(cudaEventRecord(event, stream));
  must(cudaStreamSynchronize(stream));
  must_be(status_of(stream, event), fault);
  return as_expected;
}

std::atomic<bool> host_function_ran{false};

void CUDART_CB note_host_function(void*) {
  // Release: pairs with the acquire of the case that asks.
  host_function_ran.store(true, std::memory_order_release);
}

bool did_host_function_run() {
  return host_function_ran.load(std::memory_order_acquire);
}

int host_function_behind_the_fault() {
  owned_stream const stream = make_stream();
  must(launch_illegal_address(stream));
  // The fault may be noticed before or after this call.
  static_cast<void>(cudaLaunchHostFunc(stream, &note_host_function, nullptr));
  must_be(cudaStreamSynchronize(stream), fault);
  must(stays_false(&did_host_function_run), "the host function does not run");
  return as_expected;
}

int host_function_after_the_fault() {
  owned_stream const stream = make_stream();
  break_device(stream);
  must_be(cudaLaunchHostFunc(stream, &note_host_function, nullptr), fault);
  must(stays_false(&did_host_function_run), "the host function does not run");
  return as_expected;
}

int user_object_made_and_released() {
  owned_stream const stream = make_stream();
  break_device(stream);
  witness seen;
  must(cudaUserObjectRelease(seen.make(), 1));
  must(seen.ran_here(), "the destructor ran on the caller");
  return as_expected;
}

int graph_destroyed() {
  owned_stream const stream = make_stream();
  witness seen;
  owned_graph graph = tiny_graph();
  seen.move_to(graph);
  break_device(stream);
  must(!seen.ran(), "the destructor has not run before");
  must(cudaGraphDestroy(graph.release()));
  must(seen.ran_here(), "the destructor ran on the caller");
  return as_expected;
}

int exec_destroyed_that_was_never_launched() {
  owned_stream const stream = make_stream();
  witness seen;
  owned_graph graph = tiny_graph();
  seen.move_to(graph);
  owned_exec exec = instantiate(graph);
  graph.reset();
  break_device(stream);
  must(!seen.ran(), "the destructor has not run before");
  must(cudaGraphExecDestroy(exec.release()));
  must(seen.wait(), "the destructor runs");
  return as_expected;
}

int exec_destroyed_that_was_launched() {
  owned_stream const stream = make_stream();
  witness seen;
  owned_graph graph = tiny_graph();
  seen.move_to(graph);
  owned_exec exec = instantiate(graph);
  graph.reset();
  must(cudaGraphLaunch(exec, stream));
  must(cudaStreamSynchronize(stream));
  break_device(stream);
  must(!seen.ran(), "the destructor has not run before");
  must(cudaGraphExecDestroy(exec.release()));
  must(seen.wait(), "the destructor runs");
  return as_expected;
}

int exec_destroyed_whose_launch_failed() {
  owned_stream const stream = make_stream();
  witness seen;
  owned_graph graph = chain({illegal_address_call()});
  seen.move_to(graph);
  owned_exec exec = instantiate(graph);
  graph.reset();
  must(cudaGraphLaunch(exec, stream));
  must_be(cudaStreamSynchronize(stream), fault);
  must(cudaGraphExecDestroy(exec.release()));
  must(seen.wait(), "the destructor runs");
  return as_expected;
}

std::vector<named_case> const fault_cases = register_cases({
    {"MallocReturnsTheFault", &expect_fault<&malloc_status>},
    {"EventQueryReturnsTheFault", &expect_fault<&event_query_status>},
    {"EventDestroyReturnsTheFault", &expect_fault<&event_destroy_status>},
    {"StreamIsCapturingReturnsTheFault", &expect_fault<&is_capturing_status>},
    {"AHostFunctionBehindTheFaultIsNotRun", &host_function_behind_the_fault},
    {"AHostFunctionAfterTheFaultIsNotRun", &host_function_after_the_fault},
    {"AUserObjectIsMadeAndReleased", &user_object_made_and_released},
    {"GraphDestroyRunsTheDestructor", &graph_destroyed},
    {"ExecDestroyRunsTheDestructorOfAnExecNeverLaunched", &exec_destroyed_that_was_never_launched},
    {"ExecDestroyRunsTheDestructorOfAnExecLaunchedBefore", &exec_destroyed_that_was_launched},
    {"ExecDestroyRunsTheDestructorOfTheExecThatFailed", &exec_destroyed_whose_launch_failed},
});

class AfterAStickyFault : public testing::TestWithParam<named_case> {};

TEST_P(AfterAStickyFault, IsAsMeasured) {
  child_result const child = run_child(GetParam().name);
  EXPECT_TRUE(child.exited);
  EXPECT_EQ(child.status, as_expected) << child.output;
}

INSTANTIATE_TEST_SUITE_P(Device, AfterAStickyFault, testing::ValuesIn(fault_cases), &name_of_case);

}  // namespace
}  // namespace escrow::test
