// Whole computations as graphs that are built by hand, which together with heat_diffusion_test.cpp
// have every kind of node:
//   bisection: if and if-else, in a while;
//   dispatch: switch.
#include <memory>
#include <optional>

#include "build_integration_fixture.hpp"

namespace escrow::test {
namespace {

class Bisection : public build_integration_test {
 protected:
  static constexpr double width = 1e-12;

  // Halves the bracket until it is narrow. An if-else takes the half; an if takes the middle when
  // that is the root, and counts that in cell 0. Returns the node that probes.
  node fill_graph(std::shared_ptr<bracket> const& around, cubic const& function) {
    auto const part = [&](double bracket::*member) {
      return std::shared_ptr<double>(around, &(around.get()->*member));
    };
    auto const low = part(&bracket::low);
    auto const high = part(&bracket::high);
    auto const middle = part(&bracket::middle);
    condition const is_wide = build(*bisect_).make_condition(1);
    body_graph const loop = build(*bisect_).add(while_node(is_wide)).body();
    side_.emplace(loop.make_condition(0));
    hit_.emplace(loop.make_condition(0));
    node const probed =
        loop.add(kernel_node(probe_, {}, side_->get(), hit_->get(), around, function));
    conditional_node const half = probed.add(if_else_node(*side_));
    half.body().add(memcpy_node(low, middle, sizeof(double)));
    half.otherwise().add(memcpy_node(high, middle, sizeof(double)));
    conditional_node const found = half.add(if_node(*hit_));
    node const both =
        found.body().join({found.body().add(memcpy_node(low, middle, sizeof(double))),
                           found.body().add(memcpy_node(high, middle, sizeof(double)))});
    add_to(both, 0, 1);
    found.add(kernel_node(kernel(kernel_address(kernel_id::bisect_go_on)), {}, is_wide.get(),
                          std::shared_ptr<bracket const>(around), width));
    return probed;
  }

  std::optional<graph> bisect_{std::in_place, deleter_};
  kernel const probe_{kernel_address(kernel_id::bisect_probe)};
  std::optional<condition> side_;
  std::optional<condition> hit_;
};

TEST_F(Bisection, FindsRootsWithinTheWidthAndAtOnceWhenItHitsThem) {
  std::shared_ptr<bracket> around = device_memory<bracket>(fate_);
  cubic const wallis{-2, -5};         // its root is the one below
  cubic const dyadic{-1, -0.703125};  // 1.25 is its root, exactly
  cubic const falling{-3, 1};         // between 0 and 1 from above to below
  node const probed = fill_graph(around, wallis);
  std::optional<graph_exec> exec(*bisect_);
  EXPECT_TRUE(exec->is_bare());
  bracket* const place = around.get();
  auto const root_of = [&](double low, double high) {
    upload(place, bracket{low, high, 0});
    run(*exec);
    bracket found{};
    must(cudaMemcpy(&found, place, sizeof(found), cudaMemcpyDeviceToHost));
    EXPECT_LE(found.high - found.low, width);
    return found.low;
  };
  EXPECT_NEAR(root_of(2, 3), 2.0945514815423265, width);
  EXPECT_NEAR(root_of(-8, 64), 2.0945514815423265, width);
  EXPECT_EQ(cells_.load(), 0);
  escrow::set(*exec, probed, kernel_node(probe_, {}, side_->get(), hit_->get(), around, dyadic));
  EXPECT_EQ(root_of(1, 2), 1.25);
  EXPECT_EQ(cells_.load(), 1);
  EXPECT_EQ(root_of(1, 1.5), 1.25);
  EXPECT_EQ(cells_.load(), 2);
  escrow::set(*exec, probed, kernel_node(probe_, {}, side_->get(), hit_->get(), around, falling));
  around.reset();
  bisect_.reset();
  EXPECT_NEAR(root_of(0, 1), 0.3472963553338607, width);
  EXPECT_EQ(cells_.load(), 2);
  expect_kept_by(exec);
}

class Dispatch : public build_integration_test {
 protected:
  static constexpr unsigned cases = 4;

  // Looks at cell 0 and does what it says: 0 fills by a kernel, 1 by a memset, 2 copies, 3 runs a
  // child graph; anything else nothing. Then the memory goes to the cells from 4 on, and cell 1
  // counts.
  void fill_graph(std::shared_ptr<int> const& memory) {
    constexpr std::size_t size = 4 * sizeof(int);
    condition const chosen = build(*dispatch_).make_condition(0);
    node const reset = build(*dispatch_).add(memset_node(memory, {.width = size}));
    conditional_node const what = look(reset, chosen, 0).add(switch_node(chosen, cases));
    what.bodies()[0].add(kernel_node(fill, {.block = {4}}, memory, 4U, 100));
    what.bodies()[1].add(memset_node(memory, {.value = 7, .element_bytes = 4, .width = 4}));
    what.bodies()[2].add(memcpy_node(memory, device_.data(), size));
    graph child(deleter_);
    build(child).add(kernel_node(fill, {.block = {4}}, memory, 3U, 300));
    static_cast<void>(what.bodies()[3].add(child_node(child)));
    node const copied = what.add(memcpy_node(cells_.data() + 4, memory, size));
    add_to(copied, 1, 1);
  }

  std::optional<graph> dispatch_{std::in_place, deleter_};
};

TEST_F(Dispatch, RunsTheCaseThatIsChosenAndNoneForAValueOutOfRange) {
  must(launch_fill(stream_, device_.data(), 4, 200));
  fill_graph(device_memory<int>(fate_, 4));
  std::optional<graph_exec> exec(*dispatch_);
  EXPECT_TRUE(exec->is_bare());
  dispatch_.reset();
  struct outcome {
    int chosen;
    int first;
    int last;
  };
  int launches = 0;
  for (outcome const& each : {outcome{0, 100, 100},
                              {1, 7, 7},
                              {2, 200, 200},
                              {3, 300, 0},
                              {4, 0, 0},
                              {-1, 0, 0},
                              {2, 200, 200},
                              {0, 100, 100}}) {
    cells_.store(0, each.chosen);
    run(*exec);
    EXPECT_EQ(cells_.load(4), each.first) << each.chosen;
    EXPECT_EQ(cells_.load(7), each.last) << each.chosen;
    EXPECT_EQ(cells_.load(1), ++launches);
  }
  expect_kept_by(exec);
}

}  // namespace
}  // namespace escrow::test
