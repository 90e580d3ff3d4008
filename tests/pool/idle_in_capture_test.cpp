// SPDX-License-Identifier: Apache-2.0
// On the simulated runtime, captured work behind the end of a lease of its capture ends the
// process: a later claim of the capture gets the same memory.
#include <cstddef>
#include <cstdlib>
#include <escrow/pool/stream_allocator.hpp>
#include <set>
#include <string>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

class IdleInCapture : public pool_world {
 protected:
  static constexpr std::size_t values = 64;
  /// A process of its own, since this one has threads.
  IdleInCapture() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  static void expect_told(auto run, std::string const& operand, std::string const& where) {
    EXPECT_DEATH(run(), operand + ": 0x.* is of " + where +
                            ".*: a later claim .* gets the same memory; end the lease behind");
  }
  static void expect_told_outside(auto run) {
    EXPECT_DEATH(run(),
                 "cudaLaunchKernel: kernel .*add.*, argument 0: 0x.* is of the pool .*, "
                 "whose lease has ended in a capture, .*: keep the lease .*claim_kept");
  }
  static constexpr char const* of_pool = "the pool .*, whose lease has ended in this capture";
  static constexpr char const* of_arena = "the arena of .*, where no lease is";

  /// Written, and its lease has ended.
  [[nodiscard]] static int* ended(scratch_pool& from, cudaStream_t on) {
    int* memory = nullptr;
    {
      auto const lease = from.claim<int>(on, values);
      memory = lease.data();
      must(launch_fill(on, memory, values, 1));
    }
    return memory;
  }
  void capture_use(scratch_pool& from) {
    static_cast<void>(captured([&](cudaStream_t on) { must(launch_add(on, ended(from, on), 1)); }));
  }
  /// What the second of two leases has is not what the first had, and that is told.
  void capture_late_use(scratch_pool& from) {
    static_cast<void>(captured([&](cudaStream_t on) {
      int* const first = ended(from, on);
      auto const next = from.claim<int>(on, values);
      must(launch_copy(on, next.data(), first, 1));
    }));
  }

  scratch_pool scratch{options(32)};
  sharing_group group;
  scratch_pool shared{with(options(32), &pool_options::group, group)};
};

TEST_F(IdleInCapture, IsTold) {
  expect_told([&] { capture_use(scratch); }, "cudaLaunchKernel: kernel .*add.*, argument 0",
              of_pool);
  expect_told([&] { capture_use(shared); }, "cudaLaunchKernel: kernel .*add.*, argument 0",
              of_arena);
  expect_told(
      [&] {
        static_cast<void>(captured([&](cudaStream_t on) {
          must(cudaMemsetAsync(ended(scratch, on), 0, sizeof(int), on));
        }));
      },
      "cudaMemsetAsync: fill, destination", of_pool);
  expect_told(
      [&] {
        owned_graph const by_plain_cuda = captured_plainly([&](cudaStream_t on) {
          int* const memory = ended(scratch, on);
          must(cudaMemcpyAsync(cells.data(), memory, sizeof(int), cudaMemcpyDefault, on));
        });
      },
      "cudaMemcpyAsync: copy, source", of_pool);
}

TEST_F(IdleInCapture, IsToldOfAnAllocator) {
  stream_allocator memory(options(4));
  expect_told(
      [&] {
        static_cast<void>(captured([&](cudaStream_t on) {
          void* const freed = memory.allocate(on, values);
          must(cudaMemsetAsync(freed, 0, values, on));
          memory.deallocate(on, freed);
          must(cudaMemsetAsync(freed, 0, values, on));
        }));
      },
      "cudaMemsetAsync: fill, destination", of_pool);
}

TEST_F(IdleInCapture, IsNotWhatIsLeftToTheGraph) {
  stream_allocator memory(options(4));
  int* kept_of_pool = nullptr;
  graph_exec exec(captured([&](cudaStream_t on) {
    for (scratch_pool* const each : {&scratch, &shared}) {
      auto left = each->claim<int>(on, values);
      int* const kept = left.data();
      if (each == &scratch) kept_of_pool = kept;
      left.leave_to_graph();
      must(launch_fill(on, kept, values, 1));
    }
    auto* const of_allocator = static_cast<int*>(memory.allocate(on, values * sizeof(int)));
    memory.leave_to_graph(of_allocator);
    must(launch_fill(on, of_allocator, values, 1));
    auto const told = scratch.claim<int>(on, values);  // in its place, it is a lease's again
    must(launch_add(on, told.data(), 1));
  }));
  exec.launch(one);
  must(launch_add(one, kept_of_pool, 1));
  sync(one);
}

TEST_F(IdleInCapture, IsNotWhatAnotherCaptureHas) {
  int* of_first = nullptr;
  int* of_arena_of_first = nullptr;
  graph_exec first(captured([&](cudaStream_t on) {
    of_first = ended(scratch, on);
    of_arena_of_first = ended(shared, on);
  }));
  // Nor does a lease have it, and the next launch may write it.
  expect_told_outside([&] { static_cast<void>(launch_add(one, of_first, 1)); });
  // Whether its graph keeps the memory is for its audit.
  owned_graph const second = captured_plainly([&](cudaStream_t on) {
    must(launch_add(on, of_first, 1));
    must(launch_add(on, of_arena_of_first, 1));
  });
  first.launch(one);
  sync(one);
}

TEST_F(IdleInCapture, IsToldBehindALaterClaimIfReuseIsLate) {
  ASSERT_EQ(::setenv("ESCROW_REUSE", "late", 1), 0);  // for the process of the test that ends
  expect_told([&] { capture_late_use(scratch); }, "cudaLaunchKernel: kernel .*copy.*, argument 1",
              of_pool);
  expect_told([&] { capture_late_use(shared); }, "cudaLaunchKernel: kernel .*copy.*, argument 1",
              of_arena);
  EXPECT_EXIT(
      {
        graph_exec exec(captured([&](cudaStream_t on) {
          for (scratch_pool* const each : {&scratch, &shared}) {
            std::set<int*> seen;
            for (int i = 0; i < 16; ++i) seen.insert(ended(*each, on));
            // Then they are taken again.
            must(seen.size() == 16 && seen.contains(ended(*each, on)) ? cudaSuccess
                                                                      : cudaErrorUnknown);
          }
        }));
        exec.launch(one);
        sync(one);
        std::_Exit(0);
      },
      testing::ExitedWithCode(0), "");
  ::unsetenv("ESCROW_REUSE");
}

}  // namespace
}  // namespace escrow::test
