// SPDX-License-Identifier: Apache-2.0
// What CUDA is asked about captures and graphs: whether a stream captures, its device, and a
// graph's id. No question harms a capture, a graph, or a call of another thread.
#include <escrow/core.hpp>
#include <escrow/internal/device.hpp>
#include <escrow/internal/driver.hpp>
#include <escrow/internal/graph_query.hpp>

#include "deep.hpp"
#include "world.hpp"

#ifdef ESCROW_TEST_RUNTIME_SIM
#include <unistd.h>

#include <escrow/internal/ready_event.hpp>

#include "child.hpp"
#endif

namespace escrow::test {
namespace {

class CaptureOf : public world {
 protected:
  static std::string refusal(cudaStream_t stream) {
    return message_of<usage_error>(
        [&] { static_cast<void>(usable_capture_of("some::call", stream)); });
  }
};

TEST_F(CaptureOf, NamesTheGraphForACapturingStreamAndAForkAndIsNoneForAPlainStream) {
  for (cudaStream_t const each : {one.get(), cudaStream_t{}, cudaStreamPerThread}) {
    EXPECT_TRUE(capture_of(each).is_none() && !capture_of(each).is_active());
    EXPECT_TRUE(usable_capture_of("some::call", each).is_none());
  }
  test::capture open(one, cudaStreamCaptureModeGlobal);
  order(one, two);
  must(launch_tiny(two));
  escrow::capture_info const found = capture_of(one);
  EXPECT_TRUE(found.is_active());
  EXPECT_EQ(found.id, open.info().id);
  EXPECT_EQ(usable_capture_of("some::call", one).id, found.id);
  EXPECT_EQ(capture_of(two).id, found.id);
  EXPECT_EQ(capture_of(two).graph, found.graph);
  order(two, one);
  ASSERT_EQ(open.end(), cudaSuccess);
  EXPECT_EQ(found.graph, open.graph().get());
  EXPECT_TRUE(capture_of(one).is_none() && capture_of(two).is_none());
}

TEST_F(CaptureOf, HasNeitherIdNorGraphOnceInvalidatedAndIsRefused) {
  test::capture const open(one, cudaStreamCaptureModeGlobal);
  ASSERT_NE(cudaDeviceSynchronize(), cudaSuccess);
  escrow::capture_info const found = capture_of(one);
  EXPECT_EQ(found.status, capture_status::invalidated);
  EXPECT_FALSE(found.is_none() || found.is_active());
  EXPECT_EQ(found.id, 0U);
  EXPECT_EQ(found.graph, nullptr);
  EXPECT_NE(refusal(one).find("invalidated"), std::string::npos) << refusal(one);
}

TEST_F(CaptureOf, RefusesTheLegacyStreamWhileABlockingStreamCaptures) {
  owned_stream const blocking = make_stream(cudaStreamDefault);
  test::capture open(blocking, cudaStreamCaptureModeThreadLocal);
  try {
    static_cast<void>(capture_of(cudaStreamLegacy));
    FAIL() << "capture_of() answered";
  } catch (cuda_error const& error) {
    EXPECT_EQ(error.status(), cudaErrorStreamCaptureImplicit);
  }
  EXPECT_NE(refusal(cudaStreamLegacy).find("legacy"), std::string::npos);
  EXPECT_EQ(refusal(cudaStreamLegacy), refusal(cudaStream_t{}));
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_EQ(open.end(), cudaSuccess) << "asking harmed the capture";
}

class GraphIdentity : public world {};

TEST_F(GraphIdentity, IsTheIdOfTheCaptureAndAskingLeavesLastErrorAndModeAlone) {
  thread_mode_scope const thread_local_mode(cudaStreamCaptureModeThreadLocal);
  test::capture open(one, cudaStreamCaptureModeGlobal);
  must(launch_tiny(one));
  test::capture_info const now = open.info();
  ASSERT_NE(cudaEventQuery(nullptr), cudaSuccess);
  cudaError_t const earlier = cudaPeekAtLastError();
  EXPECT_EQ(graph_id_of(now.graph), now.id);
  EXPECT_EQ(cudaGetLastError(), earlier);
  ASSERT_EQ(open.end(), cudaSuccess);
  EXPECT_EQ(graph_id_of(open.graph()), now.id);
  EXPECT_EQ(thread_mode(), cudaStreamCaptureModeThreadLocal);
  EXPECT_THROW(static_cast<void>(graph_id_of(nullptr)), cuda_error);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST_F(GraphIdentity, IsLearnedBesideAThreadThatSynchronizesTheDevice) {
  owned_graph const graph = tiny_graph();
  auto const id = graph_id_of(graph);
  synchronizing_thread other;
  int const asked = deep_size(20'000, 100'000);
  int wrong = 0;
  for (int i = 0; i < asked; ++i) {
    try {
      if (graph_id_of(graph) != id) ++wrong;
    } catch (cuda_error const&) {
      ++wrong;
    }
  }
  other.stop();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(other.failed(), 0);
  EXPECT_GT(other.synchronized(), 0);
  EXPECT_EQ(node_count(graph), 1U);
  EXPECT_EQ(cudaGraphLaunch(instantiate(graph), one), cudaSuccess);
}

#ifdef ESCROW_TEST_RUNTIME_SIM
TEST_F(CaptureOf, IsACudaErrorIfTheQueryFails) {
  sim::fail_call_here("cudaStreamGetCaptureInfo", cudaErrorInvalidResourceHandle);
  EXPECT_THROW(static_cast<void>(usable_capture_of("some::call", one)), cuda_error);
}

// What depends on the machine or on the first call of a process: each case is a process.

constexpr int with_graph_id = 13010;  // the driver has cuGraphGetId

int device_without_a_context_on_an_unused_one() {
  sim::reset({.devices = 5});
  must(cudaSetDevice(3));
  owned_stream const first = make_stream();
  must(cudaSetDevice(1));
  owned_stream const second = make_stream();
  must(cudaSetDevice(0));
  test::capture open(first, cudaStreamCaptureModeGlobal);
  test::capture other(second, cudaStreamCaptureModeGlobal);
  for (int i = 0; i < 2; ++i) {
    must(device_of_capturing(first) == 3, "the device");
    must(device_of_capturing(second) == 1, "that of another capture");
  }
  must(open.is_active() && other.is_active(), "the captures go on");
  must(open.end());
  must(node_count(open.graph()) == 0, "nothing was added");
  return sim::has_context(2) || sim::has_context(4) ? 1 : as_expected;
}

// Makes graphs whose ids count up from `first`, and asks for each. How often the text was printed.
std::uint64_t prints_for_ids_from(std::uint64_t first, int driver_version) {
  sim::reset({.driver_version = driver_version, .first_graph_id = first});
  must(cudaEventQuery(nullptr) != cudaSuccess, "an error of the caller's");
  cudaError_t const earlier = cudaPeekAtLastError();
  for (std::uint64_t id = first; id < first + 3; ++id) {
    owned_graph const graph = make_graph();
    must(graph_id_of(graph) == id, "the 64-bit id");
  }
  must(cudaGetLastError() == earlier, "the caller's last error stays");
  return sim::calls("cudaGraphDebugDotPrint");
}

int driver_is_asked_alone_after_it_agreed() {
  must(prints_for_ids_from(1, with_graph_id) == 1, "one print, for the first graph");
  // Its ids have 32 bits, so near the end of their range they are checked again.
  must(prints_for_ids_from((1ULL << 31U) - 2, with_graph_id) == 1, "one print, for the third");
  must(prints_for_ids_from((1ULL << 32U) + 1, with_graph_id) == 3, "a print for each");
  return as_expected;
}

int without_a_file_descriptor_asking_fails() {
  if (built_with_asan) return as_expected;  // UBSan looks at types through a pipe of its own
  owned_graph const graph = make_graph();
  must(cudaEventQuery(nullptr) != cudaSuccess, "an error of the caller's");
  cudaError_t const earlier = cudaPeekAtLastError();
  while (dup(0) >= 0) continue;
  try {
    static_cast<void>(graph_id_of(graph));
  } catch (cuda_error const& error) {
    must(error.status() == cudaErrorOperatingSystem, "the file cannot be made");
    must(cudaGetLastError() == earlier, "no call of CUDA failed");
    return as_expected;
  }
  return 1;
}

std::vector<named_case> const cases = register_cases(
    {{"driver_is_asked_alone_after_it_agreed", &driver_is_asked_alone_after_it_agreed},
     {"driver_is_not_asked_where_it_has_no_id",
      [] { return prints_for_ids_from(1, with_graph_id - 10) == 3 ? as_expected : 1; }},
     {"driver_is_not_believed_if_its_ids_have_wrapped",
      [] { return prints_for_ids_from((1ULL << 32U) + 7, with_graph_id) == 3 ? as_expected : 1; }},
     {"without_a_file_descriptor_asking_fails", &without_a_file_descriptor_asking_fails}});

using GraphQueryInAProcess = child_test;

TEST_P(GraphQueryInAProcess, GoesAsItsNameSays) {
  expect_clean_end(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Of, GraphQueryInAProcess, testing::ValuesIn(cases), name_of_case);

auto const case_of_devices = register_cases(
    {{"device_without_a_context_on_an_unused_one", &device_without_a_context_on_an_unused_one}});

TEST(CaptureDevice, IsFoundWithoutAContextOnAnUnusedDevice) {
  expect_clean_end(case_of_devices[0]);
}
#endif

}  // namespace
}  // namespace escrow::test
