// Graphs and execs by the hundred thousand: what is kept of those that are gone must not grow.
#include <malloc.h>

#include <escrow/detail/reference_set.hpp>
#include <escrow/graph.hpp>
#include <functional>

#include "../pool/capture_fixture.hpp"
#include "sanitizers.hpp"

// Of the sanitizers' runtimes; not every compiler brings the header.
extern "C" std::size_t __sanitizer_get_current_allocated_bytes();

namespace escrow::test {
namespace {

// Enough that what caches take once, up to some 40 KB by chance, is a few bytes a round.
constexpr int many = is_sanitized ? 12'000 : 100'000;
constexpr int some = is_sanitized ? 12'000 : 20'000;

// Bytes of the heap that are in use.
std::size_t heap_bytes() {
  if constexpr (is_sanitized) {
    return __sanitizer_get_current_allocated_bytes();
  } else {
    return mallinfo2().uordblks;
  }
}

class GraphGrowth : public captured_pool_test {
 protected:
  [[nodiscard]] block_pool waiting_pool(std::size_t slots) {
    pool_options chosen = options(slots);
    chosen.host_wait_max = generous;  // graphs that have just gone give back a little later
    return make_pool(chosen);
  }
  [[nodiscard]] graph captured(block_pool& pool) {
    return escrow::capture(stream, [&](stream_ref on) {
      library_work(pool, on.get(), 1, mismatches);
      worker->retire(on, std::make_shared<int>(1));
    });
  }

  // Does `round` many times, after a tenth as often for the caches, and expects that the heap does
  // not grow by as much as a few bytes a round.
  void expect_no_growth(int rounds, std::function<void()> const& round) {
    for (int i = 0; i < rounds / 10; ++i) round();
    settle();
    std::size_t const before = heap_bytes();
    for (int i = 0; i < rounds; ++i) {
      round();
      if (i % 64 == 0) settle();
    }
    settle();
    std::size_t const after = heap_bytes();
    EXPECT_LT(after, before + static_cast<std::size_t>(rounds) * 8)
        << (after - before) / static_cast<std::size_t>(rounds) << " bytes a round";
  }
  void settle() {
    test::sync(stream);
    ASSERT_TRUE(drained());
  }
  void expect_nothing_kept(block_pool& pool) {
    EXPECT_TRUE(wait_until([&] { return drained() && worker->stats().in_graphs == 0; }));
    EXPECT_EQ(pool.stats().in_graphs, 0u);
    EXPECT_TRUE(graph_registry::global().is_empty());
  }

  owned_stream stream = make_stream();
};

TEST_F(GraphGrowth, CapturesInstantiatedLaunchedAndDestroyedLeaveNothing) {
  block_pool pool = waiting_pool(8);
  expect_no_growth(many, [&] {
    graph const source = captured(pool);
    graph_exec exec(source);
    exec.launch(stream);
  });
  expect_nothing_kept(pool);
}

TEST_F(GraphGrowth, HoistedReferencesLeaveNothing) {
  block_pool pool = waiting_pool(8);
  expect_no_growth(some, [&] {
    graph const source = captured(pool);
    hoist(source).release();
  });
  expect_nothing_kept(pool);
}

TEST_F(GraphGrowth, ExecsOfAGraphThatStaysLeaveNothing) {
  block_pool pool = waiting_pool(2);
  {
    graph const source = captured(pool);
    expect_no_growth(some, [&] {
      graph_exec exec(source);
      exec.launch(stream);
    });
  }
  expect_nothing_kept(pool);
}

TEST_F(GraphGrowth, UpdatesOfAnExecThatStaysLeaveNothing) {
  block_pool pool = waiting_pool(8);
  {
    graph_exec exec(captured(pool));
    expect_no_growth(some, [&] {
      exec.update(captured(pool));
      exec.launch(stream);
    });
  }
  expect_nothing_kept(pool);
}

// AddressSanitizer keeps freed memory from being used again, and with it the simulator's handles.
constexpr bool are_handles_reused = !built_with_asan;

TEST_F(GraphGrowth, ClonesOfAGraphThatStaysLeaveNothing) {
  if (!are_handles_reused) GTEST_SKIP() << "handles are not used again here";
  block_pool pool = waiting_pool(2);
  {
    graph const source = captured(pool);
    expect_no_growth(some, [&] { static_cast<void>(source.clone()); });
  }
  expect_nothing_kept(pool);
}

TEST_F(GraphGrowth, ParentsOfAGraphThatStaysLeaveNothing) {
  if (!are_handles_reused) GTEST_SKIP() << "handles are not used again here";
  block_pool pool = waiting_pool(2);
  {
    graph const source = captured(pool);
    expect_no_growth(some, [&] {
      graph parent;
      parent.add_child(source);
      graph_exec exec(parent);
      exec.launch(stream);
    });
  }
  expect_nothing_kept(pool);
}

}  // namespace
}  // namespace escrow::test
