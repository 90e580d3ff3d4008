// Taking reference sets off graphs, for a moment or permanently.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "escrow/detail/reference_set.hpp"
#include "graph_survey.hpp"

namespace escrow {

// While it lives, the graphs of the survey have no reference sets, and nothing is appended to these
// sets any more. A constructor that throws (cuda_error, std::bad_alloc) has put back all. No other
// thread may use the graphs meanwhile.
class hoist_scope {
 public:
  explicit hoist_scope(graph_survey const& survey);
  hoist_scope(hoist_scope&&) = delete;
  ~hoist_scope();

  // Whether what is instantiated now is bare: see graph_exec::is_bare().
  [[nodiscard]] bool is_bare() const noexcept { return is_bare_; }
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

  static void take_off(taken const& each);
  void put_back_all() noexcept;

  std::vector<taken> placed_;
  std::size_t off_ = 0;  // the first so many of them are off
  reference_sets sets_;
  bool is_bare_;
};

}  // namespace escrow
