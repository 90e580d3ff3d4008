// SPDX-License-Identifier: Apache-2.0
// Eager work of a sharing group: one more launch, which claims from the group's arena.
#include <escrow/nodes.hpp>
#include <random>

#include "arena_world.hpp"

namespace escrow::test {
namespace {

class GroupRun : public group_scratch_world {};

TEST_F(GroupRun, ClaimsWhatTheGraphsUse) {
  graph_exec decode(
      captured([&](cudaStream_t on) { use_scratch(scratch(), on, 1, 8 * mebibyte); }));
  ASSERT_EQ(mebibytes(), 8U);
  for (int i = 0; i < 20; ++i) {
    group->run(two, [&] { use_scratch(scratch(), two, 2, 8 * mebibyte); });
    decode.launch(three);
    group->run(one, [&] {
      auto const large = scratch().claim(one, 6 * mebibyte);
      fill(large, one, 3);
      for (int k = 0; k < 4; ++k) use_scratch(scratch(), one, 4, 2 * mebibyte);
      check(large, one, 3);
    });
  }
  sync_all();
  EXPECT_EQ(mebibytes(), 8U);
  EXPECT_EQ(group->stats().launches, 60U);
}

TEST_F(GroupRun, OnTheDeletersWorkerReleasesItsLeases) {
  graph_exec decode(captured([&](cudaStream_t on) { use_scratch(scratch(), on, 1); }));
  auto const run_here = [&](void* /*memory*/) {
    group->run(two, [&] { use_scratch(scratch(), two, 2); });
  };
  worker->retire(std::shared_ptr<void>(cells.data(), run_here));
  worker->drain();
  EXPECT_EQ(scratch().stats().bytes_deferred, 0U);
  EXPECT_EQ(scratch().holders().size(), 1U) << "the graph";
  decode.launch(three);
  sync_all();
}

TEST_F(GroupRun, WaitsForTheLastLaunchAndTheNextWaitsForIt) {
  graph_exec decode(captured([&](cudaStream_t on) { use_scratch(scratch(), on, 1); }));
  group->run(two, [&] {
    hold_up(two);
    use_scratch(scratch(), two, 2);
  });
  decode.launch(three);
  group->run(one, [&] { use_scratch(scratch(), one, 3); });
  EXPECT_TRUE(stays_busy(three));
  EXPECT_TRUE(stays_busy(one));
  flag.raise();
  sync_all();
  EXPECT_EQ(group->stats().stream_waits, 2U);
}

TEST_F(GroupRun, LeasesThatLiveAreApartAndReleasedMemoryServesAgain) {
  group->run(two, [&] {
    std::vector<lease<device_block>> held;
    for (int i = 0; i < 8; ++i) {
      held.push_back(scratch().claim(two, mebibyte));
      for (int k = 0; k < i; ++k) {
        EXPECT_FALSE(overlap(held[static_cast<std::size_t>(k)], held.back()));
      }
    }
    held.clear();
    for (std::size_t size = 1; size <= 8; ++size) {
      use_scratch(scratch(), two, 1, size * mebibyte);
    }
  });
  EXPECT_EQ(mebibytes(), 8U);
  sync_all();
  EXPECT_TRUE(drained());
  scratch().trim();
  EXPECT_EQ(mebibytes(), 0U);
}

TEST_F(GroupRun, ReleasesAreRecordedByItsEnd) {
  group->run(two, [&] { use_scratch(scratch(), two, 1); });
#ifdef ESCROW_TEST_RUNTIME_SIM
  std::uint64_t const before = sim::calls("cudaEventRecord");
  group->run(two, [&] {
    for (int i = 0; i < 50; ++i) use_scratch(scratch(), two, 1);
  });
  EXPECT_EQ(sim::calls("cudaEventRecord") - before, 2U) << "of the memory, and of the launch";
#endif
  group->run(two, [&] {
    hold_up(two);
    use_scratch(scratch(), two, 2, 64 * mebibyte);
  });
  scratch().trim();
  EXPECT_EQ(mebibytes(), 64U) << "its work uses it";
  EXPECT_FALSE(drains_soon());
  flag.raise();
  sync(two);
  EXPECT_TRUE(drained());
  scratch().trim();
  EXPECT_EQ(mebibytes(), 0U);
}

TEST_F(GroupRun, LeavesItsSlotsToTheNextOne) {
  auto const eager = [&](cudaStream_t on) {
    group->run(on, [&] {
      auto const large = scratch().claim(on, 6 * mebibyte);
      fill(large, on, 3);
      use_scratch(scratch(), on, 4, 2 * mebibyte);
      use_scratch(scratch(), on, 5, mebibyte);
      std::vector<holder> const held = scratch().holders();
      ASSERT_EQ(held.size(), 1U);
      EXPECT_EQ(held[0].slots, 1U) << "the large one";
      check(large, on, 3);
    });
  };
  eager(two);
  std::size_t const bytes = scratch().stats().bytes_in_arena;
  for (int i = 0; i < 20; ++i) eager(i % 2 == 0 ? one : three);
  EXPECT_EQ(scratch().stats().bytes_in_arena, bytes);
  EXPECT_TRUE(drains_soon()) << "nothing is destroyed";
  EXPECT_TRUE(scratch().holders().empty()) << "no lease lives";
  sync_all();
  EXPECT_EQ(scratch().stats().bytes_in_arena, bytes);
  scratch().trim();
  EXPECT_TRUE(drained());
  EXPECT_EQ(scratch().stats().bytes_in_arena, 0U);
}

TEST_F(GroupRun, LeavesNothingToAClosedPool) {
  for (bool const is_closed_inside : {false, true}) {
    pool.emplace(in_group());
    group->run(two, [&] {
      use_scratch(scratch(), two, 1);
      if (is_closed_inside) static_cast<void>(scratch().close_for(std::chrono::seconds(0)));
    });
    sync_all();
    EXPECT_TRUE(scratch().close_for(std::chrono::seconds(5)).empty());
    EXPECT_TRUE(drained());
    EXPECT_EQ(scratch().stats().bytes_in_arena, 0U);
  }
}

TEST_F(GroupRun, EagerClaimsOutsideOfItAndOnOtherStreamsAreOfThePool) {
  group->run(two, [&] {
    use_scratch(scratch(), three, 1, mebibyte);
    std::jthread([&] { use_scratch(scratch(), two, 1, mebibyte); }).join();
    EXPECT_EQ(mebibytes(), 0U);
  });
  use_scratch(scratch(), two, 1, mebibyte);
  EXPECT_EQ(mebibytes(), 0U);
}

TEST_F(GroupRun, WorkOnAnotherStreamIsOverBeforeTheMemoryServesAgain) {
  group->run(two, [&] {
    use_scratch(scratch(), two, 1, mebibyte);
    {
      auto used = scratch().claim(two, mebibyte);
      used.record_stream(three);  // which comes after the users before
      hold_up(three);
      fill(used, three, 2);
      check(used, three, 2);
    }
    use_scratch(scratch(), two, 3, mebibyte);
    EXPECT_TRUE(stays_busy(two));
  });
  graph_exec decode(captured([&](cudaStream_t on) { use_scratch(scratch(), on, 4, mebibyte); }));
  decode.launch(one);
  EXPECT_TRUE(stays_busy(one));
  flag.raise();
  sync_all();
}

TEST_F(GroupRun, AnotherStreamsWorkComesAfterTheUsersBefore) {
  group->run(two, [&] {
    hold_up(two);
    use_scratch(scratch(), two, 1, 2 * mebibyte);  // another slot
    auto used = scratch().claim(two, mebibyte);
    used.record_stream(three);
    fill(used, three, 2);
    EXPECT_TRUE(stays_busy(three));
  });
  flag.raise();
  sync_all();
}

TEST_F(GroupRun, MayEndALeaseOnAnotherStream) {
  group->run(two, [&] {
    auto used = scratch().claim(two, mebibyte);
    hold_up(three);
    fill(used, two, 2);
    used.release(three);
    use_scratch(scratch(), two, 3, mebibyte);
    EXPECT_TRUE(stays_busy(two));
  });
  flag.raise();
  sync_all();
}

TEST_F(GroupRun, RefusesALeaseThatOutlivesItAndKeepsItsMemoryFromLaterClaims) {
  std::optional<lease<device_block>> kept;
  expect_error<usage_error>(
      [&] { group->run(two, [&] { kept.emplace(scratch().claim(two, mebibyte)); }); },
      {"sharing_group::run", "outlives the call", "group_run_test.cpp", "claim_kept"});
  fill(*kept, two, 7);
  EXPECT_EQ(group->stats().outliving, 1U);
  graph_exec decode(captured([&](cudaStream_t on) { use_scratch(scratch(), on, 1, mebibyte); }));
  decode.launch(three);
  group->run(one, [&] { use_scratch(scratch(), one, 2, mebibyte); });
  sync_all();
  check(*kept, two, 7);
  EXPECT_EQ(mebibytes(), 2U);
  kept.reset();
  EXPECT_EQ(group->stats().outliving, 0U);
  sync_all();
  EXPECT_TRUE(drained());
  graph const later = captured([&](cudaStream_t on) { use_scratch(scratch(), on, 1, mebibyte); });
  EXPECT_EQ(mebibytes(), 2U);
}

TEST_F(GroupRun, KeepsClaimsThatAreKeptOutOfTheArena) {
  std::optional<lease<device_block>> kept;
  group->run(two, [&] { kept.emplace(scratch().claim_kept(two, mebibyte)); });
  EXPECT_EQ(mebibytes(), 0U);
  EXPECT_EQ(group->stats().outliving, 0U);
}

TEST_F(GroupRun, RefusesToGiveItsLeasesToAGraph) {
  group->run(two, [&] {
    auto held = scratch().claim(two, mebibyte);
    test::capture open{three, cudaStreamCaptureModeRelaxed};
    expect_error<usage_error>([&] { held.record_stream(three); },
                              {"sharing_group::run", "claim in the capture"});
    must(open.end());
  });
}

TEST_F(GroupRun, IsALaunchThatRefusesOthersInsideOfIt) {
  graph_exec decode(captured([&](cudaStream_t on) { use_scratch(scratch(), on, 1); }));
  group->run(two, [&] {
    expect_error<usage_error>([&] { group->run(three, [] { FAIL(); }); },
                              {"sharing_group::run", "this thread is inside", "batches"});
    expect_error<usage_error>([&] { decode.launch(two); }, {"graph_exec::launch", "batches"});
    std::jthread([&] {
      expect_error<group_busy>(
          [&] {
            group->run(
                three, [] { FAIL(); }, std::chrono::milliseconds(5));
          },
          {"sharing_group::run", "another thread", "batches"});
    }).join();
  });
  decode.launch(two);
  test::capture open{one, cudaStreamCaptureModeRelaxed};
  expect_error<usage_error>([&] { group->run(one, [] { FAIL(); }); },
                            {"sharing_group::run", "captured"});
  must(open.end());
}

TEST_F(GroupRun, EndsAlsoIfItsCallThrowsOrFails) {
  EXPECT_THROW(group->run(two,
                          [&] {
                            use_scratch(scratch(), two, 1);
                            throw std::runtime_error("by the caller");
                          }),
               std::runtime_error);
  expect_error<cuda_error>([&] { group->run(two, [] { return cudaErrorInvalidValue; }); },
                           {"sharing_group::run", "cudaErrorInvalidValue"});
  group->run(two, [&](stream_ref on) { use_scratch(scratch(), on.get(), 1); });
  graph_exec decode(captured([&](cudaStream_t on) { use_scratch(scratch(), on, 1); }));
  decode.launch(three);
  sync_all();
  EXPECT_EQ(group->stats().launches, 4U);
}

TEST_F(GroupRun, ALeaseThatEndsOnAnotherThreadFreesItsMemoryAfterItsWork) {
  group->run(two, [&] {
    std::optional<lease<device_block>> held(scratch().claim(two, mebibyte));
    fill(*held, two, 1);
    std::jthread([&] { held.reset(); }).join();
  });
  sync_all();
  EXPECT_TRUE(drained());
  scratch().trim();
  EXPECT_EQ(mebibytes(), 0U);
}

TEST_F(GroupRun, IsNamedInAReport) {
  group->run(two, [&] {
    auto const held = scratch().claim(two, mebibyte);
    EXPECT_NE(describe(report_memory()).find("sharing_group::run(): 1.0 MiB, 1 claim, 1 of them"),
              std::string::npos);
  });
}

TEST_F(GroupRun, ThePoolMayEndInsideOfIt) {
  group->run(two, [&] {
    scratch_pool local(in_group());
    use_scratch(local, two, 1, mebibyte);
  });
  sync_all();
}

TEST_F(GroupRun, WithoutAnArenaIsTheTurnAlone) {
  scratch_policy plain;
  plain.source = memory_source::cuda_malloc();
  scratch_pool slots(in_group(), plain);
  group->run(two, [&] { use_scratch(slots, two, 1, mebibyte); });
  sync_all();
}

// Threads run eager work and launch graphs that use the same memory.
TEST_F(GroupRun, NeverOverlapsLaunchesOfTheGroup) {
  constexpr int threads = 4;
  constexpr int rounds = 200;
  scratch_pool& shared = scratch();
  std::vector<owned_stream> streams(threads);
  for (owned_stream& each : streams) each = make_stream();
  std::vector<graph_exec> execs;
  for (int id = 0; id < threads; ++id) {
    execs.emplace_back(
        captured([&](cudaStream_t in) { use_scratch(shared, in, 10 + id, 3 * mebibyte); }));
  }
  std::vector<std::jthread> all;
  for (int id = 0; id < threads; ++id) {
    all.emplace_back([&, id, on = streams[static_cast<std::size_t>(id)].get()] {
      std::mt19937 random(static_cast<unsigned>(id));
      for (int i = 0; i < rounds; ++i) {
        if (random() % 2 == 0) {
          execs[static_cast<std::size_t>(id)].launch(on);
          continue;
        }
        group->run(on, [&] {
          auto const outer = shared.claim(on, 1 + random() % mebibyte);
          fill(outer, on, 20 + id);
          for (unsigned k = random() % 4; k != 0; --k) {
            use_scratch(shared, on, 30 + id, 1 + random() % (2 * mebibyte));
          }
          check(outer, on, 20 + id);
        });
      }
      sync(on);
    });
  }
  all.clear();
  EXPECT_LE(mebibytes(), 6U);
}

}  // namespace
}  // namespace escrow::test
