// SPDX-License-Identifier: Apache-2.0
// What CUDA does after a sticky fault, on the device that failed and on another one, as measured;
// and how the simulated runtime makes a device fail. The fault ruins its process, so that each case
// has a process of its own.
#include "child.hpp"
#include "graph_nodes.hpp"

namespace escrow::test {
namespace {

constexpr auto fault = cudaErrorIllegalAddress;
constexpr int failing = 0;
constexpr int healthy = 1;

void break_device(cudaStream_t stream) {
  must(launch_illegal_address(stream));
  must_be(cudaStreamSynchronize(stream), fault);
}

void calls_must_return_the_fault(cudaStream_t stream, cudaEvent_t event) {
  void* memory = nullptr;
  cudaStreamCaptureStatus status{};
  must_be(cudaMalloc(&memory, 64), fault);
  must_be(cudaEventQuery(event), fault);
  must_be(cudaStreamQuery(stream), fault);
  must_be(cudaEventRecord(event, stream), fault);
  must_be(cudaStreamIsCapturing(stream, &status), fault);
  must_be(cudaStreamIsCapturing(cudaStreamPerThread, &status), fault);
}

void every_call_returns_the_fault() {
  owned_stream const stream = make_stream();
  owned_event event = make_event();
  must(cudaEventRecord(event, stream));
  must(cudaStreamSynchronize(stream));
  break_device(stream);
  calls_must_return_the_fault(stream, event);
  must_be(cudaEventDestroy(event.release()), fault);
}

std::atomic<bool> host_function_ran{false};

void CUDART_CB note_host_function(void*) {
  // Release: pairs with the acquire below.
  host_function_ran.store(true, std::memory_order_release);
}

void no_host_function_may_run() {
  must(stays_false([] { return host_function_ran.load(std::memory_order_acquire); }),
       "the host function does not run");
}

void host_functions_do_not_run() {
  owned_stream const stream = make_stream();
  must(launch_illegal_address(stream));
  // The fault may be noticed before or after this call.
  static_cast<void>(cudaLaunchHostFunc(stream, &note_host_function, nullptr));
  must_be(cudaStreamSynchronize(stream), fault);
  no_host_function_may_run();
  must_be(cudaLaunchHostFunc(stream, &note_host_function, nullptr), fault);
  no_host_function_may_run();
}

void user_objects_are_destroyed_on_the_caller() {
  owned_stream const stream = make_stream();
  witness of_graph;
  owned_graph graph = tiny_graph();
  of_graph.move_to(graph);
  break_device(stream);
  must(!of_graph.ran(), "the destructor has not run before");
  must(cudaGraphDestroy(graph.release()));
  must(of_graph.ran_here(), "the destructor ran on the caller");
  witness made_later;
  must(cudaUserObjectRelease(made_later.make(), 1));
  must(made_later.ran_here(), "the destructor ran on the caller");
}

enum class exec_use { none, done, failed };

template <exec_use use>
void exec_destroy_runs_the_destructor() {
  owned_stream const stream = make_stream();
  witness seen;
  owned_graph graph = chain({use == exec_use::failed ? illegal_address_call() : tiny_call()});
  seen.move_to(graph);
  owned_exec exec = instantiate(graph);
  graph.reset();
  if (use != exec_use::none) must(cudaGraphLaunch(exec, stream));
  if (use == exec_use::failed) {
    must_be(cudaStreamSynchronize(stream), fault);
  } else {
    must(cudaStreamSynchronize(stream));
    break_device(stream);
    must(!seen.ran(), "the destructor has not run before");
  }
  must(cudaGraphExecDestroy(exec.release()));
  must(seen.wait(), "the destructor runs");
}

std::vector<named_case> const fault_cases = register_cases({
    {"EveryCallReturnsTheFault", &every_call_returns_the_fault},
    {"HostFunctionsDoNotRun", &host_functions_do_not_run},
    {"UserObjectsAreDestroyedOnTheCaller", &user_objects_are_destroyed_on_the_caller},
    {"AnUnlaunchedExecDestroysItsUserObject", &exec_destroy_runs_the_destructor<exec_use::none>},
    {"ALaunchedExecDestroysItsUserObject", &exec_destroy_runs_the_destructor<exec_use::done>},
    {"TheFailedExecDestroysItsUserObject", &exec_destroy_runs_the_destructor<exec_use::failed>},
});

using AfterAStickyFault = child_test;
TEST_P(AfterAStickyFault, IsAsMeasured) {
  expect_clean_end(GetParam());
}
INSTANTIATE_TEST_SUITE_P(Device, AfterAStickyFault, testing::ValuesIn(fault_cases), &name_of_case);

/// Two kernels on the healthy device, the first of which waits for a flag, and an event behind
/// them; then a fault on the other device, which stays the current one.
class two_devices {
 public:
  two_devices() {
    must(cudaSetDevice(failing));
    doomed = make_stream();
    must(cudaSetDevice(healthy));
    stream = make_stream();
    event = make_event();
    must(launch_wait_flag(stream, flag.data()));
    must(launch_add(stream, cell.data(), 1));
    must(cudaEventRecord(event, stream));
  }
  void break_one() {
    must(cudaSetDevice(failing));
    break_device(doomed);
  }
  void must_go_on(int kernels = 1) {
    must(stays_false([&] { return cell.load() != 0; }), "the first kernel waits");
    flag.store(0, 1);
    must(wait_until([&] { return cell.load() == kernels; }), "what is behind it runs");
  }

  pinned_ints flag;
  pinned_ints cell;
  owned_stream doomed;
  owned_stream stream;
  owned_event event;
};

void every_call_about_another_device_returns_it() {
  two_devices both;
  both.break_one();
  for (int const current : {failing, healthy}) {
    static_cast<void>(cudaSetDevice(current));
    calls_must_return_the_fault(both.stream, both.event);
  }
  both.must_go_on();
  must_be(cudaEventQuery(both.event), fault);  // although the kernels are done
}

void host_functions_beside_do_not_run() {
  two_devices both;
  must(cudaLaunchHostFunc(both.stream, &note_host_function, nullptr));
  both.break_one();
  both.must_go_on();
  no_host_function_may_run();
}

void user_objects_beside_are_destroyed_too_early() {
  two_devices both;
  witness seen;
  owned_graph graph = chain({wait_flag_call(both.flag.data()), add_call(both.cell.data(), 1)});
  seen.move_to(graph);
  owned_exec exec = instantiate(graph);
  graph.reset();
  must(cudaGraphLaunch(exec, both.stream));
  both.break_one();
  must(cudaGraphExecDestroy(exec.release()));
  must(seen.wait(), "the destructor runs");
  both.must_go_on(2);  // the launch was in flight
}

std::vector<named_case> const beside_cases = register_cases({
    {"EveryCallReturnsItWhicheverDeviceItIsAbout", &every_call_about_another_device_returns_it},
    {"HostFunctionsDoNotRunBesideIt", &host_functions_beside_do_not_run},
    {"UserObjectsAreDestroyedTooEarlyBesideIt", &user_objects_beside_are_destroyed_too_early},
});

class FaultBeside : public case_of_two_devices {};
TEST_P(FaultBeside, IsAsMeasuredAndTheWorkGoesOn) {
  expect_clean_end(GetParam());
}
INSTANTIATE_TEST_SUITE_P(AnotherDevice, FaultBeside, testing::ValuesIn(beside_cases),
                         &name_of_case);

#ifdef ESCROW_TEST_RUNTIME_SIM
TEST(FailDevice, IsReportedUntilItIsClearedAndDestroysWhatItIsAskedTo) {
  cudaEvent_t const event = make_event().release();
  cudaStream_t const stream = make_stream().release();
  void* memory = nullptr;
  must(cudaMalloc(&memory, 16));
  sim::fail_device(failing, fault);
  EXPECT_EQ(cudaEventDestroy(event), fault);
  EXPECT_EQ(cudaStreamDestroy(stream), fault);
  EXPECT_EQ(cudaFree(memory), fault);
  EXPECT_EQ(sim::alive(), sim::counts{});
  EXPECT_EQ(cudaDeviceReset(), cudaSuccess);
  for (int device : {failing, healthy}) EXPECT_EQ(cudaSetDevice(device), fault);
  EXPECT_EQ(cudaGetLastError(), fault);
  EXPECT_EQ(cudaGetLastError(), fault);
  sim::clear_faults();
  EXPECT_EQ(cudaSetDevice(failing), cudaSuccess);
}
#endif

}  // namespace
}  // namespace escrow::test
