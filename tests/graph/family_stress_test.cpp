// Graphs and what is made of them, ended by several threads at a time: each is its owner's alone.
// Without turns (graph_lifetime_lock) CUDA corrupts the heap, and the simulator ends the process.
// ESCROW_STRESS_SECONDS makes it last longer.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <escrow/deleter.hpp>
#include <escrow/graph.hpp>
#include <escrow/nodes.hpp>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <thread>

#include "../deleter/stress_time.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "node_queries.hpp"
#include "wait_until.hpp"

namespace escrow::test {
namespace {

/// A graph, and some of what can be made of it.
struct family {
  cudaStream_t stream = nullptr;
  std::optional<graph> original = std::nullopt;
  std::optional<graph> copy = std::nullopt;
  std::optional<graph> parent = std::nullopt;
  std::optional<graph_exec> exec = std::nullopt;
  std::optional<graph_exec> sibling = std::nullopt;
};

/// What two threads do to one family at the same time.
struct duel {
  char const* name;
  void (*make)(family&);
  void (*one)(family&);
  void (*other)(family&);
};

// For one thread each: what belongs to one, and what is made of the original, which is one's own.
void clone(family& of) {
  of.copy = of.original->clone();
}
void embed(family& of) {
  of.parent.emplace().add_child(*of.original);
}
void instantiate(family& of) {
  of.exec.emplace(*of.original);
}
void instantiate_and_launch(family& of) {
  instantiate(of);
  of.exec->launch(stream_ref(of.stream));
}
void instantiate_two(family& of) {
  of.exec.emplace(*of.original);
  of.sibling.emplace(*of.original);
}
void instantiate_updated(family& of) {
  clone(of);
  of.exec.emplace(*of.original);
  of.exec->update(*of.copy);
}
void clone_and_embed(family& of) {
  clone(of);
  embed(of);
}
void end_original(family& of) {
  of.original.reset();
}
void end_copy(family& of) {
  of.copy.reset();
}
void end_parent(family& of) {
  of.parent.reset();
}
void end_exec(family& of) {
  of.exec.reset();
}
void end_sibling(family& of) {
  of.sibling.reset();
}
void retire_exec(family& of) {
  deleter::global().retire(stream_ref(of.stream), std::move(of.exec));
}
void update_sibling(family& of) {
  of.sibling->update(*of.original);
}
void clone_again(family& of) {
  static_cast<void>(of.original->clone());
}
void clone_often(family& of) {
  for (int i = 0; i < 30; ++i) clone_again(of);  // longer than the worker takes to wake up
}
void instantiate_again(family& of) {
  static_cast<void>(graph_exec(*of.original));
}
void embed_again(family& of) {
  static_cast<void>(graph().add_child(*of.original));
}
void destroy_node(family& of) {
  nodes_in(*of.original).front().destroy();
}
// What needs no turn.
void change_nodes(family& of) {
  node const first = nodes_in(*of.original).front();
  node const added = build(*of.original).add(host_node([] {}));
  added.after(first);
  added.set(host_node([] {}));
  static_cast<void>(build(*of.original).add(if_node(build(*of.original).make_condition(1))));
}
void destroy_child(family& of) {
  nodes_in(*of.parent).front().destroy();
}

constexpr duel duels[] = {
    {"ExecAndGraphEnd", instantiate, end_exec, end_original},
    {"LaunchedExecAndGraphEnd", instantiate_and_launch, end_exec, end_original},
    {"ExecsEnd", instantiate_two, end_exec, end_sibling},
    {"ExecEndsOnTheWorkerAndGraphIsCloned", instantiate, retire_exec, clone_often},
    {"ExecEndsAndItsSiblingIsUpdated", instantiate_two, end_exec, update_sibling},
    {"ExecEndsAndGraphIsCloned", instantiate, end_exec, clone_again},
    {"ExecEndsAndGraphIsInstantiated", instantiate, end_exec, instantiate_again},
    {"ExecEndsAndGraphIsEmbedded", instantiate, end_exec, embed_again},
    {"ExecEndsAndANodeOfTheGraphIsDestroyed", instantiate, end_exec, destroy_node},
    {"ExecEndsAndNodesOfTheGraphChange", instantiate, end_exec, change_nodes},
    {"CloneEndsAndNodesOfTheGraphChange", clone, end_copy, change_nodes},
    {"UpdatedExecAndTheOtherGraphEnd", instantiate_updated, end_exec, end_copy},
    {"CloneAndGraphEnd", clone, end_copy, end_original},
    {"CloneEndsAndGraphIsClonedAgain", clone, end_copy, clone_again},
    {"CloneEndsAndANodeOfTheGraphIsDestroyed", clone, end_copy, destroy_node},
    {"CloneAndParentEnd", clone_and_embed, end_copy, end_parent},
    {"ParentAndGraphEnd", embed, end_parent, end_original},
    {"ParentEndsAndGraphIsInstantiated", embed, end_parent, instantiate_again},
    {"ChildNodeIsDestroyedAndGraphEnds", embed, destroy_child, end_original},
};

/// Two threads that meet once a round.
class opponents {
 public:
  explicit opponents(std::function<void()> other) : other_(std::move(other)) {}
  opponents(opponents&&) = delete;
  ~opponents() { is_over_.store(true, std::memory_order_release); }

  /// Does `one` while the other thread does its part; false if that takes too long.
  template <class One>
  [[nodiscard]] bool meet(One one) {
    int const round = begun_.load(std::memory_order_relaxed) + 1;
    begun_.store(round, std::memory_order_release);
    // So that they meet at another point each time.
    for (int i = round % 97 * 8; i != 0; --i) std::atomic_signal_fence(std::memory_order_seq_cst);
    one();
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
      other_();
      ended_.store(round, std::memory_order_release);
    }
  }

  std::function<void()> other_;
  std::atomic<int> begun_{0};
  std::atomic<int> ended_{0};
  std::atomic<bool> is_over_{false};
  std::jthread thread_{[this] { run(); }};
};

class FamilyStress : public testing::TestWithParam<duel> {
 protected:
  // Holds something, as libraries' graphs do.
  [[nodiscard]] graph captured() {
    return capture(stream_, [&](stream_ref stream) {
      must(launch_tiny(stream.get()));
      must(launch_add(stream.get(), cells_.data(), 1));
      deleter::global().retire(stream, std::make_shared<int>());
    });
  }
  [[nodiscard]] static graph built() {
    graph made;
    static_cast<void>(build(made).add(host_node([kept = std::make_shared<int>()] { ++*kept; })));
    return made;
  }

  owned_stream stream_ = make_stream();
  device_ints cells_{1};
};

TEST_P(FamilyStress, HarmsNobody) {
  constexpr int rounds_min = 10;
  duel const& fought = GetParam();
  family members{.stream = stream_};
  opponents both([&] { fought.other(members); });
  auto const until = std::chrono::steady_clock::now() + stress_time() / std::size(duels);
  for (int round = 0; round < rounds_min || std::chrono::steady_clock::now() < until; ++round) {
    members.original = round % 2 == 0 ? captured() : built();
    fought.make(members);
    ASSERT_TRUE(both.meet([&] { fought.one(members); }));
    members = {.stream = stream_};
  }
  must(cudaStreamSynchronize(stream_));
  EXPECT_TRUE(deleter::global().drain_for(generous));
}

INSTANTIATE_TEST_SUITE_P(While, FamilyStress, testing::ValuesIn(duels),
                         [](auto const& each) { return each.param.name; });

}  // namespace
}  // namespace escrow::test
