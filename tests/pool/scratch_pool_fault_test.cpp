// A scratch pool that runs out of memory while it closes.
#include <gtest/gtest.h>

#include <new>

#include "allocation_watch.hpp"
#include "escrow/core/error.hpp"
#include "escrow/pool/scratch_pool.hpp"
#include "handles.hpp"

namespace escrow::test {
namespace {

TEST(ScratchPoolFault, IsClosedForAllSizesThoughItCannotSayWhoHoldsWhat) {
  owned_stream const stream = make_stream();
  scratch_pool pool;
  auto const small = pool.claim(stream.get(), 256);
  auto const large = pool.claim(stream.get(), 4096);
  {
    allocation_watch const watch(1, allocation_watch::for_ever);
    EXPECT_THROW(static_cast<void>(pool.close_for(std::chrono::nanoseconds(0))), std::bad_alloc);
  }
  for (std::size_t const bytes : {256U, 4096U, 1'000'000U}) {
    EXPECT_THROW(static_cast<void>(pool.claim(stream.get(), bytes)), usage_error) << bytes;
  }
}

}  // namespace
}  // namespace escrow::test
