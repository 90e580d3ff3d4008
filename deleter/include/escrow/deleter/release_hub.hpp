// Where all releases of one deleter meet: the release queue, its worker's wakeup, and its counts.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>

#include "escrow/deleter/deleter_options.hpp"
#include "escrow/deleter/deleter_stats.hpp"

namespace escrow {

class bundle_hold;
class release_node;
class retired_owner;

// What: the part of a deleter that outlives it. Whoever can still push holds a use of it: the
//   deleter, every release_node, every pool. The worker frees it after the last use has gone.
// Thread safety: any thread may call anything.
// Memory ordering: what a thread did before release_node::push() happens before the node's reclaim.
// Lifetime: shared by uses; made by a deleter, freed by its worker.
// Capture: calls no CUDA function but in recycle(), which may query events, and
//   take_retired_owner(), which may make one; both are capture-safe.
// Errors: as stated; nothing that a destroy callback calls can fail.
class release_hub {
 public:
  release_hub(release_hub&&) = delete;

  // Counts one holder more, or less. Who holds a use may call everything here.
  void add_use() noexcept;
  void drop_use() noexcept;

  // False once its deleter was stopped, or has ended: it takes nothing new.
  [[nodiscard]] bool is_open() const noexcept;

  // Returns slots that wait in the release queue to their bins on the calling thread, and those of
  // execs whose last launch is over. Recycling is thus never behind a destroy that blocks the
  // worker. Leaves out, and returns false then, what another thread is at.
  bool recycle() noexcept;
  // The same, after those who are at it: what they took is where it belongs then. Waits for them,
  // who destroy nothing of the user's meanwhile.
  void recycle_after_others() noexcept;

  // For bundle_hold: notes one that waits for its event, so that recycle() may look at it; and lets
  // go and frees it when the worker finds it done.
  void await(bundle_hold& sent) noexcept;
  void reclaim_awaited(bundle_hold& done) noexcept;

  // A node from the store for an owner that is being retired, last used with the stream of id
  // `stream` or one that shares its shelf; 0 for owners without a stream. `with_event` gives it an
  // event, of the current device if it has none yet. Allocates when the store is empty. Throws
  // std::bad_alloc, cuda_error.
  [[nodiscard]] retired_owner& take_retired_owner(std::uint64_t stream, bool with_event);
  // Hands a node to the worker whose owner and ready event are set. Takes a short lock: not for
  // destroy callbacks, which use release_node::push().
  void push_retired(retired_owner& node) noexcept;
  // Puts an empty node back.
  void put_retired_owner(retired_owner& idle) noexcept;
  // The same, for the thread that reclaims, which puts all back together.
  void put_after_pass(retired_owner& idle) noexcept;

  // Tells the handler of errors, and counts. Never throws.
  void report(std::exception const& error) noexcept;
  void report(cudaError_t status, char const* api) noexcept;
  // Keeps a node, with all that it refers to, and counts it: a leak, on purpose, because nothing
  // will ever tell when the GPU is done with it. The node must be in no queue. Takes a short lock.
  static void keep_for_ever(release_node& unknown) noexcept;
  // Counts one thing that is kept for ever without a node.
  void count_held() noexcept;
  // Counts what graphs and execs hold: one more (+1), or reclaimed (-1).
  void count_in_graphs(int change) noexcept;
  [[nodiscard]] deleter_stats stats() const noexcept;

 private:
  friend class deleter;
  friend class drain_marker;
  friend class reclaimer;
  friend class release_node;
  friend class worker;

  explicit release_hub(deleter_options options);
  ~release_hub();

  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace escrow
