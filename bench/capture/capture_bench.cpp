// What Escrow adds to capturing, instantiating and destroying graphs, beside plain CUDA calls.
//
// Each operation is done right after, or right before, the same one with plain CUDA calls and
// without what Escrow keeps. Counters are medians, in microseconds: plain_us, escrow_us, extra_us
// of the differences, and of_plain of the ratios. The benchmark's own time is Escrow's.
//
// bench/run_program.sh runs capture/whole and capture/instantiate in a process of their own: once a
// process has made graphs of thousands of nodes, plain CUDA takes ten times as long for them.
#include <memory>
#include <string>
#include <vector>

#include "graphs.hpp"
#include "memory.hpp"
#include "thread_team.hpp"

namespace escrow::bench {
namespace {

// Streams that a capture forks to, and joins.
class branches {
 public:
  explicit branches(int count) {
    for (int i = 0; i < count; ++i) {
      streams_.push_back(test::make_stream());
      joins_.push_back(test::make_event());
    }
  }

  // Captures `enqueue(stream)` so many times, on the branches in turn.
  template <class Enqueue>
  [[nodiscard]] test::owned_graph captured_times(int times, Enqueue enqueue) {
    return captured(streams_[0], [&] {
      test::must(cudaEventRecord(joins_[0], streams_[0]));
      for (std::size_t i = 1; i < streams_.size(); ++i) {
        test::must(cudaStreamWaitEvent(streams_[i], joins_[0], 0));
      }
      for (std::size_t i = 0; i < static_cast<std::size_t>(times); ++i) {
        enqueue(streams_[i % streams_.size()].get());
      }
      for (std::size_t i = 1; i < streams_.size(); ++i) {
        test::must(cudaEventRecord(joins_[i], streams_[i]));
        test::must(cudaStreamWaitEvent(streams_[0], joins_[i], 0));
      }
    });
  }

 private:
  std::vector<test::owned_stream> streams_;
  std::vector<test::owned_event> joins_;
};

// A pool; what is claimed from it does not matter: nothing is made.
struct pooled {
  void enqueue_claim(cudaStream_t stream) {
    lease<int> const claimed = pool.claim(stream);
    test::must(test::launch_tiny(stream));
  }
  void settle() {
    test::must(deleter.drain_for(settle_max), "the deleter drains");
    test::must(pool.stats().in_graphs == 0, "all slots have come back");
  }

  escrow::deleter deleter;
  resource_pool<int> pool{{.slots_max = 1024, .label = "captured", .deleter = &deleter},
                          [] { return 0; }};
};

// Claims and releases in a capture, with a kernel each, less the kernels alone.
void claim(benchmark::State& state, int branch_count, int claims) {
  branches on(branch_count);
  pooled from;
  auto const plain = [](cudaStream_t stream) { enqueue_row(stream, 1); };
  auto const ours = [&](cudaStream_t stream) { from.enqueue_claim(stream); };
  static_cast<void>(on.captured_times(claims, ours));  // makes the slots
  from.settle();
  turns taken;
  for (auto _ : state) {
    require_time();
    test::owned_graph plain_graph, our_graph;  // destroyed outside of the time
    double const us = taken.add_us([&] { plain_graph = on.captured_times(claims, plain); },
                                   [&] { our_graph = on.captured_times(claims, ours); }, claims);
    state.SetIterationTime(us * 1e-6);
    our_graph.reset();
    from.settle();
  }
  taken.report(state);
  state.counters["slots_made"] = static_cast<double>(from.pool.stats().grown);
}

// Retiring many owners in one capture: for each owner, beside a capture without any.
void retire(benchmark::State& state, int owners) {
  graph_maker make;
  static_cast<void>(make.ours({.owners = owners}));
  make.settle();
  turns taken;
  for (auto _ : state) {
    require_time();
    test::owned_graph plain;
    std::optional<graph> ours;
    double const us = taken.add_us([&] { plain = make.plain(); },
                                   [&] { ours.emplace(make.ours({.owners = owners})); }, owners);
    state.SetIterationTime(us * 1e-6);
    ours.reset();
    make.settle();
  }
  taken.report(state);
}

constexpr int kernels = 8;

void plain_life(cudaStream_t stream) {
  auto const graph = captured(stream, [&] { enqueue_row(stream, kernels); });
  test::owned_exec const exec = test::instantiate(graph);
  test::must(cudaGraphLaunch(exec, stream));
}

void escrow_life(pooled& from, cudaStream_t stream) {
  graph const captured = capture(stream_ref(stream), [&](stream_ref on) {
    for (int i = 0; i < kernels; ++i) from.enqueue_claim(on.get());
  });
  graph_exec exec(captured);
  exec.launch(stream);
}

// A graph's whole life: captured, instantiated, launched and destroyed, by several threads with a
// stream each. Eight kernels with a claim each, over the same with plain CUDA and without claims.
// Rounds end with all launches done, which is not timed.
void whole(benchmark::State& state, int threads, int graphs) {
  pooled from;
  auto const living = [=](auto life) {
    return [=]() -> thread_team::part {
      auto const stream = std::make_shared<test::owned_stream>(test::make_stream());
      return {[=] {
                for (int i = 0; i < graphs; ++i) life(stream->get());
              },
              [=] { test::must(cudaStreamSynchronize(*stream)); }};
    };
  };
  thread_team plain(threads, living(&plain_life));
  thread_team ours(threads, living([&](cudaStream_t stream) { escrow_life(from, stream); }));
  for (thread_team* const each : {&plain, &ours}) static_cast<void>(each->round());
  turns taken;
  for (auto _ : state) {
    require_time();
    auto const us_a_graph = [&](thread_team& team) { return team.round() * 1e6 / graphs; };
    state.SetIterationTime(1e-6 * taken.add_around([&] { return us_a_graph(plain); },
                                                   [&] { return us_a_graph(ours); }));
    test::must(from.deleter.drain_for(settle_max), "the deleter drains");
  }
  taken.report(state);
  state.counters["on_threads"] = threads;
}

// What it costs to find out which graph it is that is instantiated: Escrow's own, or a handle of
// one that was captured with plain calls; over a plain cudaGraphInstantiate. Each graph has one
// claim.
template <bool is_ours>
void identity(benchmark::State& state, int nodes) {
  graph_maker make;
  turns taken;
  for (auto _ : state) {
    require_time();
    {
      content const with_claim{.kernels = nodes, .has_claim = true};
      test::owned_graph const bare = make.plain({.kernels = nodes});
      auto const graph = [&] {
        if constexpr (is_ours) {
          return make.ours(with_claim);
        } else {
          return make.plain(with_claim);
        }
      }();
      test::owned_exec plain_exec;
      std::optional<graph_exec> exec;
      auto const instantiate = [&] {
        if constexpr (is_ours) {
          exec.emplace(graph);
        } else {
          exec.emplace(graph.get());
        }
      };
      state.SetIterationTime(
          1e-6 * taken.add_us([&] { plain_exec = test::instantiate(bare); }, instantiate));
    }
    make.settle();
  }
  taken.report(state);
}

// Eager claims of a pool with many free slots, and over many streams, beside the calls that no pool
// with events can do without.
class pool_on_streams {
 public:
  explicit pool_on_streams(std::size_t slots)
      : slots_(slots),
        pool_({.slots_max = slots, .label = "eager", .deleter = &deleter_}, [] { return 0; }) {}

  void make_streams(int count) {
    for (int i = 0; i < count; ++i) streams_.push_back(test::make_stream());
  }
  // Makes all slots, and releases them on `stream`. Some at a time, so that CUDA's queue has room.
  void make_slots(cudaStream_t stream, bool is_blocked) {
    std::vector<lease<int>> claimed;
    for (std::size_t i = 0; i < slots_; ++i) claimed.push_back(pool_.claim(stream));
    for (std::size_t i = 0; i < slots_; ++i) {
      claimed[i].release();
      if (!is_blocked && i % 512 == 0) test::must(cudaStreamSynchronize(stream));
    }
  }
  // Microseconds of a claim and release, from one on each stream, beside the floor of both.
  double measure(turns& taken) {
    return taken.add_us(
        [this] {
          for (auto const& each : streams_) floor(each);
        },
        [this] {
          for (auto const& each : streams_) pool_.claim(each.get()).release();
        },
        static_cast<int>(streams_.size()));
  }
  void sync() const {
    for (auto const& each : streams_) test::must(cudaStreamSynchronize(each));
  }

 private:
  void floor(cudaStream_t stream) const {
    cudaStreamCaptureStatus status{};
    unsigned long long id = 0;
    test::must(cudaStreamGetCaptureInfo(stream, &status, &id, nullptr, nullptr, nullptr, nullptr));
    test::must(cudaStreamGetId(stream, &id));
    test::must(cudaEventRecord(event_, stream));
  }

  std::size_t slots_;
  test::owned_event event_ = test::make_event();
  std::vector<test::owned_stream> streams_;
  escrow::deleter deleter_;
  resource_pool<int> pool_;
};

// All slots were released on another stream, whose work is done, or is not.
void many_free(benchmark::State& state, int slots, bool is_blocked) {
  constexpr int streams = 64;
  turns taken;
  for (auto _ : state) {
    require_time();
    test::pinned_flag flag;
    test::owned_stream const first = test::make_stream();
    pool_on_streams world(static_cast<std::size_t>(slots));
    if (is_blocked) test::must(test::launch_wait_flag(first, flag.get()));
    world.make_slots(first, is_blocked);
    if (!is_blocked) test::must(cudaStreamSynchronize(first));
    world.make_streams(streams);  // new to the pool: none has a slot of its own
    state.SetIterationTime(world.measure(taken) * 1e-6);
    flag.raise();
    test::must(cudaStreamSynchronize(first));
    world.sync();
  }
  taken.report(state);
}

// Each stream has a slot of its own.
void many_streams(benchmark::State& state, int streams) {
  pool_on_streams world(static_cast<std::size_t>(streams));
  world.make_streams(streams);
  turns warm_up, taken;
  for (int i = 0; i < 2; ++i) static_cast<void>(world.measure(warm_up));
  for (auto _ : state) {
    require_time();
    world.sync();
    state.SetIterationTime(world.measure(taken) * 1e-6);
  }
  world.sync();
  taken.report(state);
}

}  // namespace

void register_all(settings const& how) {
  int const repetitions = how.choose(7, 3, 1);
  // Of what is small and of what is large.
  auto const add_sized = [=](std::string const& name, int size, bool is_large, int often,
                             auto run) {
    times const how_often{is_large ? how.choose(3, 1, 1) : how.choose(often, 4, 2), repetitions};
    add("capture/" + name + std::to_string(size), how_often, benchmark::kMicrosecond,
        [=](benchmark::State& state) { run(state, size); });
  };
  for (int const claims : {256, how.choose(16'384, 16'384, 1024)}) {
    for (int const count : {1, 16}) {
      add_sized("claim/branches:" + std::to_string(count) + "/claims:", claims, claims > 256, 40,
                [=](benchmark::State& state, int size) { claim(state, count, size); });
    }
  }
  for (int const owners : {64, how.choose(8192, 8192, 512)}) {
    add_sized("retire/owners:", owners, owners > 64, 30, &retire);
    add_sized("instantiate/owners:", owners, owners > 64, 30, &measure_instantiation);
  }
  int const graphs = how.choose(32, 8, 2);
  for (int const threads : {1, 8}) {
    add("capture/whole/on_threads:" + std::to_string(threads), {how.choose(15, 3, 1), repetitions},
        benchmark::kMicrosecond, [=](benchmark::State& state) { whole(state, threads, graphs); });
  }
  for (int const nodes : {10, 1'000, how.choose(10'000, 10'000, 2'000)}) {
    add_sized("identity/plain_handle/nodes:", nodes, nodes > 1'000, 20, &identity<false>);
    add_sized("identity/own_graph/nodes:", nodes, nodes > 1'000, 20, &identity<true>);
  }
  constexpr auto us = benchmark::kMicrosecond;
  times const few{how.choose(3, 1, 1), repetitions};
  int const idle = how.choose(16'384, 16'384, 1024);
  // A GPU's stream takes about 1,000 records behind a kernel before it blocks the host.
  int const busy = how.choose(512, 16'384, 512);
  int const streams = how.choose(1024, 1024, 64);
  add("capture/eager/free_idle:" + std::to_string(idle), few, us,
      [=](benchmark::State& state) { many_free(state, idle, false); });
  add("capture/eager/free_busy:" + std::to_string(busy), few, us,
      [=](benchmark::State& state) { many_free(state, busy, true); });
  add("capture/eager/streams:" + std::to_string(streams), {how.choose(10, 2, 1), repetitions}, us,
      [=](benchmark::State& state) { many_streams(state, streams); });
}

}  // namespace escrow::bench
