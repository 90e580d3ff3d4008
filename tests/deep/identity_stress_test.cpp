// Plain handles of graphs are identified beside a thread that synchronizes the device in a loop:
// no graph is lost, no call of that thread fails, and what the graphs hold is found each time.
#include <gtest/gtest.h>

#include <escrow/graph.hpp>
#include <vector>

#include "build_graph.hpp"
#include "capturing.hpp"
#include "deep.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "owners.hpp"
#include "sanitizers.hpp"
#include "synchronizing_thread.hpp"

namespace escrow::test {
namespace {

constexpr int graph_count = 16;

class IdentityStress : public testing::Test {
 protected:
  IdentityStress() {
    // Before the device is synchronized: that kills each capture (measured).
    for (int i = 0; i < graph_count; ++i) {
      capture made{stream, cudaStreamCaptureModeThreadLocal};
      worker.retire(stream.get(), std::make_unique<int>(i));
      must(launch_tiny(stream));
      must(made.end());
      plain.push_back(std::move(made.graph()));
    }
  }

  // What plain handles are given to: an exec, an exec's update, a graph that is asked what it
  // holds.
  void use(owned_graph& handle, int i) {
    graph_exec exec(handle.get());
    if (!exec.is_bare() || exec.held().owners != 1) ++wrong;
    if (i % 16 == 0) {
      exec.update(handle.get());
      exec.launch(stream.get());
    }
    graph ours(handle.release());
    if (ours.held().owners != 1) ++wrong;
    *handle.out() = ours.detach();
  }

  owned_stream stream = make_stream();
  deleter worker;
  std::vector<owned_graph> plain;
  int wrong = 0;
};

TEST_F(IdentityStress, NothingIsHarmedBesideAThreadThatSynchronizesTheDevice) {
  synchronizing_thread other;
  int const wanted = is_sanitized ? 500 : deep_size(2'000, 100'000);
  for (int i = 0; i < wanted; ++i) use(plain[static_cast<std::size_t>(i % graph_count)], i);
  other.stop();
  EXPECT_EQ(other.failed(), 0);
  EXPECT_GT(other.synchronized(), 0);
  EXPECT_EQ(wrong, 0);
  for (auto const& each : plain) EXPECT_EQ(node_count(each), 1U);
  figures found("identity_stress");
  found.add("uses of plain handles", wanted);
  found.add("synchronizations of the device", other.synchronized());
  found.add("of these failed", other.failed());
  found.write();
}

}  // namespace
}  // namespace escrow::test
