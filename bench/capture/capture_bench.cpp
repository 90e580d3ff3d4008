// SPDX-License-Identifier: Apache-2.0
// What Escrow adds to capturing, instantiating and destroying graphs, beside plain CUDA calls.
//
// Each operation is done right after, or right before, the same one with plain CUDA calls and
// without what Escrow keeps. Counters are medians, in microseconds: plain_us, escrow_us, extra_us
// of the differences, and of_plain of the ratios. The benchmark's own time is Escrow's.
#include "graphs.hpp"

namespace escrow::bench {
namespace {

using streams = std::vector<test::owned_stream>;

struct ints : pooled_ints {
  ints() : pooled_ints(1024) {}
  [[nodiscard]] lease<int> claim(cudaStream_t stream) { return pool.claim(stream); }
};

// 1 MiB of a scratch_pool, in a sharing group or in none.
template <bool is_in_group>
struct scratch {
  escrow::deleter deleter;
  scratch_pool pool{{.slots_max = 1024,
                     .label = "scratch",
                     .deleter = &deleter,
                     .group = is_in_group ? std::optional(sharing_group()) : std::nullopt}};
  [[nodiscard]] lease<device_block> claim(cudaStream_t stream) {
    return pool.claim(stream, std::size_t{1} << 20U);
  }
};

// Captures `enqueue(stream)` so many times, on several streams in turn.
template <class Enqueue>
test::owned_graph captured_times(streams const& on, int times, Enqueue enqueue) {
  test::owned_event const event = test::make_event();
  return captured(on[0], [&] {
    fork_and_join(on, event, [&] {
      for (std::size_t i = 0; i < static_cast<std::size_t>(times); ++i) enqueue(on[i % on.size()]);
    });
  });
}

// Captures of so many times `plain(stream)`, and of as many `ours(stream)`, in turns.
template <class Plain, class Ours>
void take_turns(benchmark::State& state, streams const& on, escrow::deleter& deleter, int times,
                Plain plain, Ours ours) {
  static_cast<void>(captured_times(on, times, ours));  // makes the slots
  settle(deleter);
  turns taken;
  repeat(state, [&] {
    test::owned_graph plain_graph, our_graph;  // destroyed outside of the time
    double const us = taken.add_us([&] { plain_graph = captured_times(on, times, plain); },
                                   [&] { our_graph = captured_times(on, times, ours); }, times);
    our_graph.reset();
    settle(deleter);
    return us;
  });
  taken.report(state);
}

// Claims and releases in a capture, with a kernel each, less the kernels alone.
template <class From>
void claim(benchmark::State& state, int branch_count, int claims) {
  streams const on = make_streams(branch_count);
  From from;
  auto const plain = [](cudaStream_t stream) { enqueue_row(stream, 1); };
  auto const ours = [&](cudaStream_t stream) {
    auto const claimed = from.claim(stream);
    test::must(test::launch_tiny(stream));
  };
  take_turns(state, on, from.deleter, claims, plain, ours);
}

// As an engine's operators claim: four kernels between two claims, blocks of three sizes, and
// releases that name the stream.
void spaced(benchmark::State& state, int claims) {
  streams const on = make_streams(1);
  scratch<true> from;
  auto const plain = [](cudaStream_t stream) { enqueue_row(stream, 5); };
  int count = 0;
  auto const ours = [&](cudaStream_t stream) {
    auto claimed = from.pool.claim(stream, std::size_t{4096} << (count++ % 3));
    test::must(test::launch_tiny(stream));
    claimed.release(stream);
    enqueue_row(stream, 4);
  };
  take_turns(state, on, from.deleter, claims, plain, ours);
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
  double const us = taken.add_us(
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
  test::must(cudaDeviceSynchronize());
  return us;
}

// All slots were released on another stream, whose work is done.
void many_idle(benchmark::State& state, int slots) {
  turns taken;
  repeat(state, [&] {
    test::owned_stream const first = test::make_stream();
    streams const others = make_streams(64);  // none will have a slot of its own
    pooled_ints from(static_cast<std::size_t>(slots));
    std::vector<lease<int>> claimed;
    for (int i = 0; i < slots; ++i) claimed.push_back(from.pool.claim(first.get()));
    for (std::size_t i = 0; i < claimed.size(); ++i) {
      claimed[i].release();
      if (i % 512 == 0) test::must(cudaDeviceSynchronize());  // so that CUDA's queue has room
    }
    test::must(cudaDeviceSynchronize());
    return claim_us(taken, from, others);
  });
  taken.report(state);
}

// Each stream has a slot of its own.
void many_streams(benchmark::State& state, int count) {
  streams const on = make_streams(count);
  pooled_ints from(on.size());
  turns warm_up, taken;
  for (int i = 0; i < 2; ++i) claim_us(warm_up, from, on);
  repeat(state, [&] { return claim_us(taken, from, on); });
  taken.report(state);
}

}  // namespace

void register_all(settings const& how) {
  times const of_large{how.choose(3, 1), how.choose(7, 1)};
  auto const often = [&](int iterations) -> times {
    return {how.choose(iterations, 2), how.choose(7, 1)};
  };
  for (int const claims : {256, how.choose(16'384, 1024)}) {
    for (int const branches : {1, 16}) {
      std::string const name =
          "/branches:" + std::to_string(branches) + "/claims:" + std::to_string(claims);
      times const how_often = claims > 256 ? of_large : often(40);
      add("capture/claim" + name, how_often, &claim<ints>, branches, claims);
      add("capture/scratch" + name, how_often, &claim<scratch<false>>, branches, claims);
      add("capture/grouped" + name, how_often, &claim<scratch<true>>, branches, claims);
    }
  }
  for (int const claims : {32, 1024}) {
    add("capture/spaced/claims:" + std::to_string(claims), often(claims > 32 ? 10 : 40), &spaced,
        claims);
  }
  int const owners = how.choose(8192, 512);
  add("capture/retire/owners:" + std::to_string(owners), of_large, &retire, owners);
  for (int const nodes : {10, 1'000, how.choose(10'000, 2'000)}) {
    for (std::string const name : {"own_graph", "plain_handle"}) {
      add("capture/identity/" + name + "/nodes:" + std::to_string(nodes),
          nodes > 1'000 ? of_large : often(20), &identity, nodes, name == "own_graph");
    }
  }
  int const slots = how.choose(16'384, 1024), streams = how.choose(1024, 64);
  add("capture/eager/free_idle:" + std::to_string(slots), of_large, &many_idle, slots);
  add("capture/eager/streams:" + std::to_string(streams), often(10), &many_streams, streams);
}

}  // namespace escrow::bench
