// Parking: a sharing group's memory goes back to the device, and its execs launch on afterwards.
#include "arena_world.hpp"

namespace escrow::test {
namespace {

class GroupPark : public arena_world {
 protected:
  scratch_pool& scratch() {
    if (!pool) pool.emplace(in_group());
    return *pool;
  }
  void TearDown() override {
    pool.reset();
    arena_world::TearDown();
  }
  std::optional<scratch_pool> pool;
};

TEST_F(GroupPark, ExecsLaunchOnAfterwards) {
  graph_exec decode(
      captured([&](cudaStream_t on) { use_scratch(scratch(), on, 1, 8 * mebibyte); }));
  for (int i = 0; i < 5; ++i) {
    decode.launch(two);
    EXPECT_EQ(group->park(), 8 * mebibyte);
    EXPECT_EQ(mebibytes(), 0U);
    EXPECT_EQ(group->unpark(), 8 * mebibyte);
    EXPECT_EQ(mebibytes(), 8U);
  }
  decode.launch(three);
  sync_all();
}

}  // namespace
}  // namespace escrow::test
