// What a claim with its release costs the host, beside the least it can cost and what else there
// is.
//
// Each benchmark's time is microseconds per pair, of the slowest thread. No kernel runs in between:
// it would hide the difference. Rows of pairs are short enough for CUDA's launch queue, and streams
// are synchronized between rows, outside the time.
//
// claim_turns/A_over_B: rounds of both in turns; of_base is the median of A's time over B's.
// claim/captured: each claim of a capture takes a slot that is free already and keeps it.
// claim/captured_reuse: each claim takes the slot that the capture released before.
#include <array>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "claim_arm.hpp"
#include "graphs.hpp"
#include "thread_team.hpp"

namespace escrow::bench {
namespace {

// An event record; `asks`: the floor, what no event-based pool that may be called in a capture can
// do without.
template <bool asks>
claim_setup record() {
  return [] {
    auto const event = std::make_shared<test::owned_event>(test::make_event());
    return [event](cudaStream_t stream) {
      if constexpr (asks) ask_about(stream);
      test::must(cudaEventRecord(*event, stream));
    };
  };
}

constexpr std::size_t slots_max = 64;

claim_setup escrow() {
  struct pooled {
    escrow::deleter deleter;
    resource_pool<device_block> pool{
        {.slots_max = slots_max, .label = "claim", .deleter = &deleter},
        [] { return device_block(claimed_bytes); }};
  };
  return [all = std::make_shared<pooled>()] {
    return [all](cudaStream_t stream) { all->pool.claim(stream).release(); };
  };
}

// The same by size.
claim_setup scratch() {
  struct pooled {
    escrow::deleter deleter;
    scratch_pool pool{{.label = "claim", .deleter = &deleter}};
  };
  return [all = std::make_shared<pooled>()] {
    return [all](cudaStream_t stream) { all->pool.claim(stream, claimed_bytes).release(); };
  };
}

// PyTorch-shaped: one lock for all, a list searched for the stream's own, an event each.
class locked_pool {
 public:
  struct slot {
    test::owned_event ready;
    cudaStream_t stream;
  };

  slot claim(cudaStream_t stream) {
    std::unique_lock lock(mutex_);
    auto const own = std::find_if(free_.rbegin(), free_.rend(),
                                  [=](slot const& each) { return each.stream == stream; });
    if (own != free_.rend()) {
      slot found = std::move(*own);
      free_.erase(std::next(own).base());
      return found;
    }
    if (made_ < slots_max) {
      ++made_;
      return {test::make_event(), stream};
    }
    test::must(!free_.empty(), "a slot is free");
    slot found = std::move(free_.front());
    free_.erase(free_.begin());
    lock.unlock();
    test::must(cudaStreamWaitEvent(stream, found.ready, 0));
    return found;
  }

  void release(slot&& used, cudaStream_t stream) {
    test::must(cudaEventRecord(used.ready, stream));
    used.stream = stream;
    std::lock_guard const lock(mutex_);
    free_.push_back(std::move(used));
  }

 private:
  std::mutex mutex_;  // guards all below
  std::vector<slot> free_;
  std::size_t made_ = 0;
};

claim_setup mutex_vector() {
  return [pool = std::make_shared<locked_pool>()] {
    return [pool](cudaStream_t stream) { pool->release(pool->claim(stream), stream); };
  };
}

// An arm without a state.
template <void (*pair)(cudaStream_t)>
claim_setup stateless() {
  return [] { return pair; };
}

void malloc_async(cudaStream_t stream) {
  void* memory = nullptr;
  test::must(cudaMallocAsync(&memory, claimed_bytes, stream));
  test::must(cudaFreeAsync(memory, stream));
}

// The device's own pool, told to keep all memory.
claim_setup keeping_malloc_async() {
  cudaMemPool_t pool = nullptr;
  test::must(cudaDeviceGetDefaultMemPool(&pool, 0));
  std::uint64_t threshold = std::numeric_limits<std::uint64_t>::max();
  test::must(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  return stateless<&malloc_async>();
}

void malloc_and_free(cudaStream_t) {
  void* memory = nullptr;
  test::must(cudaMalloc(&memory, claimed_bytes));
  test::must(cudaFree(memory));
}

using claim_arm = arm<claim_setup()>;

constexpr int many = 256;  // pairs whose records all fit in CUDA's launch queue of 1,024
constexpr int few = 16;

claim_arm const arms[]{
    {"event_record", &record<false>, true, many},
    {"floor", &record<true>, true, many},
    {"escrow", &escrow, true, many},
    {"scratch", &scratch, true, many},
    {"mutex_vector", &mutex_vector, true, many},
    {"cub", &cub_allocator, false, many},
    {"malloc_async", &keeping_malloc_async, true, many},
    {"malloc", &stateless<&malloc_and_free>, true, few},
};

// Threads that do `pairs` pairs of an arm in a round.
class claim_team {
 public:
  claim_team(claim_setup setup_thread, int threads, int pairs)
      : pairs_(pairs), team_(threads, [=]() -> thread_team::part {
          auto const mine = std::make_shared<test::owned_stream>(test::make_stream());
          return {[=, pair = setup_thread()] {
                    for (int i = 0; i < pairs; ++i) pair(*mine);
                  },
                  [=] { test::must(cudaStreamSynchronize(*mine)); }};
        }) {
    constexpr int warm_up_rounds = 2;
    for (int i = 0; i < warm_up_rounds; ++i) static_cast<void>(team_.round());
  }

  // Runs a round and returns the seconds of a pair.
  [[nodiscard]] double round() { return team_.round() / pairs_; }

 private:
  int pairs_;
  thread_team team_;
};

void run(benchmark::State& state, claim_arm const& which, int threads, int pairs) {
  claim_team team(which.setup(), threads, pairs);
  for (auto _ : state) state.SetIterationTime(team.round());
}

// Two arms in turns. The host's speed changes between runs by more than they differ.
void run_in_turns(benchmark::State& state, claim_setup const& base, claim_setup const& other,
                  int threads, int pairs) {
  claim_team base_team(base, threads, pairs);
  claim_team other_team(other, threads, pairs);
  turns both;
  for (auto _ : state) {
    state.SetIterationTime(
        both.add([&] { return base_team.round(); }, [&] { return other_team.round(); }));
  }
  state.counters["of_base"] = both.share();
}

constexpr int claims = 64;  // in one capture

// What is claimed does not matter: nothing is made.
void run_captured(benchmark::State& state, bool is_kept) {
  test::owned_stream const stream = test::make_stream();
  escrow::deleter deleter;
  resource_pool<int> from({.slots_max = claims, .label = "captured", .deleter = &deleter},
                          [] { return 0; });
  // Microseconds of `claims` claims, or claims and releases, each around a kernel, in a capture.
  auto const captured_us = [&] {
    double us = 0;
    static_cast<void>(capture(stream_ref(stream.get()), [&](stream_ref) {
      std::vector<lease<int>> kept;
      kept.reserve(claims);
      for (int i = 0; i < claims; ++i) {
        us += us_of([&] { kept.push_back(from.claim(stream.get())); });
        test::must(test::launch_tiny(stream));
        if (!is_kept) us += us_of([&] { kept.back().release(); });
      }
    }));
    test::must(deleter.drain_for(settle_max), "the deleter drains");
    test::must(from.stats().in_graphs == 0, "all slots have come back");
    return us;
  };
  static_cast<void>(captured_us());  // makes the slots
  for (auto _ : state) state.SetIterationTime(captured_us() * 1e-6 / claims);
  state.counters["slots_made"] = static_cast<double>(from.stats().grown);
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

// How much more memory than asked for the claims of the trace get, and how much of what is idle
// afterwards trim() gives back, by its own count and by the device's free memory.
void run_scratch_memory(benchmark::State& state) {
  test::owned_stream const stream = test::make_stream();
  escrow::deleter deleter;
  scratch_pool sized({.label = "trace", .deleter = &deleter});
  auto const free_bytes = [] {
    std::size_t free = 0, total = 0;
    test::must(cudaMemGetInfo(&free, &total));
    return static_cast<double>(free);
  };
  for (auto _ : state) {
    double asked = 0, got = 0;
    state.SetIterationTime(1e-6 * us_of([&] {
                             for (std::size_t const bytes : inference_trace()) {
                               auto const claimed = sized.claim(stream.get(), bytes);
                               asked += static_cast<double>(bytes);
                               got += static_cast<double>(claimed->size());
                             }
                           }));
    test::must(cudaStreamSynchronize(stream));
    double const free_then = free_bytes();
    auto const idle = static_cast<double>(sized.stats().bytes_idle);
    state.counters["over_asked"] = got / asked;
    state.counters["trim_of_idle"] = static_cast<double>(sized.trim()) / idle;
    // The device gives memory in larger pieces.
    state.counters["device_of_idle"] = std::min(1.0, (free_bytes() - free_then) / idle);
  }
}

}  // namespace

void register_all(settings const& how) {
  for (int const threads : {1, 2, 4, 8, 16}) {
    for (claim_arm const& each : arms) {
      if (!each.is_for(how)) continue;
      int const pairs = std::min(each.times_max, how.choose(256, 64, 4));
      add("claim/" + std::string(each.name) + "/on_threads:" + std::to_string(threads),
          {how.choose(30, 5, 1)}, benchmark::kMicrosecond,
          [=](benchmark::State& state) { run(state, each, threads, pairs); });
    }
  }
  for (int const threads : {1, 8}) {
    int const pairs = how.choose(256, 64, 4);
    auto const add_turns = [&](std::string const& name, auto base, auto other) {
      add("claim_turns/" + name + "/on_threads:" + std::to_string(threads),
          {how.choose(200, 40, 2)}, benchmark::kMicrosecond,
          [=](benchmark::State& state) { run_in_turns(state, base(), other(), threads, pairs); });
    };
    add_turns("escrow_over_floor", &record<true>, &escrow);
    add_turns("scratch_over_escrow", &escrow, &scratch);
  }
  for (bool const is_kept : {true, false}) {
    add(is_kept ? "claim/captured" : "claim/captured_reuse", {how.choose(100, 10, 2)},
        benchmark::kMicrosecond, [=](benchmark::State& state) { run_captured(state, is_kept); });
  }
  add("claim/scratch_memory", {how.choose(5, 2, 1)}, benchmark::kMicrosecond, run_scratch_memory);
}

}  // namespace escrow::bench
