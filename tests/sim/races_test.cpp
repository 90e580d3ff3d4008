// SPDX-License-Identifier: Apache-2.0
// Work on two streams that uses the same memory, where nothing orders it. A program of its own:
// ESCROW_AUDIT asks for all that is looked for.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <string>
#include <type_traits>

#include "deep.hpp"
#include "pool_world.hpp"

namespace escrow::test {
namespace {

[[maybe_unused]] bool const is_audited = [] {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): before there are threads.
  return ::setenv("ESCROW_AUDIT", "1", 1) == 0;
}();

constexpr std::size_t values = 64;
constexpr std::size_t bytes = values * sizeof(int);

void write_on_host(int* data) {
  std::fill_n(data, values, 1);
}
void read_on_host(int const* data, int* sum) {
  *sum += *std::max_element(data, data + values);
}
auto* const writes = sim::register_kernel<&write_on_host>("writes");
auto* const reads = sim::register_kernel<&read_on_host>("reads");

// Each by its name, since a call's arguments differ.
using enqueued = std::function<void(cudaStream_t)>;

class Races : public pool_world {
 protected:
  Races() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  [[nodiscard]] enqueued write() const {
    return [at = memory.data()](cudaStream_t on) { must(launch(on, writes, at)); };
  }
  [[nodiscard]] enqueued read() const {
    return
        [at = memory.data(), to = sum.data()](cudaStream_t on) { must(launch(on, reads, at, to)); };
  }
  [[nodiscard]] enqueued copy() const {
    return [from = memory.data(), to = result.data()](cudaStream_t on) {
      must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, on));
    };
  }
  [[nodiscard]] enqueued fill() const {
    return [at = memory.data()](cudaStream_t on) { must(cudaMemsetAsync(at, 0, bytes, on)); };
  }
  template <class... Arguments>
  static cudaError_t launch(cudaStream_t on, void (*kernel)(Arguments...),
                            std::type_identity_t<Arguments>... arguments) {
    std::array<void*, sizeof...(Arguments)> all{&arguments...};
    return cudaLaunchKernel(reinterpret_cast<void const*>(kernel), {1}, {1}, all.data(), 0, on);
  }

  void expect_race(enqueued const& first, enqueued const& second, std::string const& text) {
    auto const run = [&] {
      first(one);
      second(two);
      sync(two);
    };
    EXPECT_DEATH(run(), text +
                            ", enqueued before on stream 0x.*, and nothing orders the two: "
                            "record an event behind the first");
    if (built_with_tsan) return;  // it tells of what follows, too
    sim::let_work_share(true);
    run();
    sync(one);
    sim::let_work_share(false);
  }
  void expect_fine(enqueued const& first, std::function<void()> const& between,
                   enqueued const& second) {
    first(one);
    between();
    second(two);
    sync(one);
    sync(two);
  }

  device_buffer<int> const memory{values};
  device_buffer<int> const sum{1};
  device_buffer<int> const result{values, memory_source::pinned_host()};
};

TEST_F(Races, OfAllKinds) {
  expect_race(fill(), copy(), "cudaMemcpyAsync: a copy on .* a fill or copy");
  expect_race(fill(), read(), "cudaLaunchKernel: kernel .reads., argument 0 on .* a fill or copy");
  expect_race(write(), copy(), "cudaMemcpyAsync: a copy on .* kernel .writes., argument 0");
  expect_race(write(), read(), "kernel .reads., argument 0 on .* kernel .writes., argument 0");
  expect_race(copy(), write(), "kernel .writes., argument 0 on .* a copy");
  expect_race(read(), fill(), "a fill or copy on .* kernel .reads., argument 0");
}

TEST_F(Races, WhatMayRunAtOnce) {
  if (built_with_tsan) return;  // these kernels add without atomic operations
  auto const nothing = [] {};
  expect_fine(read(), nothing, read());
  expect_fine(copy(), nothing, read());
  expect_fine(write(), nothing, write());  // two runs of a kernel may add to the same
}

// As long ago as it may be, and whatever the work has done by then.
TEST_F(Races, WhatOrdersThem) {
  owned_event const behind = make_event();
  auto const by_event = [&] {
    must(cudaEventRecord(behind, one));
    must(cudaStreamWaitEvent(two, behind));
  };
  expect_fine(write(), by_event, copy());
  auto const by_done_event = [&] {
    must(cudaEventRecord(behind, one));
    // Not by a query: the host would know.
    EXPECT_TRUE(wait_until([] { return sim::alive().pending_ops == 0; }));
    must(cudaStreamWaitEvent(two, behind));
  };
  expect_fine(write(), by_done_event, copy());
  auto const by_three = [&] {
    owned_stream const third = make_stream();
    must(cudaEventRecord(behind, one));
    must(cudaStreamWaitEvent(third, behind));
    must(launch_tiny(third));
    must(cudaEventRecord(behind, third));
    must(cudaStreamWaitEvent(two, behind));
  };
  expect_fine(write(), by_three, copy());
  expect_fine(
      write(), [&] { sync(one); }, copy());
  expect_fine(
      write(), [&] { EXPECT_TRUE(wait_until([&] { return is_idle(one); })); }, copy());
  expect_fine(
      write(), [] { must(cudaDeviceSynchronize()); }, copy());
  expect_fine(
      write(),
      [&] {
        must(cudaEventRecord(behind, one));
        EXPECT_TRUE(wait_until([&] { return cudaEventQuery(behind) == cudaSuccess; }));
      },
      copy());
  owned_event timed;
  must(cudaEventCreate(timed.out()));
  auto const by_time = [&] {
    must(cudaEventRecord(timed, one));
    float elapsed = 0;
    EXPECT_TRUE(
        wait_until([&] { return cudaEventElapsedTime(&elapsed, timed, timed) == cudaSuccess; }));
  };
  expect_fine(write(), by_time, copy());
  expect_fine(
      write(),
      [&] {
        bool is_called = false;
        must(cudaLaunchHostFunc(
            one, [](void* called) { *static_cast<bool*>(called) = true; }, &is_called));
        sync(one);
        EXPECT_TRUE(is_called);
      },
      copy());
}

TEST_F(Races, AnEventThatWasRecordedTooEarly) {
  owned_event const before = make_event();
  must(cudaEventRecord(before, one));
  EXPECT_DEATH(
      {
        write()(one);
        must(cudaStreamWaitEvent(two, before));
        copy()(two);
        sync(two);
      },
      "a copy on .* kernel .writes.");
}

TEST_F(Races, TheLegacyStreamOrdersBlockingOnes) {
  owned_stream const blocking = make_stream(cudaStreamDefault);
  write()(blocking);
  fill()(cudaStreamLegacy);
  copy()(blocking);
  sync(blocking);
  EXPECT_DEATH(
      {
        write()(one);
        must(cudaMemcpy(result.data(), memory.data(), bytes, cudaMemcpyDefault));
      },
      "cudaMemcpy: a copy on a default stream uses .* kernel .writes.");
}

TEST_F(Races, OfALaunchAndWorkOrAnotherLaunch) {
  owned_graph const made = captured_plainly([&](cudaStream_t on) { write()(on); });
  owned_graph const other = captured_plainly([&](cudaStream_t on) { copy()(on); });
  owned_exec const writing = instantiate(made.get());
  owned_exec const copying = instantiate(other.get());
  auto const launch_writing = [&](cudaStream_t on) { must(cudaGraphLaunch(writing, on)); };
  auto const launch_copying = [&](cudaStream_t on) { must(cudaGraphLaunch(copying, on)); };
  expect_race(launch_writing, copy(), "cudaMemcpyAsync: a copy on .* kernel .writes., argument 0");
  expect_race(launch_writing, launch_copying,
              "cudaGraphLaunch: a copy on .* kernel .writes., argument 0");
  expect_fine(
      launch_writing, [] {}, launch_writing);  // CUDA orders launches of one exec
  owned_exec const again = instantiate(made.get());
  expect_race(
      launch_writing, [&](cudaStream_t on) { must(cudaGraphLaunch(again, on)); },
      "cudaGraphLaunch: kernel .writes., argument 0 on .* kernel .writes., argument 0");
}

TEST_F(Races, OfStreamsInOneLease) {
  scratch_pool scratch(options(4));
  EXPECT_DEATH(
      {
        auto lease = scratch.claim<int>(one, values);
        lease.record_stream(two);  // it ends behind both, which does not order them
        must(launch(one, writes, lease.data()));
        must(cudaMemcpyAsync(result.data(), lease.data(), bytes, cudaMemcpyDefault, two));
        sync(two);
      },
      "a copy on .* uses .*, of the pool .blocks of 256 bytes., as does kernel .writes.");
}

void sum_range_on_host(int const* first, int const* last, int* out) {
  *out = std::accumulate(first, last, *out);
}
auto* const sum_range = sim::register_kernel<&sum_range_on_host>("sum_range");

// The end of a range is no use of what lies there.
TEST_F(Races, OfRangesThatEndWhereOthersBegin) {
  auto const sum_half = [&](cudaStream_t on) {
    must(launch(on, sum_range, memory.data(), memory.data() + values / 2, sum.data()));
  };
  auto const fill_from = [&](std::size_t first) {
    return [&, first](cudaStream_t on) {
      must(cudaMemsetAsync(memory.data() + first, 0, bytes - first * sizeof(int), on));
    };
  };
  expect_fine(
      sum_half, [] {}, fill_from(values / 2));
  expect_race(sum_half, fill_from(0), "a fill or copy on .* kernel .sum_range., argument 0");
}

// Columns of one matrix, and rows beside each other.
TEST_F(Races, OfRows) {
  constexpr std::size_t pitch = 64, half = pitch / 2, rows = bytes / pitch;
  auto* const begin = reinterpret_cast<std::byte*>(memory.data());
  auto const fill_columns = [=](std::size_t from) {
    return
        [=](cudaStream_t on) { must(cudaMemset2DAsync(begin + from, pitch, 0, half, rows, on)); };
  };
  expect_fine(
      fill_columns(0), [] {}, fill_columns(half));
  expect_fine(
      fill_columns(half), [] {}, fill_columns(0));
  expect_race(fill_columns(0), fill_columns(half - 1), "a fill or copy on .* a fill or copy");
  expect_race(fill_columns(half), copy(), "a copy on .* a fill or copy");
  expect_race(copy(), fill_columns(half), "a fill or copy on .* a copy");
  auto const copy_column = [&](cudaStream_t on) {
    must(cudaMemcpy2DAsync(result.data(), half, begin, pitch, half, rows, cudaMemcpyDefault, on));
  };
  expect_fine(
      fill_columns(half), [] {}, copy_column);
  expect_race(fill_columns(0), copy_column, "a copy on .* a fill or copy");
}

TEST_F(Races, MemoryInStreamOrder) {
  void* early = nullptr;
  must(cudaMallocAsync(&early, bytes, one));
  EXPECT_DEATH(must(cudaMemsetAsync(early, 0, bytes, two)),
               "a fill or copy on .* as does its allocation, enqueued before on");
  must(cudaMemsetAsync(early, 0, bytes, one));
  EXPECT_DEATH(
      must(cudaFreeAsync(early, two)),
      "cudaFreeAsync: its free on .* a fill or copy, .*retire.. its owner on that work.s stream");
  sync(one);
  must(cudaFreeAsync(early, two));
  sync(two);
}

}  // namespace
}  // namespace escrow::test
