// Loading and unloading code while calls fail: no library is lost, and none is unloaded early.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <escrow/deleter.hpp>
#include <escrow/nodes.hpp>
#include <escrow/sim.hpp>
#include <optional>

#include "escrow/core/error.hpp"
#include "failing_call.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"

namespace escrow::test {
namespace {

constexpr std::array errors{cudaErrorMemoryAllocation, cudaErrorInvalidValue, cudaErrorUnknown};

TEST(LibraryFault, LoadingAndFindingWorkOrLeaveNothing) {
  pinned_ints cell;
  owned_stream const stream = make_stream();
  for (cudaError_t const error : errors) {
    bool reached = true;
    for (std::uint64_t n = 1; reached; ++n) {
      SCOPED_TRACE(testing::Message() << "call " << n << " fails: " << cudaGetErrorName(error));
      ASSERT_LT(n, 100U);
      deleter its(deleter_options{.own_worker = false});
      std::optional<kernel> add;
      try {
        failing_call const failing(n, error);
        add = library::load(library_code(), its).find("library_add");
        reached = failing.was_reached();
      } catch (cuda_error const& what) {
        EXPECT_EQ(what.status(), error);
      }
      EXPECT_TRUE(add.has_value() || reached);
      if (add) {
        cell.store(0, 0);
        launch(stream, *add, {}, cell.data(), 1);
        must(cudaStreamSynchronize(stream));
        EXPECT_EQ(cell.load(), 1);
        deleter::global().drain();
      }
      add.reset();
      its.drain();
      EXPECT_EQ(sim::alive().libraries, 0U);
      EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(LibraryFault, AnUnloadThatFailsIsTriedAgain) {
  deleter its;
  sim::fail_call("cudaLibraryUnload", cudaErrorUnknown, 1, 2);
  static_cast<void>(library::load(library_code(), its));
  its.drain();
  sim::clear_faults();
  EXPECT_EQ(sim::alive().libraries, 0U);
  EXPECT_EQ(its.stats().errors, 0U);
}

TEST(LibraryFault, AnUnloadThatAlwaysFailsIsReported) {
  deleter its;
  sim::fail_call("cudaLibraryUnload", cudaErrorUnknown, 1, 1000);
  static_cast<void>(library::load(library_code(), its));
  its.drain();
  sim::clear_faults();
  EXPECT_EQ(its.stats().errors, 1U);
}

}  // namespace
}  // namespace escrow::test
