// SPDX-License-Identifier: Apache-2.0
// Memory that the graphs of a sharing group use in turn.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "address_range.hpp"
#include "escrow/detail/made_once.hpp"
#include "escrow/internal/environment.hpp"
#include "escrow/internal/graph_registry.hpp"
#include "escrow/internal/group_lease.hpp"
#include "escrow/internal/own_stream.hpp"
#include "graph_walk.hpp"
#include "memory_book.hpp"
#include "released_walk.hpp"
#include "slot.hpp"

namespace escrow::inline v0_2 {

class device_block;
class slot_pool;
struct arena_layout;
struct size_class;

// A place in an arena, and its slot. Claims of one graph, or of group_scopes, use it one after
// another, at the same offsets or at others.
//     taken     by a claim: no other one gets its memory
//     kept      the same, by a lease that ended where its graph does not know after what
//     idle      later claims of its graph may use the slot, and what comes after its users the
//               memory; of other graphs all
//     gone      the same without the slot
// Between scopes it rests: idle, of no graph.
// Thread safety: guarded by its group's lock, but for `held`, `reach` and `held_outside`, and by
//   the claim's thread. While it has a slot, it is there.
struct arena_place {
  enum class state : std::uint8_t { taken, kept, idle, gone };

  arena_place(std::size_t its_begin, std::size_t its_end, std::uint64_t in,
              arena_layout& its_layout, size_class const* its)
      : begin(its_begin), end(its_end), graph(in), layout(&its_layout), of(its), reach(its_end) {}

  [[nodiscard]] std::size_t bytes() const noexcept { return end - begin; }
  // Whether the slot, which it has, is here. A claim may have failed to move it.
  [[nodiscard]] bool is_slot_here() const noexcept {
    return held->begin_in_arena_ == begin && held->bytes_in_arena_ == bytes();
  }

  std::size_t begin;
  std::size_t end;
  std::uint64_t graph;         // the id of its capture, or the scope's number; 0: it rests
  arena_layout* layout;        // of that one; null: it rests
  size_class const* of;        // of the slot
  source_location where = {};  // of the last claim
  std::size_t used = 0;        // the same: see claim_request
  slot* held = nullptr;        // null until it is made
  state its_state = state::taken;
  // Idle: no claim has used any of its memory since, and released_after_ of the slot tells what
  // comes after its users. Then the slot is in `released` of the layout.
  bool has_range = false;
  std::uint64_t stamp = 0;         // the same: of its release
  std::atomic<std::size_t> reach;  // the largest end that it ever had. Relaxed: a number
  // By how many graphs of other captures, and nodes, the slot is held. Relaxed: a number, for
  // parking, which sees those of leases that have ended.
  std::atomic<int> held_outside{0};
  std::list<arena_place>::iterator self = {};
};

// What one graph has in an arena. Guarded by the group's lock.
struct arena_layout {
  // A range that a lease of the graph has used, until a later claim covers it.
  struct released_range {
    std::size_t begin;
    std::size_t end;
    std::span<cudaGraphNode_t const> after;  // the release came after these
    std::uint64_t edges;                     // their fingerprint
    std::uint64_t stamp;

    [[nodiscard]] bool overlaps(std::size_t its_begin, std::size_t its_end) const noexcept {
      return begin < its_end && its_begin < end;
    }
  };
  // The same without a slot for the next claim: what later claims left of it.
  struct part {
    std::size_t begin;
    std::size_t end;
    graph_nodes after;
    std::uint64_t edges;
    std::uint64_t stamp;

    [[nodiscard]] released_range range() const noexcept {
      return {begin, end, after, edges, stamp};
    }
  };
  [[nodiscard]] static released_range range_of(slot const& released) noexcept {
    arena_place const& its = *released.place_;
    return {its.begin, its.end, released.released_after_, released.released_edges_, its.stamp};
  }
  template <class Call>
  void for_each_released(Call call) const {
    for (slot const* each = released.oldest(); each != nullptr; each = each->newer_) {
      call(range_of(*each));
    }
    for (part const& each : parts) call(each.range());
  }

  std::list<arena_place> places = {};
  // The released ranges, which do not overlap. The slots are those of places that have theirs.
  slot_list released = {};
  std::vector<part> parts = {};  // has room for one more of each place
  std::size_t extent = 0;
  std::size_t claims = 0;
  std::size_t claims_end = 0;  // the largest end of these
  // What it is a copy of lies in front of this; where in the copy that runs is not known.
  std::size_t behind = 0;
  std::uint64_t last_stamp = 0;
  released_walk::known_nodes walked = {};  // by walks through all of it, after that release
  std::uint64_t walked_at = 0;
  std::uint64_t generation = 0;  // see graph_registry::begun_claim
  bool is_of_scope = false;      // all is before its next claim: nothing is noted of releases
  bool is_scope_over = false;
  // Of a scope: slots whose leases ended on other threads, or that its stream could not be made
  // to come after. Linked by newer_.
  slot* ended_elsewhere = nullptr;
};

// What: the scratch of a group's graphs. No two of their launches overlap, so each graph lays out
//   its claims over all of the memory: what its own claims before may still use is left out, and
//   what leases cover that live. So the group needs what the largest graph needs.
// Thread safety: any thread. The layout has the lock of the group's slots, which is held across no
//   CUDA call; that of the mapping is, by claims that need more than is mapped.
// Lifetime: its pools'.
// Capture: capture-safe.
// Errors: claim() and map() throw cuda_error, std::bad_alloc, and then have claimed nothing.
class ESCROW_LOCAL arena final : public group_memory, private range_owner {
 public:
  // The group's; null if the device has no memory management for it, or if the group's graphs
  // share slots. Throws cuda_error, std::bad_alloc.
  [[nodiscard]] static std::shared_ptr<arena> of(group_order& group, int device);

  // The same, if it was made.
  [[nodiscard]] static std::shared_ptr<arena> known(group_order& group);

  // At the end of each place, for nobody: where a test asks for it.
  [[nodiscard]] static std::size_t guard_bytes() noexcept {
    return environment::asks_guards() ? 256 : 0;
  }

  struct request {
    std::size_t bytes;  // with guard_bytes()
    std::uint64_t graph;
    cudaGraph_t handle;
    size_class const* of;
    source_location where = {};
    std::size_t used = 0;          // see claim_request
    std::size_t first_claims = 0;  // so many of a graph or scope get what none before has used
  };
  // What a claim got, no place if the arena is closed. Its work comes after `after`, the users
  // before in that graph.
  struct claimed {
    arena_place* place = nullptr;
    graph_nodes after = {};
    std::uint64_t edges = 0;      // the fingerprint of these
    bool is_as_released = false;  // no other claim has covered it since its last lease
    bool is_leased = false;       // the same, and its slot is leased, which has `after` and `edges`
  };
  // A place by a walk through the graph, without `edges`.
  [[nodiscard]] claimed claim_best(request const& asked, capture_frontier const& frontier);
  // The same for a group_scope, whose stream comes after all that has used the memory.
  [[nodiscard]] claimed claim_in_scope(request const& asked);
  // A claim got nothing after all, and its slot is destroyed: the range stays.
  void put_back(std::uint64_t graph, std::size_t begin, std::size_t end, claimed& its) noexcept;
  // So that work may use it.
  void map(arena_place const& place);
  [[nodiscard]] char* begin() const noexcept { return range_.begin(); }
  [[nodiscard]] char* address_of(arena_place const& place) const noexcept {
    return range_.begin() + place.begin;
  }
  void remove(arena_place& place) noexcept;

  // By capture_reuse, with the group's lock.
  // For a claim of a capture with that frontier: the place of the stream's last slot of that size;
  // null: there is none. The users before, which the slot has, may have changed since. Throws
  // std::bad_alloc.
  [[nodiscard]] arena_place* claim_last(request const& asked, capture_frontier const& frontier);
  // The same memory in another place: the slot is no more for claims. Throws std::bad_alloc.
  [[nodiscard]] arena_place& renew(arena_place& place);
  // A claim got nothing after all: its place is idle, or ends if it has no slot.
  void give_up(claimed& its) noexcept;
  // Ends the lease in its capture; the slot has what that came after.
  void release(arena_place& place) noexcept;
  // The lease ends elsewhere, unless it has ended.
  static void keep(arena_place& place) noexcept {
    if (place.its_state == arena_place::state::taken) place.its_state = arena_place::state::kept;
  }
  // The slot's holders are fewer; `is_its_graph`: its graph holds it no more, and no claim gets it.
  // False if one has got it just now.
  [[nodiscard]] static bool may_go(arena_place& place, bool is_its_graph) noexcept;

  // Unmaps what is behind the last place. Returns the bytes.
  std::size_t trim() noexcept override;
  [[nodiscard]] std::size_t bytes() const noexcept override {
    return mapped_.load(std::memory_order_relaxed);
  }
  // arena_scopes.cpp
  [[nodiscard]] std::optional<source_location> end_scope(
      group_scope const& ended) noexcept override;
  void release_in_scope(arena_place& place) noexcept;  // its next claims come after the lease
  // Keeps the place for later scopes, with its slot, which is idle behind its events; or for the
  // end of its scope, if that goes on. False: it is of a graph, or its pool is closed.
  [[nodiscard]] bool rest(arena_place& place) noexcept;
  // The slots of that size that no lease and no graph has: they rest, or a scope may claim them.
  [[nodiscard]] std::size_t idle_in_scopes(size_class const& of) noexcept;
  // Destroys the slots of places that rest, of that pool or of all.
  void end_rests(slot_pool const* of) noexcept;

  // arena_parking.cpp
  [[nodiscard]] use used() override;
  [[nodiscard]] use close() override;
  void reopen() noexcept override;
  std::size_t park(bool keep_contents) override;
  [[nodiscard]] bool is_whole() const noexcept override { return range_.is_whole(); }
  std::size_t unpark() override;
  // For group_order::trim_pools: also if the group has no arena.
  static std::size_t trim_pools(group_order const& group) noexcept;

  // For reports: calls with each place, under the lock: `look` takes none.
  template <class Look>
  void for_each_place(Look look) {
    std::lock_guard const lock(mutex_);
    for (auto const& [graph, its] : graphs_) {
      for (arena_place const& each : its.places) look(each);
    }
  }

  arena(group_order const& group, int device)
      : group_(group),
        device_(device),
        range_(device),
        lock_(group.slots),
        mutex_(lock_->mutex),  // Relaxed: under the group's memory_mutex.
        is_closed_(group.is_parked.load(std::memory_order_relaxed)) {
    memory_book::global().add_arena(*this, begin(), range_.reserved(), group.options.label);
  }
  ~arena() override {
    { std::scoped_lock const lock(mapping_, mutex_); }  // a program's ThreadSanitizer sees it
    memory_book::global().remove_arena(begin());
  }

 private:
  void tell(known_address& its, std::size_t offset) const noexcept override {
    // An end of memory, which `[begin, end)` has, is told as in it.
    std::size_t const before = offset != 0 ? offset - 1 : 0;
    its.mapped = bytes();
    if (before >= its.mapped) its.what = known_address::kind::unmapped;
    its.group = &group_;
    its.offset = offset;
    std::lock_guard const lock(mutex_);
    arena_place const* const place = taken_in(before, offset + 1);
    // Parking copies all of it.
    if (is_closed_ || place != nullptr) its.used_by = known_address::use::lease;
    if (is_closed_ || place == nullptr) return;
    if (place->layout->is_of_scope) its.lease = place->graph;
    its.end = place->end;
    its.used_end = place->used != 0 ? place->begin + place->used : place->end - guard_bytes();
  }
  [[nodiscard]] bool is_of(std::uint64_t capture, std::size_t offset) const noexcept override {
    std::lock_guard const lock(mutex_);
    auto const found = graphs_.find(capture);
    return found != graphs_.end() &&
           std::ranges::any_of(found->second.places, [offset](arena_place const& each) {
             return each.begin <= offset && offset < each.end;
           });
  }
  [[nodiscard]] use used_now() const;  // of used(), under the lock

  using layout = arena_layout;

  [[nodiscard]] released_walk walk_of(request const& asked, capture_frontier const& frontier);
  // Of a graph that was captured into as a new one.
  void forget_graph(std::uint64_t graph, std::uint64_t generation) noexcept;

  // All below with the lock.
  void wake(layout& in, std::uint64_t scope) noexcept;  // what rests
  // The begin of the smallest gap that suffices between what may not be used, else their end.
  [[nodiscard]] std::size_t choose(request const& asked, layout const& in,
                                   stamps const& before) const;
  static void note_walk(layout& in, released_walk::known_node walked);
  // Takes the range for a claim, out of the released ones. Throws std::bad_alloc.
  [[nodiscard]] claimed take(layout& in, request const& asked, std::size_t begin);
  [[nodiscard]] static arena_place& place_at(layout& in, request const& asked, std::size_t begin);
  // Room for a claim in a new place and what it leaves, beside those of all others: these do not
  // throw then. Throws std::bad_alloc.
  void make_room(layout& in);
  void make_room_in_taken();
  // make_room() has made room.
  static void add_part(layout& in, std::size_t begin, std::size_t end, claimed& its) noexcept;
  // The slot of a place that is idle has what its range is after.
  static void add_range(arena_place& place) noexcept;
  static void remove_range(arena_place& place) noexcept;
  void mark_taken(arena_place& place) noexcept;
  void untake(arena_place const& place) noexcept;
  // One of them, or null.
  [[nodiscard]] arena_place const* taken_in(std::size_t begin, std::size_t end) const noexcept;
  [[nodiscard]] bool is_taken(std::size_t begin, std::size_t end) const noexcept {
    return taken_in(begin, end) != nullptr;
  }
  void end(arena_place& place) noexcept;
  [[nodiscard]] std::size_t extent() const noexcept;  // of all graphs

  // arena_parking.cpp; in the group's turn. Throw cuda_error, and then the copy may still run.
  void copy(void* to, void const* from, std::size_t bytes);
  void end_copies();

  group_order const& group_;  // only compared
  int const device_;
  std::mutex mapping_;  // guards the range; held across the calls that map
  address_range range_;
  std::atomic<std::size_t> mapped_{0};  // relaxed: under one of the locks, or a number

  std::shared_ptr<group_lock> const lock_;  // the group's
  std::mutex& mutex_;                       // its: guards all below; taken with or without mapping_
  std::map<std::uint64_t, layout> graphs_;
  std::list<arena_place> rested_;
  std::vector<arena_place*> taken_;  // of all graphs; they do not overlap, and are in order
  bool is_closed_;                   // parked, or about to be: nothing is claimed

  // Of the thread that parks, which has the group's turn.
  std::size_t parked_ = 0;                  // bytes that unpark() maps
  std::size_t saved_ = 0;                   // of them, that were kept
  std::shared_ptr<device_block> contents_;  // pinned host memory, kept for the next time
  // Not null: a copy of them may still run, since the host could not wait for it.
  std::unique_ptr<own_stream> copying_;
};

// A pool's use of its group's arena, which is asked for once.
struct ESCROW_LOCAL arena_use {
  bool const may_be = false;
  made_once<std::shared_ptr<arena>> known = {};  // null: there is none
  std::atomic<std::size_t> bytes{0};             // of the pool's slots in it. Relaxed: a number

  [[nodiscard]] arena& its() noexcept { return **known; }
};

}  // namespace escrow::inline v0_2
