// SPDX-License-Identifier: Apache-2.0
// A claim that the last slot of its stream does not serve.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "arena.hpp"
#include "escrow/core/capture.hpp"
#include "escrow/internal/group_lease.hpp"
#include "escrow/internal/group_scope.hpp"
#include "graph_walk.hpp"
#include "search.hpp"
#include "slot_pool_state.hpp"

namespace escrow::inline v0_2 {

// What: the search for a slot: an idle one, a new one, one of other work, a wait, or an error with
//   its reason. If a first look finds nothing, the claim searches at the limit: one at a time.
// Thread safety: its claim's thread.
// Lifetime: the claim.
// Errors: each step throws cuda_error, and what `make` throws; then no slot is taken. Steps return
//   null if no slot is available now. `seen.failure`: why none could be made.
struct ESCROW_LOCAL slot_pool::claim_search {
  claim_search(slot_pool::state& pool, claim_request const& request, size_class& size,
               stream_use const& stream, capture_info its_capture = {},
               capture_frontier its_frontier = {})
      : in(pool),
        asked(request),
        of(size),
        on(stream),
        capture(its_capture),
        frontier(std::move(its_frontier)) {}
  claim_search(claim_search&&) = delete;

  // Throws pool_exhausted. Empty if the call limits the wait.
  [[nodiscard]] claimed_slot run();
  // Eager, inside of sharing_group::run().
  [[nodiscard]] claimed_slot run_in(group_scope& scope);

  [[nodiscard]] slot* take();
  [[nodiscard]] slot* take_eager();
  [[nodiscard]] slot* take_late();  // a new one while there are few, then the oldest
  // Where reuse is late, that many blocks of that size are made before one is taken again.
  [[nodiscard]] static std::size_t few_of(std::size_t bytes) noexcept {
    constexpr std::size_t bytes_most = std::size_t{16} << 20;
    return bytes <= bytes_most ? 16 : 0;
  }
  [[nodiscard]] std::size_t reused_late(std::size_t bytes) const noexcept {
    return in.is_reused_late ? few_of(bytes) : 0;
  }
  [[nodiscard]] slot* take_unused();  // one that no GPU work uses: idle or new
  slot* make_slot() noexcept;         // null if a limit is reached
  // The same, within scratch_policy::keep_factor: perhaps a larger block that its stream released.
  [[nodiscard]] slot* grow();
  [[nodiscard]] slot* take_larger();
  // The same as a last resort, after it has made room in other sizes.
  slot* grow_in_room();
  [[nodiscard]] bool may_make_room() const noexcept;
  [[nodiscard]] bool is_eager() const noexcept { return !capture.is_active(); }
  [[nodiscard]] bool is_in_order() const noexcept {
    return in.kind_of(asked) == claim_kind::in_order;
  }

  // at_limit.cpp
  // After a first look that found nothing. One claim at a time searches, also for room.
  [[nodiscard]] slot* take_at_limit();
  // After a search that found nothing: false if the claim ends so. A search that others disturbed
  // is repeated at most as often as there are slots.
  [[nodiscard]] bool may_search_again();
  // How many times a slot of that size, or `is_of_all`, has become free, or memory was given back
  // so far. A search that finds neither a slot, nor room, nor one on its way has missed none if
  // this is equal before and after it.
  [[nodiscard]] std::uint64_t moves(bool is_of_all) noexcept {
    return in.sizes.moves(of, is_of_all) + in.reuse.moves();
  }
  // The deleters whose workers may free memory, and how much all of them have reclaimed so far.
  [[nodiscard]] std::array<deleter_core const*, 2> workers() const noexcept;
  [[nodiscard]] std::uint64_t reclaimed() const noexcept;
  // Waits until the workers have reclaimed something. Runs no owner's destructor. False if they
  // have nothing, or if the time is over.
  [[nodiscard]] bool wait_for_workers() noexcept;

  // captured.cpp
  [[nodiscard]] slot* take_captured();
  [[nodiscard]] slot* take_existing();  // the same without growth, waits and edges
  // In a sharing group: of the sizes `from` up to `bytes_most`.
  [[nodiscard]] slot* take_held(size_class* from, std::size_t bytes_most);
  // The captured graph holds what the claim took; `is_exclusive`: nothing else gets it meanwhile.
  // If it throws, the slot is where it was.
  void give_to_graph(slot& taken, bool is_exclusive = false);
  // The graph gets a note of the lease; if it throws, the lease has ended.
  void note_in_group(slot& taken, lease_log::room& spare);
  void end_unused(slot& taken) noexcept;

  // arena_claims.cpp
  [[nodiscard]] slot* take_in_arena();
  [[nodiscard]] arena::claimed claim_in_arena();
  void give_up(arena::claimed& got) noexcept;
  // Returns the slot that no graph has any more; null: its graph has it.
  [[nodiscard]] slot* renew_in_arena(arena::claimed& got);
  // The place's slot, which is made or moved there; null: the claim has nothing.
  [[nodiscard]] arena::request request_of(std::uint64_t graph) const noexcept;
  void require_unparked(arena::claimed const& got) const;
  [[nodiscard]] slot* slot_at(arena::claimed& got);
  void give_from_arena(slot& made, arena::claimed& got);  // the users before stay

  // refuse.cpp
  [[noreturn]] void refuse_size() const;
  [[nodiscard]] std::string describe_claim();
  [[nodiscard]] std::string remedies();  // the options that would have helped, with their values
  // The end of a claim that gets nothing: throws its failure, if it has one, or pool_exhausted.
  [[noreturn]] void refuse();

  slot_pool::state& in;
  claim_request const& asked;
  size_class& of;
  stream_use const& on;
  capture_info capture;
  capture_frontier frontier;
  search_result seen;
  claim_waits waits;
};

}  // namespace escrow::inline v0_2
