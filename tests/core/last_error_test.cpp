// SPDX-License-Identifier: Apache-2.0
// An error of the caller's own, which the caller has not looked at yet, stays whatever Escrow does,
// also where calls of Escrow's fail in normal operation.
#include <array>
#include <escrow/graph.hpp>
#include <random>

#include "world.hpp"

namespace escrow::test {
namespace {

/// As a caller's own call makes it.
cudaError_t make_error() {
  must(cudaGetDeviceCount(nullptr) == cudaErrorInvalidValue, "null is refused");
  return cudaErrorInvalidValue;
}

class OwnError : public world {
 protected:
  /// Makes an error, calls, and expects it to be there still.
  static void expect_kept(auto&& call) {
    cudaError_t const own = make_error();
    call();
    EXPECT_EQ(cudaGetLastError(), own);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }
};

TEST_F(OwnError, StaysIfAnExceptionEndsACapture) {
  expect_kept([&] {
    EXPECT_THROW(static_cast<void>(captured([](cudaStream_t) { throw std::runtime_error("out"); })),
                 std::runtime_error);
  });
}

TEST_F(OwnError, StaysIfACaptureThatIsDroppedWasInvalidated) {
  for (bool const by_itself : {false, true}) {
    EXPECT_THROW(static_cast<void>(captured([&](cudaStream_t on) {
                   must(cudaStreamSynchronize(on) != cudaSuccess, "it invalidates the capture");
                   if (!by_itself) static_cast<void>(cudaGetLastError());
                   if (!by_itself) static_cast<void>(make_error());
                   throw std::runtime_error("out");
                 })),
                 std::runtime_error);
    EXPECT_NE(cudaPeekAtLastError(), cudaSuccess);
    EXPECT_EQ(cudaGetLastError() == cudaErrorInvalidValue, !by_itself);
    EXPECT_TRUE(capture_of(one.get()).is_none());
  }
}

TEST_F(OwnError, StaysIfAPoolIsOutOfMemoryAndFindsSome) {
  scratch_policy policy;
  bool is_scarce = false;
  policy.source.allocate = [&](void** address, std::size_t bytes) {
    return cudaMalloc(address, std::exchange(is_scarce, false) ? std::size_t{1} << 50 : bytes);
  };
  scratch_pool pool(options(8), policy);
  static_cast<void>(pool.claim(one, 4096));
  sync(one);
  is_scarce = true;
  expect_kept([&] { static_cast<void>(pool.claim(two, 65536)); });
  EXPECT_FALSE(is_scarce);
}

TEST_F(OwnError, StaysIfAGraphDoesNotFitTheExecsOfASet) {
  exec_set set;
  static_cast<void>(set.add(captured_without_cargo()));
  auto const other = [&](cudaStream_t on) {
    must(cudaMemsetAsync(cells.data() + 4, 0, sizeof(int), on));
    must(launch_add(on, cells.data(), 1));
  };
  graph second = captured(other);
  expect_kept([&] { static_cast<void>(set.add(std::move(second))); });
  EXPECT_EQ(set.stats().execs, 2U);
}

class OwnErrorOnTwoDevices : public world_of_two_devices {};

TEST_F(OwnErrorOnTwoDevices, StaysIfAnEventIsOfAnotherDeviceThanTheStream) {
  cargo taken = make_cargo();
  graph_exec exec(captured(taken));
  block_pool pool = make_pool(1);
  auto const calls = std::to_array<std::function<void()>>({
      [&] { worker->retire(stream_ref(elsewhere.get()), probe(make_fate())); },
      [&] { exec.launch(elsewhere); },
      [&] {
        auto const used = pool.claim(one);
        const_cast<block_lease&>(used).record_stream(elsewhere.get());
      },
      [&] { event().ref().record(one); },
  });
  for (auto const& call : calls) {
    cudaError_t const own = make_error();
    call();
    EXPECT_EQ(cudaGetLastError(), own);
    sync(one);
    sync(elsewhere);
  }
}

// Each call of the public face that can be made again and again, in any order.
TEST_F(OwnError, StaysWhateverIsCalled) {
  block_pool pool = make_pool(4);
  scratch_pool scratch(options(4));
  stream_allocator memory(options(4));
  auto mine = scratch.on(one);
  graph const source = captured([&](cudaStream_t on) { static_cast<void>(pool.claim(on)); });
  graph_exec exec(source);
  std::vector<std::function<void()>> const calls{
      [&] { static_cast<void>(pool.claim(two)); },
      [&] { static_cast<void>(pool.try_claim(one)); },
      [&] { static_cast<void>(scratch.claim(two, 3000)); },
      [&] { static_cast<void>(mine.claim(5000)); },
      [&] { mine.flush(); },
      [&] { static_cast<void>(scratch.trim()); },
      [&] { memory.deallocate(one, memory.allocate(one, 300)); },
      [&] { memory.deallocate(memory.allocate(300)); },
      [&] { worker->retire(stream_ref(one.get()), probe(make_fate())); },
      [&] { worker->retire(probe(make_fate())); },
      [&] { EXPECT_TRUE(drained()); },
      [&] {
        static_cast<void>(captured([&](cudaStream_t on) { static_cast<void>(pool.claim(on)); }));
      },
      [&] { static_cast<void>(source.clone()); },
      [&] { static_cast<void>(source.held()); },
      [&] { graph_exec(source).launch(two); },
      [&] { exec.launch(one); },
      [&] { exec.update(source); },
      [&] { exec.upload(one); },
      [&] { static_cast<void>(capture_of(one.get())); },
      [&] { static_cast<void>(pool.describe() + worker->describe()); },
  };
  std::mt19937 random(7);  // NOLINT(cert-msc51-cpp): the same programs each time
  for (int i = 0; i < 400; ++i) {
    std::size_t const which = random() % calls.size();
    SCOPED_TRACE(which);
    expect_kept(calls[which]);
  }
  sync(one);
  sync(two);
}

}  // namespace
}  // namespace escrow::test
