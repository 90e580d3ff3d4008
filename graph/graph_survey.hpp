// Which graphs of a tree the registry knows, and what is done with all of them: noting copies,
// taking reference sets off.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "escrow/detail/reference_set.hpp"
#include "graph_core.hpp"

namespace escrow {

// A graph with its child graphs and bodies.
struct graph_survey {
  // Those that the registry has entries of, with the ids by which it knows them.
  std::map<cudaGraph_t, std::uint64_t> known;
  std::size_t conditionals = 0;  // nodes
  // Not as many bodies were named as there must be, while any graph holds anything.
  bool lacks_bodies = false;
};

// Where a survey begins: a plain handle, or one of our graphs, which knows more about itself.
struct survey_root {
  // NOLINTNEXTLINE(google-explicit-constructor): either is a graph.
  survey_root(cudaGraph_t plain) noexcept : handle(plain) {}
  // Null: a graph that was moved from. Throws as graph_core::seal().
  // NOLINTNEXTLINE(google-explicit-constructor)
  survey_root(graph_core* ours);

  cudaGraph_t handle = nullptr;
  std::uint64_t key = 0;       // 0: to be found
  graph_core* core = nullptr;  // null: a plain handle
};

// Walks `root`, its child graphs, and `bodies`. `call` is named in the usage_error for a graph
// whose id CUDA does not tell. Throws cuda_error, std::bad_alloc.
[[nodiscard]] graph_survey survey_of(char const* call, survey_root const& root,
                                     std::span<cudaGraph_t const> bodies);

// The same of a graph that is about to be copied: its sets are sealed, since the copy must not get
// what the original gets later.
[[nodiscard]] graph_survey survey_for_copy(char const* call, graph_core& original);

// Notes that a copy of a graph, and the copies of its child graphs, hold what the originals hold.
// `id`: the copy's, or 0. A copy that is not noted keeps what it holds all the same. Throws
// cuda_error, std::bad_alloc: some copies are noted then.
void note_copies(graph_survey const& originals, cudaGraph_t original, cudaGraph_t copy,
                 std::uint64_t id);

// While it lives, the graphs of the survey have no reference sets, and nothing is appended to these
// sets any more. A constructor that throws (cuda_error, std::bad_alloc) has put back all. No other
// thread may use the graphs meanwhile.
class hoist_scope {
 public:
  explicit hoist_scope(graph_survey const& survey);
  hoist_scope(hoist_scope&&) = delete;
  ~hoist_scope();

  // What was taken off, each once.
  [[nodiscard]] reference_sets const& sets() const noexcept { return sets_; }
  // Leaves the graphs without them.
  void keep_off() noexcept;

 private:
  struct taken {
    cudaGraph_t graph;
    std::uint64_t graph_id;
    reference_set* set;
    cudaUserObject_t object;  // with a reference of this while it is off
  };

  // Delegated to, so that the destructor puts back what a constructor that throws took off.
  hoist_scope() = default;
  static void take_off(taken const& each);

  std::vector<taken> placed_;
  std::size_t off_ = 0;  // the first so many of them are off
  reference_sets sets_;
};

}  // namespace escrow
