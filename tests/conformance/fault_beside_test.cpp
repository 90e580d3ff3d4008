// What CUDA does when one of two devices fails: the fault is the process's, but the other device
// goes on. The fault ruins its process, so each case runs in a process of its own.
#include <gtest/gtest.h>

#include <atomic>
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
constexpr int failing = 0;
constexpr int healthy = 1;

/// Two kernels on the healthy device, the first of which waits for a flag, an event behind them,
/// and then a fault on the other device, which stays the current one.
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
    must(launch_illegal_address(doomed));
    must_be(cudaStreamSynchronize(doomed), fault);
  }

  pinned_ints flag;
  pinned_ints cell;
  owned_stream doomed;
  owned_stream stream;
  owned_event event;
};

int every_call_returns_it() {
  two_devices both;
  both.break_one();
  for (int const current : {failing, healthy}) {
    static_cast<void>(cudaSetDevice(current));
    void* memory = nullptr;
    cudaStreamCaptureStatus status{};
    must_be(cudaEventQuery(both.event), fault);
    must_be(cudaStreamQuery(both.stream), fault);
    must_be(cudaMalloc(&memory, 64), fault);
    must_be(cudaEventRecord(both.event, both.stream), fault);
    must_be(cudaStreamIsCapturing(both.stream, &status), fault);
    must_be(cudaStreamIsCapturing(cudaStreamPerThread, &status), fault);
  }
  both.flag.store(0, 1);
  must(wait_until([&] { return both.cell.load() == 1; }), "the kernels end");
  must_be(cudaEventQuery(both.event), fault);  // and nothing tells
  return as_expected;
}

int the_other_device_goes_on() {
  two_devices both;
  both.break_one();
  must(stays_false([&] { return both.cell.load() != 0; }), "the first kernel waits");
  both.flag.store(0, 1);
  must(wait_until([&] { return both.cell.load() == 1; }), "the one behind it runs");
  return as_expected;
}

int host_functions_do_not_run() {
  two_devices both;
  static std::atomic<bool> ran{false};
  must(cudaLaunchHostFunc(
      both.stream, [](void*) { ran.store(true, std::memory_order_release); }, nullptr));
  both.break_one();
  both.flag.store(0, 1);
  must(wait_until([&] { return both.cell.load() == 1; }), "the kernels end");
  must(stays_false([] { return ran.load(std::memory_order_acquire); }), "it does not run");
  return as_expected;
}

int user_objects_go_too_early() {
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
  must(both.cell.load() == 0, "while the launch is in flight");
  both.flag.store(0, 1);
  must(wait_until([&] { return both.cell.load() == 2; }), "its kernels go on");
  return as_expected;
}

std::vector<named_case> const fault_cases = register_cases({
    {"EveryCallReturnsItWhicheverDeviceItIsAbout", &every_call_returns_it},
    {"TheOtherDeviceGoesOnWithWhatItWasGiven", &the_other_device_goes_on},
    {"HostFunctionsOfTheOtherDoNotRun", &host_functions_do_not_run},
    {"UserObjectsOfTheOtherGoTooEarly", &user_objects_go_too_early},
});

class FaultBeside : public case_of_two_devices {};

TEST_P(FaultBeside, IsAsMeasured) {
  child_result const child = run_child(GetParam().name);
  EXPECT_TRUE(child.exited) << child.output;
  EXPECT_EQ(child.status, as_expected) << child.output;
}

INSTANTIATE_TEST_SUITE_P(AnotherDevice, FaultBeside, testing::ValuesIn(fault_cases), &name_of_case);

}  // namespace
}  // namespace escrow::test
