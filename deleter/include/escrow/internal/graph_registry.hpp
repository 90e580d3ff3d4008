// SPDX-License-Identifier: Apache-2.0
// Which graph has which reference sets.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "escrow/internal/group_lease.hpp"
#include "escrow/internal/held_memory.hpp"
#include "escrow/internal/hoist_note.hpp"
#include "escrow/internal/kept_sets.hpp"
#include "escrow/internal/launch_order.hpp"
#include "escrow/internal/reference_set.hpp"

namespace escrow::inline v0_2 {

// What: maps each graph to its reference sets, by its handle. CUDA reuses handles, but no capture
//   ids: the entry of a graph with another id is of one that was destroyed. Only an owned graph, of
//   a graph_core, is found by its handle alone. Plain copies (cudaGraphClone) are unknown.
// Thread safety: any thread. One lock, held across no CUDA call, never taken in a destroy callback.
// Lifetime: an entry ends with its last set, unless the graph is owned or was hoisted. Never
//   destroyed: releases may arrive until process exit.
// Errors: functions that allocate throw std::bad_alloc and then have changed nothing.
class graph_registry {
 public:
  graph_registry() = default;  // for tests; the library has global()
  graph_registry(graph_registry&&) = delete;
  ~graph_registry() = default;
  [[nodiscard]] static graph_registry& global() noexcept;

  // A body of a conditional node of an owned graph, until drop_body(). Without memory it is not
  // known.
  void add_body(cudaGraph_t body) noexcept;
  void drop_body(cudaGraph_t body) noexcept;
  [[nodiscard]] bool is_body(cudaGraph_t graph) const noexcept;
  // The graph is owned from now on, until disown() or forget(). `id` 0: not known; then no entry
  // of a plain graph may have this handle.
  void own(cudaGraph_t graph, std::uint64_t id);
  // It was detached. `id` 0: cannot be learned, so the graph is not known any more.
  void disown(cudaGraph_t graph, std::uint64_t id) noexcept;
  // An owned graph before it is destroyed, or one that was destroyed.
  void forget(cudaGraph_t graph) noexcept { disown(graph, 0); }

  // Appends to that deleter's open set of the group and the keeper (null: of none), a slot after
  // drop_released(). False: there is none. Throws std::bad_alloc; usage_error for a closed set.
  [[nodiscard]] bool append(std::uint64_t id, cudaGraph_t graph, reclaimable& member,
                            member_use use, group_order const* group, kept_sets const* keeper);

  // Places the set on `graph`, once: the graph's user object gets the reference, or `keeper` has
  // one, if it is not null and not released. `id`: the graph's; 0: not known, of an owned graph.
  // `is_open`: append() finds it then. It is tracked from now on, also if it is leaked. Throws
  // cuda_error, std::bad_alloc, and then the graph is unchanged. Capture-safe, also on a graph that
  // is being captured into.
  void place(ref<reference_set> made, cudaGraph_t graph, std::uint64_t id, bool is_open,
             kept_sets* keeper = nullptr);
  // The copy, a part of `root`, inherits what the registry knows of the original: note_copies().
  // `id`: the copy's; 0: it is owned. `leases`: of the original, with the nodes of the copy.
  void add_copy(cudaGraph_t original, std::uint64_t id, cudaGraph_t copy, lease_spans leases,
                cudaGraph_t root);

  // For parking (graph_exposure.cpp). The handle of an owned graph was given out: execs of plain
  // CUDA may exist, of its parts, too, as of each graph that is not owned.
  void expose(cudaGraph_t graph) noexcept;
  void note_device_launches(deferred_releases const& held) noexcept;
  struct unknown_launches {  // why not all that use what the group's graphs hold are known
    std::string problem;
    std::string advice;
    bool may_pass = false;  // CUDA, or the worker, may be about to end it
  };
  // Throws std::bad_alloc.
  [[nodiscard]] std::optional<unknown_launches> unknown_launches_of(group_order const& group) const;
  // hoist() takes the set off that graph. The entry stays, so that a second hoist is noticed: until
  // the graph ends, or, of a plain graph, another one with its handle does.
  void remove_hoisted(reference_set& set, cudaGraph_t graph, hoist_ref const& by) noexcept;
  // The graph is alive, and not the sets that a recapture released.
  void forget_released(std::uint64_t id, cudaGraph_t graph) noexcept;
  // The capture of that graph ends: see reference_set::captures_ended(). `id` 0: it is not known.
  void end_capture(std::uint64_t id, cudaGraph_t graph) noexcept;
  // That capture has ended without a graph: drops what keepers have of it.
  void drop_capture(std::uint64_t id) noexcept;
  void remove(reference_set& set, cudaGraph_t graph) noexcept;
  void forget_set(reference_set& set) noexcept;
  void remove_set(reference_set& doomed) noexcept;

  // The newest graph with this handle that is known.
  struct known_graph {
    std::uint64_t id = 0;  // 0: not known
    bool is_owned = false;
    bool is_used = false;                                  // it holds something, or was hoisted
    std::shared_ptr<hoist_note const> released = nullptr;  // the last such one
  };
  [[nodiscard]] known_graph known(cudaGraph_t graph) const noexcept;

  // For the following, the graph is owned, or its id was compared with the known one.
  // The graph's sets, to which nothing is appended from now on.
  [[nodiscard]] std::vector<reference_set*> seal(cudaGraph_t graph);
  [[nodiscard]] std::size_t sets_on(cudaGraph_t graph) const noexcept;
  [[nodiscard]] bool is_sealed(reference_set const& set) const noexcept;
  [[nodiscard]] bool is_on(reference_set const& set, cudaGraph_t graph) const noexcept;
  [[nodiscard]] bool is_empty() const noexcept;  // true if no set exists, also on unknown graphs

  // Whether it may have work on the group's slots of before it was copied, instantiated or hoisted.
  [[nodiscard]] bool has_sealed(std::uint64_t id, cudaGraph_t graph,
                                group_order const& group) const noexcept;
  // Before a claim in an arena: sets that CUDA has released are the graph's no more.
  struct begun_claim {
    std::size_t behind = 0;        // the end of what the graph is a copy of
    std::uint64_t generation = 0;  // another one once the graph is recaptured, which keeps its id
  };
  [[nodiscard]] begun_claim begin_claim(std::uint64_t id, cudaGraph_t graph,
                                        group_order const& group) noexcept;
  // The orders of the groups whose slots it holds, or held before a hoist. Throws std::bad_alloc.
  using group_set = std::set<std::shared_ptr<launch_order>>;
  [[nodiscard]] group_set groups_of(cudaGraph_t graph) const { return orders_of(graph, true); }
  // The same of sets with exclusive members, without a sharing group.
  [[nodiscard]] group_set exclusives_of(cudaGraph_t graph) const { return orders_of(graph, false); }

  // Leases of sharing groups (group_leases.cpp).
  // A capture into the graph has claimed one. Null: the graph is gone. Throws std::bad_alloc.
  [[nodiscard]] std::shared_ptr<group_lease> note_lease(
      std::uint64_t id, cudaGraph_t graph, std::shared_ptr<lease_origin const> const& origin,
      source_location where, covered_place place, std::span<cudaGraphNode_t const> claimed_after,
      lease_log::room& spare);
  // What note_lease() needs then not to throw. Throws std::bad_alloc.
  [[nodiscard]] lease_log::room room_for_lease(std::uint64_t id, cudaGraph_t graph);
  // All that were claimed in the graph, or the graph that it is a copy of. Throws std::bad_alloc.
  [[nodiscard]] lease_spans leases_of(cudaGraph_t graph) const;
  // At the end of a capture: reports each lease that lives to its pool's deleter, once. The caller
  // owns the graph.
  void report_outliving(std::uint64_t id, cudaGraph_t graph) noexcept;

  // For reports (group_stats.cpp): what was claimed in the known graphs with an id, of one group,
  // in the order of the claims. Throws std::bad_alloc.
  struct noted_claim {
    std::uint64_t graph;
    covered_place place;
    std::string pool;
    source_location where;
    lease_state state;
    std::uint64_t claimed_at;
    std::uint64_t released_at;  // if it is released
  };
  [[nodiscard]] std::vector<noted_claim> claims_in(group_order const& group) const;
  // What the sets of each capture hold, sets of the same graph together; each set of a graph
  // without an id for itself. Throws std::bad_alloc.
  struct graph_holding {
    std::uint64_t id = 0;
    resource_usage held;
    std::size_t arena_bytes = 0;  // of them: the extents in arenas
    std::size_t graphs = 0;       // known ones that have it; 0: only execs and plain copies do
  };
  [[nodiscard]] std::vector<graph_holding> holdings() const;
  std::atomic<std::size_t> execs{0};  // graph_execs. Relaxed: a number

  void note_ordered(deferred_releases const& held) noexcept;  // see reference_set::is_ordered_
  // Whether it, which was hoisted, may be launched outside of hoisted::launch().
  void note_hoisted(deferred_release& held, bool are_launches_unknown) noexcept;
  // What the graphs of the group hold, the ids of those that nothing orders, and how many leases
  // outlive their capture. Throws std::bad_alloc.
  struct group_members {
    resource_usage held;
    std::vector<std::uint64_t> unordered;
    std::size_t outliving = 0;
  };
  [[nodiscard]] group_members members_of(group_order const& group) const;
  // The same as memory. Throw std::bad_alloc.
  [[nodiscard]] held_memory memory_of(std::span<cudaGraph_t const> graphs) const;
  [[nodiscard]] held_memory memory_of_sets(reference_sets const& sets) const;

  // What the graphs hold, each member once. Throws std::bad_alloc.
  [[nodiscard]] resource_usage describe(std::set<cudaGraph_t> const& graphs) const;
  // What has a set of `core`, in words: a line for each set. Throws std::bad_alloc.
  [[nodiscard]] std::string describe_sets(deleter_core const& core) const;

 private:
  struct entry {
    std::uint64_t id = 0;  // the newest capture's; 0: not known, and it is owned
    bool is_owned = false;
    hoist_notes hoists;             // empty: it was not hoisted
    hoist_ref last_release;         // the last one of these whose release a claim has seen
    std::uint64_t generation = 0;   // see begun_claim
    bool is_exposed = false;        // see expose()
    bool has_parts = false;         // others may be `part_of` it
    cudaGraph_t part_of = nullptr;  // a child graph, at any depth, of this one, owned then
    std::vector<reference_set*> sets;
    // The sharing groups of these, and of those that were hoisted; and orders of hoisted sets.
    std::vector<std::weak_ptr<launch_order>> orders;
    lease_log leases;           // claimed in it, of these groups
    lease_spans copied_leases;  // of what it is a copy of
  };
  using entries = std::unordered_map<cudaGraph_t, entry>;
  [[nodiscard]] group_set orders_of(cudaGraph_t graph, bool of_groups) const;
  [[nodiscard]] static bool is_it(entry const& known, std::uint64_t id) noexcept {
    return id == 0 || known.is_owned || known.id == id;
  }
  // Null if there is none, or it is not owned and has another id. `id` 0: any.
  [[nodiscard]] entry const* find(cudaGraph_t graph, std::uint64_t id = 0) const noexcept;
  // The entry, of a graph with this id; 0: not known.
  [[nodiscard]] entries::iterator entry_for(cudaGraph_t graph, std::uint64_t id);
  // Of a graph that is captured into: if nothing is left, it begins another generation.
  void drop_released(std::uint64_t id, cudaGraph_t graph) noexcept;
  void note(std::uint64_t id, cudaGraph_t graph, std::span<reference_set* const> added);
  void clear(entries::iterator dead) noexcept;  // it was destroyed, with its parts
  void drop(reference_set& set, cudaGraph_t graph) noexcept;
  static void note_outliving(entry const& ended) noexcept;
  // An owned graph whose handle was not given out, or a part of one.
  [[nodiscard]] bool is_hidden(cudaGraph_t graph) const noexcept;
  static void expose_sets(entry& of) noexcept;
  void erase_if_unused(entries::iterator found) noexcept;

  mutable std::mutex mutex_;  // guards everything here, and the registry's fields of each set
  entries entries_;
  std::unordered_set<cudaGraph_t> bodies_;   // of conditional nodes that were added by hand
  std::unordered_set<reference_set*> sets_;  // all
  std::uint64_t last_generation_ = 0;
  lease_log::room spare_leases_;  // memory of logs that have ended
};

}  // namespace escrow::inline v0_2
