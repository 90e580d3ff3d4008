// SPDX-License-Identifier: Apache-2.0
// Every call of every operation of scratch pools, their claimers, blocks and allocators fails once.

#include <escrow/graph.hpp>

#include "fault_world.hpp"

namespace escrow::test {
namespace {

/// Scratch pools and their memory; what is leaked is of one size.
class memory_stage : public fault_world {
 public:
  static constexpr std::size_t size = 300;
  static constexpr std::size_t block = 320;  // of which it is

  std::optional<sharing_group> group;  // of pools that are made afterwards
  owned_graph sharing;                 // a graph of the group
  std::optional<graph_exec> exec;      // the same
  std::optional<scratch_pool> scratch;
  std::optional<scratch_claimer> local;
  std::size_t local_bytes = 0;  // a size that it claimed
  std::optional<lease<device_block>> memory;
  std::optional<device_block> single;
  std::optional<stream_allocator> allocator;
  bool had_allocator = false;
  void* held = nullptr;  // of the allocator
  bool is_busy = false;  // its work runs until the flag is raised

  [[nodiscard]] pool_options options(std::size_t slots_max = 2) {
    return {.slots_max = slots_max, .deleter = worker.get(), .group = group};
  }
  void make_allocator() {
    allocator.emplace(options());
    had_allocator = true;
  }
  void allocate(cudaStream_t stream) { held = allocator->allocate(stream, size); }
  void free_on(cudaStream_t stream) {
    allocator->deallocate(stream, held);
    held = nullptr;
  }
  void keep_busy(cudaStream_t stream) {
    must(launch_wait_flag(stream, flag.get()));
    must(cudaMemsetAsync(held, 1, size, stream));
    is_busy = true;
  }

  [[nodiscard]] std::string seen() override {
    worker->core().recycle();
    std::string const text = text_of("memory", memory && *memory, "single", single.has_value(),
                                     "scratch", scratch.has_value(), "claimer", local.has_value(),
                                     "allocator", allocator.has_value(), "held", held != nullptr,
                                     "parked", group && group->stats().is_parked);
    if (!allocator) return text;
    scratch_stats const now = allocator->pool().stats();
    return text + text_of("in use", now.bytes_in_use, "in graphs", now.bytes_in_graphs);
  }

 private:
  /// The exec's memory is there, or comes back.
  void expect_launches() {
    if (group->stats().is_parked) group->unpark();
    exec->launch(other);
    sync(other);
  }
  void before_end(bool is_lost) override {
    if (!is_lost && is_busy && held == nullptr && allocator) {
      try_to_poll();
      EXPECT_EQ(allocator->pool().stats().returned, 0U) << "freed while the work may run";
    }
    sharing.reset();
    if (!is_lost && exec && !captured) expect_launches();
    exec.reset();
    memory.reset();
    if (!is_lost) expect_unharmed_capture();
    local.reset();
    captured.reset();
    // Given the streams, it records what was deferred.
    for (cudaStream_t const stream : {one.get(), other.get()}) {
      if (!is_lost && local_bytes != 0) static_cast<void>(scratch->claim(stream, local_bytes));
    }
    scratch.reset();
    single.reset();
  }
  leftovers end_all(bool is_lost, bool /*is_end_known*/) override {
    if (!is_lost && allocator) {
      if (held != nullptr) allocator->deallocate(one, held);
      // As above.
      allocator->deallocate(one, allocator->allocate(one, size));
    }
    allocator.reset();
    EXPECT_TRUE(worker->drain_for(generous)) << "a drain hangs";
    sim::run_until_idle();
    auto const leaked = static_cast<std::size_t>(worker->stats().leaked);
    EXPECT_TRUE(leaked == 0 || is_lost || had_allocator);
    leftovers left;
    left.device_allocations = leaked;
    left.device_bytes = leaked * block;
    left.events = 3 * leaked;
    left.streams = had_allocator ? 1 : 0;  // its own
    return left;
  }
};

using rows = operations_in<memory_stage>;
using step = rows::step;

step const make_scratch = [](auto& in) { in.scratch.emplace(in.options()); };
step const claim_scratch = [](auto& in) { in.memory.emplace(in.scratch->claim(in.one, 300)); };
/// So many bytes are idle on the stream, and perhaps in use by its work.
step idle(std::size_t bytes) {
  return [=](auto& in) { in.scratch->claim(in.one, bytes).release(); };
}
step const sync_one = [](auto& in) { sync(in.one); };

void add_scratch(rows& add) {
  step const end = [](auto& in) { in.scratch.reset(); };
  auto const claims = runs("scratch_pool::claim");
  rows::steps const used{make_scratch, claim_scratch, idle(300)};
  rows::steps const idle_only{make_scratch, idle(300), sync_one, capturing};
  add("scratch, made", runs("scratch_pool::scratch_pool"), {}, make_scratch);
  add("scratch, claim", claims, {make_scratch}, claim_scratch);
  add("scratch, claim in a capture", claims, {make_scratch, capturing}, claim_scratch);
  step const share_scratch = [](auto& in) {
    in.group.emplace();
    make_scratch(in);
    test::capture open{in.one, cudaStreamCaptureModeRelaxed};
    idle(1000)(in);
    must(open.end());
    in.sharing = std::move(open.graph());
  };
  add("scratch, claim a larger block of another graph", claims, {share_scratch, capturing},
      claim_scratch);
  add("scratch, close", runs("scratch_pool::close_for"), used,
      [](auto& in) { EXPECT_EQ(in.scratch->close_for(std::chrono::nanoseconds{0}).size(), 1U); });
  add("scratch, described", runs("slot_pool::describe slot_pool::holders"),
      {make_scratch, claim_scratch}, [](auto& in) { in.answer = in.scratch->describe(); });
  add("memory, reported", runs("report_memory slot_pool::report_all"),
      {share_scratch, claim_scratch},
      [](auto& in) { in.answer = report_memory().pools.empty() ? "none" : "pools"; });
  add("scratch, ended", runs("slot_pool::close_and_leave"), used, end);
  add("scratch, reclaimed", runs("deleter::poll"),
      {make_scratch, claim_scratch, idle(300), sync_one, end}, poll)
      .served_otherwise = at_next_poll;
  step const trim = [](auto& in) { static_cast<void>(in.scratch->trim()); };
  auto const trims = runs("scratch_pool::trim");
  add("scratch, trim", trims, {make_scratch, claim_scratch, idle(300), sync_one}, trim);
  add("scratch, trim in a capture", trims, idle_only, trim);
  add("scratch of a device", runs("scratch_pools::on"), {}, [](auto& in) {
    scratch_pools pools({.deleter = in.worker.get()});
    in.scratch.emplace(std::move(pools.on(0)));
  });
  // 256 bytes are idle, and are freed for 320 or 448 more.
  step const make_limited = [](auto& in) {
    in.scratch.emplace(in.options(), scratch_policy{.bytes_max = 640});
  };
  add("scratch, claim beyond the limit", claims, {make_limited, claim_scratch, idle(256), sync_one},
      claim_scratch);
  step const claim_for_host = [](auto& in) {
    in.memory.emplace(in.scratch->claim_for_host(in.one, 300));
  };
  auto const host_claims = runs("scratch_pool::claim_for_host");
  add("scratch, claim for the host", host_claims, {make_scratch}, claim_for_host);
  add("scratch, claim for the host what is done", host_claims, {make_scratch, idle(300), sync_one},
      claim_for_host)
      .served_otherwise = {{"cudaEventQuery", "a block that is not known to be done is not taken"}};
  add("scratch, claim for the host in a capture", host_claims, {make_scratch, capturing},
      claim_for_host);
  step const make_pinned = [](auto& in) {
    in.scratch.emplace(in.options(), scratch_policy{.source = memory_source::pinned_host()});
  };
  add("pinned scratch, claim", runs("scratch_pool::claim memory_source::pinned_host"),
      {make_pinned}, claim_scratch);
  add("scratch, claim that is kept", runs("scratch_pool::claim_kept"), {share_scratch, capturing},
      [](auto& in) { in.memory.emplace(in.scratch->claim_kept(in.one, 300)); });
  add("scratch, claim beyond the limit in a capture", claims,
      {make_limited, idle(256), sync_one, capturing},
      [](memory_stage& in) { in.memory.emplace(in.scratch->claim<int>(in.one, 100)); });
  step const make_brief = [](auto& in) {
    in.scratch.emplace(in.options(), scratch_policy{.idle_max = std::chrono::nanoseconds(1)});
  };
  add("scratch, claim that returns unused blocks", claims,
      {make_brief, idle(256), sync_one, idle(1000)}, claim_scratch);
}

void add_group_run(rows& add) {
  step const share = [](auto& in) {
    in.group.emplace();
    make_scratch(in);
    in.local_bytes = 300;
  };
  auto const run_with = [](auto work) -> step {
    return [=](memory_stage& in) { in.group->run(in.one, [&] { work(in); }); };
  };
  auto const claim_here = [](memory_stage& in) {
    static_cast<void>(in.scratch->claim(in.one, 300));
  };
  step const first_run = run_with(claim_here);
  step const on_other = [](auto& in) { in.group->run(in.other, [] {}); };
  add("group, run", runs("sharing_group::run"), {share}, first_run);
  add("group, run again", runs("sharing_group::run"), {share, first_run}, first_run);
  add("group, run behind another stream's", runs("sharing_group::run"), {share, on_other},
      run_with([](auto&) {}));
  add("group, run with work on another stream", runs("sharing_group::run"), {share, first_run},
      run_with([](memory_stage& in) {
        auto held = in.scratch->claim(in.one, 300);
        held.record_stream(in.other);
      }));
}

void add_parking(rows& add) {
  auto const make_exec_in = [](sharing_options const& how) -> step {
    return [=](auto& in) {
      in.group.emplace(how);
      make_scratch(in);
      for (std::size_t const bytes : {std::size_t{300}, std::size_t{3} << 20}) {  // two pieces
        graph const source = escrow::capture(stream_ref(in.one.get()), [&](stream_ref on) {
          auto const held = in.scratch->claim(on, bytes);
          must(cudaMemsetAsync(held->data(), 1, bytes, on.get()));
        });
        in.exec.emplace(source);
      }
    };
  };
  step const make_exec = make_exec_in({});
  step const launch = [](auto& in) { in.exec->launch(in.one); };
  auto const park = [](bool keep_contents) -> step {
    return [=](auto& in) { in.group->park({.keep_contents = keep_contents}); };
  };
  step const unpark = [](auto& in) { in.group->unpark(); };
  auto const parks = runs("sharing_group::park");
  auto const unparks = runs("sharing_group::unpark");
  add("group, park", parks, {make_exec}, park(false));
  add("group, park behind a launch", parks, {make_exec, launch, sync_one}, park(false));
  add("group, park in a capture", parks, {make_exec, capturing}, park(false));
  add("group, park and keep", parks, {make_exec, launch, sync_one}, park(true));
  step const make_late = make_exec_in({.streams_outlive_group = true});
  add("group, park behind a late end", parks, {make_late, launch, sync_one}, park(false));
  add("group, run behind a late end", runs("sharing_group::run"), {make_late, launch},
      [](auto& in) { in.group->run(in.other, [] {}); });
  add("group, unpark", unparks, {make_exec, park(false)}, unpark);
  add("group, unpark what was kept", unparks, {make_exec, park(true)}, unpark);
  // What is refused is told in the report.
  add("group, park all", runs("park_all"), {make_exec}, [](auto& in) {
    if (!park_all().front().refusal.empty()) in.group->park();
  });
  add("group, unpark all", runs("unpark_all"), {make_exec, park(false)}, [](auto& in) {
    if (!unpark_all().front().refusal.empty()) in.group->unpark();
  });
}

void add_blocks(rows& add) {
  auto const mem_pool = std::make_shared<cudaMemPool_t>();
  step const get_pool = [=](auto&) { must(cudaDeviceGetDefaultMemPool(mem_pool.get(), 0)); };
  auto const made = [](auto const&... source) -> step {
    return [=](auto& in) { in.single.emplace(std::size_t{512}, source()...); };
  };
  auto const add_block = [&](std::string const& name, char const* functions, step const& make) {
    add(name + ", made", functions, {get_pool}, make);
    add(name + ", ended", runs("device_block::~device_block"), {get_pool, make},
        [](auto& in) { in.single.reset(); });
  };
  add("device block, the first", runs("device_block::device_block trim_device_memory"),
      {[](auto&) { static_cast<void>(trim_device_memory(0)); }}, made());
  add_block("device block", runs("device_block::device_block"), made());
  add_block("pinned block", runs("memory_source::pinned_host"), made(&memory_source::pinned_host));
  add_block("block of a mem pool", runs("memory_source::from"),
            made([=] { return memory_source::from(*mem_pool); }));
  add_block("block of cudaMalloc", runs("memory_source::cuda_malloc"),
            made(&memory_source::cuda_malloc));
  add("memory by pointer, made and ended", runs("make_device device_malloc device_free"), {},
      [](auto&) { auto const memory = make_device<int>(16); });
  add("device memory, trimmed", runs("trim_device_memory"), {make_scratch, idle(300), sync_one},
      [](auto&) { static_cast<void>(trim_device_memory(0)); });
  add("device buffer, made", runs("device_buffer::device_buffer"), {},
      [](auto&) { device_buffer<int> const buffer(16); });
}

void add_claimers(rows& add) {
  step const make_pool = [](auto& in) { in.scratch.emplace(in.options(4)); };
  step const make = [](auto& in) { in.local.emplace(in.scratch->on(in.one)); };
  auto const claim = [](std::size_t bytes) -> step {
    return [=](auto& in) { in.memory.emplace(in.local->claim(bytes)); };
  };
  step const idle_there = [](auto& in) {
    in.local_bytes = 300;
    static_cast<void>(in.local->claim(300));
  };
  step const asked_for = [](auto& in) { static_cast<void>(in.scratch->claim(in.other, 300)); };
  auto const claims = runs("scratch_claimer::claim");
  rows::steps const with_idle{make_pool, make, idle_there};
  add("scratch claimer, made", runs("scratch_pool::on"), {make_pool}, make);
  add("scratch claimer, claim of a new size", claims, {make_pool, make}, claim(300));
  add("scratch claimer, claim of what is idle", claims, with_idle, claim(300));
  add("scratch claimer, claim of another size, others have asked", claims,
      {make_pool, make, idle_there, asked_for}, claim(256));
  auto const host_claims = runs("scratch_claimer::claim_for_host");
  step const claim_for_host = [](auto& in) { in.memory.emplace(in.local->claim_for_host(300)); };
  add("scratch claimer, claim for the host", host_claims, {make_pool, make}, claim_for_host);
  add("scratch claimer, claim that is kept", runs("scratch_claimer::claim_kept"),
      {make_pool, make, capturing}, [](auto& in) { in.memory.emplace(in.local->claim_kept(300)); });
  add("scratch claimer, flush", runs("scratch_claimer::flush"), with_idle,
      [](auto& in) { in.local->flush(); });
  add("scratch claimer, ended", runs("claimer_slots::~claimer_slots"), with_idle,
      [](auto& in) { in.local.reset(); });
}

void add_allocators(rows& add) {
  step const make = [](auto& in) { in.make_allocator(); };
  step const allocate = [](auto& in) { in.allocate(in.one); };
  step const deallocate = [](auto& in) { in.free_on(in.one); };
  step const deallocate_on_other = [](auto& in) { in.free_on(in.other); };
  step const busy = [](auto& in) { in.keep_busy(in.one); };
  step const busy_on_other = [](auto& in) { in.keep_busy(in.other); };
  step const end_capture = [](auto& in) {
    must(in.captured->end());
    in.captured.reset();
  };
  step const allocate_now = [](auto& in) { in.held = in.allocator->allocate(in.size); };
  auto const allocates = runs("stream_allocator::allocate");
  auto const frees = runs("stream_allocator::deallocate");
  auto const makes = runs("stream_allocator::stream_allocator");
  add("allocator, made", makes, {}, make);
  add("allocator, allocate", allocates, {make}, allocate);
  add("allocator, allocate freed memory", allocates,
      {make, allocate, busy_on_other, deallocate_on_other}, allocate);
  statements const left_to_graph{
      {"operator new", "without memory for the address, the graph keeps what it got"}};
  add("allocator, allocate in a capture", allocates, {make, capturing}, allocate).stated =
      left_to_graph;
  add("allocator, allocate for the host", runs("stream_allocator::allocate_for_host"), {make},
      [](auto& in) { in.held = in.allocator->allocate_for_host(in.one, in.size); });
  add("allocator, allocate what is kept", runs("stream_allocator::allocate_kept"),
      {make, capturing}, [](auto& in) { in.held = in.allocator->allocate_kept(in.one, in.size); })
      .stated = left_to_graph;
  add("allocator, allocate without a stream", allocates, {make}, allocate_now);
  add("allocator, deallocate", frees, {make, allocate, busy}, deallocate);
  add("allocator, deallocate on another stream", frees, {make, allocate, busy_on_other},
      deallocate_on_other);
  add("allocator, deallocate in a capture", frees, {make, capturing, allocate}, deallocate);
  add("allocator, deallocate after the capture", frees, {make, capturing, allocate, end_capture},
      deallocate_on_other);
  add("allocator, deallocate in a later capture", frees, {make, allocate, capturing}, deallocate);
  add("allocator, deallocate without a stream", frees, {make, allocate_now}, [](auto& in) {
    in.allocator->deallocate(in.held);
    in.held = nullptr;
  });
  add("allocator, end with memory allocated", makes, {make, allocate}, [](auto& in) {
    in.allocator.reset();
    in.held = nullptr;
  });
  add("allocator, leave to the graph", runs("stream_allocator::leave_to_graph"),
      {make, capturing, allocate}, [](auto& in) {
        in.allocator->leave_to_graph(in.held);
        in.held = nullptr;
      });
}

INSTANTIATE_TEST_SUITE_P(Of, EveryCall,
                         testing::ValuesIn(rows::of({add_scratch, add_group_run, add_parking,
                                                     add_blocks, add_claimers, add_allocators})),
                         name_of);

}  // namespace
}  // namespace escrow::test
