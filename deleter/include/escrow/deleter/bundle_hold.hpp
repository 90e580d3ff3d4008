// One holder's hold on a bundle, with its way to the worker.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "escrow/deleter/graph_bundle.hpp"
#include "escrow/deleter/launch_order.hpp"
#include "escrow/deleter/release_node.hpp"
#include "escrow/deleter/resource_usage.hpp"

namespace escrow {

// What: holds a bundle for an exec or a hoisted handle. Made ahead, so that letting go cannot fail.
// Thread safety: exclusive access, until it is sent off with let_go_after().
// Memory ordering: as graph_reference.
// Lifetime: owned by `pointer`, whose end lets go at once. Sent off, it waits for its event with
//   the bundle's own deleter, whose drain() thus waits for it; a claim that finds no slot may let
//   go ahead of the worker, so that slots never come back behind a destroy that blocks it.
// Capture: calls no CUDA function.
// Errors: the constructor throws std::bad_alloc and then holds nothing.
class bundle_hold final : public release_node {
 public:
  explicit bundle_hold(graph_bundle& bundle);

  [[nodiscard]] graph_bundle& bundle() const noexcept { return bundle_; }

  struct let_go_now {
    void operator()(bundle_hold* hold) const noexcept;
  };
  using pointer = std::unique_ptr<bundle_hold, let_go_now>;

  // Lets go once `ready`, an event of `device` that `owner` owns if it is ours, is done. It must
  // not be recorded again.
  static void let_go_after(pointer hold, cudaEvent_t ready, int device,
                           std::shared_ptr<launch_end> owner) noexcept;
  // Never lets go, and counts it: nothing tells when the GPU is done with it.
  static void keep_for_ever(pointer hold) noexcept;

 private:
  friend class awaited_holds;

  ~bundle_hold() = default;
  static void reclaim_hold(release_node& node) noexcept;

  graph_bundle& bundle_;
  std::shared_ptr<launch_end> owner_;
  cudaEvent_t awaited_ = nullptr;

  // Guarded by the hub's awaited_holds.
  bundle_hold* previous_ = nullptr;
  bundle_hold* next_ = nullptr;  // links of the list of holds that are awaited
  bool is_listed_ = false;
  bool has_let_go_ = false;
  bool is_looked_at_ = false;  // a thread asks about its event, out of the list
  bool is_reclaimed_ = false;  // by the worker meanwhile: the thread that looks frees it
};

using bundle_holds = std::vector<bundle_hold::pointer>;

// A hold on each of `bundles`. Throws std::bad_alloc.
[[nodiscard]] bundle_holds hold_all(std::vector<graph_bundle*> const& bundles);

// What the holds keep alive. Throws std::bad_alloc.
[[nodiscard]] resource_usage resource_usage_of(bundle_holds const& held);

}  // namespace escrow
