// SPDX-License-Identifier: Apache-2.0
// What it costs to hand an object over for destruction: the host's time, and the stream's.
//
// retire/host/...: microseconds per call on an idle stream. retire/stream/...: microseconds per
// turn of a tiny kernel and the call, in a long row with one synchronization at its end; subtract
// retire/stream/nothing.
#include <atomic>
#include <cstdint>

#include "graphs.hpp"

namespace escrow::bench {
namespace {

// How many owners have been handed over, and destroyed.
struct tally {
  std::uint64_t handed_over = 0;
  std::atomic<std::uint64_t> destroyed{0};
};

// Of an owner, when it ends. Release: pairs with the acquire in run_retire().
struct count {
  void operator()(tally* of) const noexcept {
    of->destroyed.fetch_add(1, std::memory_order_release);
  }
};

// Each arm makes a call that has something done after the work on a stream.
using call_function = std::function<void(cudaStream_t)>;
using retire_arm = arm<call_function(tally& owners)>;

call_function nothing(tally&) {
  return [](cudaStream_t) {};
}

call_function event_record(tally&) {
  auto const event = std::make_shared<test::owned_event>(test::make_event());
  return [=](cudaStream_t stream) { test::must(cudaEventRecord(*event, stream)); };
}

call_function escrow_retire(tally& owners) {
  auto const deleter = std::make_shared<escrow::deleter>();
  return [deleter, &owners](cudaStream_t stream) {
    ++owners.handed_over;
    deleter->retire(stream, std::unique_ptr<tally, count>(&owners));
  };
}

constexpr retire_arm arms[]{
    {"nothing", &nothing},
    {"event_record", &event_record},
    {"escrow", &escrow_retire},
};

// In rows of so many calls: of the host, or of turns of a kernel and a call, until all are done.
void run_retire(benchmark::State& state, retire_arm const& which, bool has_kernels, int calls) {
  test::owned_stream const stream = test::make_stream();
  tally owners;
  auto const call = which.setup(owners);
  auto const row_us = [&] {
    double const us = us_of([&] {
      for (int i = 0; i < calls; ++i) {
        if (has_kernels) test::must(test::launch_tiny(stream));
        call(stream);
      }
      if (has_kernels) test::must(cudaStreamSynchronize(stream));
    });
    test::must(cudaStreamSynchronize(stream));
    // Acquire: pairs with the release in count().
    auto const is_settled = [&] {
      return owners.destroyed.load(std::memory_order_acquire) == owners.handed_over;
    };
    test::must(test::wait_until(is_settled), "all owners have been destroyed");
    return us;
  };
  constexpr int warm_up_rows = 2;
  for (int i = 0; i < warm_up_rows; ++i) static_cast<void>(row_us());
  repeat(state, [&] { return row_us() / calls; });
}

}  // namespace

void register_all(settings const& how) {
  for (retire_arm const& which : arms) {
    add("retire/host/" + std::string(which.name), {how.choose(10, 1)}, &run_retire, which, false,
        how.choose(256, 4));  // fits in CUDA's launch queue
    add("retire/stream/" + std::string(which.name), {how.choose(10, 1)}, &run_retire, which, true,
        how.choose(1024, 4));
  }
}

}  // namespace escrow::bench
