// close_for() names each kind of holder: a lease, an open capture, a graph, an exec, a node's
// share; with capture id, label, count, since when, and where.
#include <gtest/gtest.h>

#include <escrow/graph.hpp>
#include <escrow/nodes.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "belongings.hpp"
#include "capturing.hpp"

template <>
struct escrow::kernel_argument_traits<escrow::test::block> {
  static int* device_value(test::block const& object) { return object.data(); }
};

namespace escrow::test {
namespace {

using clock = std::chrono::steady_clock;

/// A pool without holders, and what a report has to say of the one slot that is out then.
struct pool_in_use : made_first, belongings {
  pool_in_use() {
    end_holders();
    EXPECT_TRUE(own->drain_for(generous));
  }

  std::uint64_t id = 0;
  unsigned line = 0;
  clock::time_point earliest{};
  clock::time_point latest{};

  [[nodiscard]] block_lease claim_captured() {
    id = info_of(stream).id;
    line = __LINE__ + 2;
    earliest = clock::now();
    block_lease claimed = pool->claim(stream.get());
    latest = clock::now();
    return claimed;
  }
  /// A graph that holds the slot and, launched, waits for the flag.
  [[nodiscard]] graph captured() {
    return escrow::capture(stream.get(), [&](stream_ref on) {
      must(launch_wait_flag(on.get(), flag.data()));
      block_lease claimed = claim_captured();
      fill(claimed, on.get(), 1);
    });
  }
  /// A graph built by hand, whose node has a share in the slot.
  [[nodiscard]] graph with_a_share() {
    graph built(*own);
    block_lease claimed = pool->claim(stream.get());
    earliest = clock::now();
    build(built).add(
        kernel_node(kernel(kernel_address(kernel_id::fill)), {}, claimed, block::length, 1));
    latest = clock::now();
    return built;
  }
};

/// What holds the slot, for as long as it is not destroyed.
using holding = std::shared_ptr<void>;

template <class Holder>
[[nodiscard]] holding keep(Holder&& holder) {
  return std::make_shared<std::decay_t<Holder>>(std::forward<Holder>(holder));
}

template <bool is_lease_out>
holding open_capture(pool_in_use& used) {
  auto const open = std::make_shared<capture>(used.stream, cudaStreamCaptureModeGlobal);
  block_lease held = used.claim_captured();
  if (!is_lease_out) held.release();
  return keep(std::pair(open, std::move(held)));
}

holding launched_exec(pool_in_use& used) {
  used.flag.store(0, 1);
  auto const exec = std::make_shared<graph_exec>(used.captured());
  exec->launch(used.stream.get());
  sync(used.stream);
  return exec;
}

holding plain_exec(pool_in_use& used) {
  owned_graph const source{used.captured().detach()};
  return keep(instantiate(source));
}

holding destroyed_exec_in_flight(pool_in_use& used) {
  graph_exec(used.captured()).launch(used.stream.get());
  return {&used.flag, [&used](void*) { used.flag.store(0, 1); }};  // then the launch ends
}

struct one_holder {
  char const* name;
  holding (*hold)(pool_in_use&);
};

class Holders : public testing::TestWithParam<one_holder> {};

TEST_P(Holders, AreNamedByCloseFor) {
  pool_in_use used;
  holding held = GetParam().hold(used);
  auto const all = used.pool->close_for(std::chrono::nanoseconds{0});
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].label, "blocks");
  EXPECT_EQ(all[0].slots, 1u);
  EXPECT_EQ(all[0].capture_id, used.id);
  EXPECT_GE(all[0].since, used.earliest);
  EXPECT_LE(all[0].since, used.latest);
  EXPECT_EQ(all[0].where.line(), used.line);
  std::string const file = used.id == 0 ? "" : __FILE__;
  EXPECT_EQ(all[0].where.file_name(), file);
  held.reset();
  EXPECT_TRUE(used.pool->close_for(generous).empty());
}

INSTANTIATE_TEST_SUITE_P(
    Kind, Holders,
    testing::Values(
        one_holder{"ALease", [](auto& used) { return keep(used.pool->claim(used.stream.get())); }},
        one_holder{"AnOpenCaptureWithALease", &open_capture<true>},
        one_holder{"AnOpenCapture", &open_capture<false>},
        one_holder{"AGraph", [](auto& used) { return keep(used.captured()); }},
        one_holder{"AClone", [](auto& used) { return keep(used.captured().clone()); }},
        one_holder{"AnExec", &launched_exec}, one_holder{"APlainExec", &plain_exec},
        one_holder{"AnExecDestroyedInFlight", &destroyed_exec_in_flight},
        one_holder{"ANodesShare", [](auto& used) { return keep(used.with_a_share()); }}),
    [](auto const& one) { return std::string{one.param.name}; });

TEST(HoldersOfAllKinds, AreNamedApart) {
  pool_in_use used;
  block_lease const leased = used.pool->claim(used.stream.get());
  graph const built = used.with_a_share();
  graph const source = used.captured();
  capture open{used.stream, cudaStreamCaptureModeGlobal};
  used.claim_captured().release();
  auto const all = used.pool->close_for(std::chrono::nanoseconds{0});
  ASSERT_EQ(all.size(), 4u);
  std::uint64_t const ids[] = {source.id(), open.info().id, 0, 0};  // then the share and the lease
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(all[i].capture_id, ids[i]);
    EXPECT_EQ(all[i].slots, 1u);
    EXPECT_EQ(all[i].since == clock::time_point{}, i == 3);
  }
}

}  // namespace
}  // namespace escrow::test
