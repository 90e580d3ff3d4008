// SPDX-License-Identifier: Apache-2.0
// What the claim bench's arms do, but for those of other libraries.
#include "claim_arms.hpp"

#include <cuda.h>

#include <iterator>
#include <mutex>

#include "graphs.hpp"

namespace escrow::bench {
namespace {

// A record of the stream's event; `asks`: the floor, what no event-based pool that may be called in
// a capture can do without.
template <bool asks>
claim_setup record() {
  return [](claim_streams const& mine) -> claim_pair {
    auto const events = std::make_shared<std::vector<test::owned_event>>();
    for (std::size_t i = 0; i < mine.size(); ++i) events->push_back(test::make_event());
    return [events, mine](std::size_t on, std::size_t last) {
      if constexpr (asks) ask_about(mine[on]);
      test::must(cudaEventRecord((*events)[on], mine[last]));
    };
  };
}

// The floor without its record: what no pool that may be called in a capture can do without.
claim_setup queries() {
  return by_stream([](cudaStream_t on, cudaStream_t) { ask_about(on); });
}

// The same, asked of the driver: what a claimer asks.
claim_setup driver_queries() {
  auto const find = [](char const* name, unsigned since) {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    test::must(
        cudaGetDriverEntryPointByVersion(name, &function, since, cudaEnableLegacyStream, &found));
    return function;
  };
  using state_function = CUresult(CUDAAPI*)(CUstream, CUstreamCaptureStatus*);
  using id_function = CUresult(CUDAAPI*)(CUstream, unsigned long long*);
  return by_stream([state_of = reinterpret_cast<state_function>(find("cuStreamIsCapturing", 10000)),
                    id_of = reinterpret_cast<id_function>(find("cuStreamGetId", 12000))](
                       cudaStream_t on, cudaStream_t) {
    CUstreamCaptureStatus state{};
    unsigned long long id = 0;
    test::must(state_of(on, &state) == CUDA_SUCCESS && id_of(on, &id) == CUDA_SUCCESS, "queries");
  });
}

constexpr std::size_t slots_max = 1024;  // at least one for each stream

using block_pool = resource_pool<device_block>;

std::shared_ptr<block_pool> make_pool(pool_options options) {
  options.label = "claim";
  return std::make_shared<block_pool>(options, [] { return device_block(claimed_bytes); });
}

// A release as most code has it, or on another stream.
template <class Lease>
void release(Lease claimed, cudaStream_t on, cudaStream_t last) {
  if (last == on) {
    claimed.release();
  } else {
    claimed.release(last);
  }
}

template <std::size_t slots>
claim_setup pooled_pairs() {
  auto const pool = make_pool({.slots_max = slots});
  return by_stream([=](cudaStream_t on, cudaStream_t last) { release(pool->claim(on), on, last); });
}

// A claimer for each stream of the thread.
auto claimers_of(block_pool& pool, claim_streams const& mine) {
  auto result = std::make_shared<std::vector<claimer<device_block>>>();
  for (cudaStream_t const each : mine) result->push_back(pool.on(each));
  return result;
}

claim_setup local() {
  return [pool = make_pool({.slots_max = slots_max})](claim_streams const& mine) -> claim_pair {
    return [pool, mine, claimers = claimers_of(*pool, mine)](std::size_t on, std::size_t last) {
      release((*claimers)[on].claim(), mine[on], mine[last]);
    };
  };
}

claim_setup local_scratch() {
  auto const pool =
      std::make_shared<scratch_pool>(pool_options{.slots_max = slots_max, .label = "claim"});
  return [pool](claim_streams const& mine) -> claim_pair {
    auto claimers = std::make_shared<std::vector<decltype(pool->on(mine[0]))>>();
    for (cudaStream_t const each : mine) claimers->push_back(pool->on(each));
    return [pool, mine, claimers](std::size_t on, std::size_t last) {
      release((*claimers)[on].claim(claimed_bytes), mine[on], mine[last]);
    };
  };
}

// Through the pool's addresses; `lasting`: its streams outlive it.
template <bool lasting>
claim_setup allocator() {
  auto const from = std::make_shared<stream_allocator>(
      pool_options{.slots_max = slots_max, .label = "claim", .streams_outlive_pool = lasting});
  return by_stream([from](cudaStream_t on, cudaStream_t last) {
    from->deallocate(last, from->allocate(on, claimed_bytes));
  });
}

claim_setup scratch() {
  auto const pool =
      std::make_shared<scratch_pool>(pool_options{.slots_max = slots_max, .label = "claim"});
  return by_stream([=](cudaStream_t on, cudaStream_t last) {
    release(pool->claim(on, claimed_bytes), on, last);
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

}  // namespace

std::vector<claim_arm> claim_arms() {
  return {
      {"event_record", &record<false>},
      {"queries", &queries},
      {"driver_queries", &driver_queries},
      {"floor", &record<true>},
      {"local", &local},
      {"local_scratch", &local_scratch},
      {"escrow", &pooled_pairs<slots_max>},
      {"scratch", &scratch},
      {"allocator", &allocator<false>},
      {"allocator_lasting", &allocator<true>},
      {"mutex_vector", &mutex_vector},
      {"pytorch", &pytorch_allocator, some},
      {"rmm_pool", &rmm_pool, some},
      {"rmm_fixed_size", &rmm_fixed_size, some},
      {"cub", &cub_allocator, some},
      {"malloc_async", &keeping_malloc_async, some},
  };
}

claim_setup escrow_on_first_stream() {
  return [of = pooled_pairs<slots_max>()](claim_streams const& mine) -> claim_pair {
    return [pair = of(mine)](std::size_t, std::size_t) { pair(0, 0); };
  };
}

claim_setup escrow_steal() {
  return pooled_pairs<1>();
}

// A claim takes what the other claimer has flushed, and makes its stream wait unless the record is
// known to be done.
claim_setup steal() {
  return [pool = make_pool({.slots_max = 4})](claim_streams const& mine) -> claim_pair {
    auto const others = std::make_shared<std::vector<lease<device_block>>>();
    for (int i = 0; i < 3; ++i) others->push_back(pool->claim(mine[0]));
    return [pool, others, claimers = claimers_of(*pool, mine)](std::size_t on, std::size_t) {
      (*claimers)[on].claim().release();
      (*claimers)[on].flush();
    };
  };
}

}  // namespace escrow::bench
