// In steady state a pool allocates nothing, and asks of CUDA no more than it must.
#include "allocation_watch.hpp"
#include "pool_fixture.hpp"

namespace escrow::test {
namespace {

class SteadyState : public pool_test {};

constexpr int cycles = 20'000;  // a container that grows has done so many times

// Returns how many allocations `cycle` made in all its runs after the warm-up.
template <class Cycle>
std::uint64_t allocations_of(cudaStream_t stream, Cycle cycle) {
  for (int i = 0; i < 1000; ++i) cycle(i);
  sync(stream);
  allocation_watch const watch;
  for (int i = 0; i < cycles; ++i) {
    cycle(i);
    if (i % 256 == 0) sync(stream);
  }
  return watch.count();
}

TEST_F(SteadyState, ClaimAndReleaseOnOneStreamAllocateNothing) {
  owned_stream const stream = make_stream();
  block_pool pool = make_pool(4);
  EXPECT_EQ(allocations_of(stream, [&](int) { pool.claim(stream).release(); }), 0u);
  EXPECT_EQ(made(), 1);
}

TEST_F(SteadyState, PassingASlotBetweenStreamsAllocatesNothing) {
  owned_stream const one = make_stream();
  owned_stream const other = make_stream();
  block_pool pool = make_pool(1);
  EXPECT_EQ(allocations_of(one,
                           [&](int i) {
                             pool.claim(i % 2 == 0 ? one : other).release();
                             if (i % 256 == 0) sync(other);
                           }),
            0u);
}

TEST_F(SteadyState, UseOnFurtherStreamsAllocatesNothing) {
  owned_stream const one = make_stream();
  owned_stream const other = make_stream();
  block_pool pool = make_pool(2);
  EXPECT_EQ(allocations_of(one,
                           [&](int i) {
                             block_lease held = pool.claim(one);
                             held.record_stream(other);
                             held.release();
                             if (i % 256 == 0) sync(other);
                           }),
            0u);
}

TEST_F(SteadyState, ThePoolNeverGrowsBeyondWhatOverlaps) {
  std::vector<owned_stream> streams(4);
  for (owned_stream& stream : streams) stream = make_stream();
  block_pool pool = make_pool(64);
  for (int i = 0; i < 10'000; ++i) {
    cudaStream_t const stream = streams[static_cast<std::size_t>(i) % 4];
    block_lease const first = pool.claim(stream);
    block_lease const second = pool.claim(stream);
  }
  EXPECT_LE(made(), 8);
}

}  // namespace
}  // namespace escrow::test
