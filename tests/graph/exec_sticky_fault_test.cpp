// A device that fails for good under every operation of graphs and execs: nothing hangs, and
// everything comes back, since a lost device runs nothing.
#include "exec_scenarios.hpp"

namespace escrow::test {
namespace {

class ExecStickyFault : public testing::TestWithParam<exec_scenario> {
 protected:
  void TearDown() override { sim::clear_faults(); }
  void note_what_is_alive() {
    sim::counts const now = sim::alive();
    before_ = now.graphs + now.execs + now.user_objects;
  }

  [[nodiscard]] static bool acts(exec_world& world) {
    try {
      GetParam().act(world);
      return true;
    } catch (std::exception const&) {
      return false;
    }
  }

  void expect_end(exec_world& world) const {
    world.end_copies();
    world.source.reset();
    world.exec.reset();
    world.rival.reset();
    end_handle(world);
    world.pool.reset();
    sim::run_until_idle();
    EXPECT_TRUE(world.worker->drain_for(generous)) << "drain() hangs";
    for (watched_owner const& each : world.owners) EXPECT_LE(each.times(), 1);
    int lost = world.counts.alive();
    for (watched_owner const& each : world.owners) lost += each.is_gone() ? 0 : 1;
    // The simulator fails a call without effect, which is then not tried again: what a graph or a
    // user object that was not let go holds is no loss of ours.
    sim::counts const now = sim::alive();
    bool const is_refused = now.graphs + now.execs + now.user_objects != before_;
    if (!is_refused) {
      EXPECT_EQ(lost != 0, world.worker->stats().held != 0) << lost << " things are kept";
    }
    EXPECT_EQ(sim::calls_in_callbacks(), 0u);
  }

  // A handle whose work is over for good is let go of.
  static void end_handle(exec_world& world) {
    if (!world.handle) return;
    try {
      world.handle->release();
    } catch (usage_error const&) {
      // It was released before.
    }
    world.handle.reset();
  }

 private:
  std::size_t before_ = 0;
};

TEST_P(ExecStickyFault, BeforeTheOperationHangsNothingAndGivesAllBack) {
  note_what_is_alive();
  exec_world world;
  GetParam().prepare(world);
  sim::fail_device(0, cudaErrorIllegalAddress);
  static_cast<void>(acts(world));
  expect_end(world);
}

TEST_P(ExecStickyFault, AfterTheOperationHangsNothingAndGivesAllBack) {
  note_what_is_alive();
  exec_world world;
  GetParam().prepare(world);
  ASSERT_TRUE(acts(world));
  sim::fail_device(0, cudaErrorIllegalAddress);
  expect_end(world);
}

TEST_P(ExecStickyFault, OfOneCallLosesNothing) {
  // The fault shows at the n-th call, and from then on.
  for (std::uint64_t n = 1; n < 200; ++n) {
    SCOPED_TRACE("call " + std::to_string(n));
    note_what_is_alive();
    exec_world world;
    GetParam().prepare(world);
    std::uint64_t const before = sim::calls();
    sim::fail_nth(n, cudaErrorIllegalAddress);
    bool const done = acts(world);
    std::uint64_t const made = sim::calls() - before;
    sim::clear_faults();
    sim::fail_device(0, cudaErrorIllegalAddress);
    expect_end(world);
    sim::clear_faults();
    if (HasFailure()) return;
    if (done && made < n) return;
  }
  FAIL() << "the operation has no end";
}

std::string name_of(testing::TestParamInfo<exec_scenario> const& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Every, ExecStickyFault, testing::ValuesIn(exec_scenarios()), name_of);

}  // namespace
}  // namespace escrow::test
