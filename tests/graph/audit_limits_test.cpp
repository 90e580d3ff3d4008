// SPDX-License-Identifier: Apache-2.0
// What looks like an address that a graph does not keep, and is none.
#include "audit_world.hpp"

namespace escrow::test {
namespace {

class AuditLimits : public audit_world {};

TEST_F(AuditLimits, TakesNoEndForAnAddress) {
  auto const use_range = [](cudaStream_t on, int* begin, std::size_t count) {
    must(kernel_call(kernel_id::two_pointers, begin, begin + count).launch(on));
    must(cudaMemcpyAsync(begin + count, begin, 0, cudaMemcpyDefault, on));
  };
  scratch_pool grouped(in_group());
  for (std::size_t const count : {std::size_t{1024}, 2 * mebibyte / sizeof(int)}) {
    graph const uses = captured(
        [&](cudaStream_t on) { use_range(on, grouped.claim<int>(on, count).data(), count); });
    expect_healthy(uses);
  }
  // Two slots without a gap between them.
  device_block const all(512);
  scratch_pool without_gaps({.slots_max = 4}, {.source = pieces_of(all)});
  std::optional first(without_gaps.claim<int>(one, values));
  auto const second = without_gaps.claim<int>(one, values);
  int* const begin = first->data();
  ASSERT_EQ(second.data(), begin + values);
  first.reset();
  sync(one);
  graph const uses = captured([&](cudaStream_t on) {
    auto const own = without_gaps.claim<int>(on, values);
    EXPECT_EQ(own.data(), begin);
    use_range(on, own.data(), values);
  });
  expect_healthy(uses);
  std::vector<audit_finding> const found = audit(captured_use(second.data()));
  ASSERT_EQ(found.size(), 1U) << describe(found);
  EXPECT_EQ(found.front().address, second.data());
}

TEST_F(AuditLimits, KnowsWhatAPooledObjectHasNow) {
  struct workspace {
    device_buffer<int> buffer{values};
  };
  resource_pool<workspace> pool(options(4), [] { return workspace(); });
  std::optional<device_buffer<int>> taken;
  {
    auto mine = pool.claim(one.get());
    taken.emplace(std::exchange(mine->buffer, device_buffer<int>(values)));
    auto other = pool.claim(one.get());
    std::swap(mine->buffer, other->buffer);
  }
  expect_healthy(captured_use(taken->data()));
  expect_healthy(
      captured([&](cudaStream_t on) { must(launch_add(on, pool.claim(on)->buffer.data(), 1)); }));
  // A buffer that is pooled itself.
  resource_pool<device_buffer<int>> buffers(options(4), [] { return device_buffer<int>(values); });
  int* stale = nullptr;
  {
    auto held = buffers.claim(one.get());
    stale = held->data();
    taken.emplace(std::exchange(*held, device_buffer<int>(values)));
  }
  expect_healthy(captured_use(stale));
}

}  // namespace
}  // namespace escrow::test
