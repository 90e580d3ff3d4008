// SPDX-License-Identifier: Apache-2.0
// Parking: a sharing group's memory goes back to the device, and its execs launch on afterwards.
#include <algorithm>
#include <escrow/internal/parked_group.hpp>
#include <random>

#include "park_world.hpp"

namespace escrow::test {
namespace {

using GroupPark = park_world;

TEST_F(GroupPark, ExecsLaunchOnAtTheSameAddresses) {
  void* first = nullptr;
  graph_exec decode(captured([&](cudaStream_t on) {
    first = use_scratch(scratch(), on, 1, 8 * mebibyte);
    must(launch_add(on, cells.data(), 1));
  }));
  graph_exec prefill(captured_use(4, 2));
  std::size_t const before = device_mebibytes();
  for (int i = 0; i < 5; ++i) {
    decode.launch(two);
    prefill.launch(three);
    EXPECT_EQ(group->park(), 8 * mebibyte);
    EXPECT_EQ(device_mebibytes(), before - 8);
    EXPECT_EQ(mebibytes(), 0U);
    EXPECT_TRUE(group->stats().is_parked);
    EXPECT_EQ(group->unpark(), 8 * mebibyte);
    EXPECT_EQ(device_mebibytes(), before);
    EXPECT_FALSE(group->stats().is_parked);
  }
  decode.launch(three);
  void* second = nullptr;
  graph const later =
      captured([&](cudaStream_t on) { second = use_scratch(scratch(), on, 3, 8 * mebibyte); });
  EXPECT_EQ(first, second);
  EXPECT_EQ(mebibytes(), 8U);
  sync_all();
  EXPECT_EQ(cells.load(), 6);
}

TEST_F(GroupPark, ItsMemoryGrowsAndIsTrimmedAfterwards) {
  graph_exec small(captured_use(1));
  park_and_back();
  {
    graph_exec large(captured_use(100));
    EXPECT_GE(mebibytes(), 100U);
    large.launch(two);
    small.launch(two);
    park_and_back();
    large.launch(two);
    sync(two);
  }
  EXPECT_TRUE(drained());
  EXPECT_EQ(group->park(), 100 * mebibyte);
  EXPECT_EQ(group->unpark(), 2 * mebibyte) << "what graphs reach";
  graph_exec large(captured_use(64));
  large.launch(two);
  small.launch(two);
  sync(two);
}

TEST_F(GroupPark, ManySmallChunksAreMerged) {
  std::vector<graph_exec> execs;
  for (std::size_t size = 1; size <= 40; size += 2) execs.emplace_back(captured_use(size));
#ifdef ESCROW_TEST_RUNTIME_SIM
  EXPECT_GT(sim::calls("cuMemCreate"), 10U);
  group->park();
  std::uint64_t const before = sim::calls("cuMemCreate");
  EXPECT_EQ(group->unpark(), 40 * mebibyte);
  EXPECT_LE(sim::calls("cuMemCreate") - before, 2U);
  std::uint64_t const unmapped = sim::calls("cuMemUnmap");
  group->park();
  EXPECT_LE(sim::calls("cuMemUnmap") - unmapped, 2U);
  group->unpark();
#else
  park_and_back();
#endif
  for (graph_exec& each : execs) each.launch(two);
  sync(two);
}

TEST_F(GroupPark, KeepsContentsIfAsked) {
  int* written = nullptr;
  graph_exec write(captured([&](cudaStream_t on) {
    auto const held = scratch().claim(on, 3 * mebibyte);
    fill(held, on, 41);
    written = data_of(held) + values;
    must(launch_fill(on, written, values, 42));
  }));
  write.launch(two);
  // As a graph that reads what another one has left.
  owned_graph const reads = captured_plainly(
      [&](cudaStream_t on) { must(launch_check(on, written, values, 42, mismatches.data())); });
  owned_exec const read = instantiate(reads);
  for (int i = 0; i < 3; ++i) {
    group->park({.keep_contents = true});
    group->unpark();
    must(cudaGraphLaunch(read, three));
    sync(three);
  }
  park_and_back();
  write.launch(two);
  sync(two);
}

TEST_F(GroupPark, WaitsForTheLastLaunch) {
  graph_exec decode(captured_use(1));
  group->run(two, [&] {
    hold_up(two);
    use_scratch(scratch(), two, 2);
  });
  expect_error<group_busy>(
      [&] { return group->park({.wait_max = std::chrono::milliseconds(5)}); },
      {"sharing_group::park", "the last launch of the sharing group \"batches\"", "has not ended",
       "wait_max"});
  EXPECT_FALSE(group->stats().is_parked);
  std::jthread raising([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    flag.raise();
  });
  group->park();
  EXPECT_TRUE(is_idle(two));
  group->unpark();
  decode.launch(two);
  sync(two);
}

TEST_F(GroupPark, OneGroupParksWhileAnotherLaunches) {
  graph_exec decode(captured_use(1));
  sharing_group other({.label = "others"});
  scratch_pool theirs(with(options(8), &pool_options::group, other));
  graph_exec running(captured([&](cudaStream_t on) {
    hold_up(on);
    use_scratch(theirs, on, 2);
  }));
  running.launch(two);
  park_and_back();
  EXPECT_TRUE(stays_busy(two));
  group->park();
  running.launch(two);
  graph_exec more(captured([&](cudaStream_t on) { use_scratch(theirs, on, 3); }));
  flag.raise();
  more.launch(two);
  sync(two);
  group->unpark();
}

// While it is parked.

TEST_F(GroupPark, EverythingMayEndMeanwhile) {
  std::optional<graph> source(captured_use(1));
  std::optional<graph_exec> exec(*source);
  std::optional<graph_exec> other(captured_use(3));
  std::optional<graph> copy(source->clone());
  exec->launch(two);
  group->park({.keep_contents = true});
  exec.reset();
  copy.reset();
  source.reset();
  EXPECT_TRUE(drained());
  EXPECT_EQ(scratch().trim(), 0U);
  EXPECT_EQ(group->unpark(), 4 * mebibyte);
  group->park();
  other.reset();
  pool.reset();
  EXPECT_TRUE(drained());
  group.reset();  // and the arena
}

TEST_F(GroupPark, AnArenaThatIsMadeMeanwhileIsParked) {
  EXPECT_EQ(group->park(), 0U);
  expect_error<usage_error>([&] { return captured_use(1); },
                            {"scratch_pool::claim", "is parked", "unpark() it first"});
  EXPECT_EQ(group->unpark(), 0U);
  graph_exec decode(captured_use(1));
  decode.launch(two);
  sync(two);
}

TEST_F(GroupPark, IdleMemoryOfItsPoolsGoes) {
  graph_exec decode(captured_use(2));
  use_scratch(scratch(), two, 1, 16 * mebibyte);
  sync(two);
  EXPECT_GE(group->park(), 18 * mebibyte);
  EXPECT_EQ(scratch().stats().bytes, 0U);
  group->unpark();
}

TEST_F(GroupPark, IdleMemoryGoesAlsoWithoutAnArena) {
  use_scratch(scratch(), two, 1, 16 * mebibyte);
  sync(two);
  std::size_t const before = device_mebibytes();
  EXPECT_EQ(group->park(), 16 * mebibyte);
  EXPECT_EQ(device_mebibytes(), before - 16);
  group->unpark();
}

TEST_F(GroupPark, NoGroupIsLeftParkedByItsEnd) {
  { sharing_group({.label = "passing"}).park(); }
  EXPECT_FALSE(is_any_parked());
}

TEST_F(GroupPark, IsToldInReports) {
  graph_exec decode(captured_use(2));
  auto const is_told = [&] {
    EXPECT_NE(to_json(group->stats()).find("\"is_parked\": true"), std::string::npos);
    EXPECT_NE(group->describe().find("\"is_parked\": true"), std::string::npos);
    memory_report const now = report_memory();
    auto const its = std::ranges::find(now.groups, "batches", &group_layout::label);
    ASSERT_NE(its, now.groups.end());
    EXPECT_TRUE(its->is_parked);
    EXPECT_EQ(its->bytes, 0U);
    EXPECT_NE(describe(now).find("group \"batches\" on device 0: parked"), std::string::npos);
    EXPECT_NE(to_json(now).find("\"is_parked\": true"), std::string::npos);
  };
  group->park();
  is_told();
  group->unpark();
  EXPECT_NE(to_json(group->stats()).find("\"is_parked\": false"), std::string::npos);
}

TEST_F(GroupPark, AllGroupsOfTheProcess) {
  graph_exec decode(captured_use(2));
  sharing_group other({.label = "others"});
  scratch_pool theirs(with(options(8), &pool_options::group, other));
  graph const shown = captured([&](cudaStream_t on) { use_scratch(theirs, on, 2, 4 * mebibyte); });
  static_cast<void>(shown.get());
  auto const of = [](std::vector<parked_group> const& all, std::string const& label) {
    auto const found = std::ranges::find(all, label, &parked_group::label);
    return found == all.end() ? parked_group{.label = "none", .refusal = {}} : *found;
  };
  auto const all = park_all();
  EXPECT_EQ(of(all, "batches").bytes, 2 * mebibyte);
  EXPECT_EQ(of(all, "batches").refusal, "");
  EXPECT_EQ(of(all, "others").bytes, 0U);
  EXPECT_NE(of(all, "others").refusal.find("group_park_test.cpp"), std::string::npos);
  EXPECT_NE(of(all, "others").refusal.find("an exec or a copy of"), std::string::npos);
  EXPECT_EQ(of(park_all(), "batches").label, "none") << "it is parked";
  auto const back = unpark_all();
  EXPECT_EQ(of(back, "batches").bytes, 2 * mebibyte);
  EXPECT_EQ(of(back, "others").label, "none");
  decode.launch(two);
  sync(two);
}

TEST_F(GroupPark, LeavesTheThreadAsItWas) {
  graph_exec decode(captured_use(2));
  thread_mode_scope const mode(cudaStreamCaptureModeGlobal);
  test::capture whole{one, cudaStreamCaptureModeGlobal};
  must(launch_tiny(one));
  group->park({.keep_contents = true});
  group->unpark();
  EXPECT_TRUE(whole.is_active());
  EXPECT_EQ(thread_mode(), cudaStreamCaptureModeGlobal);
  EXPECT_EQ(current_device(), 0);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  must(whole.end());
}

#ifdef ESCROW_TEST_RUNTIME_SIM
TEST_F(GroupPark, UnparkTakesWhatIsIdle) {
  std::size_t const all = sim::current_options().device_memory;
  graph_exec decode(captured_use(64));
  scratch_pool plain(options(8));
  group->park();
  use_scratch(scratch(), two, 1, 48 * mebibyte);
  std::optional<lease<device_block>> used(plain.claim(two, 48 * mebibyte));
  sync(two);
  sim::set_device_memory(device_mebibytes() * mebibyte + 8 * mebibyte);
  expect_error<cuda_error>([&] { return group->unpark(); },
                           {"sharing_group::unpark", "cuMemCreate", "out of memory",
                            "is still parked", "then unpark() again"});
  EXPECT_TRUE(group->stats().is_parked);
  use_scratch(scratch(), two, 1, 48 * mebibyte);
  sync(two);
  used.reset();
  EXPECT_NE(plain.trim(), 0U);
  EXPECT_EQ(group->unpark(), 64 * mebibyte);
  EXPECT_EQ(scratch().stats().bytes, 0U);
  sim::set_device_memory(all);
  decode.launch(two);
  sync(two);
}

TEST_F(GroupPark, IsWholeOrNotAtAll) {
  std::vector<graph_exec> execs;
  for (std::size_t size = 1; size <= 7; size += 2) execs.emplace_back(captured_use(size));
  std::size_t const device_before = device_mebibytes();
  auto const launch_all = [&] {
    for (graph_exec& each : execs) each.launch(two);
    sync(two);
  };
  // The second of several pieces cannot be unmapped: what was is mapped again.
  sim::fail_call("cuMemUnmap", cudaErrorInvalidValue, 2, 3);
  expect_error<cuda_error>([&] { return group->park(); }, {"sharing_group::park", "cuMemUnmap"});
  EXPECT_FALSE(group->stats().is_parked);
  EXPECT_EQ(device_mebibytes(), device_before);
  launch_all();
  // That cannot be either.
  sim::fail_call("cuMemUnmap", cudaErrorInvalidValue, 2, 3);
  sim::fail_call("cuMemMap", cudaErrorInvalidValue, 1, 3);
  expect_error<cuda_error>([&] { return group->park(); },
                           {"sharing_group::park", "cuMemUnmap", "stays parked"});
  EXPECT_TRUE(group->stats().is_parked);
  EXPECT_EQ(mebibytes(), 8U);
  sim::clear_faults();
  EXPECT_EQ(group->unpark(), 8 * mebibyte);
  launch_all();
  // There is no memory.
  group->park();
  sim::fail_call("cuMemCreate", cudaErrorMemoryAllocation);
  expect_error<cuda_error>([&] { return group->unpark(); },
                           {"sharing_group::unpark", "cuMemCreate"});
  EXPECT_TRUE(group->stats().is_parked);
  EXPECT_EQ(group->unpark(), 8 * mebibyte);
  launch_all();
  EXPECT_EQ(device_mebibytes(), device_before);
}
#endif

// Threads launch, capture, copy and park at random: each call works, or says that it is parked.
TEST_F(GroupPark, NeverTakesWhatALaunchUses) {
  constexpr int threads = 4;
  constexpr int rounds = 150;
  scratch_pool& shared = scratch();
  std::vector<owned_stream> streams(threads);
  for (owned_stream& each : streams) each = make_stream();
  std::vector<graph> sources;
  std::vector<graph_exec> execs;
  for (int id = 0; id < threads; ++id) {
    sources.push_back(
        captured([&](cudaStream_t in) { use_scratch(shared, in, 10 + id, 3 * mebibyte); }));
    execs.emplace_back(sources.back());
  }
  std::atomic<int> launched{0};
  std::vector<std::jthread> all;
  for (int id = 0; id < threads; ++id) {
    all.emplace_back([&, id, on = streams[static_cast<std::size_t>(id)].get()] {
      std::mt19937 random(static_cast<unsigned>(id));
      graph_exec& mine = execs[static_cast<std::size_t>(id)];
      graph const& source = sources[static_cast<std::size_t>(id)];
      auto const act = [&] {
        switch (random() % 7) {
          case 0:
            return static_cast<void>(group->park({.keep_contents = random() % 2 == 0}));
          case 1:
          case 2:
            return static_cast<void>(group->unpark());
          case 3:
            return group->run(on, [&] { use_scratch(shared, on, 20 + id, 2 * mebibyte); });
          case 4:
            return static_cast<void>(graph_exec(source.clone()));
          case 5:
            return static_cast<void>(escrow::capture(
                stream_ref(on), [&](stream_ref in) { use_scratch(shared, in.get(), 30 + id); }));
          default:
            mine.launch(on);
            launched.fetch_add(1, std::memory_order_relaxed);
        }
      };
      for (int i = 0; i < rounds; ++i) {
        try {
          act();
        } catch (usage_error const& refused) {
          std::string const text = refused.what();
          bool const is_expected = text.find("parked") != std::string::npos ||
                                   text.find("is being captured") != std::string::npos ||
                                   text.find("may exist") != std::string::npos ||
                                   text.find("a lease of") != std::string::npos;
          EXPECT_TRUE(is_expected) << text;
        }
      }
      sync(on);
    });
  }
  all.clear();
  EXPECT_GT(launched.load(), 0);
  if (group->stats().is_parked) group->unpark();
  for (graph_exec& each : execs) each.launch(two);
  sync(two);
}

TEST_F(GroupPark, LeavesWhatTrimCanGiveBack) {
  graph_exec const small(captured_use(8));
  {
    graph_exec const large(captured_use(512));
    park_and_back();
  }
  EXPECT_TRUE(drained());
  scratch().trim();
  EXPECT_LE(mebibytes(), 32U);
}

}  // namespace
}  // namespace escrow::test
