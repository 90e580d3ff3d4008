// What a claim with its release costs the host, beside the least it can cost and what else there
// is.
//
// A time is microseconds per pair, of the slowest thread. No kernel runs in between: it would hide
// the difference. Rows of pairs are short enough for CUDA's launch queue, and streams are
// synchronized between rows, outside the time.
//
// claim/threads:T/streams:S/migrating:P: T threads with S streams each, in turn; P % of the leases
// are released on another stream of the thread than they were claimed for. Rounds of all arms in
// turns: ARM_us is the median of an arm's time, ARM_of_OTHER that of its time over another's.
// claim_turns/A_over_B: the same with two arms and more rounds; of_base is the median of A's time
// over B's.
// claim/captured: each claim of a capture takes a slot that is free already and keeps it.
// claim/captured_reuse: each claim takes the slot that the capture released before.
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
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
  return [](claim_streams const& mine) -> claim_pair {
    auto const event = std::make_shared<test::owned_event>(test::make_event());
    return [event, mine](std::size_t on, std::size_t last) {
      if constexpr (asks) ask_about(mine[on]);
      test::must(cudaEventRecord(*event, mine[last]));
    };
  };
}

// The floor without its record: what no pool that may be called in a capture can do without.
claim_setup queries() {
  return by_stream([](cudaStream_t on, cudaStream_t) { ask_about(on); });
}

constexpr std::size_t slots_max = 1024;  // at least one for each stream

struct pooled {
  explicit pooled(pool_options options)
      : pool((options.label = "claim", options.deleter = &deleter, options),
             [] { return device_block(claimed_bytes); }) {}

  escrow::deleter deleter;
  resource_pool<device_block> pool;
};

// A release as most code has it, or on another stream.
template <class Lease>
void release(Lease& claimed, cudaStream_t on, cudaStream_t last) {
  if (last == on) {
    claimed.release();
  } else {
    claimed.release(last);
  }
}

template <std::size_t slots>
claim_setup escrow() {
  return by_stream([all = std::make_shared<pooled>(pool_options{.slots_max = slots})](
                       cudaStream_t on, cudaStream_t last) {
    auto claimed = all->pool.claim(on);
    release(claimed, on, last);
  });
}

// The same with records only where another stream takes the slot; null without such pools.
template <class Options>
constexpr claim_setup (*lazy())() {
  if constexpr (requires(Options options) { options.streams_outlive_pool = true; }) {
    return []() -> claim_setup {
      Options options{.slots_max = slots_max};
      options.streams_outlive_pool = true;
      return by_stream(
          [all = std::make_shared<pooled>(options)](cudaStream_t on, cudaStream_t last) {
            auto claimed = all->pool.claim(on);
            release(claimed, on, last);
          });
    };
  } else {
    return nullptr;
  }
}

// Claimers, one for each stream of a thread; null without such pools.
template <class Pool, std::size_t slots>
constexpr claim_setup (*local())() {
  if constexpr (requires(Pool & pool, cudaStream_t stream) { pool.on(stream); }) {
    return []() -> claim_setup {
      return [all = std::make_shared<pooled>(pool_options{.slots_max = slots})](
                 claim_streams const& mine) -> claim_pair {
        Pool& pool = all->pool;
        using claimer = decltype(pool.on(cudaStream_t{}));
        auto const claimers = std::make_shared<std::vector<claimer>>();
        for (cudaStream_t const each : mine) claimers->push_back(pool.on(each));
        return [all, claimers, mine](std::size_t on, std::size_t last) {
          auto claimed = (*claimers)[on].claim();
          release(claimed, mine[on], mine[last]);
        };
      };
    };
  } else {
    return nullptr;
  }
}

// The same by size.
claim_setup scratch() {
  struct sized {
    escrow::deleter deleter;
    scratch_pool pool{{.slots_max = slots_max, .label = "claim", .deleter = &deleter}};
  };
  return by_stream([all = std::make_shared<sized>()](cudaStream_t on, cudaStream_t last) {
    auto claimed = all->pool.claim(on, claimed_bytes);
    release(claimed, on, last);
  });
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
  return by_stream([pool = std::make_shared<locked_pool>()](cudaStream_t on, cudaStream_t last) {
    pool->release(pool->claim(on), last);
  });
}

// The device's own pool, told to keep all memory.
claim_setup keeping_malloc_async() {
  cudaMemPool_t pool = nullptr;
  test::must(cudaDeviceGetDefaultMemPool(&pool, 0));
  std::uint64_t threshold = std::numeric_limits<std::uint64_t>::max();
  test::must(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  return by_stream([](cudaStream_t on, cudaStream_t last) {
    void* memory = nullptr;
    test::must(cudaMallocAsync(&memory, claimed_bytes, on));
    test::must(cudaFreeAsync(memory, last));
  });
}

claim_setup malloc_and_free() {
  return by_stream([](cudaStream_t, cudaStream_t) {
    void* memory = nullptr;
    test::must(cudaMalloc(&memory, claimed_bytes));
    test::must(cudaFree(memory));
  });
}

using claim_arm = arm<claim_setup()>;

constexpr int many = 256;  // pairs whose records all fit in CUDA's launch queue of 1,024
constexpr int few = 16;

claim_arm const arms[]{
    {"event_record", &record<false>, true, many},
    {"queries", &queries, true, many},
    {"floor", &record<true>, true, many},
    {"local", local<resource_pool<device_block>, slots_max>(), true, many},
    {"lazy", lazy<pool_options>(), true, many},
    {"escrow", &escrow<slots_max>, true, many},
    {"scratch", &scratch, true, many},
    {"mutex_vector", &mutex_vector, true, many},
    {"pytorch", &pytorch_allocator, false, many},
    {"rmm_pool", &rmm_pool, false, many},
    {"rmm_fixed_size", &rmm_fixed_size, false, many},
    {"cub", &cub_allocator, false, many},
    {"malloc_async", &keeping_malloc_async, true, many},
    {"malloc", &malloc_and_free, true, few},
};

// Of which arms' times the ratios are told.
constexpr std::pair<std::string_view, std::string_view> ratios[]{
    {"escrow", "floor"},          {"lazy", "escrow"},          {"local", "escrow"},
    {"local", "queries"},         {"cub", "escrow"},           {"pytorch", "escrow"},
    {"pytorch", "local"},         {"rmm_pool", "escrow"},      {"rmm_pool", "local"},
    {"rmm_fixed_size", "escrow"}, {"rmm_fixed_size", "local"}, {"malloc_async", "local"},
};

struct claim_load {
  int threads = 1;
  int streams = 1;    // of each thread
  int migrating = 0;  // percent of the leases that are released on another stream; a divisor of 100
};

// Threads that do pairs of some arms, all on the same streams.
class claim_team {
 public:
  claim_team(claim_load const& load, std::vector<claim_setup> const& of_arms)
      : steps_(steps_of(load)), team_(load.threads, [=, this] { return part_of(load, of_arms); }) {
    constexpr int warm_up_rounds = 2;
    for (std::size_t each = 0; each < of_arms.size(); ++each) {
      for (int i = 0; i < warm_up_rounds; ++i) static_cast<void>(row(each, load.streams));
    }
  }

  // Runs a round of an arm and returns the seconds of a pair. The arms before it have had the
  // caches: some pairs are done before the time begins.
  [[nodiscard]] double round(std::size_t arm, int pairs) {
    constexpr int before_max = 64;
    static_cast<void>(row(arm, std::min(pairs, before_max)));
    return row(arm, pairs) / pairs;
  }

 private:
  struct step {
    std::size_t on, last;
  };

  // What one thread has. The pairs end before the streams.
  struct own {
    std::vector<test::owned_stream> streams;
    std::vector<claim_pair> pairs;
    std::vector<std::size_t> next;  // of each arm's steps
  };

  // All streams in turn, and of the leases that migrate as many from each stream and to each.
  static std::vector<step> steps_of(claim_load const& load) {
    auto const streams = static_cast<std::size_t>(load.streams);
    auto const period = static_cast<std::size_t>(load.migrating > 0 ? 100 / load.migrating : 1);
    std::vector<step> result;
    for (std::size_t i = 0; i < period * streams; ++i) {
      std::size_t const on = i % streams;
      bool const migrates = load.migrating > 0 && i % period == i / period % period;
      result.push_back({on, migrates ? (on + streams / 2) % streams : on});
    }
    return result;
  }

  [[nodiscard]] thread_team::part part_of(claim_load const& load,
                                          std::vector<claim_setup> const& of_arms) const {
    auto const mine = std::make_shared<own>();
    claim_streams handles;
    for (int i = 0; i < load.streams; ++i) {
      handles.push_back(mine->streams.emplace_back(test::make_stream()));
    }
    for (claim_setup const& each : of_arms) mine->pairs.push_back(each(handles));
    mine->next.resize(of_arms.size());
    return {[=, this] {
              claim_pair const& pair = mine->pairs[arm_];
              std::size_t next = mine->next[arm_];
              for (int i = 0; i < pairs_; ++i) {
                pair(steps_[next].on, steps_[next].last);
                if (++next == steps_.size()) next = 0;
              }
              mine->next[arm_] = next;
            },
            [=] {
              for (cudaStream_t const each : handles) test::must(cudaStreamSynchronize(each));
            }};
  }

  // The seconds of the slowest thread.
  double row(std::size_t arm, int pairs) {
    arm_ = arm;
    pairs_ = pairs;
    return team_.round();
  }

  std::vector<step> const steps_;
  std::size_t arm_ = 0;  // this and the next are written between rounds
  int pairs_ = 0;
  thread_team team_;
};

// All arms in turns: ratios are of one round, and the host's speed changes between runs by more
// than the arms differ.
void run(benchmark::State& state, std::vector<claim_arm> const& present, claim_load const& load,
         int pairs) {
  std::vector<claim_setup> setups;
  for (claim_arm const& each : present) setups.push_back(each.setup());
  claim_team team(load, setups);
  std::vector<std::vector<double>> us(present.size());
  for (std::size_t round = 0; auto _ : state) {
    require_time();
    double seconds = 0;
    for (std::size_t i = 0; i < present.size(); ++i) {
      std::size_t const at = (i + round) % present.size();
      double const one = team.round(at, std::min(pairs, present[at].times_max));
      us[at].push_back(one * 1e6);
      seconds += one;
    }
    state.SetIterationTime(seconds);
    ++round;
  }
  auto const us_of_arm = [&](std::string_view name) -> std::vector<double> const* {
    auto const found = std::find_if(present.begin(), present.end(),
                                    [=](claim_arm const& each) { return each.name == name; });
    return found == present.end() ? nullptr
                                  : &us[static_cast<std::size_t>(found - present.begin())];
  };
  for (claim_arm const& each : present) {
    state.counters[std::string(each.name) + "_us"] = quantile(*us_of_arm(each.name), 0.5);
  }
  for (auto const& [one, other] : ratios) {
    auto const* const over = us_of_arm(one);
    auto const* const under = us_of_arm(other);
    if (over == nullptr || under == nullptr) continue;
    std::vector<double> of_rounds;
    for (std::size_t i = 0; i < over->size(); ++i) of_rounds.push_back((*over)[i] / (*under)[i]);
    state.counters[std::string(one) + "_of_" + std::string(other)] = quantile(of_rounds, 0.5);
  }
}

// Two arms in turns.
void run_in_turns(benchmark::State& state, claim_setup const& base, claim_setup const& other,
                  claim_load const& load, int pairs) {
  claim_team team(load, {base, other});
  turns both;
  for (auto _ : state) {
    state.SetIterationTime(
        both.add([&] { return team.round(0, pairs); }, [&] { return team.round(1, pairs); }));
  }
  state.counters["of_base"] = both.share();
}

// The arms that this program has and that work here. What another library lacks, or throws at its
// first claim, skips its arm alone.
std::vector<claim_arm> present_arms(settings const& how) {
  std::vector<claim_arm> result;
  std::string skipped;
  for (claim_arm const& each : arms) {
    if (!each.is_for(how)) continue;
    std::string reason;
    if (each.setup == nullptr) {
      reason = "not built";
    } else if (!each.is_simulatable) {
      try {
        static_cast<void>(
            claim_team({.streams = 2, .migrating = 100}, {each.setup()}).round(0, few));
      } catch (std::exception const& error) {
        reason = error.what();
      }
    }
    if (reason.empty()) {
      result.push_back(each);
    } else {
      skipped += (skipped.empty() ? "" : "; ") + std::string(each.name) + ": " + reason;
    }
  }
  if (!skipped.empty()) benchmark::AddCustomContext("skipped_arms", skipped);
  return result;
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
  auto const present = present_arms(how);
  int const pairs = how.choose(many, 64, 4);
  auto const add_load = [&](claim_load const& load) {
    add("claim/threads:" + std::to_string(load.threads) + "/streams:" +
            std::to_string(load.streams) + "/migrating:" + std::to_string(load.migrating),
        {how.choose(20, 4, 1), how.choose(5, 3, 1)}, benchmark::kMicrosecond,
        [=](benchmark::State& state) { run(state, present, load, pairs); });
  };
  for (int const threads : {1, 2, 4, 8, 16}) add_load({.threads = threads});
  for (int const streams : {4, 64}) add_load({.threads = 8, .streams = streams});
  for (int const percent : {1, 10, 100}) {
    add_load({.threads = 8, .streams = 4, .migrating = percent});
  }

  auto const add_turns = [&](std::string const& name, auto base, auto other,
                             claim_load const& load) {
    if (other == nullptr) return;
    add("claim_turns/" + name + "/on_threads:" + std::to_string(load.threads),
        {how.choose(200, 40, 2)}, benchmark::kMicrosecond,
        [=](benchmark::State& state) { run_in_turns(state, base(), other(), load, pairs); });
  };
  for (int const threads : {1, 8}) {
    add_turns("escrow_over_floor", &record<true>, &escrow<slots_max>, {.threads = threads});
    add_turns("scratch_over_escrow", &escrow<slots_max>, &scratch, {.threads = threads});
  }
  // One slot for two streams in turn: each claim takes it from the other stream, or from the other
  // stream's claimer, and makes its stream wait unless the release is known to be done. The base
  // has a slot for each stream, so none waits.
  add_turns("steal_over_escrow", &escrow<slots_max>, local<resource_pool<device_block>, 1>(),
            {.streams = 2});
  add_turns("escrow_steal_over_escrow", &escrow<slots_max>, &escrow<1>, {.streams = 2});
  for (bool const is_kept : {true, false}) {
    add(is_kept ? "claim/captured" : "claim/captured_reuse", {how.choose(100, 10, 2)},
        benchmark::kMicrosecond, [=](benchmark::State& state) { run_captured(state, is_kept); });
  }
  add("claim/scratch_memory", {how.choose(5, 2, 1)}, benchmark::kMicrosecond, run_scratch_memory);
}

}  // namespace escrow::bench
