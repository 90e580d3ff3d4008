// SPDX-License-Identifier: Apache-2.0
// A device_buffer that a launch or a node gets by its name: the destructor waits for eager work,
// and a graph has a share of the memory.
#include <escrow/pool/device_memory.hpp>

#include "call_elsewhere.hpp"
#include "nodes_world.hpp"

namespace escrow::test {
namespace {

class NamedBuffer : public nodes_world {
 protected:
  using buffer = device_buffer<int>;

  // Sets the buffer to 5, and copies it to a cell.
  void enqueue(stream_ref on, buffer const& its) {
    launch(on, fill, {}, its, std::size_t{1}, 5);
    launch(on, copy, {}, cells.data(), its, std::size_t{1});
  }
  void expect_runs(graph_exec& exec) {
    cells.store(0, 0);
    exec.launch(one);
    sync(one);
    EXPECT_EQ(cells.load(), 5);
  }
};

TEST_F(NamedBuffer, IsNotKeptByALaunchButItsEndWaitsForIt) {
  std::optional<buffer> its(1);
  auto const before = deleter::global().stats().reclaimed;
  launch(one, wait_flag, {}, flag.get());
  enqueue(one, *its);
  call_elsewhere const end([&] {
    its.reset();
    return cudaSuccess;
  });
  EXPECT_TRUE(end.stays_blocked());
  flag.raise();
  EXPECT_TRUE(end.succeeds_soon());
  sync(one);
  EXPECT_EQ(cells.load(), 5);
  EXPECT_TRUE(deleter::global().drain_for(generous));
  EXPECT_EQ(deleter::global().stats().reclaimed, before);
}

TEST_F(NamedBuffer, OfACaptureIsKeptByTheGraph) {
  std::optional<buffer> its(1);
  std::optional<graph_exec> exec;
  exec.emplace(escrow::capture(one.get(), [&](stream_ref on) { enqueue(on, *its); }));
  EXPECT_EQ(exec->held().owners, 2U);  // a share for each launch
  expect_runs(*exec);
  its.reset();
  buffer const another(1);  // gets other memory
  launch(one, fill, {}, another, std::size_t{1}, 6);
  expect_runs(*exec);
}

TEST_F(NamedBuffer, OfANodeIsKeptByTheGraphAndItsExecs) {
  std::optional<buffer> its(1);
  build(*built)
      .add(kernel_node(fill, {}, *its, std::size_t{1}, 5))
      .add(kernel_node(copy, {}, cells.data(), *its, std::size_t{1}));
  graph_exec exec(*built);
  built.reset();
  its.reset();
  buffer const another(1);
  launch(one, fill, {}, another, std::size_t{1}, 6);
  expect_runs(exec);
}

TEST_F(NamedBuffer, ThatAGraphHasWaitsForEagerWorkAtItsEnd) {
  std::optional<buffer> its(1);
  std::optional<graph> made = escrow::capture(one.get(), [&](stream_ref on) { enqueue(on, *its); });
  launch(one, wait_flag, {}, flag.get());
  enqueue(one, *its);
  call_elsewhere const end([&] {
    its.reset();
    made.reset();
    return cudaSuccess;
  });
  EXPECT_TRUE(end.stays_blocked());
  flag.raise();
  EXPECT_TRUE(end.succeeds_soon());
  sync(one);
  EXPECT_EQ(cells.load(), 5);
}

TEST_F(NamedBuffer, OfADestructorThatEscrowRunsWaitsForNothing) {
  struct owner {
    buffer its{1};
  };
  auto owned = std::make_unique<owner>();
  graph_exec exec(escrow::capture(one.get(), [&](stream_ref on) { enqueue(on, owned->its); }));
  launch(two, wait_flag, {}, flag.get());
  deleter::global().retire(one, std::move(owned));
  EXPECT_TRUE(deleter::global().drain_for(generous));
  expect_runs(exec);
}

TEST_F(NamedBuffer, ThatIsMovedInIsTheLaunchs) {
  buffer its(1);
  launch(one, fill, {}, std::move(its), std::size_t{1}, 5);
  EXPECT_FALSE(its);
  EXPECT_THROW(launch(one, fill, {}, its, std::size_t{1}, 5), usage_error);
}

TEST_F(NamedBuffer, ThatEndsInACallbackWhileAGraphHasItIsLeakedAndTold) {
  struct owner {
    buffer its{1};
  };
  error_log told;
  deleter::global().set_on_error([&](std::exception const& error) { told.add(error.what()); });
  auto* const owned = new owner;
  graph_exec exec(escrow::capture(one.get(), [&](stream_ref on) { enqueue(on, owned->its); }));
  must(cudaLaunchHostFunc(
      one, [](void* its) { delete static_cast<owner*>(its); }, owned));
  sync(one);
  expect_runs(exec);
  EXPECT_NE(told.all().find("a graph has the memory, too, and work may use it: it is leaked"),
            std::string::npos);
  deleter::global().set_on_error({});
}

}  // namespace
}  // namespace escrow::test
