// What each thread of the stress test of graphs does.
#pragma once

#include <array>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "exec_stress_arena.hpp"

namespace escrow::test {

/// One thread's part: its streams, graphs and execs, and steps chosen at random.
class actor {
 public:
  actor(arena& shared, common_graphs& common, std::uint64_t seed)
      : arena_(shared), common_(common), random_(seed) {
    for (owned_stream& each : streams_) each = make_stream();
  }

  void run() {
    std::uint64_t steps = 0;
    while (!arena_.stop.load(std::memory_order_relaxed) && next_run_ + 1 < runs_max) {
      step();
      if (++steps % 16 == 0) sync_all();
    }
  }
  void end() {
    execs_.clear();
    graphs_.clear();
    sync_all();
  }
  [[nodiscard]] int mismatches() const { return mismatches_.load(); }

 private:
  std::uint64_t pick(std::uint64_t n) { return random_() % n; }
  cudaStream_t any_stream() { return streams_[1 + pick(streams_.size() - 1)]; }

  void step() {
    switch (pick(12)) {
      case 0:
      case 1:
        return keep(captured());
      case 2:
        return share();
      case 3:
        return copy();
      case 4:
        return nest();
      case 5:
        return instantiate_own();
      case 6:
        return instantiate_common();
      case 7:
        return update();
      case 8:
        return launch_hoisted();
      case 9:
        return use_eagerly();
      case 10:
        return drop();
      default:
        return launch_some();
    }
  }

  void sync_all() {
    thread_mode_scope const relaxed(cudaStreamCaptureModeRelaxed);
    for (owned_stream const& each : streams_) test::sync(each);
  }

  // Raises the slot's cell, writes and reads the slot, and takes the cell back: whoever does that
  // at the same time is seen, whether he writes the same or not.
  void work(block_lease& held, cudaStream_t stream) {
    int* const cell = arena_.in_use.data() + held->number();
    int const value = ++value_;
    must(launch_add(stream, cell, 1));
    must(launch_check(stream, cell, 1, 1, mismatches_.data()));
    fill(held, stream, value);
    check(held, stream, value, mismatches_);
    must(launch_check(stream, cell, 1, 1, mismatches_.data()));
    must(launch_add(stream, cell, -1));
  }

  void use_eagerly() {
    cudaStream_t const stream = any_stream();
    auto held = arena_.pool.try_claim(stream);
    if (held) work(*held, stream);
  }

  [[nodiscard]] made_graph captured() {
    constexpr std::array modes{cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                               cudaStreamCaptureModeRelaxed};
    auto const its = std::make_shared<family>(arena_, runs_, next_run_++);
    std::size_t shape = 0;
    std::uint64_t const slots = 1 + pick(2);
    std::uint64_t const owners = 1 + pick(2);
    std::vector<block_lease> held;  // until the capture's end, so that each work has its own slot
    auto const enqueue = [&](stream_ref stream) {
      for (std::uint64_t i = 0; i < slots; ++i) {
        auto claimed = arena_.pool.try_claim(stream);
        if (!claimed) break;
        its->take((*claimed)->number());
        work(*claimed, stream.get());
        held.push_back(std::move(*claimed));
        ++shape;
      }
      must(launch_add(stream.get(), its->run_cell(), 1));
      for (std::uint64_t i = 0; i < owners; ++i) {
        arena_.worker.retire(stream, family::owner(*its));
      }
      held.clear();
    };
    made_graph made{escrow::capture(streams_[0], enqueue, modes[pick(modes.size())]), shape, {its}};
    arena_.captures.fetch_add(1, std::memory_order_relaxed);
    return made;
  }

  void keep(made_graph made) {
    if (graphs_.size() < graphs_max) {
      graphs_.push_back(std::move(made));
    } else {
      replace(graphs_[pick(graphs_.size())], std::move(made));
    }
  }
  void keep(made_exec made) {
    if (execs_.size() < execs_max) {
      execs_.push_back(std::move(made));
    } else {
      replace(execs_[pick(execs_.size())], std::move(made));
    }
  }
  // The families of the old one go before it does.
  template <class Made>
  static void replace(Made& old, Made made) {
    old.of.clear();
    old = std::move(made);
  }

  void share() {
    made_graph made = captured();
    auto& place = common_.places[pick(common_.places.size())];
    std::lock_guard const lock(place.mutex);
    if (place.held) place.held->of.clear();
    place.held.reset();
    place.held.emplace(std::move(made));
  }

  void copy() {
    if (graphs_.empty()) return;
    made_graph const& original = graphs_[pick(graphs_.size())];
    keep(made_graph{original.it.clone(), original.shape, original.of});
  }

  void nest() {
    if (graphs_.empty()) return;
    made_graph parent{graph(), next_shape_++, {}};
    for (std::uint64_t children = 1 + pick(2); children != 0; --children) {
      made_graph const& child = graphs_[pick(graphs_.size())];
      if (parent.of.size() + child.of.size() > nested_max) break;
      parent.it.add_child(child.it);
      parent.of.insert(parent.of.end(), child.of.begin(), child.of.end());
    }
    keep(std::move(parent));
  }

  [[nodiscard]] made_exec instantiated(made_graph const& from) {
    made_exec made{graph_exec(from.it), from.shape, from.of};
    if (!made.it.is_bare()) arena_.refused.fetch_add(1, std::memory_order_relaxed);
    return made;
  }

  void instantiate_own() {
    if (!graphs_.empty()) keep(instantiated(graphs_[pick(graphs_.size())]));
  }

  void instantiate_common() {
    auto& place = common_.places[pick(common_.places.size())];
    std::unique_lock lock(place.mutex);
    if (!place.held) return;
    made_exec made = instantiated(*place.held);
    lock.unlock();
    launch(made);
    keep(std::move(made));
  }

  void launch(made_exec& made) {
    for (auto const& each : made.of) each->expect_run();
    made.it.launch(any_stream());
    arena_.launches.fetch_add(1, std::memory_order_relaxed);
  }
  void launch_some() {
    if (execs_.empty()) return;
    for (std::uint64_t i = 1 + pick(4); i != 0; --i) launch(execs_[pick(execs_.size())]);
  }

  void update() {
    for (made_exec& each : execs_) {
      for (made_graph const& other : graphs_) {
        if (other.shape != each.shape || pick(2) == 0) continue;
        if (pick(2) == 0) launch(each);
        each.of = other.of;  // the old families go before the update
        each.it.update(other.it);
        arena_.updates.fetch_add(1, std::memory_order_relaxed);
        launch(each);
        return;
      }
    }
  }

  // A graph of one's own, launched with CUDA's own calls on one stream.
  void launch_hoisted() {
    made_graph made = captured();
    hoisted handle = hoist(made.it);
    {
      thread_mode_scope const relaxed(cudaStreamCaptureModeRelaxed);
      cudaStream_t const stream = any_stream();
      owned_exec exec = test::instantiate(made.it.get());
      for (std::uint64_t i = pick(4); i != 0; --i) {
        made.of.front()->expect_run();
        must(cudaGraphLaunch(exec, stream));
      }
      made.of.clear();
      handle.release_after(stream_ref(stream));
    }
  }

  void drop() {
    if (pick(2) == 0) {
      if (execs_.empty()) return;
      std::swap(execs_[pick(execs_.size())], execs_.back());
      execs_.back().of.clear();
      execs_.pop_back();
    } else {
      if (graphs_.empty()) return;
      std::swap(graphs_[pick(graphs_.size())], graphs_.back());
      graphs_.back().of.clear();
      graphs_.pop_back();
    }
  }

  static constexpr std::size_t graphs_max = 3;
  static constexpr std::size_t execs_max = 4;
  static constexpr std::size_t nested_max = 4;

  arena& arena_;
  common_graphs& common_;
  std::mt19937_64 random_;
  std::array<owned_stream, 3> streams_;  // the first for captures
  pinned_ints mismatches_;
  pinned_ints runs_{runs_max};
  std::size_t next_run_ = 0;
  std::size_t next_shape_ = 1000;  // parents have shapes of their own
  int value_ = 0;
  std::vector<made_graph> graphs_;
  std::vector<made_exec> execs_;
};

}  // namespace escrow::test
