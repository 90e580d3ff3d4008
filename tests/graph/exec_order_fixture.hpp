// What the tests of turns share: launches that can be seen to overlap, or not.
#pragma once

#include "hoist_fixture.hpp"

namespace escrow::test {

/// A test with graphs whose launches say when they begin and end.
class exec_order_test : public hoist_test {
 protected:
  // A graph that uses the cargo's slot: each launch counts itself as started, waits for the flag,
  // and counts itself as ended.
  [[nodiscard]] graph captured_in_turns(cargo& taken) {
    return escrow::capture(one, [&](stream_ref stream) {
      must(launch_add(stream.get(), started(), 1));
      must(launch_wait_flag(stream.get(), flag.get()));
      load(taken, stream.get());
      must(launch_add(stream.get(), ended(), 1));
    });
  }
  // The same without waiting for the flag.
  [[nodiscard]] graph captured_freely(cargo& taken) {
    return escrow::capture(one, [&](stream_ref stream) {
      must(launch_add(stream.get(), started(), 1));
      load(taken, stream.get());
      must(launch_add(stream.get(), ended(), 1));
    });
  }
  [[nodiscard]] int* started() { return cells.data() + 1; }
  [[nodiscard]] int* ended() { return cells.data() + 2; }
  [[nodiscard]] bool have_started(int count) {
    return wait_until([&] { return cells.load(1) == count; });
  }
  [[nodiscard]] bool have_ended(int count) {
    return wait_until([&] { return cells.load(2) == count; });
  }

  // `first` holds the flag in `two`; a launch of `second` in `three` starts only after it.
  void expect_turns(graph_exec& first, graph_exec& second) {
    first.launch(two);
    ASSERT_TRUE(have_started(1));
    second.launch(three);
    expect_that_the_second_waits();
  }
  void expect_that_the_second_waits() {
    EXPECT_TRUE(stays_false([&] { return cells.load(1) > 1; })) << "the launches overlap";
    EXPECT_EQ(cells.load(2), 0);
    flag.raise();
    EXPECT_TRUE(have_ended(2));
    EXPECT_EQ(cells.load(1), 2);
  }
};

}  // namespace escrow::test
