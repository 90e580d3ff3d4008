// SPDX-License-Identifier: Apache-2.0
// Runs the C tests, and lets every call and allocation of every C function fail.
#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <vector>

#include "c_world.h"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "status.hpp"

#ifdef ESCROW_TEST_RUNTIME_SIM
#include <escrow/sim.hpp>

#include "allocation_watch.hpp"
#endif

namespace escrow::test {
namespace {

/// What all tests use; it ends before the runtime does, with the program's main.
struct c_world {
  pinned_flag flag;
  std::array<owned_stream, 3> streams{make_stream(), make_stream(), make_stream()};
};
c_world* the_world = nullptr;

class CApi : public testing::Test {
 protected:
  CApi() { the_world = &world_; }
  ~CApi() override {
    world_.flag.raise();
    for (cudaStream_t const each : world_.streams) must(cudaStreamSynchronize(each));
    bool is_drained = false;  // a cudaFree of this test would wait for what the next one holds up
    EXPECT_EQ(escrow_drain(20'000'000'000u, &is_drained), ESCROW_OK);
    EXPECT_TRUE(is_drained);
    the_world = nullptr;
  }
  void TearDown() override { EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess); }

 private:
  c_world world_;
};

class CCase : public CApi, public testing::WithParamInterface<c_case> {};

TEST_P(CCase, Passes) {
  GetParam().run();
}

std::string name_of_case(testing::TestParamInfo<c_case> const& of) {
  return of.param.name;
}
INSTANTIATE_TEST_SUITE_P(Memory, CCase,
                         testing::ValuesIn(c_memory_cases, c_memory_cases + c_memory_cases_count),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Orders, CCase,
                         testing::ValuesIn(c_order_cases, c_order_cases + c_order_cases_count),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Leases, CCase,
                         testing::ValuesIn(c_lease_cases, c_lease_cases + c_lease_cases_count),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Graphs, CCase,
                         testing::ValuesIn(c_graph_cases, c_graph_cases + c_graph_cases_count),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Clients, CCase,
                         testing::ValuesIn(c_client_cases, c_client_cases + c_client_cases_count),
                         name_of_case);

#ifdef ESCROW_TEST_RUNTIME_SIM

class COperation : public CApi, public testing::WithParamInterface<std::size_t> {
 protected:
  c_operation const& it = c_operations[GetParam()];
  std::string const function = std::string(it.name).substr(0, std::string(it.name).find(','));

  /// It failed, with this status, and says so; it is as if it was not called.
  void expect_failure(escrow_status got, escrow_status expected, cudaError_t error) const {
    EXPECT_EQ(got, expected) << escrow_last_error();
    EXPECT_TRUE(std::string(escrow_last_error()).starts_with(function)) << escrow_last_error();
    EXPECT_EQ(escrow_last_cuda_error(), error);
  }
  void end(escrow_status status) const {
    bool const was_taken = status != ESCROW_OK && escrow_last_error_took_object();
    if (status != ESCROW_OK && !was_taken) {
      status = it.act();
      EXPECT_EQ(status, ESCROW_OK) << "not repeated: " << escrow_last_error();
    }
    it.end(status == ESCROW_OK ? c_done : was_taken ? c_taken : c_not_done);
  }
  /// The calls that it makes if nothing fails.
  [[nodiscard]] std::vector<sim::recorded_call> calls() const {
    it.prepare();
    it.end(c_not_done);  // what is kept for the process is there
    it.prepare();
    sim::start_recording(sim::recorded_threads::this_one);
    EXPECT_EQ(it.act(), ESCROW_OK) << escrow_last_error();
    std::vector<sim::recorded_call> result = sim::stop_recording();
    it.end(c_done);
    return result;
  }
  /// Runs it while calls fail.
  template <class Fail>
  void run_failing(Fail const& fail) const {
    it.prepare();
    fail();
    escrow_status const status = it.act();
    sim::clear_faults();
    if (status != ESCROW_OK) expect_failure(status, ESCROW_CUDA_ERROR, cudaErrorUnknown);
    end(status);
  }
};

TEST_P(COperation, FailsAtEachCallAndCanBeRepeated) {
  std::size_t const count = calls().size();
  for (std::size_t i = 1; i <= count; ++i) {
    SCOPED_TRACE(i);
    run_failing([i] { sim::fail_nth_here(i, cudaErrorUnknown); });
  }
}

TEST_P(COperation, FailsAtAllCallsOfAFunctionAndCanBeRepeated) {
  std::set<std::string> names;
  for (sim::recorded_call const& each : calls()) names.insert(each.api);
  names.erase("cuCtxPopCurrent");  // the thread would keep the context
  for (std::string const& name : names) {
    SCOPED_TRACE(name);
    run_failing([&] { sim::fail_call_here(name, cudaErrorUnknown, 1, 1000); });
  }
}

TEST_P(COperation, RunsOutOfMemoryAtEachAllocationAndCanBeRepeated) {
  std::uint64_t count = 0;
  for (std::uint64_t i = 0; i <= count; ++i) {
    SCOPED_TRACE(i);
    it.prepare();
    escrow_status status = ESCROW_OK;
    {
      allocation_watch const watch(i);
      status = it.act();
      if (i == 0) count = watch.count();
    }
    EXPECT_TRUE(i != 0 || status == ESCROW_OK);
    if (status == ESCROW_CUDA_ERROR) {
      // A source of memory can only answer as cudaMalloc does.
      expect_failure(status, ESCROW_CUDA_ERROR, cudaErrorMemoryAllocation);
    } else if (status != ESCROW_OK) {
      expect_failure(status, ESCROW_OUT_OF_HOST_MEMORY, cudaSuccess);
    }
    end(status);
  }
}

std::string name_of_operation(testing::TestParamInfo<std::size_t> const& of) {
  std::string name = c_operations[of.param].name;
  std::ranges::replace(name, ',', '_');
  std::erase(name, ' ');
  return name;
}
INSTANTIATE_TEST_SUITE_P(All, COperation, testing::Range<std::size_t>(0, c_operation_count),
                         name_of_operation);

#endif

}  // namespace
}  // namespace escrow::test

using escrow::test::the_world;

bool c_expect(bool condition, char const* text, char const* file, int line) {
  if (!condition) GTEST_MESSAGE_AT_(file, line, text, testing::TestPartResult::kNonFatalFailure);
  return condition;
}

bool c_expect_status(escrow_status got, escrow_status expected, char const* text, char const* file,
                     int line) {
  std::string const said = std::string(text) + " returned " + std::to_string(got) + ", expected " +
                           std::to_string(expected) + ": " + escrow_last_error();
  return c_expect(got == expected, said.c_str(), file, line);
}

bool c_wait_until(bool (*condition)()) {
  return escrow::test::wait_until(condition);
}

bool c_stays_false(bool (*condition)()) {
  return escrow::test::stays_false(condition);
}

cudaStream_t c_stream(int number) {
  return the_world->streams.at(static_cast<std::size_t>(number));
}

void c_sync(int number) {
  escrow::test::must(cudaStreamSynchronize(c_stream(number)));
}

void c_hold_up(cudaStream_t stream) {
  escrow::test::must(escrow::test::launch_wait_flag(stream, the_world->flag.get()));
}

void c_go() {
  the_world->flag.raise();
}
