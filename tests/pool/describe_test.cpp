// SPDX-License-Identifier: Apache-2.0
// What pools and deleters tell about themselves: statistics, holders with the lines of their
// claims, what is waited for, texts, and errors.
#include <algorithm>
#include <stdexcept>

#include "escrow/internal/deleter_core.hpp"
#include "pool_world.hpp"

namespace escrow::test {
namespace {

using clock = std::chrono::steady_clock;

[[nodiscard]] int count_of(std::string const& part, std::string const& text) {
  int count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

class PoolStats : public pool_world {};

TEST_F(PoolStats, TellWhereEachSlotIsAndCountHitsAndThePeak) {
  block_pool pool = make_pool(8);
  owned_graph const graph = captured_use(pool);
  std::optional<block_lease> crossing = pool.claim(two);
  block_lease const held = pool.claim(three);
  pool.claim(asking).release();
  capture captured{two, cudaStreamCaptureModeGlobal};
  crossing.reset();  // held by that graph, too
  pool_stats const now = pool.stats();
  EXPECT_EQ(now.slots, 4U);
  EXPECT_EQ(now.slots_peak, 4U);
  EXPECT_EQ(now.leased, 1U);
  EXPECT_EQ(now.idle, 1U);
  EXPECT_EQ(now.in_graphs, 2U);
  EXPECT_EQ(now.deferred, 1U);
  must(captured.end());
  captured.graph().reset();
  EXPECT_TRUE(wait_until([&] { return pool.stats().in_graphs == 1; }));
  EXPECT_EQ(pool.stats().leased, 1U);
  EXPECT_EQ(now.hits, 0U);
  for (int i = 0; i < 5; ++i) use(pool, two);  // the first makes the record
  EXPECT_EQ(pool.stats().hits, 5U);
  EXPECT_EQ(pool.stats().idle, 2U);
  EXPECT_EQ(pool.close_for(std::chrono::nanoseconds(0)).size(), 2U);
  EXPECT_EQ(pool.stats().slots, 2U);
  EXPECT_EQ(pool.stats().slots_peak, 4U);
}

// All members are numbers of 8 bytes.
void expect_json(auto const& stats, std::string const& begin, std::string const& end) {
  std::string const text = to_json(stats);
  EXPECT_EQ(text.find(begin), 0U) << text;
  EXPECT_TRUE(text.ends_with(end)) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), ':'), sizeof stats / sizeof(std::uint64_t));
}

TEST(Stats, AreJsonObjectsOfAllMembers) {
  pool_stats of_pool;
  of_pool.slots = 3;
  of_pool.edges_added = 12;
  expect_json(of_pool, "{\"slots\": 3, \"leased\": 0, ", ", \"edges_added\": 12}");
  expect_json(deleter_stats{.reclaimed = 1, .pending = 2, .errors = 6},
              "{\"reclaimed\": 1, \"pending\": 2, ", ", \"errors\": 6}");
}

class TrackedLeases : public pool_world {
 protected:
  [[nodiscard]] block_pool make_tracking(std::size_t slots_max) {
    return make_pool(with(options(slots_max), &pool_options::track_leases, true));
  }
  /// The lines of the leases, in the holders' order. Expects that each is from here and recent.
  [[nodiscard]] std::vector<unsigned> lines_of(block_pool const& pool) const {
    std::vector<unsigned> lines;
    for (holder const& each : pool.holders()) {
      if (!each.is_lease) continue;
      lines.push_back(each.where.line());
      EXPECT_EQ(std::string(each.where.file_name()), __FILE__);
      EXPECT_EQ(each.slots, 1U);
      EXPECT_EQ(each.label, "blocks");
      EXPECT_GE(each.since, begin);
      EXPECT_LE(each.since, clock::now());
    }
    return lines;
  }

  clock::time_point const begin = clock::now();
};

using lines = std::vector<unsigned>;

TEST_F(TrackedLeases, AreListedFromClaimToReleaseTheOldestFirst) {
  block_pool pool = make_tracking(4);
  unsigned const line = __LINE__;
  block_lease first = pool.claim(one);
  std::optional<block_lease> second = pool.try_claim(one);
  block_lease third = pool.claim(two);
  EXPECT_EQ(lines_of(pool), (lines{line + 1, line + 2, line + 3}));
  block_lease const moved = std::move(third);
  second.reset();
  EXPECT_EQ(lines_of(pool), (lines{line + 1, line + 3}));
  first.release();
  first = pool.claim(one);  // the stream's own slot
  EXPECT_EQ(lines_of(pool), (lines{line + 3, line + 9}));
  std::vector<holder> const left = pool.close_for(std::chrono::nanoseconds(0));
  ASSERT_EQ(left.size(), 2U);
  EXPECT_EQ(left[1].where.line(), line + 9);
}

TEST_F(TrackedLeases, OfACaptureAreListedBesideTheirGraph) {
  block_pool pool = make_tracking(4);
  capture captured{one, cudaStreamCaptureModeGlobal};
  unsigned const line = __LINE__;
  std::optional<block_lease> held = pool.claim(one);
  EXPECT_EQ(lines_of(pool), lines{line + 1});
  EXPECT_EQ(pool.holders().size(), 2U);
  held.reset();
  EXPECT_EQ(lines_of(pool), lines{});
  held = pool.claim(one);  // the same slot
  EXPECT_EQ(lines_of(pool), lines{line + 6});
  must(captured.end());
  captured.graph().reset();
  EXPECT_TRUE(wait_until([&] { return pool.holders().size() == 1; }));
  EXPECT_EQ(lines_of(pool), lines{line + 6});
  held.reset();
  EXPECT_TRUE(pool.holders().empty());
}

TEST_F(TrackedLeases, AreNamedByPoolExhausted) {
  constexpr unsigned count = 20;
  block_pool pool = make_tracking(count);
  std::vector<block_lease> held;
  unsigned const line = __LINE__ + 1;
  while (held.size() < count) held.push_back(pool.claim(one));
  std::string const text = message_of<pool_exhausted>([&] { static_cast<void>(pool.claim(one)); });
  std::string const here = "describe_test.cpp:" + std::to_string(line);
  EXPECT_EQ(count_of(here, text), 16) << text;
}

TEST_F(TrackedLeases, AreReadWhileOtherThreadsClaimAndRelease) {
  block_pool pool = make_tracking(4);
  std::atomic<bool> is_over{false};
  {
    std::jthread const reading([&] {
      while (!is_over.load()) EXPECT_NE(pool.describe().find("pool \"blocks\""), std::string::npos);
    });
    std::vector<std::jthread> claiming;
    for (cudaStream_t const stream : {one.get(), two.get()}) {
      claiming.emplace_back([&pool, stream] {
        for (int i = 0; i < 200; ++i) pool.claim(stream).release();
      });
    }
    claiming.clear();
    is_over.store(true);
  }
  EXPECT_EQ(lines_of(pool), lines{});
}

#ifdef ESCROW_TEST_RUNTIME_SIM
TEST_F(TrackedLeases, GoOnIfTheirReleaseInACaptureFails) {
  block_pool pool = make_tracking(2);
  capture captured{one, cudaStreamCaptureModeGlobal};
  must(launch_tiny(one));
  block_lease held = pool.claim(one);
  sim::fail_call_here("cudaGraphNodeGetDependencies", cudaErrorUnknown, 1, 1);
  EXPECT_THROW(held.release(), cuda_error);
  sim::clear_faults();
  EXPECT_EQ(lines_of(pool).size(), 1U);
  held.release();
  EXPECT_EQ(lines_of(pool), lines{});
}
#endif

using Describe = TrackedLeases;

TEST_F(Describe, SaysWhatEachKindOfHolderHoldsAndSinceWhere) {
  auto const handle = reinterpret_cast<cudaStream_t>(std::uintptr_t{0xabc0});
  auto const since = clock::now() - std::chrono::hours(1);
  source_location const here = source_location::current();
  std::string const where = here.file_name() + (":" + std::to_string(here.line()));
  holder kinds[5];
  for (int i : {0, 1}) kinds[i].is_lease = true;
  for (int i : {1, 2, 3}) kinds[i].since = since;
  for (int i : {1, 2}) kinds[i].where = here;
  kinds[2].capture_id = 12;
  kinds[4].waits_for = handle;
  EXPECT_EQ(describe(kinds[0]), "leases hold 0");
  char const* const begins[] = {"a lease holds 0 for 36000", "capture 12 holds 0 for 36000",
                                "a node of a graph built by hand holds 0 for 36000"};
  for (int i = 0; i < 3; ++i) {
    std::string const text = describe(kinds[i + 1]);
    EXPECT_EQ(text.find(begins[i]), 0U) << text;
    EXPECT_EQ(text.ends_with(" ms, since the claim at " + where), i < 2) << text;
  }
  EXPECT_EQ(
      describe(kinds[4]),
      "stream 0xabc0 holds 0 until the next claim or release on it outside of captures, or its "
      "claimer's flush()");
}

TEST_F(Describe, NamesThePoolItsStatisticsAndHolders) {
  block_pool pool = make_pool(4);
  EXPECT_TRUE(pool.holders().empty());
  block_lease const held = pool.claim(one);
  owned_graph const graph = captured_use(pool);
  std::string const text = pool.describe();
  EXPECT_EQ(text.find("pool \"blocks\" on device 0, slots_max 4: {\"slots\": 2, \"leased\": 1,"),
            0U)
      << text;
  EXPECT_NE(text.find("\n  capture "), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with("\n  leases hold 1")) << text;
}

TEST_F(Describe, NamesAScratchPoolItsBytesAndTheHoldersOfEachSize) {
  scratch_pool pool(with(options(4), &pool_options::track_leases, true));
  EXPECT_TRUE(pool.holders().empty());
  auto const held = pool.claim(one, 2048);
  owned_graph const graph = captured_claim(pool, 1024);
  EXPECT_EQ(pool.holders().size(), 2U);
  std::string const text = pool.describe();
  for (char const* each : {"scratch pool \"blocks\" on device 0, slots_max 4: {\"bytes\": 3072, "
                           "\"bytes_in_use\": 2048, ",
                           "\n  \"blocks of 1024 bytes\": capture ",
                           "\n  \"blocks of 2048 bytes\": a lease holds 1 for "}) {
    EXPECT_NE(text.find(each), std::string::npos) << text;
  }
}

TEST_F(Describe, NamesEachHolderOnceInAScratchPoolsErrors) {
  scratch_pool pool(options(1));
  owned_graph const graph = captured_plainly([&](cudaStream_t on) {
    for (std::size_t const bytes : {1024U, 2048U}) static_cast<void>(pool.claim(on, bytes));
  });
  std::string const text =
      message_of<pool_exhausted>([&] { static_cast<void>(pool.claim(one, 1024)); });
  EXPECT_EQ(count_of(" holds 1 for ", text), 2) << text;
}

class DescribeDeleter : public world {
 protected:
  [[nodiscard]] bool says(std::string const& part) const {
    return worker->describe().find(part) != std::string::npos;
  }
  [[nodiscard]] bool says_soon(std::string const& part) const {
    return wait_until([&] { return says(part); });
  }
};

TEST_F(DescribeDeleter, NamesPendingOwnersAndCountsTheirPeak) {
  hold_up(one);
  for (int i = 0; i < 3; ++i) worker->retire(one, std::make_unique<int>(i));
  EXPECT_TRUE(says_soon("\n  3 wait for an event"));
  EXPECT_TRUE(says("deleter \"escrow\": {\"reclaimed\": 0, \"pending\": 3, \"pending_peak\": 3"));
  flag.raise();
  worker->drain();
  EXPECT_FALSE(says("wait for"));
  EXPECT_EQ(worker->stats().pending, 0U);
  EXPECT_EQ(worker->stats().reclaimed, 3U);
  EXPECT_EQ(worker->stats().pending_peak, 3U);
}

TEST_F(DescribeDeleter, NamesGraphsExecsAndTheLaunchesThatAreWaitedFor) {
  cargo taken = make_cargo();
  std::string const of_graph = "\n  graph ";
  std::string const of_exec = "\n  an exec, or a plain copy of a graph holds a reference set";
  std::optional<graph> source = captured_behind_flag(taken);
  EXPECT_TRUE(says(of_graph + std::to_string(source->id()) + " holds a reference set"));
  std::optional<graph_exec> exec(*source);
  source.reset();
  EXPECT_FALSE(says(of_graph));
  EXPECT_TRUE(says(of_exec + "; if it is never released, an owner in it may own the exec"));
  exec->launch(two);
  exec.reset();
  EXPECT_TRUE(says_soon("\n  1 reference sets of graphs wait for a last launch"));
  flag.raise();
  EXPECT_TRUE(is_released(taken));
  EXPECT_TRUE(wait_until([&] { return !says(of_exec); }));
}

TEST_F(DescribeDeleter, SaysThatAPassIsRunningWhileADestructorBlocksIt) {
  block_worker();
  EXPECT_TRUE(says("a pass is running"));
  may_end.store(true);
  EXPECT_TRUE(wait_until([&] { return !says("a pass is running"); }));
}

class OnError : public world {
 protected:
  using counter = std::shared_ptr<std::atomic<int>>;
  [[nodiscard]] static counter make_counter() { return std::make_shared<std::atomic<int>>(0); }
  [[nodiscard]] static auto counting(counter const& in) {
    return [in](std::exception const&) { in->fetch_add(1); };
  }
  static void report_to(deleter& its) { its.core().report(std::runtime_error("an error")); }
};

TEST_F(OnError, CanBeReplacedAndTakenAway) {
  counter const first = make_counter();
  counter const second = make_counter();
  deleter its({.on_error = counting(first)});
  report_to(its);
  its.set_on_error(counting(second));
  report_to(its);
  its.set_on_error({});
  report_to(its);
  EXPECT_EQ(first->load(), 1);
  EXPECT_EQ(second->load(), 1);
  EXPECT_EQ(its.stats().errors, 3U);
  EXPECT_EQ(second.use_count(), 1) << "a handler that was replaced is kept";
}

TEST_F(OnError, IsReplacedWhileOtherThreadsReport) {
  constexpr int reports = 2'000;
  counter const count = make_counter();
  deleter its({.on_error = counting(count)});
  {
    std::jthread const reporting([&] {
      for (int i = 0; i < reports; ++i) report_to(its);
    });
    for (int i = 0; i < reports; ++i) its.set_on_error(counting(count));
  }
  EXPECT_EQ(count->load(), reports);
}

// No lock is held across code of the handler, also where it is destroyed.
TEST_F(OnError, MayReportAndReplaceItselfInACallAndAtItsEnd) {
  deleter its;
  struct reporter {
    explicit reporter(deleter& to) : its(to) {}
    ~reporter() { report_to(its); }
    deleter& its;
  };
  its.set_on_error([&its, last = std::make_shared<reporter>(its)](std::exception const&) {
    its.set_on_error({});
    report_to(its);
  });
  report_to(its);
  EXPECT_EQ(its.stats().errors, 3U);
}

}  // namespace
}  // namespace escrow::test
