// Several runs of a graph as one exec.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <limits>

#include "escrow/version.hpp"

namespace escrow::inline v0_1 {

// What: owns an exec of child nodes in a line, all of them copies of one graph: a launch of it runs
//   that graph several times, and costs less than as many launches (measured).
// Thread safety: as graph_exec. Capture: capture-safe.
class ESCROW_LOCAL exec_row {
 public:
  static constexpr std::size_t runs_max = std::numeric_limits<std::ptrdiff_t>::max();
  static constexpr std::size_t copies_max = std::size_t{1} << 20;

  // For rows of so many runs; fewer than 2: for none. Of the flags, those that matter to children.
  exec_row(std::size_t runs_wanted, unsigned long long flags) noexcept
      : wanted_(runs_wanted), flags_(flags & cudaGraphInstantiateFlagUseNodePriority) {}
  exec_row(exec_row&& other) noexcept;
  exec_row& operator=(exec_row&& other) noexcept;
  ~exec_row();

  // Another of the same size. `graph` must hold no user objects. There is none if CUDA does not
  // embed it, or not instantiate it twice: it has conditional or memory nodes. Throws cuda_error.
  [[nodiscard]] exec_row of(cudaGraph_t graph) const;
  void drop() noexcept;  // from now on there is none

  [[nodiscard]] bool is_wanted() const noexcept { return wanted_ > 1; }
  [[nodiscard]] cudaGraphExec_t exec() const noexcept { return exec_; }  // null: there is none
  // Those of one launch; 1 if there is no exec.
  [[nodiscard]] std::size_t runs() const noexcept { return exec_ == nullptr ? 1 : wanted_; }

 private:
  std::size_t wanted_;
  unsigned long long flags_;
  cudaGraphExec_t exec_ = nullptr;
};

}  // namespace escrow::inline v0_1
