// SPDX-License-Identifier: Apache-2.0
// Whom the library asks about streams: the driver, or the runtime where the driver cannot answer.
// What tells them apart: a query of the runtime's that fails replaces the caller's last error.
#include <cstdlib>
#include <escrow/core.hpp>
#include <escrow/graph.hpp>
#include <escrow/internal/driver.hpp>
#include <escrow/sim.hpp>
#include <thread>

#include "capturing.hpp"
#include "child.hpp"

namespace escrow::test {
namespace {

enum class asked { the_driver, the_runtime };

/// Whom a query is given to that fails, as a stream that captures is not asked for its id. Not the
/// thread's first query, which is always the runtime's.
asked who_is_asked_for(cudaStream_t stream) {
  must(capture_of(stream).is_none(), "no capture");
  static_cast<void>(stream_id(stream));
  test::capture const open(stream, cudaStreamCaptureModeRelaxed);
  must(cudaGetDeviceCount(nullptr) == cudaErrorInvalidValue, "the caller's own error");
  try {
    static_cast<void>(stream_id(stream));
    must(false, "the capture was not noticed");
  } catch (cuda_error const& failed) {
    must(failed.status() == cudaErrorStreamCaptureUnsupported, failed.what());
  }
  return cudaGetLastError() == cudaErrorInvalidValue ? asked::the_driver : asked::the_runtime;
}

/// All calls work.
void expect_works() {
  owned_stream const stream = make_stream();
  owned_stream const other = make_stream();
  event const ready;
  ready.ref().record(stream.get());
  ready.ref().wait(other.get());
  must(stream_id(stream) != stream_id(other), "ids");
  test::capture open(stream, cudaStreamCaptureModeRelaxed);
  escrow::capture_info const found = capture_of(stream);
  must(found.is_active() && found.id == open.info().id, "the capture");
  auto state = cudaStreamCaptureStatusNone;
  must(query_is_capturing(stream, state));
  must(state == cudaStreamCaptureStatusActive, "it captures");
}

/// Works, and looks for no function of the driver any more.
void expect_works_without_looking() {
  expect_works();
  std::uint64_t const before = sim::calls("cudaDriverGetVersion");
  expect_works();
  must(sim::calls("cudaDriverGetVersion") == before, "it is known");
}

std::uint64_t searches() {
  return sim::calls("cudaGetDriverEntryPointByVersion");
}

void the_driver_is_asked_and_its_functions_are_found_once() {
  owned_stream const stream = make_stream();
  must(who_is_asked_for(stream) == asked::the_driver, "whom");
  expect_works();
  std::uint64_t const before = searches();
  must(before == 3, "a search for each function");
  expect_works();
  must(searches() == before, "no other");
}

void the_driver_is_asked_about_default_streams() {
  for (cudaStream_t const each : {cudaStreamPerThread, cudaStreamLegacy, cudaStream_t{}}) {
    static_cast<void>(capture_of(each));
    must(stream_id(each) == stream_id(each), "one id");
  }
  must(stream_id(cudaStreamLegacy) == stream_id(cudaStream_t{}), "two names of one stream");
  must(stream_id(cudaStreamLegacy) != stream_id(cudaStreamPerThread), "two streams");
  must(who_is_asked_for(cudaStreamPerThread) == asked::the_driver, "whom");
}

// A default stream is that of a context, which the runtime makes current when it is called.
void the_runtime_is_asked_where_the_thread_has_no_context() {
  for (cudaStream_t const each : {cudaStreamLegacy, cudaStreamPerThread}) {
    must(who_is_asked_for(make_stream()) == asked::the_driver, "whom");
    must(cudaDeviceReset());
    must(capture_of(each).is_none(), "no capture");
    static_cast<void>(stream_id(each));
  }
}

void the_runtime_is_asked_if_the_environment_says_so() {
  must(setenv("ESCROW_RUNTIME_CALLS", "1", 1) == 0, "setenv");
  owned_stream const stream = make_stream();
  must(who_is_asked_for(stream) == asked::the_runtime, "whom");
  expect_works_without_looking();
  must(searches() == 0, "no search");
}

void the_driver_is_asked_if_the_environment_says_no() {
  must(setenv("ESCROW_RUNTIME_CALLS", "0", 1) == 0, "setenv");
  owned_stream const stream = make_stream();
  must(who_is_asked_for(stream) == asked::the_driver, "whom");
}

// The caller's last error is not touched by a search in vain.
void an_old_driver_leaves_its_functions_to_the_runtime() {
  sim::reset({.driver_version = 11040});
  owned_stream const stream = make_stream();
  must(cudaGetDeviceCount(nullptr) == cudaErrorInvalidValue, "the caller's own error");
  static_cast<void>(stream_id(stream));
  must(capture_of(stream).is_none(), "no capture");
  must(cudaGetLastError() == cudaErrorInvalidValue, "the caller's last error stays");
  must(who_is_asked_for(stream) == asked::the_runtime, "whom");
  must(searches() == 0, "no search");
  expect_works_without_looking();
}

void the_runtime_is_asked_first_on_each_thread() {
  owned_stream const stream = make_stream();
  for (int i = 0; i < 2; ++i) {
    std::thread([&] {
      must(cudaGetDeviceCount(nullptr) == cudaErrorInvalidValue, "the thread's own error");
      sim::fail_call_here("cudaStreamGetCaptureInfo", cudaErrorMemoryAllocation);
      bool failed = false;
      try {
        static_cast<void>(capture_of(stream));
      } catch (cuda_error const&) {
        failed = true;
      }
      must(failed, "it fails");
      must(cudaGetLastError() == cudaSuccess, "it was the runtime that failed");
      must(who_is_asked_for(stream) == asked::the_driver, "whom then");
    }).join();
  }
}

struct asked_in_callback {
  cudaStream_t stream;
  cudaError_t answer = cudaSuccess;
};
void CUDART_CB ask(void* data) {
  auto& asked = *static_cast<asked_in_callback*>(data);
  try {
    static_cast<void>(capture_of(asked.stream));
  } catch (cuda_error const& failed) {
    asked.answer = failed.status();
  }
}

// The driver would answer there, where CUDA allows no call.
void the_runtime_is_asked_in_callbacks() {
  owned_stream const stream = make_stream();
  must(who_is_asked_for(stream) == asked::the_driver, "whom");
  for (int i = 0; i < 2; ++i) {
    asked_in_callback in{stream};
    must(cudaLaunchHostFunc(stream, &ask, &in));
    must(cudaStreamSynchronize(stream));
    must(in.answer == cudaErrorNotPermitted, "it refuses");
  }
}

void a_search_that_fails_is_made_again() {
  owned_stream const stream = make_stream();
  sim::fail_call("cudaGetDriverEntryPointByVersion", cudaErrorMemoryAllocation, 1, 2);
  must(who_is_asked_for(stream) == asked::the_runtime, "whom at first");
  must(who_is_asked_for(stream) == asked::the_driver, "whom then");
  expect_works();
}

// Also on a thread that asks nothing. A record of the runtime's that fails replaces the caller's
// last error.
void the_driver_records_behind_a_launch() {
  owned_stream const stream = make_stream();
  graph source = escrow::capture(stream_ref(stream.get()), [](stream_ref on) {
    deleter::global().retire(on, std::make_shared<int>(1));
    must(launch_tiny(on.get()));
  });
  graph_exec exec(source);
  exec.launch(stream.get());  // finds the function
  std::thread([&] {
    must(cudaGetDeviceCount(nullptr) == cudaErrorInvalidValue, "the thread's own error");
    sim::fail_call_here("cudaEventRecord", cudaErrorMemoryAllocation);
    exec.launch(stream.get());
    must(cudaGetLastError() == cudaErrorInvalidValue, "it was the driver that failed");
  }).join();
  must(cudaStreamSynchronize(stream));
}

std::vector<named_case> const cases = register_cases({
    {"the_driver_records_behind_a_launch", &the_driver_records_behind_a_launch},
    {"the_driver_is_asked_and_its_functions_are_found_once",
     &the_driver_is_asked_and_its_functions_are_found_once},
    {"the_driver_is_asked_about_default_streams", &the_driver_is_asked_about_default_streams},
    {"the_runtime_is_asked_where_the_thread_has_no_context",
     &the_runtime_is_asked_where_the_thread_has_no_context},
    {"the_runtime_is_asked_if_the_environment_says_so",
     &the_runtime_is_asked_if_the_environment_says_so},
    {"the_driver_is_asked_if_the_environment_says_no",
     &the_driver_is_asked_if_the_environment_says_no},
    {"an_old_driver_leaves_its_functions_to_the_runtime",
     &an_old_driver_leaves_its_functions_to_the_runtime},
    {"the_runtime_is_asked_first_on_each_thread", &the_runtime_is_asked_first_on_each_thread},
    {"the_runtime_is_asked_in_callbacks", &the_runtime_is_asked_in_callbacks},
    {"a_search_that_fails_is_made_again", &a_search_that_fails_is_made_again},
});

using WhoIsAsked = child_test;

TEST_P(WhoIsAsked, GoesAsItsNameSays) {
  expect_clean_end(GetParam());
}
INSTANTIATE_TEST_SUITE_P(Of, WhoIsAsked, testing::ValuesIn(cases), name_of_case);

}  // namespace
}  // namespace escrow::test
