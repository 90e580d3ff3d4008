// The ways to build the same chain of kernel nodes by hand.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <span>

#include "handles.hpp"
#include "node_owners.hpp"

namespace escrow::bench {

// Builds one graph after the other.
class build_form {
 public:
  virtual ~build_form() = default;

  // An empty graph, and what else is there before the first node.
  virtual void begin() = 0;
  // Adds a node for each pair of owners, each after the one before.
  virtual void build(std::span<node_owners const> owners) = 0;
  // Makes the graph ready for plain CUDA calls.
  virtual void seal() {}
  // Destroys the graph.
  virtual void destroy() = 0;
  // Waits for what other threads do after that, a bounded time.
  virtual void settle() {}
};

struct named_build {
  char const* name;
  std::unique_ptr<build_form> (*make)();
  int times_on_gpu;  // in one repetition
};

// Plain CUDA calls, which keep nothing alive.
[[nodiscard]] named_build bare_build();
// The same again, plain CUDA calls with a user object for each owner, and Escrow.
[[nodiscard]] std::span<named_build const> other_builds();

// Adds the nodes to `graph` with plain CUDA calls.
void add_plain_nodes(cudaGraph_t graph, std::span<node_owners const> owners);

// The forms of Escrow.
[[nodiscard]] std::unique_ptr<build_form> make_escrow_build();
[[nodiscard]] std::unique_ptr<build_form> make_escrow_warm_build();
[[nodiscard]] std::unique_ptr<build_form> make_escrow_no_owners_build();

}  // namespace escrow::bench
