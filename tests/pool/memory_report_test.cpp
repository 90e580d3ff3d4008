// SPDX-License-Identifier: Apache-2.0
// Who holds the memory of the process: each pool with what becomes of its slots, the device memory
// that Escrow has taken, arenas with the claims of each graph, and graphs with what they hold.
#include <algorithm>
#include <new>
#include <numeric>

#include "allocation_watch.hpp"
#include "arena_world.hpp"

namespace escrow::test {
namespace {

class MemoryReport : public arena_world {
 protected:
  [[nodiscard]] pool_options labelled(char const* label) {
    return with(options(64), &pool_options::label, label);
  }
  [[nodiscard]] static pool_memory of(std::string const& label,
                                      memory_report const& now = report_memory()) {
    auto const found = std::ranges::find(now.pools, label, &pool_memory::label);
    EXPECT_NE(found, now.pools.end()) << "there is no pool " << label;
    return found == now.pools.end() ? pool_memory{} : *found;
  }
  [[nodiscard]] static bool has(std::string const& label) {
    return std::ranges::count(report_memory().pools, label, &pool_memory::label) != 0;
  }
  [[nodiscard]] static device_memory of_device(memory_report const& now) {
    auto const found = std::ranges::find(now.devices, 0, &device_memory::device);
    return found == now.devices.end() ? device_memory{} : *found;
  }
  [[nodiscard]] static group_layout layout_of(std::string const& label) {
    for (auto& each : report_memory().groups) {
      if (each.label == label) return each;
    }
    ADD_FAILURE() << "there is no group " << label;
    return {};
  }
  [[nodiscard]] static std::size_t free_bytes() {
    std::size_t free = 0;
    std::size_t total = 0;
    must(cudaMemGetInfo(&free, &total));
    return free;
  }
};

TEST_F(MemoryReport, HasTheBytesOfEachState) {
  scratch_pool scratch(labelled("states"));
  constexpr std::size_t each = 4096;
  owned_graph const graph =
      captured_plainly([&](cudaStream_t on) { static_cast<void>(scratch.claim(on, each)); });
  auto const leased = scratch.claim(two, each);
  std::optional crossing(scratch.claim(three, each));
  static_cast<void>(scratch.claim(asking, each));
  {
    test::capture open{three, cudaStreamCaptureModeGlobal};
    crossing.reset();  // held by that graph, too
    pool_memory const now = of("states");
    EXPECT_EQ(now.slots, 4U);
    EXPECT_EQ(now.slots_waiting, 1U);
    EXPECT_EQ(now.bytes.bytes, 4 * each);
    EXPECT_EQ(now.bytes.bytes_in_use, each);
    EXPECT_EQ(now.bytes.bytes_deferred, each);
    EXPECT_EQ(now.bytes.bytes_idle, each);
    EXPECT_EQ(now.bytes.bytes_in_graphs, 2 * each);
    EXPECT_EQ(now.holders.size(), 4U);
    EXPECT_EQ(now.device, 0);
    EXPECT_EQ(now.source, "cudaMallocFromPoolAsync");
    EXPECT_EQ(now.group, "");
    EXPECT_FALSE(now.is_closed);
    must(open.end());  // a report ends no capture
  }
  static_cast<void>(scratch.claim(three, each));  // its record is made
  EXPECT_EQ(of("states").slots_waiting, 0U);
  scratch_claimer claims = scratch.on(two);
  static_cast<void>(claims.claim(2 * each));
  EXPECT_EQ(of("states").bytes.bytes_unrecorded, 2 * each);
  EXPECT_EQ(of("states").slots_waiting, 1U);
}

TEST_F(MemoryReport, OfAResourcePoolAsksTheResourcesForTheirBytes) {
  resource_pool<device_buffer<float>> pool(labelled("buffers"),
                                           [] { return device_buffer<float>(1024); });
  block_pool silent = make_pool(labelled("silent"));
  use(silent, one);
  auto const leased = pool.claim(one);
  static_cast<void>(pool.claim(two));
  pool_memory const now = of("buffers");
  EXPECT_EQ(now.slots, 2U);
  EXPECT_EQ(now.bytes.bytes, 2 * 4096U);
  EXPECT_EQ(now.bytes.bytes_in_use, 4096U);
  EXPECT_EQ(now.bytes.bytes_idle, 4096U);
  EXPECT_EQ(now.source, "");
  EXPECT_EQ(of("silent").slots, 1U);
  EXPECT_EQ(of("silent").bytes.bytes, 0U) << "not known";
}

TEST_F(MemoryReport, SumsToWhatTheDeviceLacks) {
  if (!is_simulated()) GTEST_SKIP() << "others use the device";
  static_cast<void>(trim_device_memory(0));
  std::size_t const before = free_bytes();
  device_memory const none = of_device(report_memory());
  scratch_pool scratch(labelled("sum: scratch"));
  resource_pool<device_buffer<int>> buffers(labelled("sum: buffers"),
                                            [] { return device_buffer<int>(mebibyte / 4); });
  stream_allocator allocator(labelled("sum: allocator"));
  scratch_pool plain(labelled("sum: cudaMalloc"), {.source = memory_source::cuda_malloc()});
  scratch_pool grouped(with(in_group(), &pool_options::label, "sum: group"));
  auto const small = scratch.claim(one, mebibyte);
  auto const large = scratch.claim(one, 16 * mebibyte);
  auto const buffer = buffers.claim(one);
  void* const address = allocator.allocate(one, 2 * mebibyte);
  auto const foreign = plain.claim(one, mebibyte);
  graph const made = captured_claims(grouped, {4, 2, 6});

  memory_report const now = report_memory();
  device_memory const its = of_device(now);
  EXPECT_EQ(its.arenas, 12 * mebibyte);
  EXPECT_EQ(its.ranges, 16 * mebibyte + none.ranges);
  std::size_t in_pools = 0;
  std::size_t of_others = 0;
  for (pool_memory const& each : now.pools) {
    if (!each.label.starts_with("sum: ")) continue;
    (each.source == "cudaMalloc" ? of_others : in_pools) += each.bytes.bytes;
  }
  EXPECT_EQ(its.reserved_in_use + its.ranges - none.reserved_in_use - none.ranges, in_pools);
  std::size_t const taken = its.reserved + its.ranges + its.arenas + of_others;
  EXPECT_EQ(taken - none.reserved - none.ranges - none.arenas, before - free_bytes());
  allocator.deallocate(one, address);
}

TEST_F(MemoryReport, IsJsonWhateverTheLabelsAre) {
  std::string const e_acute = "\xc3\xa9";
  for (auto const& [label, text] : std::vector<std::pair<std::string, std::string>>{
           {"caf" + e_acute, "\"caf" + e_acute + "\""},
           {"caf\xe9", "\"caf\\ufffd\""},
           {"\xe9\xa9x\xed\xa0\x80", "\"\\ufffd\\ufffdx\\ufffd\\ufffd\\ufffd\""},
           {"\xf0\x9f\x98\x80\xf5", "\"\xf0\x9f\x98\x80\\ufffd\""},
           {"\"\\\n", "\"\\\"\\\\\\u000a\""}}) {
    scratch_pool const pool(labelled(label.c_str()));
    std::string const report = to_json(report_memory());
    EXPECT_NE(report.find("\"label\": " + text), std::string::npos) << text << " in " << report;
  }
}

TEST_F(MemoryReport, HasTheClaimsOfAGraphInTheirOrder) {
  scratch_pool pool(with(in_group(), &pool_options::label, "layout"));
  unsigned const line = __LINE__;
  std::optional made(captured([&](cudaStream_t on) {
    auto first = pool.claim(on, 2 * mebibyte);
    must(launch_tiny(on));
    auto const second = pool.claim(on, 4 * mebibyte);
    first.release();
    must(launch_tiny(on));
    static_cast<void>(pool.claim(on, mebibyte));  // where the first one was
  }));
  group_layout now = layout_of("batches");
  EXPECT_EQ(now.bytes, 6 * mebibyte);
  ASSERT_EQ(now.graphs.size(), 1U);
  EXPECT_EQ(now.graphs[0].id, made->id());
  EXPECT_EQ(now.graphs[0].extent, 6 * mebibyte);
  struct expected {
    std::size_t begin, end, line;
    std::uint64_t claimed, released;
  };
  std::vector<expected> const all{
      {0, 2, line + 2, 0, 2}, {2, 6, line + 4, 1, 5}, {0, 1, line + 7, 3, 4}};
  ASSERT_EQ(now.graphs[0].claims.size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    arena_claim const& each = now.graphs[0].claims[i];
    EXPECT_EQ(each.begin, all[i].begin * mebibyte);
    EXPECT_EQ(each.end, all[i].end * mebibyte);
    EXPECT_EQ(each.where.line(), all[i].line);
    EXPECT_EQ(each.claimed, all[i].claimed);
    EXPECT_EQ(each.released, all[i].released);
    EXPECT_EQ(each.pool, "layout");
    EXPECT_FALSE(each.is_leased);
  }

  graph_exec const exec(*made);
  EXPECT_EQ(layout_of("batches").execs, 1);
  EXPECT_EQ(report_memory().execs, 1U);
  made.reset();
  now = layout_of("batches");
  ASSERT_EQ(now.graphs.size(), 1U);
  EXPECT_EQ(now.graphs[0].extent, 6 * mebibyte);
  EXPECT_EQ(now.graphs[0].claims.size(), 3U);
  EXPECT_FALSE(now.graphs[0].claims[0].claimed) << "the order went with the graph";
}

TEST_F(MemoryReport, TellsALeaseThatLivesFromOneThatEndedElsewhere) {
  scratch_pool pool(in_group());
  std::optional<lease<device_block>> held;
  errors_expected = true;  // it outlives its capture
  graph const made = captured([&](cudaStream_t on) { held.emplace(pool.claim(on, mebibyte)); });
  auto const claim_now = [] { return layout_of("batches").graphs.at(0).claims.at(0); };
  EXPECT_TRUE(claim_now().is_leased);
  EXPECT_FALSE(claim_now().released);
  held.reset();
  EXPECT_FALSE(claim_now().is_leased);
  EXPECT_FALSE(claim_now().released);
}

TEST_F(MemoryReport, HasWhatEachGraphHolds) {
  scratch_pool pool(labelled("of graphs"));
  scratch_pool grouped(in_group());
  std::optional made(captured([&](cudaStream_t on) {
    static_cast<void>(pool.claim(on, 4096));
    static_cast<void>(grouped.claim(on, mebibyte));
    retire(on, make_fate());
  }));
  auto const its = [id = made->id()] {
    auto const now = report_memory().graphs;
    auto const found = std::ranges::find(now, id, &graph_memory::id);
    return found == now.end() ? graph_memory{} : *found;
  };
  EXPECT_EQ(its().slots, 2U);
  EXPECT_EQ(its().owners, 1U);
  EXPECT_EQ(its().bytes, 4096 + mebibyte);
  EXPECT_EQ(its().arena_bytes, mebibyte);
  EXPECT_EQ(its().graphs, 1U);
  graph_exec const exec(*made);
  {
    graph const copy = made->clone();
    EXPECT_EQ(its().graphs, 2U);
    EXPECT_EQ(its().slots, 2U) << "once";
  }
  made.reset();
  EXPECT_EQ(its().graphs, 0U);
  EXPECT_EQ(its().bytes, 4096 + mebibyte);
}

TEST_F(MemoryReport, HasAPoolUntilItsLastSlotIsGone) {
  std::optional<scratch_pool> pool(labelled("ending"));
  EXPECT_FALSE(of("ending").is_closed);
  std::optional made(captured([&](cudaStream_t on) { static_cast<void>(pool->claim(on, 4096)); }));
  pool.reset();
  EXPECT_TRUE(of("ending").is_closed);
  EXPECT_EQ(of("ending").bytes.bytes_in_graphs, 4096U);
  made.reset();
  EXPECT_TRUE(wait_until([] { return !has("ending"); }));
}

TEST_F(MemoryReport, IsText) {
  scratch_pool pool(with(in_group(), &pool_options::label, "a \"b\"\\\n"));
  graph const made =
      captured([&](cudaStream_t on) { static_cast<void>(pool.claim(on, 3 * mebibyte)); });
  std::string const id = std::to_string(made.id());
  memory_report const now = report_memory();
  std::string const words = describe(now);
  for (std::string const& part :
       {std::string("device 0: "), std::string("pool \"a \"b\"\\\n\" on device 0, of cudaMalloc"),
        std::string("group \"batches\" on device 0: 4.0 MiB mapped, 0 execs\n  graph ") + id +
            ": 3.0 MiB, 1 claim, 0 of them leased\n",
        "graph " + id + " holds 1 slot, 3.0 MiB, 3.0 MiB of them in an arena\n"}) {
    EXPECT_NE(words.find(part), std::string::npos) << part << " is not in\n" << words;
  }
  std::string const json = to_json(now);
  EXPECT_EQ(json.find('\n'), std::string::npos);
  EXPECT_EQ(json.find("{\"devices\": [{\"device\": 0, "), 0U) << json;
  for (std::string const& part :
       {std::string(R"({"label": "a \"b\"\\\u000a", "device": 0, )"),
        R"("graphs": [{"id": )" + id + R"(, "extent": 3145728, "claims": [{"begin": 0, )",
        std::string(R"("claimed": 0, "released": 1, "is_leased": false}]}]})")}) {
    EXPECT_NE(json.find(part), std::string::npos) << part << " is not in\n" << json;
  }
}

TEST_F(MemoryReport, ThrowsNothingButBadAllocAndLeavesAllAsItWas) {
  scratch_pool pool(with(in_group(), &pool_options::label, "no memory"));
  graph const made = captured_claims(pool, {2, 1});
  auto const leased = pool.claim(one, 4096);
  std::string const before = to_json(of("no memory").bytes);
  int failures = 0;
  for (std::uint64_t failing = 1;; ++failing) {
    try {
      allocation_watch const watch(failing);
      memory_report const now = report_memory();
      static_cast<void>(describe(now));
      static_cast<void>(to_json(now));
      if (watch.count() < failing) break;
      // Else an allocation that is done without: of a current device that could not be set.
    } catch (std::bad_alloc const&) {
      ++failures;
    }
  }
  EXPECT_GT(failures, 20);
  EXPECT_EQ(to_json(of("no memory").bytes), before);
}

TEST_F(MemoryReport, IsMadeWhilePoolsAndGraphsComeAndGo) {
  std::atomic<bool> is_over{false};
  {
    std::vector<std::jthread> reading;
    for (int i = 0; i < 2; ++i) {
      reading.emplace_back([&] {
        while (!is_over.load()) {
          memory_report const now = report_memory();
          EXPECT_FALSE(describe(now).empty());
          for (group_layout const& its : now.groups) {
            for (graph_layout const& graph : its.graphs) {
              EXPECT_FALSE(graph.claims.empty());
              for (arena_claim const& each : graph.claims) EXPECT_LT(each.begin, each.end);
            }
          }
        }
      });
    }
    std::vector<std::jthread> working;
    for (cudaStream_t const on : {one.get(), two.get(), three.get()}) {
      working.emplace_back([this, on] {
        for (int i = 0; i < 40; ++i) {
          scratch_pool scratch(
              with(i % 2 == 0 ? in_group() : options(8), &pool_options::label, "comes and goes"));
          resource_pool<device_buffer<int>> buffers(labelled("comes and goes"),
                                                    [] { return device_buffer<int>(64); });
          std::optional<graph> made = escrow::capture(on, [&](stream_ref stream) {
            auto first = scratch.claim(stream, 4096);
            auto const second = buffers.claim(stream);
            first.release();
            static_cast<void>(scratch.claim(stream, 8192));
          });
          static_cast<void>(buffers.claim(on));
          graph_exec exec(*made);
          made.reset();
          exec.launch(on);
        }
        sync(on);
      });
    }
    working.clear();
    is_over.store(true);
  }
  EXPECT_TRUE(drained());
  EXPECT_TRUE(wait_until([] { return !has("comes and goes"); })) << "a report keeps a pool";
}

TEST_F(MemoryReport, HasTheArenaOfAGroupWhosePoolsAreGone) {
  std::optional<scratch_pool> scratch(in_group());
  static_cast<void>(captured_claims(*scratch, {8}));
  scratch.reset();
  EXPECT_TRUE(drained());
  EXPECT_TRUE(wait_until([] { return !has("blocks"); }));
  EXPECT_EQ(layout_of("batches").bytes, 8 * mebibyte);
  EXPECT_GE(of_device(report_memory()).arenas, 8 * mebibyte);
}

}  // namespace
}  // namespace escrow::test
