// SPDX-License-Identifier: Apache-2.0
// Tensors of DLPack, and those that TVM-FFI's environment allocates.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <array>
#include <cstring>
#include <escrow/tensor_allocator.hpp>
#include <limits>
#include <thread>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

namespace ffi = tvm::ffi;

constexpr DLDataType floats{kDLFloat, 32, 1};

/// What FlashInfer calls alloc_tensor.
ffi::Tensor alloc_tensor(std::vector<std::int64_t> const& shape, DLDevice device = {kDLCUDA, 0}) {
  return ffi::Tensor::FromEnvAlloc(&TVMFFIEnvTensorAlloc,
                                   ffi::ShapeView(shape.data(), shape.size()), floats, device);
}

/// Makes `stream` TVM-FFI's current one for its end on this thread.
class current_stream {
 public:
  explicit current_stream(cudaStream_t stream, int device = 0) : device_(device) {
    must(TVMFFIEnvSetStream(kDLCUDA, device, stream, &previous_) == 0, "the stream is set");
  }
  current_stream(current_stream&&) = delete;
  ~current_stream() { static_cast<void>(TVMFFIEnvSetStream(kDLCUDA, device_, previous_, nullptr)); }

 private:
  int device_;
  TVMFFIStreamHandle previous_ = nullptr;
};

std::string error_of(std::function<void()> const& call) {
  try {
    call();
  } catch (ffi::Error const& error) {
    return std::string(error.kind()) + ": " + error.what();
  }
  return "no error";
}

class Tensors : public pool_world {
 protected:
  using managed = std::unique_ptr<DLManagedTensorVersioned, void (*)(DLManagedTensorVersioned*)>;

  [[nodiscard]] managed make(std::vector<std::int64_t> shape, DLDataType type = floats,
                             DLDevice device = {kDLCUDA, 0}) {
    DLTensor prototype{};
    prototype.device = device;
    prototype.dtype = type;
    prototype.ndim = static_cast<std::int32_t>(shape.size());
    prototype.shape = shape.data();
    return {make_dlpack_tensor(memory, one, prototype), [](auto* its) { its->deleter(its); }};
  }
  [[nodiscard]] std::size_t in_use() const { return memory.pool().stats().bytes_in_use; }
  [[nodiscard]] static scratch_stats stats_of(use_for_tvm_ffi const& all) {
    return all.memory(0).pool().stats();
  }

  stream_allocator memory{options(8)};
};

TEST_F(Tensors, HaveTheShapeAndMemoryOfTheirOwn) {
  managed const made = make({2, 3, 4});
  DLTensor const& its = made->dl_tensor;
  EXPECT_EQ(made->version.major, std::uint32_t{DLPACK_MAJOR_VERSION});
  EXPECT_EQ(made->flags, 0U);
  EXPECT_EQ(std::vector(its.shape, its.shape + its.ndim), (std::vector<std::int64_t>{2, 3, 4}));
  EXPECT_EQ(std::vector(its.strides, its.strides + its.ndim),
            (std::vector<std::int64_t>{12, 4, 1}));
  EXPECT_EQ(its.dtype.bits, 32);
  EXPECT_EQ(its.device.device_type, kDLCUDA);
  EXPECT_EQ(its.byte_offset, 0U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(its.data) % 256, 0U);
  must(cudaMemsetAsync(its.data, 1, 96, one));
  EXPECT_EQ(in_use(), 256U);
}

TEST_F(Tensors, AreFreedByTheirDeleterInTheOrderOfTheirStream) {
  stream_allocator alone(options(1));
  std::int64_t size = 256;
  DLTensor prototype{nullptr, {kDLCUDA, 0}, 1, floats, &size, nullptr, 0};
  DLManagedTensorVersioned* const made = make_dlpack_tensor(alone, one, prototype);
  void* const data = made->dl_tensor.data;
  hold_up(one);
  std::thread([made] { made->deleter(made); }).join();
  EXPECT_EQ(alone.pool().stats().bytes_in_use, 0U);
  ASSERT_EQ(alone.allocate(two, 1024), data);
  EXPECT_TRUE(stays_busy(two));
  flag.raise();
  sync(two);
  alone.deallocate(two, data);
}

TEST_F(Tensors, OfPinnedMemoryAreWrittenByTheHostAtOnce) {
  stream_allocator pinned(options(8), {.source = memory_source::pinned_host()});
  std::int64_t size = 1024;
  DLTensor const prototype{nullptr, {kDLCUDAHost, 0}, 1, {kDLInt, 8, 1}, &size, nullptr, 0};
  DLManagedTensorVersioned* const first = make_dlpack_tensor(pinned, one, prototype);
  void* const data = first->dl_tensor.data;
  hold_up(one);
  first->deleter(first);
  DLManagedTensorVersioned* const second = make_dlpack_tensor(pinned, one, prototype);
  EXPECT_EQ(second->dl_tensor.device.device_type, kDLCUDAHost);
  EXPECT_NE(second->dl_tensor.data, data);
  std::memset(second->dl_tensor.data, 1, 1024);
  second->deleter(second);
  expect_error<usage_error>([&] { return make_dlpack_tensor(memory, one, prototype); },
                            {"is pinned memory, and `memory` has none"});
  EXPECT_EQ(in_use(), 0U);
  flag.raise();
  sync(one);
}

TEST_F(Tensors, AreDeletedInACallback) {
  std::int64_t size = 256;
  DLTensor const prototype{nullptr, {kDLCUDA, 0}, 1, floats, &size, nullptr, 0};
  for (cudaStream_t const stream : {cudaStream_t{one}, cudaStream_t{nullptr}}) {
    DLManagedTensorVersioned* const made = make_dlpack_tensor(memory, stream, prototype);
    void* const data = made->dl_tensor.data;
    must(cudaLaunchHostFunc(
        stream,
        [](void* ended) {
          auto* const its = static_cast<DLManagedTensorVersioned*>(ended);
          its->deleter(its);
        },
        made));
    must(cudaStreamSynchronize(stream));
    DLManagedTensorVersioned* const next = make_dlpack_tensor(memory, stream, prototype);
    EXPECT_EQ(next->dl_tensor.data, data);  // given the stream, it records
    next->deleter(next);
    EXPECT_EQ(in_use(), 0U);
  }
}

TEST_F(Tensors, AreKeptByALaterCaptureThatRecordsThem) {
  DLManagedTensorVersioned* const made = make({256}).release();
  void* const data = made->dl_tensor.data;
  {
    owned_graph const graph = captured_plainly([&](cudaStream_t on) {
      memory.record_stream(on, data);
      must(cudaMemsetAsync(data, 1, 1024, on));
    });
    made->deleter(made);
    EXPECT_NE(make({256})->dl_tensor.data, data);
  }
  EXPECT_TRUE(wait_until([&] { return memory.pool().stats().bytes_in_graphs == 0; }));
}

TEST_F(Tensors, RefuseAThreadsStreamSinceAnotherThreadMayDeleteThem) {
  std::int64_t size = 256;
  DLTensor const prototype{nullptr, {kDLCUDA, 0}, 1, floats, &size, nullptr, 0};
  expect_error<usage_error>(
      [&] { return make_dlpack_tensor(memory, cudaStreamPerThread, prototype); },
      {"tensors_test.cpp:", "make_dlpack_tensor", "`stream` is cudaStreamPerThread"});
}

TEST_F(Tensors, PackElementsBelowAByteAndMayBeEmpty) {
  EXPECT_EQ(make({1025}, {kDLFloat4_e2m1fn, 4, 1})->dl_tensor.ndim, 1);
  EXPECT_EQ(memory.pool().stats().bytes, scratch_pool::block_bytes(513));
  managed const empty = make({3, 0});
  EXPECT_EQ(empty->dl_tensor.data, nullptr);
  constexpr std::int64_t large = std::int64_t{1} << 40;
  for (std::vector<std::int64_t> const& shape :
       std::vector<std::vector<std::int64_t>>{{0, large, large}, {large, large, 0}}) {
    managed const large_and_empty = make(shape);
    DLTensor const& its = large_and_empty->dl_tensor;
    EXPECT_EQ(its.data, nullptr);
    EXPECT_EQ(std::vector(its.shape, its.shape + its.ndim), shape);
    EXPECT_EQ(its.strides[2], 1);
  }
  managed const scalar = make({});
  EXPECT_NE(scalar->dl_tensor.data, nullptr);
  EXPECT_EQ(in_use(), 256U);
}

TEST_F(Tensors, RefuseWrongPrototypes) {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  for (std::vector<std::int64_t> const& shape : std::vector<std::vector<std::int64_t>>{
           {-1}, {0, -1}, {most, most}, {std::int64_t{1} << 39}}) {
    expect_error<usage_error>([&] { return make(shape); }, {"`prototype.shape`"});
  }
  for (DLDevice const device : {DLDevice{kDLCPU, 0}, DLDevice{kDLCUDA, 1}}) {
    expect_error<usage_error>([&] { static_cast<void>(make({1}, floats, device)); },
                              {"`prototype.device` is not CUDA device 0"});
  }
  DLTensor prototype{nullptr, {kDLCUDA, 0}, 1, floats, nullptr, nullptr, 0};
  expect_error<usage_error>([&] { return make_dlpack_tensor(memory, one, prototype); },
                            {"`prototype.ndim`"});
  EXPECT_EQ(in_use(), 0U);
}

TEST_F(Tensors, UseTheDefaultStreamOfTheirDevice) {
  if (!has_two_devices()) GTEST_SKIP() << "needs two devices";
  use_for_tvm_ffi const all;
  ffi::Tensor const made = alloc_tensor({64}, {kDLCUDA, 1});
  EXPECT_EQ(all.memory(1).pool().stats().bytes_in_use, 256U);
  EXPECT_EQ(current_device(), 0);
}

// TVM-FFI.

TEST_F(Tensors, OfTvmFfiComeFromItsCurrentStream) {
  use_for_tvm_ffi const all;
  current_stream const here(one);
  std::optional<ffi::Tensor> made = alloc_tensor({256});
  EXPECT_EQ(stats_of(all).bytes_in_use, 1024U);
  void* const data = made->data_ptr();
  EXPECT_EQ(made->size(0), 256);
  must(cudaMemsetAsync(data, 1, 1024, one));
  made.reset();
  EXPECT_EQ(stats_of(all).bytes_in_use, 0U);
  EXPECT_EQ(alloc_tensor({256}).data_ptr(), data);
}

TEST_F(Tensors, AreDeletedByTheWorkerWithoutACallWithTheirStream) {
  memory = stream_allocator(options(10000));
  for (int i = 0; i < 10000; ++i) {
    std::shared_ptr<DLManagedTensorVersioned> kept = make({256});
    static_cast<void>(captured_plainly([&](cudaStream_t on) {
      must(cudaMemsetAsync(kept->dl_tensor.data, 1, 1024, on));
      deleter::global().retire(on, std::move(kept));
    }));
    capture next{one, cudaStreamCaptureModeRelaxed};
    must(cudaMemsetAsync(cells.data(), 1, sizeof(int), one));
    ASSERT_EQ(next.end(), cudaSuccess) << i;
  }
}

int earlier_calls = 0;
int earlier(DLTensor*, DLManagedTensorVersioned**, void* error,
            void (*set_error)(void*, char const*, char const*)) {
  ++earlier_calls;
  set_error(error, "ValueError", "the earlier one was called");
  return -1;
}

TEST_F(Tensors, OfOtherDevicesComeFromTheAllocatorBefore) {
  auto const allocate = [] { static_cast<void>(alloc_tensor({1}, {kDLCPU, 0})); };
  {
    use_for_tvm_ffi const all;
    EXPECT_NE(error_of(allocate).find("RuntimeError: use_for_tvm_ffi: `device` is not a CUDA"),
              std::string::npos);
  }
  for (int const is_for_all : {0, 1}) {
    must(TVMFFIEnvSetDLPackManagedTensorAllocator(&earlier, is_for_all, nullptr) == 0, "it is set");
    if (is_for_all != 0) TVMFFIEnvSetDLPackManagedTensorAllocator(nullptr, 0, nullptr);
    {
      use_for_tvm_ffi const all;
      EXPECT_NE(error_of(allocate).find("ValueError: the earlier one"), std::string::npos);
      EXPECT_NE(TVMFFIEnvGetDLPackManagedTensorAllocator(), &earlier);
    }
    EXPECT_EQ(TVMFFIEnvGetDLPackManagedTensorAllocator(), &earlier);
    std::thread([is_for_all] {
      EXPECT_EQ(TVMFFIEnvGetDLPackManagedTensorAllocator(), is_for_all != 0 ? &earlier : nullptr);
    }).join();
    TVMFFIEnvSetDLPackManagedTensorAllocator(nullptr, 1, nullptr);
  }
  EXPECT_EQ(earlier_calls, 2);
}

TEST_F(Tensors, OfTvmFfiAreAllocatedOnAllThreadsAndOutliveIt) {
  std::optional<ffi::Tensor> made;
  {
    use_for_tvm_ffi const all;
    std::thread([&] { made = alloc_tensor({256}); }).join();
    EXPECT_EQ(stats_of(all).bytes_in_use, 1024U);
    expect_error<usage_error>([] { use_for_tvm_ffi const second; }, {"there is another one"});
  }
  EXPECT_NE(error_of([] { static_cast<void>(alloc_tensor({1})); }).find("RuntimeError"),
            std::string::npos);
  must(cudaMemset(made->data_ptr(), 1, 1024));
  made.reset();
}

TEST_F(Tensors, OfTvmFfiThatCannotBeAllocatedSayWhy) {
  use_for_tvm_ffi const all({.label = "workspaces"}, {.bytes_max = 1024});
  current_stream const here(one);
  ffi::Tensor const made = alloc_tensor({256});
  std::string const text = error_of([] { static_cast<void>(alloc_tensor({256})); });
  EXPECT_TRUE(text.starts_with("MemoryError: ")) << text;
  EXPECT_NE(text.find("workspaces"), std::string::npos) << text;
  EXPECT_TRUE(error_of([] {
                static_cast<void>(alloc_tensor({-1}));
              }).starts_with("RuntimeError: make_dlpack_tensor: "));
  EXPECT_EQ(cudaMalloc(static_cast<void**>(nullptr), 1), cudaErrorInvalidValue);
  EXPECT_TRUE(error_of([] {
                static_cast<void>(alloc_tensor({1}, {kDLCUDA, 99}));
              }).starts_with("RuntimeError: "));
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue) << "the caller's";
}

#ifdef ESCROW_TEST_RUNTIME_SIM
TEST_F(Tensors, OfTvmFfiSurviveAFailureOfEachCall) {
  use_for_tvm_ffi const all;
  current_stream const here(one);
  bool is_over = false;
  for (std::uint64_t i = 1; !is_over; ++i) {
    SCOPED_TRACE(i);
    sim::start_recording(sim::recorded_threads::this_one);
    sim::fail_nth_here(i, cudaErrorUnknown);
    std::string const text = error_of([] { static_cast<void>(alloc_tensor({256})); });
    is_over = sim::stop_recording().size() < i;
    sim::clear_faults();
    if (text != "no error") {
      EXPECT_TRUE(text.starts_with("RuntimeError: ")) << text;
    }
    static_cast<void>(alloc_tensor({256}));  // given the stream, it records what was deferred
    EXPECT_EQ(stats_of(all).bytes_in_use, 0U);
  }
}
#endif

}  // namespace
}  // namespace escrow::test
