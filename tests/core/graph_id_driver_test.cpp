// The driver's 32-bit graph id is taken only once it agreed with the graph's text, and as long as
// it cannot have wrapped. Each case is a process, since a process looks for the driver's function
// once.
#include <gtest/gtest.h>
#include <unistd.h>

#include <escrow/sim.hpp>

#include "build_graph.hpp"
#include "child.hpp"
#include "escrow/core/error.hpp"
#include "escrow/detail/graph_query.hpp"
#include "handles.hpp"
#include "sanitizers.hpp"

namespace escrow {
namespace {

using test::must;

constexpr int as_expected = 42;
constexpr int with_graph_id = 13010;

std::uint64_t prints() {
  return sim::calls("cudaGraphDebugDotPrint");
}

// Asks for the ids of three new graphs in turn, the first of which is `first`.
void expect_ids_from(std::uint64_t first) {
  for (std::uint64_t id = first; id < first + 3; ++id) {
    test::owned_graph const graph = test::make_graph();
    must(graph_id_of(graph) == id, "the 64-bit id");
  }
}

int is_asked_alone_after_it_agreed() {
  sim::reset({.driver_version = with_graph_id});
  expect_ids_from(1);
  must(prints() == 1, "one print, for the first graph");
  return as_expected;
}

int is_not_asked_where_it_is_missing() {
  sim::reset({.driver_version = with_graph_id - 10});
  must(cudaEventQuery(nullptr) != cudaSuccess, "an error of the caller's");
  cudaError_t const earlier = cudaPeekAtLastError();
  expect_ids_from(1);
  must(prints() == 3, "a print for each graph");
  must(cudaGetLastError() == earlier, "the caller's last error stays");
  return as_expected;
}

int is_not_taken_if_it_wrapped() {
  std::uint64_t const first = (std::uint64_t{1} << 32U) + 7;
  sim::reset({.driver_version = with_graph_id, .first_graph_id = first});
  expect_ids_from(first);
  must(prints() == 3, "a print for each graph");
  return as_expected;
}

int is_no_longer_taken_near_its_end() {
  sim::reset({.driver_version = with_graph_id});
  expect_ids_from(1);
  must(prints() == 1, "one print");
  std::uint64_t const late = (std::uint64_t{1} << 31U) - 2;
  sim::reset({.driver_version = with_graph_id, .first_graph_id = late});
  expect_ids_from(late);  // the third is out of range
  must(prints() == 1, "one print, for the third");
  std::uint64_t const wrapped = (std::uint64_t{1} << 32U) + 1;
  sim::reset({.driver_version = with_graph_id, .first_graph_id = wrapped});
  expect_ids_from(wrapped);
  must(prints() == 3, "a print for each graph");
  return as_expected;
}

int without_a_file_descriptor_asking_fails() {
  test::owned_graph const graph = test::make_graph();
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

test::child_case const cases[]{
    {"is_asked_alone_after_it_agreed", &is_asked_alone_after_it_agreed},
    {"is_not_asked_where_it_is_missing", &is_not_asked_where_it_is_missing},
    {"is_not_taken_if_it_wrapped", &is_not_taken_if_it_wrapped},
    {"is_no_longer_taken_near_its_end", &is_no_longer_taken_near_its_end},
    {"without_a_file_descriptor_asking_fails", &without_a_file_descriptor_asking_fails},
};

void expect_as_expected(char const* name) {
  test::child_result const child = test::run_child(name);
  EXPECT_EQ(child.status, as_expected) << child.output;
}

TEST(DriversGraphId, IsAskedAloneAfterItAgreed) {
  expect_as_expected("is_asked_alone_after_it_agreed");
}

TEST(DriversGraphId, IsNotAskedWhereItIsMissing) {
  expect_as_expected("is_not_asked_where_it_is_missing");
}

TEST(DriversGraphId, IsNotTakenIfItWrapped) {
  expect_as_expected("is_not_taken_if_it_wrapped");
}

TEST(DriversGraphId, IsNoLongerTakenNearItsEnd) {
  expect_as_expected("is_no_longer_taken_near_its_end");
}

TEST(GraphId, WithoutAFileDescriptorIsAnErrorThatLeavesTheLastErrorAlone) {
  if (test::built_with_asan) GTEST_SKIP() << "UBSan looks at types through a pipe of its own";
  expect_as_expected("without_a_file_descriptor_asking_fails");
}

}  // namespace
}  // namespace escrow
