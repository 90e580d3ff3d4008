// What core knows of the GPU's work after a sticky fault: with one device in use nothing runs, with
// several nothing is known.
#include "escrow/detail/device.hpp"

#include <gtest/gtest.h>

#include <array>
#include <escrow/sim.hpp>

#include "child.hpp"
#include "escrow/detail/ready_event.hpp"
#include "handles.hpp"

namespace escrow {
namespace {

using test::must;

constexpr auto fault = cudaErrorIllegalAddress;
constexpr int as_expected = 42;

void use_device(int device) {
  must(cudaSetDevice(device));
  static_cast<void>(test::make_stream());
}

int with_one_device_nothing_runs() {
  use_device(0);
  must(!may_work_go_on_untold(), "there is no fault yet");
  must(answer_of(cudaErrorNotReady) == ready_answer::not_yet, "no fault");
  must(answer_of(fault) == ready_answer::done, "nothing runs");
  must(runs_nothing_after(fault), "nothing runs");
  must(!runs_nothing_after(cudaErrorInvalidValue), "no fault");
  test::owned_stream const stream = test::make_stream();
  event ready;
  int device = 0;
  sim::fail_device(0, fault);
  must(record_ready(ready, device, stream).outcome == record_outcome::device_lost, "nothing runs");
  must(!may_work_go_on_untold(), "no other device is in use");
  sim::clear_faults();
  // Refused first, and lost at the next call.
  sim::fail_call("cudaEventRecord", cudaErrorInvalidValue);
  sim::fail_nth(2, fault);
  must(record_ready(ready, device, stream).outcome == record_outcome::device_lost, "nothing runs");
  return as_expected;
}

int with_two_devices_nothing_is_known() {
  use_device(1);
  use_device(0);
  must(!may_work_go_on_untold(), "there is no fault yet");
  test::owned_stream const stream = test::make_stream();
  event ready;
  int device = 0;
  sim::fail_device(1, fault);
  must(answer_of(fault) == ready_answer::gone, "nothing tells");
  must(!runs_nothing_after(fault), "the other may run");
  must(may_work_go_on_untold(), "the other may run");
  must(record_ready(ready, device, stream).outcome == record_outcome::failed, "nothing tells");
  must(cudaDeviceReset());
  must(may_work_go_on_untold(), "once seen, for ever");
  return as_expected;
}

template <int which>
int what_cannot_be_asked_counts_as_used() {
  constexpr std::array calls{"cudaGetDeviceCount", "cudaGetDriverEntryPointByVersion"};
  use_device(0);
  sim::fail_device(0, fault);
  sim::fail_call(calls[which], cudaErrorUnknown, 1, 2);  // once for each device
  must(!runs_nothing_after(fault), calls[which]);
  return as_expected;
}

test::child_case const one{"one", &with_one_device_nothing_runs};
test::child_case const two{"two", &with_two_devices_nothing_is_known};
test::child_case const no_count{"no_count", &what_cannot_be_asked_counts_as_used<0>};
test::child_case const no_function{"no_function", &what_cannot_be_asked_counts_as_used<1>};

void expect_case(char const* name) {
  test::child_result const child = test::run_child(name);
  EXPECT_EQ(child.status, as_expected) << child.output;
}

TEST(AfterFault, NothingRunsWhereOneDeviceIsInUse) {
  expect_case("one");
}

TEST(AfterFault, NothingIsKnownWhereTwoDevicesAreInUse) {
  expect_case("two");
}

TEST(AfterFault, WhatCannotBeAskedCountsAsUsed) {
  expect_case("no_count");
  expect_case("no_function");
}

}  // namespace
}  // namespace escrow
