// SPDX-License-Identifier: Apache-2.0
// Memory that is freed by its address: on any stream, in a capture or after it, or never.
#include <malloc.h>

#include "deep.hpp"
#include "pool_world.hpp"

namespace escrow::test {
namespace {

class StreamAllocator : public pool_world {
 protected:
  static constexpr std::size_t size = 1024;

  /// Work on the memory that ends when the flag is raised.
  void keep_busy(void* used, cudaStream_t stream) {
    hold_up(stream);
    must(cudaMemsetAsync(used, 1, size, stream));
  }
  [[nodiscard]] std::size_t in_graphs() const { return memory.pool().stats().bytes_in_graphs; }

  stream_allocator memory{options(8)};
};

TEST_F(StreamAllocator, GivesMemoryAgainAfterTheWorkOnTheStreamThatFreedIt) {
  stream_allocator alone(options(1));
  void* const first = alone.allocate(one, size);
  keep_busy(first, two);
  alone.deallocate(two, first);
  ASSERT_EQ(alone.allocate(one, size), first);
  EXPECT_TRUE(stays_busy(one));
  flag.raise();
  sync(one);
  alone.deallocate(one, first);
}

TEST_F(StreamAllocator, WithoutAStreamIsRefusedInTimeWhileOtherWorkHasAllBlocks) {
  stream_allocator alone(
      with(options(1), &pool_options::capture_wait_max, std::chrono::nanoseconds(1000)));
  void* const first = alone.allocate(one, size);
  keep_busy(first, one);
  alone.deallocate(one, first);
  expect_error<pool_exhausted>([&] { return alone.allocate(size); },
                               {"stream_allocator::allocate", "all 1 slots"});
  flag.raise();
  sync(one);
  void* const next = alone.allocate(size);
  EXPECT_EQ(next, first);
  alone.deallocate(next);
}

TEST_F(StreamAllocator, KeepsNothingOfAddressesThatAreFreed) {
  if (is_sanitized) GTEST_SKIP() << "a sanitizer keeps what is freed";
  scratch_policy each_anew;
  std::uintptr_t next = 1 << 20;
  each_anew.source.allocate = [&next](void** address, std::size_t) {
    *address = reinterpret_cast<void*>(next += 4096);  // NOLINT: never used
    return cudaSuccess;
  };
  each_anew.source.free = [](void*) { return cudaSuccess; };
  stream_allocator anew(options(8), each_anew);
  auto const use = [&](int times) {
    for (int i = 0; i < times; ++i) {
      anew.deallocate(one, anew.allocate(one, size));
      EXPECT_EQ(anew.pool().trim(), size);
    }
  };
  use(2000);  // what is kept for the next addresses
  std::size_t const before = mallinfo2().uordblks;
  use(20'000);
  EXPECT_LT(mallinfo2().uordblks, before + 200'000);
}

TEST_F(StreamAllocator, AllowsTheAllocatingStreamToEndFirst) {
  owned_stream made = make_stream();
  void* const first = memory.allocate(made, size);
  made.reset();
  memory.deallocate(one, first);
  EXPECT_EQ(memory.allocate(one, size), first);
  memory.deallocate(one, first);
}

TEST_F(StreamAllocator, AlignsAsAskedFor) {
  for (std::size_t alignment = 1; alignment <= std::size_t{1} << 20; alignment *= 2) {
    void* const aligned = memory.allocate(one, size, alignment);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(aligned) % alignment, 0U);
    must(cudaMemsetAsync(aligned, 1, size, one));
    memory.deallocate(one, aligned);
  }
}

TEST_F(StreamAllocator, OfNoBytesIsAnAddressOfItsOwn) {
  void* const first = memory.allocate(one, 0);
  void* const second = memory.allocate(one, 0);
  EXPECT_NE(first, nullptr);
  EXPECT_NE(first, second);
  memory.deallocate(one, first);
  memory.deallocate(one, second);
  memory.deallocate(one, nullptr);
}

TEST_F(StreamAllocator, WithoutAStreamGivesMemoryThatAnyStreamMayUseAtOnce) {
  stream_allocator alone(options(1));
  void* const first = alone.allocate(one, size);
  keep_busy(first, one);
  alone.deallocate(one, first);
  std::atomic<bool> is_returned = false;  // relaxed: the join orders the rest
  void* second = nullptr;
  std::thread other([&] {
    second = alone.allocate(size);
    is_returned.store(true, std::memory_order_relaxed);
  });
  EXPECT_TRUE(stays_false([&] { return is_returned.load(std::memory_order_relaxed); }));
  flag.raise();
  other.join();
  EXPECT_EQ(second, first);
  alone.deallocate(second);
}

TEST_F(StreamAllocator, WithoutAStreamDisturbsNoCapture) {
  capture captured{one, cudaStreamCaptureModeGlobal};
  void* const first = memory.allocate(size);
  memory.deallocate(first);
  EXPECT_EQ(in_graphs(), 0U);
  must(captured.end());
}

TEST_F(StreamAllocator, ItsOwnStreamOutlivesItsPool) {
  pool_options given = options(8);
  given.streams_outlive_pool = true;
  {
    stream_allocator alone(given);
    alone.deallocate(alone.allocate(size));
    EXPECT_EQ(alone.pool().stats().bytes_idle, size);
    EXPECT_EQ(alone.pool().stats().bytes_unrecorded, 0U);
  }
  EXPECT_TRUE(drained());
  EXPECT_EQ(worker->stats().leaked, 0U);
}

TEST_F(StreamAllocator, KeepsNoMemoryForItsOwnStreamThatOtherStreamsNeed) {
  stream_allocator alone(with(options(2), &pool_options::streams_outlive_pool, true));
  void* const first = alone.allocate(size);
  void* const second = alone.allocate(size);
  alone.deallocate(first);
  EXPECT_EQ(alone.allocate(one, size), first);
  alone.deallocate(one, first);
  alone.deallocate(second);
}

// Named in either way.
TEST_F(StreamAllocator, ADefaultStreamThatOutlivesThePoolKeepsWhatIsFreedOnIt) {
  stream_allocator alone(with(options(8), &pool_options::streams_outlive_pool, true));
  for (cudaStream_t const freed_on : {cudaStream_t{}, cudaStreamLegacy}) {
    void* const first = alone.allocate(cudaStream_t{}, size);
    alone.deallocate(freed_on, first);
    EXPECT_EQ(alone.pool().trim(), 0U) << "no event was recorded";
    EXPECT_EQ(alone.allocate(cudaStreamLegacy, size), first);
    alone.deallocate(freed_on, first);
  }
}

TEST_F(StreamAllocator, MemoryThatIsLeftToItsGraphComesBackWithIt) {
  void* scratch = nullptr;
  {
    owned_graph const captured = captured_plainly([&](cudaStream_t on) {
      scratch = memory.allocate(on, size);
      must(cudaMemsetAsync(scratch, 1, size, on));
      memory.leave_to_graph(scratch);
      void* const next = memory.allocate(on, size);
      EXPECT_NE(next, scratch) << "the graph may still use it";
      memory.deallocate(on, next);
    });
    EXPECT_EQ(in_graphs(), 2 * size);
  }
  EXPECT_TRUE(wait_until([&] { return memory.pool().stats().bytes_idle == 2 * size; }));
}

TEST_F(StreamAllocator, RefusesAnotherStreamDuringACaptureOfAThreadsStreamOfAnotherDevice) {
  if (!has_two_devices()) GTEST_SKIP() << "needs two devices";
  stream_allocator there(with(options(8), &pool_options::device, 1));
  std::optional<device_scope> current(1);
  capture captured{cudaStreamPerThread, cudaStreamCaptureModeRelaxed};
  void* const scratch = there.allocate(cudaStreamPerThread, size);
  current.reset();
  expect_error<usage_error>([&] { there.record_stream(one, scratch); },
                            {"not part of the capture"});
  current.emplace(1);
  there.deallocate(cudaStreamPerThread, scratch);
  must(captured.end());
}

TEST_F(StreamAllocator, TheLastCopyLeavesToGraphsWhatWasAllocatedInCaptures) {
  std::optional<stream_allocator> last(options(8));
  {
    owned_graph const captured = captured_plainly(
        [&](cudaStream_t on) { must(cudaMemsetAsync(last->allocate(on, size), 1, size, on)); });
    stream_allocator const copy = *last;
    EXPECT_EQ(copy, *last);
    EXPECT_NE(copy, memory);
    last.reset();
    EXPECT_EQ(copy.pool().stats().bytes_in_use, 0U);
    EXPECT_EQ(copy.pool().stats().bytes_in_graphs, size);
  }
  EXPECT_TRUE(drained());
}

TEST(StreamAllocatorEnd, ReportsMemoryThatIsAllocatedAndLeaksIt) {
  std::string text;
  deleter worker({.on_error = [&](std::exception const& error) { text = error.what(); }});
  owned_stream const stream = make_stream();
  {
    stream_allocator memory({.label = "mine", .track_leases = true, .deleter = &worker});
    static_cast<void>(memory.allocate(stream, 1));
    static_cast<void>(memory.allocate(stream, 1));
  }
  EXPECT_EQ(text.find("stream_allocator: 2 allocations of \"mine\" were not freed, allocated at "),
            0U)
      << text;
  EXPECT_NE(text.find("stream_allocator_test.cpp:"), std::string::npos) << text;
  EXPECT_EQ(worker.stats().leaked, 2U);
}

TEST_F(StreamAllocator, WhatWasFreedInAnotherCaptureIsFreeForClaimsOfOtherSizesToo) {
  scratch_policy const policy{.bytes_max = 6 * size};
  stream_allocator limited(options(8), policy);
  void* const first = limited.allocate(one, 4 * size);
  {
    capture captured{one, cudaStreamCaptureModeRelaxed};
    limited.deallocate(one, first);
    must(captured.end());
  }
  ASSERT_TRUE(drained());
  void* const other = limited.allocate(one, size);  // records what the capture deferred
  EXPECT_EQ(limited.pool().stats().bytes_in_use, size);
  EXPECT_EQ(limited.pool().trim(), 4 * size);
  limited.deallocate(one, other);
}

TEST_F(StreamAllocator, HasNoLimitIfItsOptionsNameNone) {
  stream_allocator labelled({.label = "labelled", .deleter = worker.get()});
  std::vector<void*> held;
  for (int i = 0; i < 100; ++i) held.push_back(labelled.allocate(one, size));
  for (void* const each : held) labelled.deallocate(one, each);
  stream_allocator limited(options(1));
  void* const only = limited.allocate(one, size);
  expect_error<pool_exhausted>([&] { return limited.allocate(one, size); }, {"all 1"});
  limited.deallocate(one, only);
}

TEST_F(StreamAllocator, KnowsWhatItHasAllocated) {
  stream_allocator const other{options(8)};
  void* const mine = memory.allocate(one, size);
  EXPECT_TRUE(memory.is_allocated(mine));
  EXPECT_TRUE(stream_allocator(memory).is_allocated(mine));
  EXPECT_FALSE(other.is_allocated(mine));
  EXPECT_FALSE(memory.is_allocated(static_cast<std::byte*>(mine) + 1));
  EXPECT_FALSE(memory.is_allocated(nullptr));
  memory.deallocate(one, mine);
  EXPECT_FALSE(memory.is_allocated(mine));
}

TEST_F(StreamAllocator, RefusesAnAddressThatIsNotAllocated) {
  void* const freed = memory.allocate(one, 5 * size);
  memory.deallocate(one, freed);
  auto* const start = static_cast<std::byte*>(memory.allocate(one, size));
  int unknown = 0;
  std::vector<std::string> const text{"`memory` is not allocated"};
  for (void* const wrong : {freed, static_cast<void*>(&unknown), static_cast<void*>(start + 16),
                            static_cast<void*>(start + 256)}) {
    std::string const call = "stream_allocator::";
    expect_refused({{call + "deallocate", text, [&] { memory.deallocate(one, wrong); }},
                    {call + "deallocate", text, [&] { memory.deallocate(wrong); }},
                    {call + "record_stream", text, [&] { memory.record_stream(two, wrong); }},
                    {call + "leave_to_graph", text, [&] { memory.leave_to_graph(wrong); }}});
  }
  memory.deallocate(one, start);
}

TEST_F(StreamAllocator, RefusesWrongSizesAndAlignmentsAndToLeaveEagerMemoryToAGraph) {
  void* const eager = memory.allocate(one, size);
  std::string const call = "stream_allocator::allocate";
  auto const allocate = [&](std::size_t bytes, std::size_t alignment) {
    return [&, bytes, alignment] { static_cast<void>(memory.allocate(one, bytes, alignment)); };
  };
  expect_refused({{call, {"`alignment` is 3", "power of two"}, allocate(size, 3)},
                  {call, {"`alignment` is 0"}, allocate(size, 0)},
                  {call, {"`bytes`", "bytes_max"}, allocate(~std::size_t{0}, 512)},
                  {"stream_allocator::leave_to_graph", {"not allocated in a capture"}, [&] {
                     memory.leave_to_graph(eager);
                   }}});
  memory.deallocate(one, eager);
}

// Each address is used by one thread at a time, whoever freed it before.
TEST_F(StreamAllocator, ThreadsFreeWhatOthersAllocated) {
  constexpr int rounds = 200;
  std::vector<std::thread> threads;
  std::atomic<void*> mailbox{nullptr};
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      owned_stream const stream = make_stream();
      for (int i = 0; i < rounds; ++i) {
        void* const mine = memory.allocate(stream, size);
        must(cudaMemsetAsync(mine, i, size, stream));
        must(cudaStreamSynchronize(stream));  // the other thread's stream is not ordered after it
        // Acquire and release: the memory goes from thread to thread.
        void* const others = mailbox.exchange(mine, std::memory_order_acq_rel);
        memory.deallocate(stream, others);
      }
    });
  }
  for (std::thread& each : threads) each.join();
  memory.deallocate(one, mailbox.load(std::memory_order_relaxed));
  EXPECT_EQ(memory.pool().stats().bytes_in_use, 0U);
}

// Memory that was used on more streams than the one it is freed on.
class RecordedStreams : public pool_world {
 protected:
  static constexpr std::size_t size = 1024;

  /// The memory, which is free, is next used after the work on `two`, which is held back.
  void expect_next_waits(void const* freed) {
    void* const next = memory.allocate(one, size);
    ASSERT_EQ(next, freed);
    EXPECT_TRUE(stays_busy(one));
    flag.raise();
    sync(one);
    memory.deallocate(one, next);
  }
  void expect_refused(cudaStream_t stream, void* given, std::vector<std::string> const& parts) {
    expect_error<usage_error>([&] { memory.record_stream(stream, given); }, parts);
  }

  stream_allocator memory{options(1)};
};

TEST_F(RecordedStreams, MemoryOfAGraphMayBeUsedOnThemAfterTheCapture) {
  void* output = nullptr;
  {
    owned_graph const captured = captured_plainly([&](cudaStream_t on) {
      output = memory.allocate(on, size);
      must(cudaMemsetAsync(output, 1, size, on));
      expect_refused(two, output, {"record_stream", "is not part of the capture"});
    });
    memory.record_stream(two, output);
  }
  hold_up(two);
  memory.deallocate(one, output);
  expect_next_waits(output);
}

TEST_F(RecordedStreams, OfACaptureKeepItsMemoryFromItsGraphIfTheyAreRecordedAfterIt) {
  errors_expected = true;
  for (bool const is_used_in_capture : {false, true}) {  // on that stream, too
    std::optional<stream_allocator> last(options(8));
    void* output = nullptr;
    owned_graph const captured = captured_plainly([&](cudaStream_t on) {
      output = last->allocate(on, size);
      if (!is_used_in_capture) return;
      order(on, two);
      last->record_stream(two, output);
      must(cudaMemsetAsync(output, 1, size, two));
      order(two, on);
    });
    last->record_stream(two, output);
    expect_error<usage_error>([&] { last->leave_to_graph(output); },
                              {"is used after it on a stream", "deallocate it"});
    last.reset();
    EXPECT_EQ(worker->stats().leaked, is_used_in_capture ? 2U : 1U);
  }
}

TEST_F(RecordedStreams, OfACaptureGiveItsGraphOtherMemory) {
  void* const eager = memory.allocate(one, size);
  capture captured{two, cudaStreamCaptureModeGlobal};
  memory.record_stream(two, eager);
  must(captured.end());
  memory.deallocate(one, eager);
  sync(one);
  EXPECT_NE(memory.pool().stats().bytes_in_graphs, 0U);
  captured.graph().reset();
  EXPECT_TRUE(wait_until([&] { return memory.pool().stats().bytes_in_graphs == 0; }));
}

}  // namespace
}  // namespace escrow::test
