// SPDX-License-Identifier: Apache-2.0
// A memory resource for CCCL: in captures and outside, by value and by reference, and what fails.
#include <cstring>
#include <limits>
#include <new>

#include "resource_world.hpp"

#if CCCL_VERSION >= 3004000  // those before need nvcc
#include <cuda/buffer>
#endif

namespace escrow::test {
namespace {

using any_resource = cuda::mr::any_resource<cuda::mr::device_accessible>;
using resource_ref = cuda::mr::resource_ref<cuda::mr::device_accessible>;

static_assert(cuda::mr::resource<memory_resource>);
static_assert(cuda::mr::synchronous_resource<memory_resource>);
static_assert(cuda::mr::resource_with<memory_resource, cuda::mr::device_accessible>);
static_assert(!cuda::has_property<memory_resource, cuda::mr::host_accessible>);
static_assert(std::is_convertible_v<memory_resource, any_resource>);
static_assert(std::is_convertible_v<memory_resource&, resource_ref>);
static_assert(std::is_nothrow_copy_constructible_v<memory_resource>);
static_assert(std::is_copy_assignable_v<memory_resource>);

class MemoryResource : public resource_world {
 protected:
  [[nodiscard]] std::size_t bytes_in_use() const {
    return resource.memory().pool().stats().bytes_in_use;
  }
  [[nodiscard]] std::size_t bytes_in_graphs() const {
    return resource.memory().pool().stats().bytes_in_graphs;
  }
};

TEST_F(MemoryResource, AlignsAsAskedFor) {
  for (std::size_t aligned = 1; aligned <= std::size_t{1} << 16; aligned *= 4) {
    void* const memory = resource.allocate(cuda::stream_ref(one.get()), 1, aligned);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % aligned, 0U);
    resource.deallocate(cuda::stream_ref(one.get()), memory, 1, aligned);
  }
}

TEST_F(MemoryResource, WithoutAStreamMayBeUsedOnAllAndDisturbsNoCapture) {
  capture captured{one, cudaStreamCaptureModeGlobal};
  void* const memory = resource.allocate_sync(size, alignment);
  resource.deallocate_sync(memory, size, alignment);
  EXPECT_EQ(bytes_in_graphs(), 0U);
  must(captured.end());
}

TEST_F(MemoryResource, OfPinnedMemoryGivesWhatNoWorkUses) {
  memory_resource pinned(stream_allocator(options(8), {.source = memory_source::pinned_host()}));
  cuda::stream_ref const stream(one.get());
  void* const busy = pinned.allocate(stream, size);
  hold_up(one);
  pinned.deallocate(stream, busy, size);
  void* const first = pinned.allocate(stream, size);
  EXPECT_NE(first, busy);
  void* const second = pinned.allocate_sync(size);
  EXPECT_NE(second, busy);
  std::memset(first, 1, size);
  std::memset(second, 1, size);
  pinned.deallocate(stream, first, size);
  pinned.deallocate_sync(second, size);
  flag.raise();
  sync(one);
}

TEST_F(MemoryResource, IsDeallocatedInACallback) {
  struct request {
    memory_resource from;
    cudaStream_t stream;
    void* memory;
  };
  for (cudaStream_t const stream : {cudaStream_t{one}, cudaStream_t{nullptr}}) {
    request its{resource, stream, filled(resource, stream, 1)};
    must(cudaLaunchHostFunc(
        stream,
        [](void* ended) {
          auto& [from, on, memory] = *static_cast<request*>(ended);
          free_on(from, on, memory);
        },
        &its));
    must(cudaStreamSynchronize(stream));
    void* const next = filled(resource, stream, 2);  // given the stream, it records
    EXPECT_EQ(next, its.memory);
    free_on(resource, stream, next);
    EXPECT_EQ(bytes_in_use(), 0U);
  }
}

TEST_F(MemoryResource, ACaptureAddsNoMemoryNodesAndItsGraphKeepsTheMemory) {
  {
    owned_graph const captured = captured_plainly([&](cudaStream_t on) {
      for (int value : {1, 2, 3}) use(resource, on, value);
    });
    EXPECT_EQ(nodes_of(captured).size(), 6U) << "kernels that fill and check";
    EXPECT_EQ(bytes_in_graphs(), size) << "the capture used its memory again";
    use(resource, three, 4);
    expect_right_runs(captured);
  }
  EXPECT_TRUE(wait_until([&] { return bytes_in_graphs() == 0; }));
}

TEST_F(MemoryResource, WhatACaptureNeverDeallocatesIsItsGraphsAfterTheLastCopy) {
  std::optional<any_resource> last(make_resource());
  {
    owned_graph const captured =
        captured_plainly([&](cudaStream_t on) { EXPECT_NE(filled(*last, on, 1), nullptr); });
    last.reset();
    EXPECT_TRUE(drained());
    expect_right_runs(captured);
  }
  EXPECT_TRUE(drained());
  EXPECT_EQ(worker->stats().leaked, 0U);
}

TEST_F(MemoryResource, CopiesAndReferencesShareTheMemory) {
  memory_resource const copy = resource;
  memory_resource other = make_resource();
  EXPECT_EQ(copy, resource);
  EXPECT_NE(other, resource);
  any_resource any(resource);
  resource_ref ref(resource);
  EXPECT_EQ(any, any_resource(copy));
  EXPECT_NE(any, any_resource(other));
  EXPECT_EQ(ref, resource_ref(any));
  void* const first = filled(any, one, 1);
  free_on(ref, one, first);
  EXPECT_EQ(filled(ref, one, 2), first);
  free_on(any, one, first);
  owned_graph const captured = captured_plainly([&](cudaStream_t on) {
    use(any, on, 3);
    use(ref, on, 4);
  });
  expect_right_runs(captured);
}

#if CCCL_VERSION >= 3004000
TEST_F(MemoryResource, ABufferMayBeMadeInACapture) {
  owned_graph const captured = captured_plainly([&](cudaStream_t on) {
    auto buffer = cuda::make_buffer<int>(cuda::stream_ref(on), resource, ints, cuda::no_init);
    fill_and_check(buffer.data(), on, 1);
  });
  EXPECT_EQ(bytes_in_graphs(), size);
  EXPECT_EQ(bytes_in_use(), 0U);
  expect_right_runs(captured);
}
#endif

TEST_F(MemoryResource, ThrowsWhenThereIsNoMemory) {
  scratch_policy none;
  none.source.allocate = [](void**, std::size_t) { return cudaErrorMemoryAllocation; };
  memory_resource empty(stream_allocator(options(8), none));
  expect_error<cuda_error>([&] { return filled(empty, one, 1); }, {"cudaErrorMemoryAllocation"});
  expect_error<cuda_error>([&] { return empty.allocate_sync(size, alignment); },
                           {"cudaErrorMemoryAllocation"});
  constexpr std::size_t impossible = scratch_pool::bytes_max + 1;
  EXPECT_THROW(static_cast<void>(resource.allocate(cuda::stream_ref(one.get()), impossible)),
               std::bad_alloc);
  EXPECT_THROW(static_cast<void>(resource.allocate_sync(impossible)), std::bad_alloc);
  memory_resource limited(stream_allocator(options(8), {.bytes_max = size}));
  any_resource any(limited);
  void* const all = filled(any, one, 1);
  expect_error<pool_exhausted>([&] { return filled(any, one, 2); }, {"1024"});
  free_on(any, one, all);
}

TEST_F(MemoryResource, ReportsWhatItCannotDeallocateOnce) {
  errors_expected = true;
  int unknown = 0;
  free_on(resource, one, &unknown);
  EXPECT_EQ(errors->size(), 1U);
  resource.deallocate_sync(&unknown, size, alignment);
  EXPECT_EQ(errors->size(), 2U);
  EXPECT_NE(errors->all().find("`memory` is not allocated here"), std::string::npos);
  free_on(resource, one, nullptr);
  EXPECT_EQ(errors->size(), 2U);
}

#ifdef ESCROW_TEST_RUNTIME_SIM
constexpr auto all_of_them = std::numeric_limits<std::uint64_t>::max();

TEST_F(MemoryResource, StaysAllocatedIfItsDeallocationFailed) {
  errors_expected = true;
  void* const memory = filled(resource, one, 1);
  sync(one);
  sim::fail_call_here("cudaStreamGetCaptureInfo", cudaErrorUnknown, 1, all_of_them);
  free_on(resource, one, memory);
  sim::clear_faults();
  EXPECT_EQ(errors->size(), 1U) << errors->all();
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_EQ(bytes_in_use(), size);
  free_on(resource, one, memory);
  EXPECT_EQ(bytes_in_use(), 0U);
  EXPECT_EQ(errors->size(), 1U);
}

TEST_F(MemoryResource, IsDeallocatedIfTheFailureDoesNotRepeat) {
  void* const memory = filled(resource, one, 1);
  sim::fail_call_here("cudaStreamGetCaptureInfo", cudaErrorUnknown);
  free_on(resource, one, memory);
  EXPECT_EQ(bytes_in_use(), 0U);
}

TEST_F(MemoryResource, ComesBackIfItsEventWasRefused) {
  errors_expected = true;
  void* const memory = filled(resource, one, 1);
  sim::fail_call_here("cudaEventRecord", cudaErrorUnknown, 1, all_of_them);
  free_on(resource, one, memory);
  sim::clear_faults();
  EXPECT_EQ(errors->size(), 1U) << errors->all();
  use(resource, one, 2);  // given the stream, it records
  EXPECT_EQ(bytes_in_use(), 0U);
  EXPECT_EQ(errors->size(), 1U) << errors->all();
}
#endif

}  // namespace
}  // namespace escrow::test
