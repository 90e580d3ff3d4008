// SPDX-License-Identifier: Apache-2.0
// A graph, its clones, parents and execs, which CUDA links without a lock, used and destroyed by
// two threads at a time. Without Escrow's lock (graph_lifetime_lock) CUDA corrupts the heap, and
// the simulator ends the process.
#include <escrow/nodes.hpp>
#include <iterator>

#include "stress_world.hpp"

namespace escrow::test {
namespace {

/// A graph, and some of what can be created from it. Each thread has what belongs to it, and may
/// use the original.
struct family {
  // Before the threads meet.
  void clone() { copy = original->clone(); }
  void embed() {
    cudaGraphNode_t const added = parent.emplace().add_child(*original);
    child.emplace(build(*parent).node_of(added));
  }
  void instantiate() { exec.emplace(*original); }
  void instantiate_and_launch() { instantiate(), exec->launch(stream); }
  void instantiate_two() { instantiate(), sibling.emplace(*original); }
  void instantiate_and_update() { clone(), instantiate(), exec->update(*copy); }
  void clone_and_embed() { clone(), embed(); }

  // What they do.
  void end_original() { original.reset(); }
  void end_copy() { copy.reset(); }
  void end_parent() { parent.reset(); }
  void end_exec() { exec.reset(); }
  void end_sibling() { sibling.reset(); }
  void retire_exec() { worker->retire(stream, std::move(exec)); }
  void destroy_node() { first->destroy(); }
  void destroy_child() { child->destroy(); }
  void update_sibling() { sibling->update(*original); }
  void clone_again() { static_cast<void>(original->clone()); }
  void clone_often() {
    for (int i = 0; i < 30; ++i) clone_again();  // longer than the worker takes to wake up
  }
  void instantiate_again() { static_cast<void>(graph_exec(*original)); }
  void embed_again() { static_cast<void>(graph().add_child(*original)); }
  void change_nodes() {  // for which CUDA needs no lock
    node const added = build(*original).add(host_node([] {}));
    added.after(*first);
    added.set(host_node([] {}));
    static_cast<void>(build(*original).add(if_node(build(*original).make_condition(1))));
  }

  std::optional<graph> original = std::nullopt;
  std::optional<node> first = std::nullopt;  // of the original
  std::optional<graph> copy = std::nullopt;
  std::optional<graph> parent = std::nullopt;
  std::optional<node> child = std::nullopt;  // of the parent
  std::optional<graph_exec> exec = std::nullopt;
  std::optional<graph_exec> sibling = std::nullopt;
  cudaStream_t stream = nullptr;
  deleter* worker = nullptr;
};

/// What two threads do to one family at the same time.
struct contest {
  char const* name;
  void (family::*make)();
  void (family::*one)();
  void (family::*other)();
};
using f = family;
constexpr contest contests[] = {
    {"ExecAndGraphEnd", &f::instantiate, &f::end_exec, &f::end_original},
    {"LaunchedExecAndGraphEnd", &f::instantiate_and_launch, &f::end_exec, &f::end_original},
    {"ExecsEnd", &f::instantiate_two, &f::end_exec, &f::end_sibling},
    {"ExecEndsOnTheWorkerAndGraphIsCloned", &f::instantiate, &f::retire_exec, &f::clone_often},
    {"ExecEndsAndItsSiblingIsUpdated", &f::instantiate_two, &f::end_exec, &f::update_sibling},
    {"ExecEndsAndGraphIsCloned", &f::instantiate, &f::end_exec, &f::clone_again},
    {"ExecEndsAndGraphIsInstantiated", &f::instantiate, &f::end_exec, &f::instantiate_again},
    {"ExecEndsAndGraphIsEmbedded", &f::instantiate, &f::end_exec, &f::embed_again},
    {"ExecEndsAndANodeOfTheGraphIsDestroyed", &f::instantiate, &f::end_exec, &f::destroy_node},
    {"ExecEndsAndNodesOfTheGraphChange", &f::instantiate, &f::end_exec, &f::change_nodes},
    {"CloneEndsAndNodesOfTheGraphChange", &f::clone, &f::end_copy, &f::change_nodes},
    {"UpdatedExecAndTheOtherGraphEnd", &f::instantiate_and_update, &f::end_exec, &f::end_copy},
    {"CloneAndGraphEnd", &f::clone, &f::end_copy, &f::end_original},
    {"CloneEndsAndGraphIsClonedAgain", &f::clone, &f::end_copy, &f::clone_again},
    {"CloneEndsAndANodeOfTheGraphIsDestroyed", &f::clone, &f::end_copy, &f::destroy_node},
    {"CloneAndParentEnd", &f::clone_and_embed, &f::end_copy, &f::end_parent},
    {"ParentAndGraphEnd", &f::embed, &f::end_parent, &f::end_original},
    {"ParentEndsAndGraphIsInstantiated", &f::embed, &f::end_parent, &f::instantiate_again},
    {"ChildNodeIsDestroyedAndGraphEnds", &f::embed, &f::destroy_child, &f::end_original},
};

/// A second thread, which does its part once a round.
class opponent {
 public:
  explicit opponent(std::function<void()> part) : part_(std::move(part)) {}
  opponent(opponent&&) = delete;
  ~opponent() { is_over_.store(true, std::memory_order_release); }

  /// Does `mine` meanwhile; false if that takes too long.
  [[nodiscard]] bool meet(std::function<void()> const& mine) {
    int const round = begun_.load(std::memory_order_relaxed) + 1;
    begun_.store(round, std::memory_order_release);
    // So that they meet at another point each time.
    for (int i = round % 97 * 8; i != 0; --i) std::atomic_signal_fence(std::memory_order_seq_cst);
    mine();
    auto const until = std::chrono::steady_clock::now() + generous;
    while (ended_.load(std::memory_order_acquire) < round) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::yield();
    }
    return true;
  }

 private:
  void run() {
    for (int round = 1;; ++round) {
      // Busy: the shorter the way to the call, the more often both are in it.
      while (begun_.load(std::memory_order_acquire) < round) {
        if (is_over_.load(std::memory_order_acquire)) return;
        std::this_thread::yield();
      }
      part_();
      ended_.store(round, std::memory_order_release);
    }
  }

  std::function<void()> part_;
  std::atomic<int> begun_{0};
  std::atomic<int> ended_{0};
  std::atomic<bool> is_over_{false};
  std::jthread thread_{[this] { run(); }};
};

class FamilyStress : public world, public testing::WithParamInterface<contest> {
 protected:
  // Both hold something, as graphs of libraries do.
  void capture_original() {
    cudaGraphNode_t first = nullptr;
    members.original = captured([&](cudaStream_t on) {
      must(launch_tiny(on));
      first = last_node(on);
      must(launch_add(on, cells.data(), 1));
      worker->retire(on, std::make_shared<int>());
    });
    members.first.emplace(build(*members.original).node_of(first));
  }
  void build_original() {
    members.original.emplace(*worker);
    auto const kept = std::make_shared<int>();
    members.first.emplace(build(*members.original).add(host_node([kept] { ++*kept; })));
  }
  /// The node that was captured last.
  [[nodiscard]] static cudaGraphNode_t last_node(cudaStream_t stream) {
    cudaStreamCaptureStatus status{};
    cudaGraphNode_t const* found = nullptr;
    std::size_t count = 0;
    must(cudaStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &found, nullptr, &count));
    must(count == 1, "the stream waits for one node");
    return *found;
  }

  family members;
};

TEST_P(FamilyStress, TwoThreadsMayUseAndDestroyWhatCudaLinks) {
  constexpr int rounds_min = 10;
  contest const& each = GetParam();
  opponent second([&] { (members.*each.other)(); });
  auto const until = std::chrono::steady_clock::now() + stress_time() / std::size(contests);
  for (int round = 0; round < rounds_min || std::chrono::steady_clock::now() < until; ++round) {
    members.stream = two;
    members.worker = worker.get();
    round % 2 == 0 ? capture_original() : build_original();
    (members.*each.make)();
    ASSERT_TRUE(second.meet([&] { (members.*each.one)(); }));
    members = {};
  }
  sync(two);
  EXPECT_TRUE(drained());
}

INSTANTIATE_TEST_SUITE_P(While, FamilyStress, testing::ValuesIn(contests),
                         [](auto const& given) { return given.param.name; });

}  // namespace
}  // namespace escrow::test
