// What Escrow adds to capturing, instantiating and destroying graphs, beside plain CUDA calls.
//
// Each operation is done right after, or right before, the same one with plain CUDA calls and
// without what Escrow keeps. Counters are medians, in microseconds: plain_us, escrow_us, extra_us
// of the differences, and of_plain of the ratios. The benchmark's own time is Escrow's.
//
// bench/run.py runs capture/whole and capture/instantiate in a process of their own: once a
// process has made graphs of thousands of nodes, plain CUDA takes ten times as long for them.

#include "graphs.hpp"
#include "memory.hpp"
#include "thread_team.hpp"

namespace escrow::bench {
namespace {

using streams = std::vector<test::owned_stream>;

streams make_streams(int count) {
  streams made;
  for (int i = 0; i < count; ++i) made.push_back(test::make_stream());
  return made;
}

// Captures `enqueue(stream)` so many times, on several streams in turn, which a capture forks to
// and joins.
template <class Enqueue>
test::owned_graph captured_times(streams const& on, int times, Enqueue enqueue) {
  test::owned_event const event = test::make_event();
  return captured(on[0], [&] {
    test::must(cudaEventRecord(event, on[0]));
    for (std::size_t i = 1; i < on.size(); ++i) test::must(cudaStreamWaitEvent(on[i], event, 0));
    for (std::size_t i = 0; i < static_cast<std::size_t>(times); ++i) enqueue(on[i % on.size()]);
    for (std::size_t i = 1; i < on.size(); ++i) {
      test::must(cudaEventRecord(event, on[i]));
      test::must(cudaStreamWaitEvent(on[0], event, 0));
    }
  });
}

void enqueue_claim(pooled_ints& from, cudaStream_t stream) {
  lease<int> const claimed = from.pool.claim(stream);
  test::must(test::launch_tiny(stream));
}

// Claims and releases in a capture, with a kernel each, less the kernels alone.
void claim(benchmark::State& state, int branch_count, int claims) {
  streams const on = make_streams(branch_count);
  pooled_ints from(1024);
  auto const plain = [](cudaStream_t stream) { enqueue_row(stream, 1); };
  auto const ours = [&](cudaStream_t stream) { enqueue_claim(from, stream); };
  static_cast<void>(captured_times(on, claims, ours));  // makes the slots
  from.settle();
  turns taken;
  repeat(state, [&] {
    test::owned_graph plain_graph, our_graph;  // destroyed outside of the time
    double const us = taken.add_us([&] { plain_graph = captured_times(on, claims, plain); },
                                   [&] { our_graph = captured_times(on, claims, ours); }, claims);
    our_graph.reset();
    from.settle();
    return us;
  });
  taken.report(state);
  state.counters["slots_made"] = static_cast<double>(from.pool.stats().grown);
}

// Retiring many owners in one capture: for each owner, beside a capture without any.
void retire(benchmark::State& state, int owners) {
  graph_maker make;
  static_cast<void>(make.ours({.owners = owners}));
  make.settle();
  turns taken;
  repeat(state, [&] {
    test::owned_graph plain;
    std::optional<graph> ours;
    double const us = taken.add_us([&] { plain = make.plain(); },
                                   [&] { ours.emplace(make.ours({.owners = owners})); }, owners);
    ours.reset();
    make.settle();
    return us;
  });
  taken.report(state);
}

constexpr int kernels = 8;

void plain_life(cudaStream_t stream) {
  auto const graph = captured(stream, [&] { enqueue_row(stream, kernels); });
  test::owned_exec const exec = test::instantiate(graph);
  test::must(cudaGraphLaunch(exec, stream));
}

void escrow_life(pooled_ints& from, cudaStream_t stream) {
  graph const captured = capture(stream_ref(stream), [&](stream_ref on) {
    for (int i = 0; i < kernels; ++i) enqueue_claim(from, on.get());
  });
  graph_exec exec(captured);
  exec.launch(stream);
}

// A graph's whole life: captured, instantiated, launched and destroyed, by several threads with a
// stream each. Eight kernels with a claim each, over the same with plain CUDA and without claims.
// Rounds end with all launches done, which is not timed.
void whole(benchmark::State& state, int threads, int graphs) {
  pooled_ints from(1024);
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
  repeat(state, [&] {
    auto const us_a_graph = [&](thread_team& team) { return team.round() * 1e6 / graphs; };
    double const us =
        taken.add_around([&] { return us_a_graph(plain); }, [&] { return us_a_graph(ours); });
    drain(from.deleter);
    return us;
  });
  taken.report(state);
  state.counters["on_threads"] = threads;
}

// What it costs to find out which graph it is that is instantiated: Escrow's own, or a handle of
// one that was captured with plain calls; over a plain cudaGraphInstantiate. Each graph has one
// claim.
void identity(benchmark::State& state, int nodes, bool is_ours) {
  graph_maker make;
  turns taken;
  repeat(state, [&] {
    make.settle();
    content const with_claim{.kernels = nodes, .has_claim = true};
    test::owned_graph const bare = make.plain({.kernels = nodes});
    std::optional<graph> ours;
    test::owned_graph plain;
    if (is_ours) {
      ours.emplace(make.ours(with_claim));
    } else {
      plain = make.plain(with_claim);
    }
    test::owned_exec bare_exec;
    std::optional<graph_exec> exec;
    return taken.add_us([&] { bare_exec = test::instantiate(bare); },
                        [&] { is_ours ? exec.emplace(*ours) : exec.emplace(plain.get()); });
  });
  taken.report(state);
}

// Microseconds of an eager claim and release, from one on each stream, beside the calls that no
// pool with events can do without.
double claim_us(turns& taken, pooled_ints& from, streams const& on) {
  test::owned_event const event = test::make_event();
  return taken.add_us(
      [&] {
        for (auto const& each : on) {
          ask_about(each);
          test::must(cudaEventRecord(event, each));
        }
      },
      [&] {
        for (auto const& each : on) from.pool.claim(each.get()).release();
      },
      static_cast<int>(on.size()));
}

void sync(streams const& all) {
  for (auto const& each : all) test::must(cudaStreamSynchronize(each));
}

// All slots were released on another stream, whose work is done, or is not.
void many_free(benchmark::State& state, int slots, bool is_blocked) {
  turns taken;
  repeat(state, [&] {
    test::pinned_flag flag;
    streams const first = make_streams(1);
    streams const others = make_streams(64);  // none will have a slot of its own
    pooled_ints from(static_cast<std::size_t>(slots));
    if (is_blocked) test::must(test::launch_wait_flag(first[0], flag.get()));
    std::vector<lease<int>> claimed;
    for (int i = 0; i < slots; ++i) claimed.push_back(from.pool.claim(first[0].get()));
    for (std::size_t i = 0; i < claimed.size(); ++i) {
      claimed[i].release();
      if (!is_blocked && i % 512 == 0) sync(first);  // so that CUDA's queue has room
    }
    if (!is_blocked) sync(first);
    double const us = claim_us(taken, from, others);
    flag.raise();
    sync(first);
    sync(others);
    return us;
  });
  taken.report(state);
}

// Each stream has a slot of its own.
void many_streams(benchmark::State& state, int count) {
  streams const on = make_streams(count);
  pooled_ints from(on.size());
  turns warm_up, taken;
  for (int i = 0; i < 2; ++i) claim_us(warm_up, from, on);
  repeat(state, [&] {
    sync(on);
    return claim_us(taken, from, on);
  });
  sync(on);
  taken.report(state);
}

}  // namespace

void register_all(settings const& how) {
  int const repetitions = how.choose(7, 1);
  // Of what is small and of what is large.
  auto const add_sized = [=](std::string const& name, int size, bool is_large, int often,
                             auto run) {
    times const how_often{is_large ? how.choose(3, 1) : how.choose(often, 2), repetitions};
    add("capture/" + name + std::to_string(size), how_often, run, size);
  };
  for (int const claims : {256, how.choose(16'384, 1024)}) {
    for (int const count : {1, 16}) {
      add_sized("claim/branches:" + std::to_string(count) + "/claims:", claims, claims > 256, 40,
                [=](benchmark::State& state, int size) { claim(state, count, size); });
    }
  }
  for (int const owners : {64, how.choose(8192, 512)}) {
    add_sized("retire/owners:", owners, owners > 64, 30, &retire);
    add_sized("instantiate/owners:", owners, owners > 64, 30, &measure_instantiation);
  }
  int const graphs = how.choose(32, 2);
  for (int const threads : {1, 8}) {
    add("capture/whole/on_threads:" + std::to_string(threads), {how.choose(15, 1), repetitions},
        &whole, threads, graphs);
  }
  for (int const nodes : {10, 1'000, how.choose(10'000, 2'000)}) {
    for (bool const is_ours : {false, true}) {
      add_sized(is_ours ? "identity/own_graph/nodes:" : "identity/plain_handle/nodes:", nodes,
                nodes > 1'000, 20,
                [=](benchmark::State& state, int size) { identity(state, size, is_ours); });
    }
  }
  int const idle = how.choose(16'384, 1024);
  // A GPU's stream takes about 1,000 records behind a kernel before it blocks the host.
  constexpr int busy = 512;
  add_sized("eager/free_idle:", idle, true, 0,
            [](benchmark::State& state, int slots) { many_free(state, slots, false); });
  add_sized("eager/free_busy:", busy, true, 0,
            [](benchmark::State& state, int slots) { many_free(state, slots, true); });
  add_sized("eager/streams:", how.choose(1024, 64), false, 10, &many_streams);
}

}  // namespace escrow::bench
