// Which slots graphs hold, and which of them a claim in the same capture may use again.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/pool/resource_pool.hpp"

namespace escrow {

// Where the next operation on a capturing stream is placed.
struct capture_frontier {
  capture_frontier() = default;
  // Throws std::bad_alloc.
  explicit capture_frontier(detail::capture_dependencies const& after);

  std::vector<cudaGraphNode_t> nodes;  // that it comes after
  std::size_t ended = 0;               // for the end of so many of them, the first, it waits

  // Adds the nodes of `other` that this lacks.
  void merge(capture_frontier const& other);
};

// One entry a capture id, which identifies the graph for good, also when it is captured into again.
// Guards each slot's is_leased_ and graph_holds_ from the first hold of a graph on, and what it
// knows of its release in a capture while it is reusable; before that, a lease has it to itself.
//   A slot is reusable after its release in a capture, at the nodes that the release came after.
// Nodes are known by their handles, which CUDA gives again if a graph is edited and captured into
// again: what is found is used only if the nodes depend on what they depended on at the release.
// Thread safety: any thread. One lock, held while a claim reads the graph: calls that run no
//   destroy callback and wait for no work. Destroy callbacks never take it.
class capture_reuse {
 public:
  // From here on, in place of a capture's id, that of a share for a node. CUDA counts from 1.
  static constexpr std::uint64_t first_share_id = std::uint64_t{1} << 63;

  // Notes that the graph captured as `id` holds `held`. Throws std::bad_alloc and then has noted
  // nothing.
  void add(slot& held, std::uint64_t id, source_location where);
  // Takes the hold off again. True if neither a graph nor a lease holds the slot any more.
  [[nodiscard]] bool remove(slot& held, std::uint64_t id) noexcept;
  // The graph's hold goes on elsewhere: no claim of its captures gets the slot.
  void end_reuse(slot& held, std::uint64_t id) noexcept;
  // Whether a graph holds the slot.
  [[nodiscard]] bool is_held(slot const& asked) const noexcept;

  // The lease is over, or what took its place. True if no graph holds the slot.
  [[nodiscard]] bool end_lease(slot& held) noexcept;
  // The same, with the streams given to record_stream(), and later claims of the capture may have
  // the slot after the nodes `after`. Throws cuda_error, std::bad_alloc, and the lease then goes
  // on.
  [[nodiscard]] bool end_lease_in(slot& held, std::uint64_t id, std::vector<cudaGraphNode_t> after);

  // The nearest reusable slot before the frontier, leased to the caller; null if there is none.
  // Looks at the frontier's own nodes first, where the last release on the stream mostly was; then
  // walks the graph backwards, a step on each path at a time, but not beyond an edge that does not
  // wait for the end of a kernel, unless what is behind it ends after that (a programmatic launch).
  // Where the graph holds `slots_max` slots, so that a long walk cannot spare one, it is cut short.
  // Throws cuda_error, std::bad_alloc.
  [[nodiscard]] slot* take_before(capture_frontier frontier, std::uint64_t id,
                                  std::size_t slots_max);

  // The slot of the oldest release that is reusable in the capture, leased to the caller, whose
  // stream is made to wait for it; null if there is none. Throws cuda_error, std::bad_alloc.
  [[nodiscard]] slot* take_with_edge(capture_info const& capture, stream_ref stream);

  // The graphs that hold slots, and since when. Throws std::bad_alloc.
  [[nodiscard]] std::vector<holder> holders(std::string const& label) const;
  [[nodiscard]] std::size_t slots_held() const noexcept;

 private:
  // By each node that the release came after; null: by none.
  using reusable_slots = std::unordered_multimap<cudaGraphNode_t, slot*>;

  struct entry {
    std::size_t holds = 0;
    std::chrono::steady_clock::time_point since;
    source_location where;
    reusable_slots reusable;
    // No reusable slot lies before these nodes. Forgotten with the next release.
    std::unordered_set<cudaGraphNode_t> barren;
  };

  [[nodiscard]] entry* find(std::uint64_t id) noexcept;
  static void remove_reusable(entry& of, slot& held) noexcept;
  // Leases a reusable slot if it is right; else it is reusable no more.
  static bool take(entry& of, slot& found, bool is_right) noexcept;
  // Whether the nodes of its release, which are there, are the same as then.
  [[nodiscard]] static bool is_unchanged(slot const& released);

  mutable std::mutex mutex_;  // guards all, and in each held slot what the class comment names
  std::map<std::uint64_t, entry> entries_;
  std::size_t slots_held_ = 0;  // by one graph or several
};

}  // namespace escrow
