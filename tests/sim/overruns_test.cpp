// SPDX-License-Identifier: Apache-2.0
// Kernels, fills and copies that write behind what was claimed.
#include <escrow/nodes.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>

#include "deep.hpp"
#include "pool_world.hpp"

namespace escrow::test {
namespace {

void set_floats_on_host(float* data, std::size_t count) {
  std::fill_n(data, count, 0.0F);
}
auto* const set_floats = sim::register_kernel<&set_floats_on_host>("set_floats");

class Overruns : public pool_world {
 protected:
  Overruns() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  static constexpr std::size_t claimed = 1000;  // 4,000 bytes of a block of 4,096

  static void expect_ended(std::function<void()> const& run, std::string const& what) {
    EXPECT_DEATH(
        run(), what + "what its claim of .blocks of 4096 bytes. has: claim all that the work uses");
  }
  void set(cudaStream_t on, float* data, std::size_t count) {
    launch(on, set_floats, {}, data, count);
  }

  scratch_pool scratch{options(16)};
};

TEST_F(Overruns, OfAKernel) {
  auto const lease = scratch.claim<float>(one, claimed);
  set(one, lease.data(), claimed);
  sync(one);
  std::string const what = "kernel .set_floats., argument 0: it wrote at 0x.*, 0 bytes behind ";
  expect_ended(
      [&] {
        set(one, lease.data(), claimed + 1);
        sync(one);
      },
      what);
  expect_ended(
      [&] {
        set(one, lease.data() + claimed - 1, 2);
        sync(one);
      },
      what);
  auto const all = scratch.claim(one, claimed * sizeof(float));  // which may use the block
  set(one, static_cast<float*>(all->data()), all->size() / sizeof(float));
  sync(one);
}

// Also where the claim fills its block, and where no memory is.
TEST_F(Overruns, BehindAnAllocation) {
  if (is_sanitized) return;  // it tells that
  auto const lease = scratch.claim<float>(one, 1024);
  auto const set_here = [&](float* data, std::size_t count) {
    set(one, data, count);
    sync(one);
  };
  EXPECT_DEATH(set_here(lease.data(), 1025), "it wrote at 0x.*, 0 bytes behind what its claim of");
  EXPECT_DEATH(set_here(lease.data(), 4096), "it wrote at 0x.*, 0 bytes behind what its claim");
  device_buffer<float> const others(16);
  EXPECT_DEATH(set_here(others.data(), 20), "it wrote at 0x.*, 0 bytes behind the allocation");
  auto* const nowhere = reinterpret_cast<float*>(std::uintptr_t{4096});
  EXPECT_DEATH(set_here(nowhere, 1),
               "kernel .set_floats. reads or writes at 0x1000, where no memory is: it goes far");
}

// Each time, whatever lies behind in the process.
TEST_F(Overruns, ThatGoOnAndOn) {
  if (is_sanitized) return;  // it tells that
  auto const lease = scratch.claim<float>(one, 1024);
  auto const large = scratch.claim(one, 100'000);
  auto const set_here = [&](void* data, std::size_t count) {
    set(one, static_cast<float*>(data), count);
    sync(one);
  };
  constexpr auto text = "kernel .set_floats. reads or writes at 0x.*, where no memory is: it goes";
  for (int i = 0; i < 5; ++i) {
    EXPECT_DEATH(set_here(large->data(), 100'000), text);
    EXPECT_DEATH(set_here(lease.data(), std::size_t{1} << 28), text);
  }
}

TEST_F(Overruns, OfAKernelInAGraph) {
  auto const use = [&](std::size_t count) {
    return captured(
        [&](cudaStream_t on) { set(on, scratch.claim<float>(on, claimed).data(), count); });
  };
  graph_exec right(use(claimed));
  right.launch(one);
  sync(one);
  graph_exec wrong(use(claimed + 1));
  expect_ended(
      [&] {
        wrong.launch(one);
        sync(one);
      },
      "kernel .set_floats., argument 0: it wrote at 0x.*, 0 bytes behind ");
}

TEST_F(Overruns, OfAClaimer) {
  scratch_claimer claims = scratch.on(one);
  auto const lease = claims.claim<float>(claimed);
  expect_ended(
      [&] {
        set(one, lease.data(), claimed + 1);
        sync(one);
      },
      "kernel .set_floats., argument 0: it wrote at 0x.*, 0 bytes behind ");
}

TEST_F(Overruns, OfFillsAndCopies) {
  auto const lease = scratch.claim<float>(one, claimed);
  auto const other = scratch.claim<float>(one, claimed);
  std::size_t const bytes = claimed * sizeof(float);
  must(cudaMemsetAsync(lease.data(), 0, bytes, one));
  must(cudaMemcpyAsync(lease.data(), other.data(), bytes, cudaMemcpyDefault, one));
  sync(one);
  std::string const what = "0x[0-9a-f]*: its 4001 bytes end 1 bytes behind ";
  expect_ended([&] { must(cudaMemsetAsync(lease.data(), 0, bytes + 1, one)); },
               "a fill of " + what);
  expect_ended(
      [&] {
        static_cast<void>(captured(
            [&](cudaStream_t on) { must(cudaMemsetAsync(lease.data(), 0, bytes + 1, on)); }));
      },
      "a fill of " + what);
  auto const all = scratch.claim(one, bytes);
  auto const copy = [&](void* to, void const* from) {
    must(cudaMemcpyAsync(to, from, bytes + 1, cudaMemcpyDefault, one));
  };
  expect_ended([&] { copy(lease.data(), all->data()); }, "a copy to " + what);
  expect_ended([&] { copy(all->data(), lease.data()); }, "a copy from " + what);
}

TEST_F(Overruns, OfMemoryOfAnAllocator) {
  stream_allocator memory(options(4));
  auto* const data = static_cast<float*>(memory.allocate(one, claimed * sizeof(float)));
  set(one, data, claimed);
  sync(one);
  EXPECT_DEATH(
      {
        set(one, data, claimed + 1);
        sync(one);
      },
      "kernel .set_floats., argument 0: it wrote at 0x.*, 0 bytes behind what its claim of ");
  memory.deallocate(one, data);
}

}  // namespace
}  // namespace escrow::test
