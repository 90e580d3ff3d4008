// SPDX-License-Identifier: Apache-2.0
// An output that outlives its capture has a place that no other graph of its sharing group and no
// later claim of its capture gets, whichever was captured first.
#include "pool_world.hpp"

namespace escrow::test {
namespace {

class ClaimKept : public sharing_world {
 protected:
  static constexpr std::size_t count = 1024;

  /// A graph that fills what `claim(stream)` gives with `value`, and keeps that in `out` if it is
  /// given.
  [[nodiscard]] graph filled(auto&& claim, int value, auto* out) {
    return captured([&](cudaStream_t on) {
      auto memory = claim(on);
      must(launch_fill(on, memory.data(), count, value));
      if (out != nullptr) out->emplace(std::move(memory));
    });
  }
  using output = std::optional<buffer_lease<int>>;
  [[nodiscard]] graph with_temporary(scratch_pool& scratch, int value) {
    return filled([&](auto on) { return scratch.claim<int>(on, count); }, value,
                  static_cast<output*>(nullptr));
  }
  [[nodiscard]] graph with_output(scratch_pool& scratch, int value, output& out) {
    return filled([&](auto on) { return scratch.claim_kept<int>(on, count); }, value, &out);
  }
  void expect_output(int* data, int value) {
    must(launch_check(two, data, count, value, mismatches.data()));
    sync(two);
    EXPECT_EQ(mismatches.load(), 0) << "another graph has overwritten the output";
  }
  void expect_output(output const& out, int value) { expect_output(out->data(), value); }
};

TEST_F(ClaimKept, NoGraphCapturedEarlierOrLaterOverwritesAnOutput) {
  scratch_pool scratch(in_group());
  output out;
  graph const before = with_temporary(scratch, 7);
  graph const made = with_output(scratch, 1, out);
  graph const after = with_temporary(scratch, 9);
  graph_exec first(before), exec(made), last(after);
  exec.launch(two);
  first.launch(two);
  last.launch(two);
  expect_output(out, 1);
  EXPECT_EQ(scratch.bytes(), scratch_pool::block_bytes(count * sizeof(int)))
      << "the others are in the group's arena";
}

TEST_F(ClaimKept, TwoGraphsHaveTwoOutputs) {
  scratch_pool scratch(in_group());
  output one_out, other_out;
  graph const first = with_output(scratch, 1, one_out);
  graph const second = with_output(scratch, 2, other_out);
  run(first);
  run(second);
  expect_output(one_out, 1);
  expect_output(other_out, 2);
}

TEST_F(ClaimKept, ItStaysWhenItsLeaseHasEndedInTheCapture) {
  scratch_pool scratch(in_group(), {.source = memory_source::cuda_malloc()});  // in no arena
  int* data = nullptr;
  graph const made = captured([&](cudaStream_t on) {
    auto out = scratch.claim_kept<int>(on, count);
    data = out.data();
    must(launch_fill(on, data, count, 1));
    out.release();
    auto const temporary = scratch.claim<int>(on, count);
    auto const other_output = scratch.claim_kept<int>(on, count);
    EXPECT_NE(temporary.data(), data);
    EXPECT_NE(other_output.data(), data);
    must(launch_fill(on, temporary.data(), count, 8));
  });
  graph const after = captured([&](cudaStream_t on) {
    std::vector<buffer_lease<int>> out;
    for (int i = 0; i < 3; ++i) out.push_back(scratch.claim<int>(on, count));
    for (auto const& each : out) must(launch_fill(on, each.data(), count, 9));
  });
  run(made);
  run(after);
  expect_output(data, 1);
}

TEST_F(ClaimKept, ItStaysWhenItsLeaseHasEndedAfterTheCapture) {
  scratch_pool scratch(in_group());
  output out;
  graph const made = with_output(scratch, 1, out);
  int* const data = out->data();
  out.reset();
  graph const after = with_temporary(scratch, 9);
  run(made);
  run(after);
  expect_output(data, 1);
}

TEST_F(ClaimKept, WithoutAGroupNoLaterClaimOfTheCaptureGetsIt) {
  scratch_pool scratch(options(8));
  graph const made = captured([&](cudaStream_t on) {
    void const* const out = scratch.claim_kept(on, 1024)->data();
    EXPECT_NE(scratch.claim(on, 1024)->data(), out);
    EXPECT_NE(scratch.claim_kept(on, 1024)->data(), out);
  });
  EXPECT_EQ(scratch.stats().grown, 3U);
}

TEST_F(ClaimKept, AtTheLimitItIsNeitherTakenWithAnEdgeNorFromAnotherGraph) {
  scratch_pool scratch(in_group(1), {.source = memory_source::cuda_malloc()});  // in no arena
  graph const made = captured([&](cudaStream_t on) {
    static_cast<void>(scratch.claim_kept<int>(on, count));
    EXPECT_THROW(static_cast<void>(scratch.claim<int>(on, count)), pool_exhausted);
  });
  EXPECT_THROW(static_cast<void>(with_temporary(scratch, 1)), pool_exhausted);
}

TEST_F(ClaimKept, ALaterCaptureIntoTheGraphDoesNotGetIt) {
  scratch_pool scratch(in_group());
  int* data = nullptr;
  graph const made = captured([&](cudaStream_t on) {
    auto const out = scratch.claim_kept<int>(on, count);
    data = out.data();
    must(launch_fill(on, data, count, 1));
  });
  capture_into(made.get(), [&](cudaStream_t on) {
    EXPECT_NE(scratch.claim<int>(on, count).data(), data);
    EXPECT_NE(scratch.claim_kept<int>(on, count).data(), data);
  });
}

TEST_F(ClaimKept, ACloneACaptureIntoItAndAHoistedGraphKeepIt) {
  scratch_pool scratch(in_group());
  output out;
  std::optional<graph> made(with_output(scratch, 1, out));
  int* const data = out->data();
  out.reset();
  graph copy = made->clone();
  made.reset();
  capture_into(copy.get(),
               [&](cudaStream_t on) { EXPECT_NE(scratch.claim<int>(on, count).data(), data); });
  graph const after = with_temporary(scratch, 9);
  hoisted parts = hoist(copy);
  graph const last = with_temporary(scratch, 8);
  owned_exec const exec = instantiate(copy.get());
  parts.launch(two, [&] { must(cudaGraphLaunch(exec, two)); });
  run(after);
  run(last);
  expect_output(data, 1);
  parts.release_after(two);
}

TEST_F(ClaimKept, AChildsOutputIsNotThatOfAnotherChild) {
  scratch_pool scratch(in_group());
  output first_out, second_out;
  graph const first = with_output(scratch, 1, first_out);
  graph const second = with_output(scratch, 2, second_out);
  graph const temporary = with_temporary(scratch, 9);
  graph parent;
  parent.add_child(first);
  parent.add_child(second);
  parent.add_child(temporary);
  run(parent);
  expect_output(first_out, 1);
  expect_output(second_out, 2);
}

TEST_F(ClaimKept, ResourcesClaimersAndAllocatorsGiveIt) {
  std::optional<block_lease> of_pool, of_claimer;
  scratch_pool scratch(in_group());
  stream_allocator allocator(in_group());
  output of_scratch_claimer;
  void* allocated = nullptr;
  graph const before = captured([&](cudaStream_t on) {
    for (int i = 0; i < 2; ++i) use(*pool, on, 7);
    for (std::size_t i = 0; i < 2; ++i) static_cast<void>(scratch.claim(on, count * sizeof(int)));
    allocator.deallocate(on, allocator.allocate(on, count * sizeof(int)));
  });
  auto local = pool->on(one);
  auto scratch_local = scratch.on(one);
  graph const made = captured([&](cudaStream_t on) {
    of_pool.emplace(pool->claim_kept(on));
    of_claimer.emplace(local.claim_kept());
    of_scratch_claimer.emplace(scratch_local.claim_kept<int>(count));
    allocated = allocator.allocate_kept(on, count * sizeof(int));
  });
  EXPECT_EQ(pool->stats().slots, 3U);
  EXPECT_EQ(scratch.stats().grown, 1U) << "the other claims are in the arena";
  EXPECT_EQ(allocator.pool().stats().grown, 1U);
  allocator.leave_to_graph(allocated);
}

TEST_F(ClaimKept, OutsideOfCapturesItIsAnyClaim) {
  block_pool plain = make_pool(2);
  hold_up(one);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(plain.claim_kept(one)->number(), 0);
  EXPECT_EQ(plain.claim(one)->number(), 0);
  auto local = plain.on(one);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(local.claim_kept()->number(), 0);
  EXPECT_EQ(plain.stats().unrecorded, 1U);
  flag.raise();
}

TEST_F(ClaimKept, ItComesBackWithItsGraph) {
  block_pool plain = make_pool(1);
  std::optional<graph> made(captured([&](cudaStream_t on) {
    block_lease out = plain.claim_kept(on);
    fill(out, on, 1);
  }));
  EXPECT_TRUE(is_kept(plain));
  made.reset();
  EXPECT_TRUE(is_released(plain));
  // And is then as any other.
  graph const next = captured([&](cudaStream_t on) {
    use(plain, on, 1);
    use(plain, on, 2);
  });
  run(next);
}

}  // namespace
}  // namespace escrow::test
