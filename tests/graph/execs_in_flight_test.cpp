// Many execs that were destroyed in flight, while a destructor blocks the worker: claims ask about
// each of them if they need to, and not otherwise.
#include <algorithm>
#include <escrow/sim.hpp>
#include <string_view>

#include "lifetime_fixture.hpp"

namespace escrow::test {
namespace {

class ExecsInFlight : public lifetime_test {
 protected:
  static constexpr int many = 40;

  void block_worker() {
    worker->retire(probe(make_blocking()));
    ASSERT_TRUE(wait_until([this] { return is_blocking.load(); }));
  }
  // Each with a slot.
  void launch_and_destroy(block_pool& pool, int execs, pinned_flag const& until,
                          cudaStream_t stream) {
    for (int i = 0; i < execs; ++i) {
      graph_exec exec(captured([&](cudaStream_t on) {
        block_lease const held = pool.claim(on);
        must(launch_wait_flag(on, until.get()));
      }));
      exec.launch(stream);
    }
  }
};

TEST_F(ExecsInFlight, DoNotHideTheSlotOfALaterOneThatIsDone) {
  block_pool pool = make_pool(many + 1);
  block_worker();
  pinned_flag last;
  launch_and_destroy(pool, many, flag, two);
  launch_and_destroy(pool, 1, last, three);
  EXPECT_FALSE(pool.try_claim(asking).has_value());
  last.raise();
  sync(three);
  EXPECT_TRUE(pool.try_claim(asking).has_value());
  may_end.store(true);
  flag.raise();  // freeing the other one waits for the device
}

TEST_F(ExecsInFlight, AreNotAskedAboutWhereTheCaptureHasASlot) {
  block_pool pool = make_pool(many + 1);
  block_worker();
  launch_and_destroy(pool, many, flag, two);
  capture captured{one, cudaStreamCaptureModeGlobal};
  library_work(pool, one, 1, mismatches);
  sim::start_recording();
  library_work(pool, one, 1, mismatches);
  auto const calls = sim::stop_recording();
  EXPECT_EQ(std::ranges::count(calls, std::string_view("cudaEventQuery"),
                               [](auto const& call) { return std::string_view(call.api); }),
            0);
  must(captured.end());
  may_end.store(true);
}

}  // namespace
}  // namespace escrow::test
