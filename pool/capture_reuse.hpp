// SPDX-License-Identifier: Apache-2.0
// Which slots graphs hold, and which of them a claim in the same capture may reuse.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "arena.hpp"
#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/launch_order.hpp"
#include "escrow/pool/resource_pool.hpp"
#include "graph_walk.hpp"
#include "size_class.hpp"

namespace escrow::inline v0_2 {

// One entry per size and capture id, which a graph keeps when it is captured into again. Guards
// each slot's is_leased_ and holds from the first graph hold on, and the data of its release in a
// capture while it is reusable; before that, the lease owns them exclusively.
//   A slot becomes reusable after its release in a capture, at the nodes that the release came
//   after. Nodes are identified by handle, and CUDA reuses handles if a graph is edited and
//   captured into again: a slot is reused only if these nodes have the same dependencies as at the
//   release.
//   An exclusive slot is neither reusable nor shared.
//   In a sharing group, a slot released in a capture is also shared: captures whose graphs do not
//   hold it may claim it, and it is then reusable in the newest of them only.
// Thread safety: any thread. One lock, held across no CUDA call: in a sharing group the group's,
//   which its arena has, too, so that a claim or release takes it once.
class capture_reuse {
 public:
  // Ids from here on are those of node shares, in place of capture ids. CUDA counts from 1.
  static constexpr std::uint64_t first_share_id = std::uint64_t{1} << 63;

  // `group`: the pool's, which keeps it; null: it is in none.
  explicit capture_reuse(group_order const* group)
      : mutex_(group != nullptr ? group->slots->mutex : own_mutex_),
        is_in_group_(group != nullptr) {}

  // Adds the hold of the graph captured as `id`, in which the slot was claimed or, if not
  // `is_claim`, is used, too. Throws std::bad_alloc and then has added nothing.
  void add(slot& held, std::uint64_t id, bool is_claim, source_location where);
  // Removes the hold. True if neither a graph nor a lease holds the slot any more.
  [[nodiscard]] bool remove(slot& held, std::uint64_t id, bool is_claim) noexcept;
  [[nodiscard]] bool is_held(slot const& asked) const noexcept {
    std::lock_guard const lock(mutex_);
    return !asked.held_by_.empty();
  }
  void tell_holders(slot const& asked, known_address& its) const noexcept {
    std::lock_guard const lock(mutex_);
    its.is_in_graphs = !asked.held_by_.empty();
    its.is_of_captures = its.is_in_graphs && is_ordered(asked);
    its.is_given_up = is_given_up(asked);
    its.free_in = is_reusable(asked) ? asked.reusable_in_ : 0;
  }
  // What became of the capture that a lease was claimed in, whose id is `capture`; 0: in none.
  struct claim_state {
    std::uint64_t capture = 0;
    bool is_held = false;  // its graph holds the slot for it, and was not hoisted or recaptured
    bool is_over = false;  // the capture is known to be over
    [[nodiscard]] bool is_held_in(std::uint64_t id) const noexcept {
      return is_held && id == capture;
    }
  };
  [[nodiscard]] claim_state state_of(claimed_slot const& lease) const noexcept;
  // Makes the next work on `stream`, of the capture in which the slot was claimed, depend on the
  // slot's earlier users in that capture. Throws cuda_error, std::bad_alloc; usage_error if they
  // are not in the graph any more.
  static void order_after_release(char const* call, slot const& claimed, cudaGraph_t graph,
                                  stream_ref stream);

  // Ends the lease, or its deferred record. True if no graph holds the slot. `may_be_shared`: else
  // it is shared, as a slot of take_shared() that no other graph got.
  [[nodiscard]] bool end_lease(slot& held, bool may_be_shared) noexcept {
    std::lock_guard const lock(mutex_);
    if (held.place_ != nullptr) arena::keep(*held.place_);
    return end_lease_now(held, may_be_shared, lease_state::over);
  }
  // The same, clearing its recorded streams; later claims of the capture may reuse the slot after
  // the nodes `after`. `is_behind_claim`: these come after the claim, too. Throws cuda_error,
  // std::bad_alloc, and the lease then continues.
  [[nodiscard]] bool end_lease_in(slot& held, capture_info const& capture,
                                  std::span<cudaGraphNode_t const> after, bool is_behind_claim);
  // For a claim of a capture with that frontier: the place of the stream's last slot of that size
  // in the arena, or none. Leased to the caller, if lease_in_arena() would and the slot is there.
  // The users before may have changed since. Throws std::bad_alloc.
  [[nodiscard]] arena::claimed claim_last(arena& in, arena::request const& asked,
                                          capture_frontier const& frontier);
  // Whether its users before are as they were. Throws cuda_error, std::bad_alloc.
  [[nodiscard]] static bool are_users_unchanged(arena::claimed const& got);
  // A slot of an arena, which has given out its place in that capture: leased to the caller. False
  // if the graph does not hold it for its captures any more: another slot is due.
  [[nodiscard]] bool lease_in_arena(slot& held, std::uint64_t id, arena::claimed& got) noexcept;
  // As arena::give_up() and renew(). Return the slot, for leave_graphs(), if the graph let go of it
  // while the claim had its place; else null.
  [[nodiscard]] slot* give_up(arena& in, arena::claimed& got) noexcept;
  [[nodiscard]] slot* renew(arena& in, arena::claimed& got);

  // The nearest reusable slot of that size before the frontier, leased to the caller; null if there
  // is none. Checks the frontier's own nodes first, where the stream's last release usually is,
  // then walks the graph backwards, breadth first. It follows an edge that does not wait for a
  // kernel's end only if its successor ends later anyway (a programmatic launch). If the graph
  // holds fewer than `slots_max` slots the walk is not limited, since it may save one; else it is
  // short. Throws cuda_error, std::bad_alloc.
  [[nodiscard]] slot* take_before(size_class& size, capture_frontier const& frontier,
                                  std::uint64_t id, std::size_t slots_max);

  // A shared slot of that size that the graph captured as `id` does not hold, leased to the caller;
  // null if there is none.
  [[nodiscard]] slot* take_shared(size_class& size, std::uint64_t id) noexcept;

  // The capture's oldest reusable slot of that size, leased to the caller, whose stream gets edges
  // from its release; null if there is none. Throws cuda_error, std::bad_alloc.
  [[nodiscard]] slot* take_with_edge(size_class& size, capture_info const& capture,
                                     stream_ref stream);

  // The graphs that hold slots of that size, and since when. Throws std::bad_alloc.
  [[nodiscard]] std::vector<holder> holders(size_class const& of) const;
  [[nodiscard]] std::size_t slots_held(size_class const& of) const noexcept;
  [[nodiscard]] std::size_t places_held(size_class const& of) const noexcept;  // of arenas
  // How many times so far a slot that graphs hold may have become available to a claim.
  [[nodiscard]] std::uint64_t moves() const noexcept {
    std::lock_guard const lock(mutex_);
    return moves_;
  }

 private:
  [[nodiscard]] static captured_slots* find(size_class& size, std::uint64_t id) noexcept;
  [[nodiscard]] static bool may_take(slot const& listed) noexcept;
  // While the set of its claim exists.
  [[nodiscard]] static bool has_capture_ended(slot const& claimed) noexcept;
  // Whether the launches of all graphs that hold it are ordered: it was claimed in each.
  [[nodiscard]] static bool is_ordered(slot const& held) noexcept;
  // No lease has it, and one graph, in whose capture it was claimed: reference_set::is_given_up().
  [[nodiscard]] static bool is_given_up(slot const& asked) noexcept;
  // Its lease has ended in the capture that it was claimed in.
  [[nodiscard]] static bool is_reusable(slot const& asked) noexcept;
  // Ends the lease; true if no graph holds the slot, else `is_shared`: other captures may claim it.
  [[nodiscard]] bool end_lease_now(slot& held, bool is_shared, lease_state as) noexcept;
  // Its graph holds it for claims of that capture.
  [[nodiscard]] static bool may_lease(slot const& held, std::uint64_t id) noexcept;
  static void begin_lease(slot& held) noexcept;  // after released_after_
  void unshare(slot& claimed) noexcept;
  void stop_reuse(slot& held) noexcept;  // no claim of the capture gets it that it is reusable in
  // Leases the slot that `choose` finds in the entry if `is_right(slot)`; else that one is not
  // reusable any more, and another is chosen. While asked about it counts as leased, and stays
  // listed.
  template <class Choose, class Check>
  [[nodiscard]] slot* take(size_class& size, std::uint64_t id, Choose choose, Check is_right);
  // What take() has asked about: false if its graph has let go of it.
  [[nodiscard]] bool lease_again(slot& asked, std::uint64_t id) noexcept;
  // The same is not leased after all. True if no graph holds it.
  [[nodiscard]] bool untake(slot& asked, bool stays_reusable) noexcept;
  // Whether the nodes of its release, which exist, have the same dependencies as then.
  [[nodiscard]] static bool is_unchanged(slot const& released);
  // The same, if some may have been destroyed, as in a graph that was edited and captured into.
  [[nodiscard]] static bool is_unchanged_in(slot const& released, cudaGraph_t graph);

  std::mutex own_mutex_;  // if it is in no group
  std::mutex& mutex_;     // guards everything here, and the slot data named above
  std::uint64_t moves_ = 0;
  bool const is_in_group_;
};

}  // namespace escrow::inline v0_2
