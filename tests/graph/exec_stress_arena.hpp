// What the threads of the stress test of graphs share, and how they tell whose a slot is.
#pragma once

#include <array>
#include <escrow/graph.hpp>
#include <optional>

#include "../pool/capture_fixture.hpp"

namespace escrow::test {

inline constexpr std::size_t slots_max = 48;
inline constexpr std::size_t runs_max = 200'000;  // graphs that a thread captures at most

/// What the threads share, and what they found wrong.
struct arena {
  explicit arena(block_pool& common, deleter& its) : pool(common), worker(its) {}

  block_pool& pool;
  deleter& worker;
  std::atomic<bool> stop{false};
  // One cell for each slot, which whoever works with the slot raises to 1 and takes back to 0.
  pinned_ints in_use{slots_max};
  // Whose each slot is: 0 nobody's, else a graph's family. Relaxed: the pool brings the order, and
  // if it does not, that is what is to be found out.
  std::array<std::atomic<std::uint64_t>, slots_max> families{};
  std::atomic<std::uint64_t> next_family{1};
  std::atomic<int> shared{0};
  std::atomic<int> refused{0};
  std::atomic<std::uint64_t> captures{0};
  std::atomic<std::uint64_t> launches{0};
  std::atomic<std::uint64_t> updates{0};
  std::atomic<std::uint64_t> owners_made{0};
  std::atomic<std::uint64_t> owners_destroyed{0};
  std::atomic<std::uint64_t> owners_early{0};
};

// What a captured graph, its clones and all execs of them have in common. It ends before the first
// of what it stands for ends last, so that its marks are gone when the slots may come back.
class family {
 public:
  family(arena& shared, pinned_ints& runs, std::size_t cell)
      : arena_(shared), runs_(runs), cell_(cell), id_(shared.next_family.fetch_add(1)) {}
  family(family&&) = delete;
  ~family() {
    for (int const number : numbers_) {
      arena_.families[static_cast<std::size_t>(number)].store(0, std::memory_order_relaxed);
    }
  }

  void take(int number) {
    auto const had =
        arena_.families[static_cast<std::size_t>(number)].exchange(id_, std::memory_order_relaxed);
    if (had != 0 && had != id_) arena_.shared.fetch_add(1, std::memory_order_relaxed);
    numbers_.push_back(number);
  }
  // Before each launch.
  void expect_run() { expected_->fetch_add(1, std::memory_order_release); }

  // Destroyed once all runs that were launched have counted themselves.
  class owner {
   public:
    explicit owner(family& its)
        : arena_(&its.arena_), runs_(&its.runs_), cell_(its.cell_), expected_(its.expected_) {
      arena_->owners_made.fetch_add(1, std::memory_order_relaxed);
    }
    owner(owner&&) noexcept = default;
    ~owner() {
      if (expected_ == nullptr) return;
      if (runs_->load(cell_) != expected_->load(std::memory_order_acquire)) {
        arena_->owners_early.fetch_add(1, std::memory_order_relaxed);
      }
      arena_->owners_destroyed.fetch_add(1, std::memory_order_release);
    }

   private:
    arena* arena_;
    pinned_ints* runs_;
    std::size_t cell_;
    std::shared_ptr<std::atomic<int>> expected_;
  };

  [[nodiscard]] int* run_cell() const { return runs_.data() + cell_; }

 private:
  arena& arena_;
  pinned_ints& runs_;
  std::size_t cell_;
  std::uint64_t id_;
  std::vector<int> numbers_;
  std::shared_ptr<std::atomic<int>> expected_ = std::make_shared<std::atomic<int>>(0);
};
using families = std::vector<std::shared_ptr<family>>;

// A graph or an exec with the families of what it runs, which go first.
struct made_graph {
  graph it;
  std::size_t shape = 0;  // graphs of one shape can replace each other in an exec
  families of;
};
struct made_exec {
  graph_exec it;
  std::size_t shape = 0;
  families of;
};

// Graphs that all threads instantiate: CUDA lets one at a time use each.
struct common_graphs {
  struct place {
    std::mutex mutex;  // guards `held`
    std::optional<made_graph> held;
  };
  std::array<place, 3> places;
};

}  // namespace escrow::test
