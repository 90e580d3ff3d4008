// SPDX-License-Identifier: Apache-2.0
// A pool's slot with one resource, and the holds of graphs on it.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <boost/intrusive/set_hook.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/detail/reclaimable.hpp"
#include "escrow/detail/slot_pool.hpp"
#include "escrow/internal/address_lookup.hpp"
#include "escrow/internal/group_lease.hpp"
#include "escrow/internal/ready_event.hpp"
#include "memory_book.hpp"

namespace escrow::inline v0_2 {

struct arena_place;

// One graph's hold on a slot, released by the graph's user object or by a node's share. Thread
// safety and lifetime: as reclaimable.
struct graph_hold final : slot_reference {
  graph_hold(deleter_core& core, int device, slot& held)
      : slot_reference(core, device, &drop_hold), held_(held) {}

  [[nodiscard]] std::size_t bytes() const noexcept override;
  [[nodiscard]] void const* slot_address() const noexcept override { return &held_; }
  [[nodiscard]] range_end range() const noexcept override;
  [[nodiscard]] bool may_own() const noexcept override;
  void enter(reference_set const& set) noexcept override;
  static void drop_hold(reclaimable& thing) noexcept;

  slot& held_;
  std::uint64_t capture_id_ = 0;
  bool is_claim_ = false;  // the slot was claimed in that capture
};

// A slot's range of addresses, which ends before its resource.
class booked_slot final : range_owner {
 public:
  explicit booked_slot(slot const& of) noexcept : of_(of) {}
  booked_slot(booked_slot&&) = delete;
  ~booked_slot() {
    if (begin_ != nullptr) memory_book::global().remove_slot(begin_);
    for (auto const& each : blocks_) memory_book::global().disown_block(each.begin, *this);
  }
  // First, since later, with the resource, nothing may fail. Throws std::bad_alloc.
  void prepare(std::string const& label) { place_ = memory_book::make_place(*this, label); }
  // `made`: what was allocated for it.
  void add(resource_base const& its, made_blocks const& made) noexcept;
  void tell(known_address& its, std::size_t offset) const noexcept override;
  [[nodiscard]] bool has(std::uintptr_t block) const noexcept override;
  [[nodiscard]] void const* begin() const noexcept { return begin_; }  // null: of an object
  // Of an object: calls `what` with each block that it still has.
  template <class What>
  void for_each_block(What const& what) const noexcept {
    for (auto const& each : blocks_) {
      if (has(each)) what(each);
    }
  }

  // Who has it, and which of its leases that is. Relaxed: values alone.
  std::atomic<known_address::use> use{known_address::use::none};
  std::atomic<std::uint64_t> lease{0};
  std::atomic<std::size_t> used{0};  // by that lease: see claim_request

 private:
  [[nodiscard]] bool has(made_blocks::block const& its) const noexcept;

  slot const& of_;
  memory_book::place place_;
  void const* begin_ = nullptr;
  std::vector<made_blocks::block> blocks_;  // of memory_book, that its object has
};

// A use of a slot that no event covers yet. Listed in deferred_slots, under its lock, while the
// slot is there: then it stays where it is.
struct unrecorded_use : stream_use, boost::intrusive::set_base_hook<> {
  unrecorded_use(stream_use const& use) noexcept  // NOLINT(google-explicit-constructor)
      : stream_use(use) {}

  slot* of = nullptr;  // once listed
};

// A resource's state. Exactly one of these owns it at a time:
//     a free list | a lease | the pool's deferred_slots | graphs | the worker
// A lease, or a deferred record in its place, and graphs may hold it together; it is free when the
// last of them has released it.
// Thread safety: guarded by its owner: the list's lock, the lease's thread; members for graphs and
//   captures by capture_reuse.
// Lifetime: created by its pool, destroyed on the worker.
struct slot final : reclaimable {
  // Throws std::bad_alloc, cuda_error, and what `make` throws.
  slot(slot_pool& pool, size_class& of, slot_pool::make_function const& make,
       void* in_arena = nullptr, std::size_t bytes = 0);

  slot_pool& pool_;
  size_class& of_;
  std::uint64_t number_ = 0;  // of its pool's slots that lists may have

  // Links of its list: a free list, or a slot_list.
  slot* older_ = nullptr;
  slot* newer_ = nullptr;
  // In a free list's oldest slot, which represents the list: see free_lists.
  struct list_links {
    slot* newest = nullptr;
    slot* chained = nullptr;    // the next list of the same hash
    slot* uncovered = nullptr;  // the oldest one that is; all newer ones are, too
    std::size_t uncovered_count = 0;
  };
  list_links list_;
  std::uint64_t key_ = 0;  // its list: id of the release's stream, free_lists::idle or its own
  std::uint64_t released_at_ = 0;  // the pool's release stamp
  std::uint64_t asked_in_ = 0;     // last pass that found it busy

  // Eager use: work before these events may still use the resource.
  cached_event ready_;  // of the stream of the release
  // If not null, instead: an event after the releases of several slots.
  std::shared_ptr<cached_event const> covered_by_;
  void tell_holders(known_address& its) const noexcept;  // any thread; takes capture_reuse's lock
  void leave_graphs() noexcept;  // neither a graph nor a lease has it any more
  [[nodiscard]] cudaEvent_t ready() const noexcept {
    return (covered_by_ != nullptr ? *covered_by_ : ready_).recorded.get();
  }
  std::vector<cached_event> also_ready_;  // of other streams; has room for all of unrecorded_
  bool is_done_ = true;                   // known to be idle: no event to query
  // Released on its stream without an event, and perhaps claimed there again. Set and cleared by
  // size_class, which counts such slots.
  bool is_uncovered_ = false;
  bool was_used_ = false;  // handed out before
  // Streams whose work no event covers yet: until the release those given to record_stream(), then
  // those without a record. Has room for two more, so that a release allocates nothing.
  std::vector<unrecorded_use> unrecorded_;
  bool is_lost_ = false;  // such a stream was destroyed: never known to be idle

  // Of a claim and release without an event: how many requests of others were known at the claim,
  // see claimer_streams::has_asked(), and the stream, which has the id key_.
  std::uint64_t requests_seen_ = 0;
  cudaStream_t released_on_ = nullptr;

  // Of its lease. An eager one, given to a graph: the number, by the use_clock, of the record of
  // the claiming stream then, in ready_; 0: none.
  std::uint64_t recorded_at_ = 0;
  std::size_t surplus_ = 0;  // the bytes by which its size exceeds that of the claim, if noted
  // Captures whose graphs hold it although it was claimed before them.
  std::vector<std::uint64_t> kept_in_;

  // Of its lease, if pool_options::track_leases.
  struct claim_note {
    source_location where;
    std::chrono::steady_clock::time_point since{};
  };
  claim_note note_;
  // " (claimed at solver.cpp:88)", or nothing.
  [[nodiscard]] std::string claim_text(char const* what = " (claimed at ") const {
    return detail::line_text(what, note_.where, ")");
  }

  // Graphs.
  graph_hold first_hold_;
  bool may_be_in_graphs_ = false;  // false: capture_reuse does not know it
  bool is_leased_ = false;         // guarded by capture_reuse, as all below, once a graph holds it
  // For each graph that holds it: the capture that claimed it; no_claim: none did, and nothing
  // orders that graph's launches with those of the others.
  std::vector<std::uint64_t> held_by_;
  static constexpr std::uint64_t no_claim = 0;
  // The last capture that claimed it, while it may be claimed there again; 0: it may not.
  std::uint64_t reusable_in_ = 0;
  // The set that holds it there; alive meanwhile. Written by the lease's thread, in the claim; read
  // by others once the release in the capture has made it reusable.
  reference_set const* claimed_with_ = nullptr;
  std::uint64_t captures_ended_ = 0;  // of that set, at the claim
  bool is_capture_over_ = false;      // of its claim; known when that set was released
  // Its last claim was in the capture of its last release: users come after released_after_.
  bool is_reused_ = false;
  // No other claim of its capture, and no other capture, may claim it while its graph holds it.
  // Written by the claim in a capture that took it, before a graph holds it.
  bool is_exclusive_ = false;
  bool is_shared_ = false;  // other captures of its sharing group may claim it
  // No graph has it any more, but a claim has its place in the arena, and no lease yet.
  bool is_left_ = false;
  // The last release, if captured: the nodes it came after, and a hash of their dependencies.
  std::vector<cudaGraphNode_t> released_after_;
  std::uint64_t released_edges_ = 0;

  // In a sharing group. Not null: it is of an arena, and goes with its last holder.
  arena_place* place_ = nullptr;
  // The range of its resource there, which is not the place's while the slot moves.
  std::size_t begin_in_arena_ = 0;
  std::size_t bytes_in_arena_ = 0;
  std::uint64_t group_number_ = 0;  // see lease_span::slot; 0: no capture has claimed it yet
  // What graphs know of its lease: of a capture, while it lives. Owned as the lease.
  std::shared_ptr<group_lease> in_group_;
  // The same of the lease before: a claim where that was released continues it.
  std::shared_ptr<group_lease> last_in_group_;
  void end_in_group() noexcept {
    if (in_group_ != nullptr) in_group_->end(lease_state::over);
  }

  std::unique_ptr<resource_base> resource_;  // destroyed before these
  booked_slot booked_{*this};                // destroyed first
};

// Slots in the order in which they were added. No function allocates.
class slot_list {
 public:
  [[nodiscard]] slot* oldest() const noexcept { return oldest_; }
  [[nodiscard]] slot* newest() const noexcept { return newest_; }
  void add(slot& added) noexcept {
    added.older_ = std::exchange(newest_, &added);
    (added.older_ == nullptr ? oldest_ : added.older_->newer_) = &added;
  }
  void remove(slot& listed) noexcept {
    slot* const older = std::exchange(listed.older_, nullptr);
    slot* const newer = std::exchange(listed.newer_, nullptr);
    (older == nullptr ? oldest_ : older->newer_) = newer;
    (newer == nullptr ? newest_ : newer->older_) = older;
  }

 private:
  slot* oldest_ = nullptr;
  slot* newest_ = nullptr;
};

}  // namespace escrow::inline v0_2
