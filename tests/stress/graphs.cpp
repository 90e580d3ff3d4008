// SPDX-License-Identifier: Apache-2.0
// Eight threads capture, clone, nest, instantiate, launch, update, hoist and destroy graphs at
// random: no slot has two holders or two uses at a time, and no owner is destroyed early, twice or
// never.
#include <mutex>

#include "stress_world.hpp"

namespace escrow::test {
namespace {

/// What a captured graph, its clones and all execs of them have in common.
struct life {
  slot_holder slots;
  work runs;
};
using lives = std::vector<std::shared_ptr<life>>;

/// A graph or an exec, and what it runs, which has to end first.
template <class It>
struct made {
  It it;
  std::size_t shape = 0;  // graphs of one shape can replace each other in an exec
  lives of;
};

/// Graphs that all threads instantiate. CUDA lets one at a time use each.
struct common_graphs {
  struct place {
    std::mutex mutex;  // guards `held`
    std::optional<made<graph>> held;
  };
  std::array<place, 3> places;
};

class graph_actor : public actor {
 public:
  graph_actor(arena& all, std::uint64_t number, common_graphs& common)
      : actor(all, number), common_(common) {}

  void end() override {
    for (auto& place : common_.places) place.held.reset();
    execs_.clear();
    graphs_.clear();
  }

 private:
  void step() override {
    one_of<graph_actor>({&graph_actor::keep_captured, &graph_actor::keep_captured,
                         &graph_actor::share, &graph_actor::copy, &graph_actor::nest,
                         &graph_actor::instantiate_own, &graph_actor::instantiate_common,
                         &graph_actor::update, &graph_actor::launch_hoisted,
                         &graph_actor::launch_set, &graph_actor::use_eagerly,
                         &graph_actor::drop_one, &graph_actor::launch_some});
  }

  void keep_captured() { keep(graphs_, 3, captured()); }
  void drop_one() { coin() ? drop(execs_) : drop(graphs_); }

  // The first stream is for captures.
  [[nodiscard]] cudaStream_t free_stream() { return streams_[1 + pick(2)]; }

  void use_eagerly() {
    cudaStream_t const stream = free_stream();
    auto held = arena_.pool->try_claim(stream);
    if (held) use_slot(*held, stream);
  }

  [[nodiscard]] made<graph> captured() {
    auto const its = std::shared_ptr<life>(new life{slot_holder(arena_), new_work()});
    std::size_t shape = 0;
    std::uint64_t const slots = 1 + pick(2);
    std::uint64_t const owners = 1 + pick(2);
    auto const enqueue = [&](stream_ref stream) {
      std::vector<block_lease> held;  // together, so that each use has a slot of its own
      for (; shape < slots; ++shape) {
        auto claimed = arena_.pool->try_claim(stream);
        if (!claimed) break;
        its->slots.take(*claimed);
        use_slot(*claimed, stream.get());
        held.push_back(std::move(*claimed));
      }
      its->runs.enqueue(stream.get());
      for (std::uint64_t i = 0; i < owners; ++i)
        arena_.worker.retire(stream, owner(arena_, its->runs));
    };
    made<graph> one{escrow::capture(streams_[0], enqueue, any_mode()), shape, {its}};
    arena_.captures.fetch_add(1, std::memory_order_relaxed);
    return one;
  }

  template <class It>
  void keep(std::vector<made<It>>& all, std::size_t count_max, made<It> one) {
    if (all.size() < count_max) return all.push_back(std::move(one));
    made<It>& old = all[pick(all.size())];
    old.of.clear();
    old = std::move(one);
  }
  template <class It>
  void drop(std::vector<made<It>>& from) {
    if (from.empty()) return;
    std::swap(from[pick(from.size())], from.back());
    from.pop_back();
  }
  [[nodiscard]] made<graph> const& any_graph() { return graphs_[pick(graphs_.size())]; }
  [[nodiscard]] common_graphs::place& any_place() { return common_.places[pick(3)]; }

  void share() {
    made<graph> one = captured();
    auto& place = any_place();
    std::lock_guard const lock(place.mutex);
    place.held.reset();
    place.held.emplace(std::move(one));
  }

  void copy() {
    if (graphs_.empty()) return;
    made<graph> const& original = any_graph();
    keep(graphs_, 3, made<graph>{original.it.clone(), original.shape, original.of});
  }

  void nest() {
    if (graphs_.empty()) return;
    made<graph> parent{graph(), next_shape_++, {}};
    for (std::uint64_t children = 1 + pick(2); children != 0; --children) {
      made<graph> const& child = any_graph();
      if (parent.of.size() + child.of.size() > 4) break;
      parent.it.add_child(child.it);
      parent.of.insert(parent.of.end(), child.of.begin(), child.of.end());
    }
    keep(graphs_, 3, std::move(parent));
  }

  [[nodiscard]] made<graph_exec> instantiated(made<graph> const& from) {
    made<graph_exec> one{graph_exec(from.it), from.shape, from.of};
    if (!one.it.is_bare()) arena_.with_objects.fetch_add(1, std::memory_order_relaxed);
    return one;
  }
  void instantiate_own() {
    if (!graphs_.empty()) keep(execs_, 4, instantiated(any_graph()));
  }
  void instantiate_common() {
    auto& place = any_place();
    std::unique_lock lock(place.mutex);
    if (!place.held) return;
    made<graph_exec> one = instantiated(*place.held);
    lock.unlock();
    launch(one);
    keep(execs_, 4, std::move(one));
  }

  void launch(made<graph_exec>& one) {
    for (auto const& each : one.of) each->runs.expect();
    one.it.launch(free_stream());
    arena_.launches.fetch_add(1, std::memory_order_relaxed);
  }
  void launch_some() {
    if (execs_.empty()) return;
    for (std::uint64_t i = 1 + pick(4); i != 0; --i) launch(execs_[pick(execs_.size())]);
  }

  void update() {
    for (made<graph_exec>& each : execs_) {
      for (made<graph> const& other : graphs_) {
        if (other.shape != each.shape || coin()) continue;
        if (coin()) launch(each);
        each.of = other.of;  // what it ran ends before the update
        each.it.update(other.it);
        arena_.updates.fetch_add(1, std::memory_order_relaxed);
        return launch(each);
      }
    }
  }

  // Launched with CUDA's own calls on one stream.
  void launch_hoisted() {
    made<graph> one = captured();
    hoisted handle = hoist(one.it);
    thread_mode_scope const relaxed(cudaStreamCaptureModeRelaxed);
    cudaStream_t const stream = free_stream();
    owned_exec const exec = test::instantiate(one.it.get());
    for (std::uint64_t i = pick(4); i != 0; --i) {
      one.of.front()->runs.expect();
      must(cudaGraphLaunch(exec, stream));
    }
    one.of.clear();
    handle.release_after(stream_ref(stream));
  }

  // Of graphs of several shapes, and perhaps ended in flight. Execs of the same graphs go on.
  void launch_set() {
    exec_set set;
    std::vector<std::pair<exec_set::member, lives>> members;
    for (std::uint64_t i = 2 + pick(3); i != 0; --i) {
      made<graph> one = captured();
      if (coin()) keep(execs_, 4, instantiated(one));
      exec_set::member const added = set.add(std::move(one.it));
      members.emplace_back(added, std::move(one.of));
    }
    for (std::uint64_t i = pick(8); i != 0; --i) {
      auto const& [member, of] = members[pick(members.size())];
      for (auto const& each : of) each->runs.expect();
      set.launch(member, free_stream());
      arena_.launches.fetch_add(1, std::memory_order_relaxed);
    }
    arena_.switches.fetch_add(set.stats().switches, std::memory_order_relaxed);
  }

  common_graphs& common_;
  std::size_t next_shape_ = 1000;  // each parent has a shape of its own
  std::vector<made<graph>> graphs_;
  std::vector<made<graph_exec>> execs_;
};

class GraphStress : public stress {};

TEST_F(GraphStress, NothingIsSharedDestroyedEarlyTwiceOrNever) {
  block_pool pool = make_pool(arena::slots_max);
  arena all(*worker, mismatches, &pool);
  common_graphs common;
  auto const enough = [&] {
    return all.captures > 50 && all.launches > 50 && all.updates > 5 && all.switches > 5;
  };
  run_mix<graph_actor>(8, enough, all, common);
  EXPECT_LE(made(), static_cast<int>(arena::slots_max));
}

}  // namespace
}  // namespace escrow::test
