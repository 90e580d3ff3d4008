// SPDX-License-Identifier: Apache-2.0
// Device memory of Escrow: freed beside running work, given back, in captures, and out of memory.
#include <chrono>
#include <escrow/deleter.hpp>
#include <escrow/graph.hpp>
#include <escrow/pool.hpp>
#include <thread>
#include <utility>

#include "call_elsewhere.hpp"
#include "world.hpp"

namespace escrow::test {
namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

class DeviceMemory : public world {
 protected:
  DeviceMemory() {
#ifdef ESCROW_TEST_RUNTIME_SIM
    sim::set_frees_block_launches(true);
#endif
    must(launch_add(two, cells.data(), 0));  // loaded before a kernel runs that waits
    sync(two);
  }
  ~DeviceMemory() override {
#ifdef ESCROW_TEST_RUNTIME_SIM
    sim::set_frees_block_launches(false);
    sim::set_device_memory(sim::options{}.device_memory);
#endif
  }
  [[nodiscard]] static std::size_t free_bytes() {
    std::size_t free = 0;
    std::size_t total = 0;
    must(cudaMemGetInfo(&free, &total));
    return free;
  }
  /// A kernel runs on stream `one` meanwhile, and a launch on another stream is not held up.
  void expect_no_wait(std::function<void()> const& call) {
    hold_up(one);
    call();
    must(launch_add(two, cells.data(), 1));
    sync(two);
    EXPECT_EQ(cells.load(), 1);
    flag.raise();
    sync(one);
  }
};

TEST_F(DeviceMemory, OfARetiredOwnerIsFreedBesideRunningWork) {
  struct owner {
    device_ptr<int> by_pointer = make_device<int>(64);
    device_buffer<int> by_buffer{64};
  };
  device_buffer<float> buffer(1024);
  std::vector<owner> owners(10);
  expect_no_wait([&] {
    worker->retire(two, std::move(buffer));
    for (owner& each : owners) worker->retire(two, std::move(each));
    EXPECT_TRUE(drained());
  });
}

TEST_F(DeviceMemory, OfAPoolIsFreedBesideRunningWork) {
  scratch_pool pool(options(8));
  for (std::size_t const bytes : std::vector<std::size_t>{1000, 10'000, 100'000})
    static_cast<void>(pool.claim(two, bytes));
  sync(two);
  expect_no_wait([&] {
    EXPECT_GT(pool.trim(), 0U);
    { scratch_pool const ends(options(8)); }
    EXPECT_TRUE(drained());
  });
}

TEST_F(DeviceMemory, ThatMayBeInUseIsFreedAfterAllWorkOfTheDevice) {
  std::optional<device_buffer<int>> used(64);
  hold_up(one);
  must(launch_fill(one, used->data(), 64, 1));
  call_elsewhere const end([&] {
    used.reset();
    return cudaSuccess;
  });
  EXPECT_TRUE(end.stays_blocked());
  flag.raise();
  EXPECT_TRUE(end.succeeds_soon());
}

TEST_F(DeviceMemory, OfACallerIsFreedToo) {
  void* memory = nullptr;
  must(cudaMalloc(&memory, 64));
  EXPECT_EQ(device_free(memory), cudaSuccess);
  EXPECT_EQ(device_malloc(&memory, 0), cudaSuccess);
  EXPECT_EQ(memory, nullptr);
  EXPECT_EQ(device_free(nullptr), cudaSuccess);
  EXPECT_EQ(device_malloc(nullptr, 8), cudaErrorInvalidValue);
}

TEST_F(DeviceMemory, IsMadeAndKeptInACaptureOfEachMode) {
  for (auto const mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                          cudaStreamCaptureModeRelaxed}) {
    capture open{one, mode};
    {
      device_buffer<int> const ends(64);
      device_buffer<int> kept(64);
      must(launch_fill(one, kept.data(), 64, 4));
      must(launch_check(one, kept.data(), 64, 4, mismatches.data()));
      worker->retire(one.get(), std::move(kept));
    }
    must(open.end());
    owned_exec const exec = instantiate(open.graph());
    must(cudaGraphLaunch(exec, two));
    sync(two);
  }
}

TEST_F(DeviceMemory, OfADeviceThatIsNotThereIsNotTrimmed) {
  EXPECT_THROW(static_cast<void>(trim_device_memory(99)), cuda_error);
}

TEST_F(DeviceMemory, OutOfMemoryIsALastWord) {
#ifdef ESCROW_TEST_RUNTIME_SIM
  sim::set_device_memory(100 * mebibyte);
#endif
  std::size_t const most = free_bytes() / 10 * 6;
  /// The worker takes longer with it than the next allocation, but not 0.1 s.
  struct slow_owner {
    device_block memory;
    explicit slow_owner(device_block&& taken) noexcept : memory(std::move(taken)) {}
    slow_owner(slow_owner&&) noexcept = default;
    ~slow_owner() {
      if (memory) std::this_thread::sleep_for(std::chrono::milliseconds{20});
    }
  };
  int late = 0;
  auto const make = [&] {
    try {
      return device_block(most);
    } catch (cuda_error const&) {
      ++late;
      deleter::global().drain();
      return device_block(most);
    }
  };
  constexpr int rounds = 20;
  for (int i = 0; i < rounds; ++i) {
    device_block owner = make();
    must(cudaMemsetAsync(owner.data(), 1, 64, two));
    sync(two);
    deleter::global().retire(two.get(), slow_owner(std::move(owner)));
  }
  device_block const last = make();
  EXPECT_LT(late, rounds);  // without a wait: each time; on a loaded machine, some times
  EXPECT_THROW(device_block{most}, cuda_error);
}

#ifdef ESCROW_TEST_RUNTIME_SIM  // on a GPU other processes allocate, too
TEST_F(DeviceMemory, ThatEndsInACallbackIsToldAndFreedByATrimOrTheNextFree) {
  static_cast<void>(deleter::global());
  for (bool const by_trim : {true, false}) {
    auto other = std::make_unique<device_block>(64);
    auto* const owner = new device_block(64);
    std::size_t const with = sim::alive().device_allocations;
    testing::internal::CaptureStderr();
    must(cudaLaunchHostFunc(
        two, [](void* its) { delete static_cast<device_block*>(its); }, owner));
    sync(two);
    EXPECT_NE(testing::internal::GetCapturedStderr().find("in a CUDA callback"), std::string::npos);
    EXPECT_EQ(sim::alive().device_allocations, with);
    if (by_trim) {
      static_cast<void>(trim_device_memory(0));
      EXPECT_EQ(sim::alive().device_allocations, with - 1);
    }
    other.reset();
    EXPECT_EQ(sim::alive().device_allocations, with - 2);
  }
}

TEST_F(DeviceMemory, ThatEndsInACallbackKeepsNoWorkerWaiting) {
  static_cast<void>(deleter::global());
  hold_up(one);
  auto* const owner = new device_block(64);
  must(cudaLaunchHostFunc(
      two, [](void* its) { delete static_cast<device_block*>(its); }, owner));
  sync(two);
  auto counted = std::make_shared<int>(1);
  deleter::global().retire(three.get(), std::shared_ptr<int>(counted));
  EXPECT_TRUE(wait_until([&] { return counted.use_count() == 1; }));
  flag.raise();
  sync(one);
  static_cast<void>(trim_device_memory(0));
}

TEST_F(DeviceMemory, OfAFullDeviceCanBeFreed) {
  static_cast<void>(trim_device_memory(0));
  sim::set_device_memory(64 * mebibyte);
  std::size_t const before = free_bytes();
  auto all = std::make_unique<device_block>(before);
  EXPECT_EQ(free_bytes(), 0U);
  all.reset();
  static_cast<void>(trim_device_memory(0));
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(DeviceMemory, ThatIsUnusedGoesBackToTheDevice) {
  static_cast<void>(deleter::global());
  std::size_t const before = free_bytes();
  auto const is_back = [&] { return free_bytes() + 33 * mebibyte > before; };
  { device_block const used(256 * mebibyte); }
  EXPECT_TRUE(wait_until(is_back)) << "by the worker";
  scratch_pool pool(options(8));
  static_cast<void>(pool.claim(two, 256 * mebibyte));
  EXPECT_FALSE(is_back());
  sync(two);
  EXPECT_GE(pool.trim(), 256 * mebibyte);
  EXPECT_TRUE(is_back()) << "by trim()";
}

TEST_F(DeviceMemory, OfADeviceThatWasResetIsTheNextContexts) {
  if (!has_two_devices()) GTEST_SKIP();
  for (int i = 0; i < 2; ++i) {
    must(cudaSetDevice(1));
    EXPECT_NO_THROW(device_buffer<int>{64});
    must(cudaDeviceReset());
  }
  must(cudaSetDevice(0));
}
#endif

}  // namespace
}  // namespace escrow::test
