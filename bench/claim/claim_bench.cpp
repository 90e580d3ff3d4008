// SPDX-License-Identifier: Apache-2.0
// What a claim with its release costs the host, beside the least it can cost and what else there
// is: microseconds per pair, of the slowest thread. No kernel runs in between: it would hide the
// difference. Rows of pairs are short enough for CUDA's launch queue.
//
// claim/threads:T/streams:S/migrating:P: T threads with S streams each, in turn; P % of the leases
// are released on another stream of the thread than they were claimed for. Rounds of all arms in
// turns. claim_turns/A_over_B: two arms and more rounds.
#include "claim_arms.hpp"
#include "graphs.hpp"

namespace escrow::bench {
namespace {

// Each claim of a capture takes a slot that is free already and keeps it.
void run_captured(benchmark::State& state) {
  constexpr int claims = 64;  // in one capture
  test::owned_stream const stream = test::make_stream();
  pooled_ints from(claims);
  // Microseconds of `claims` claims, each before a kernel, in a capture.
  auto const captured_us = [&] {
    double us = 0;
    static_cast<void>(capture(stream_ref(stream.get()), [&](stream_ref) {
      std::vector<lease<int>> kept;
      kept.reserve(claims);
      for (int i = 0; i < claims; ++i) {
        us += us_of([&] { kept.push_back(from.pool.claim(stream.get())); });
        test::must(test::launch_tiny(stream));
      }
    }));
    settle(from.deleter);
    return us;
  };
  static_cast<void>(captured_us());  // makes the slots
  repeat(state, [&] { return captured_us() / claims; });
}

// Each claim asks about the events of the releases before it, which are done.
void run_for_host(benchmark::State& state) {
  constexpr int pairs = 256;
  test::owned_stream const stream = test::make_stream();
  pooled_ints from(64);
  auto const pairs_us = [&] {
    double const us = us_of([&] {
      for (int i = 0; i < pairs; ++i) from.pool.claim_for_host(stream.get()).release();
    });
    test::must(cudaStreamSynchronize(stream));
    return us;
  };
  static_cast<void>(pairs_us());  // makes the slots
  repeat(state, [&] { return pairs_us() / pairs; });
}

// What record_stream() adds to a claim of a busy resource and its release on two streams: a wait of
// the second stream, and its record at the release.
void run_record_stream(benchmark::State& state) {
  constexpr int pairs = 256;
  test::owned_stream const stream = test::make_stream();
  test::owned_stream const other = test::make_stream();
  pooled_ints from(64);
  auto const pairs_us = [&](bool is_told) {
    double const us = us_of([&] {
      for (int i = 0; i < pairs; ++i) {
        auto held = from.pool.claim(stream.get());
        if (is_told) held.record_stream(other.get());
      }
    });
    test::must(cudaStreamSynchronize(stream));
    test::must(cudaStreamSynchronize(other));
    return us;
  };
  static_cast<void>(pairs_us(true));  // makes the slots
  repeat(state, [&] { return (pairs_us(true) - pairs_us(false)) / pairs; });
}

// The end of a lease of one capture while its stream is in another one.
void run_end_in_another_capture(benchmark::State& state) {
  constexpr int leases = 64;
  test::owned_stream const stream = test::make_stream();
  pooled_ints from(2 * leases);
  repeat(state, [&] {
    std::vector<lease<int>> held;
    held.reserve(leases);
    double us = 0;
    {
      graph const first = capture(stream.get(), [&](stream_ref on) {
        for (int i = 0; i < leases; ++i) held.push_back(from.pool.claim(on));
      });
      graph const second =
          capture(stream.get(), [&](stream_ref) { us = us_of([&] { held.clear(); }); });
    }
    deleter::global().drain();
    return us / leases;
  });
}

// A claim and its release on a stream beside slots that wait for a record on another one, over the
// same without them.
void run_beside_waiting(benchmark::State& state, int waiting) {
  constexpr int pairs = 256;
  test::owned_stream const stream = test::make_stream(), other = test::make_stream();
  pooled_ints alone(2), beside(static_cast<std::size_t>(waiting) + 2);
  std::vector<lease<int>> held;
  for (int i = 0; i < waiting; ++i) held.push_back(beside.pool.claim(stream_ref(other)));
  static_cast<void>(capture(stream_ref(other), [&](stream_ref) { held.clear(); }));
  test::must(beside.pool.stats().deferred == static_cast<std::size_t>(waiting), "all wait");
  auto const row = [&](pooled_ints& from) {
    for (int i = 0; i < pairs; ++i) static_cast<void>(from.pool.claim(stream_ref(stream)));
  };
  turns taken;
  repeat(state, [&] {
    double const us = taken.add_us([&] { row(alone); }, [&] { row(beside); }, pairs);
    test::must(cudaStreamSynchronize(stream));
    return us;
  });
  taken.report(state);
}

// What a transformer's layers claim in a run: 16-bit activations, 32-bit scores and logits. Batches
// of prompts of some lengths, then one token for each of 1 to 64 sequences.
std::vector<std::size_t> inference_trace() {
  constexpr std::size_t hidden = 4096, heads = 32, inner = 11008, words = 32000, context = 1000;
  std::vector<std::size_t> sizes;
  auto const add_layer = [&](std::size_t tokens, std::size_t looked_at) {
    for (std::size_t const wide : {hidden, 3 * hidden, 2 * inner, inner}) {
      sizes.push_back(2 * tokens * wide);
    }
    sizes.push_back(4 * tokens * heads * looked_at);
  };
  for (std::size_t const tokens : {17U, 60U, 128U, 300U, 511U}) add_layer(tokens, tokens);
  for (std::size_t batch = 1; batch <= 64; ++batch) {
    add_layer(batch, context + batch);
    sizes.push_back(4 * batch * words);
  }
  return sizes;
}

// How much more memory than asked for the claims of the trace get: a claim takes a larger block
// that is there. How much the pool takes of the device, over the largest claim; each is released
// before the next. And how much of what is idle afterwards trim() gives back to the device.
void run_scratch_memory(benchmark::State& state) {
  test::owned_stream const stream = test::make_stream();
  scratch_pool sized({.label = "trace"});
  repeat(state, [&] {
    double asked = 0, got = 0, most = 0;
    double const us = us_of([&] {
      for (std::size_t const bytes : inference_trace()) {
        auto const claimed = sized.claim(stream.get(), bytes);
        asked += static_cast<double>(bytes);
        most = std::max(most, static_cast<double>(bytes));
        got += static_cast<double>(claimed->size());
      }
    });
    test::must(cudaStreamSynchronize(stream));
    double const free_then = free_device_bytes();
    auto const idle = static_cast<double>(sized.stats().bytes_idle);
    sized.trim();
    state.counters["over_asked"] = got / asked;
    state.counters["over_largest"] = static_cast<double>(sized.stats().bytes_peak) / most;
    // The device gives memory in larger pieces.
    state.counters["device_of_idle"] = std::min(1.0, (free_device_bytes() - free_then) / idle);
    return us;
  });
}

}  // namespace

void register_all(settings const& how) {
  auto const arms = present_arms(claim_arms());
  auto const add_load = [&](claim_load const& load) {
    add_rounds("claim/threads:" + std::to_string(load.threads) + "/streams:" +
                   std::to_string(load.streams) + "/migrating:" + std::to_string(load.migrating),
               how, arms, {"escrow", "local", "queries", "driver_queries", "event_record"}, load);
  };
  for (int const threads : {1, 2, 4, 8, 16}) add_load({.threads = threads});
  for (int const streams : {4, 64}) add_load({.threads = 8, .streams = streams});
  for (int const percent : {1, 10, 100}) {
    add_load({.threads = 8, .streams = 4, .migrating = percent});
  }
  claim_arm const escrow = arm_named("escrow", arms);
  for (int const threads : {1, 8}) {
    add_pair("claim_turns/escrow_over_floor", how, arm_named("floor", arms), escrow, {threads});
    add_pair("claim_turns/scratch_over_escrow", how, escrow, arm_named("scratch", arms), {threads});
  }
  claim_arm const on_first{"escrow_on_first_stream", &escrow_on_first_stream};
  add_pair("claim_turns/steal_over_escrow_on_first_stream", how, on_first, {"steal", &steal},
           {.streams = 2});
  add_pair("claim_turns/escrow_steal_over_escrow_on_first_stream", how, on_first,
           {"escrow_steal", &escrow_steal}, {.streams = 2});
  add("claim/captured", {how.choose(100, 2)}, &run_captured);
  add("claim/for_host", {how.choose(100, 2)}, &run_for_host);
  add("claim/record_stream", {how.choose(100, 2)}, &run_record_stream);
  add("claim/end_in_another_capture", {how.choose(100, 2)}, &run_end_in_another_capture);
  add("claim/beside_waiting", {how.choose(100, 2)}, &run_beside_waiting, how.choose(10'000, 100));
  add("claim/scratch_memory", {how.choose(5, 1)}, run_scratch_memory);
}

}  // namespace escrow::bench
