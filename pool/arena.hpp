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
#include <span>
#include <utility>
#include <vector>

#include "address_range.hpp"
#include "escrow/internal/group_lease.hpp"
#include "graph_walk.hpp"

namespace escrow::inline v0_1 {

struct slot;
struct size_class;

// Where a claim of one graph's capture, or of a group_scope, lies in an arena, as long as its slot
// exists.
//                         may be used by later claims of
//                         other graphs     its own graph
//     taken, kept         no               no
//     released            yes              those that come after all nodes of the release
//     covered             yes              those that may use the range that covers it
//     gone                yes              there are none: the graph holds it no more
// A lease that ends outside of its capture leaves its place `kept`.
// Thread safety: guarded by its arena, but for `held`: the claim's thread.
struct arena_place {
  enum class state : std::uint8_t { taken, kept, released, covered, gone };

  std::size_t begin;
  std::size_t end;
  std::uint64_t graph;   // the id of its capture, or the scope's number
  size_class const* of;  // of the slot
  slot* held = nullptr;  // null until it is made
  state its_state = state::taken;
  std::uint64_t stamp = 0;  // of its release
  graph_nodes released_after = {};
  std::uint64_t released_edges = 0;  // their fingerprint
  std::list<arena_place>::iterator self = {};

  [[nodiscard]] bool overlaps(arena_place const& other) const noexcept {
    return begin < other.end && other.begin < end;
  }
  [[nodiscard]] bool contains(arena_place const& other) const noexcept {
    return begin <= other.begin && other.end <= end;
  }
  [[nodiscard]] bool is_as(arena_place const& other) const noexcept {
    return begin == other.begin && end == other.end && of == other.of;
  }
};

// What: the scratch of a group's graphs. No two of their launches overlap, so each graph lays out
//   its claims over all of the memory: what the claim before may still use of its own graph is left
//   out, and what leases cover that live. So the group needs what the largest graph needs.
// Thread safety: any thread. The lock of the layout is held across no CUDA call; that of the
//   mapping is, by claims that need more than is mapped.
// Lifetime: its pools'.
// Capture: capture-safe.
// Errors: claim() and map() throw cuda_error, std::bad_alloc, and then have claimed nothing.
class ESCROW_LOCAL arena final : public group_memory {
 public:
  // The group's; null if the device has no memory management for it, or if the group's graphs
  // share slots. Throws cuda_error, std::bad_alloc.
  [[nodiscard]] static std::shared_ptr<arena> of(group_order& group, int device);

  // The same, if it was made.
  [[nodiscard]] static std::shared_ptr<arena> known(group_order& group);

  struct request {
    std::size_t bytes;
    std::uint64_t graph;
    cudaGraph_t handle;
    size_class const* of;
  };
  // Who used the memory before in that graph: its work comes after these nodes.
  struct earlier_users {
    graph_nodes nodes;
    std::uint64_t edges = 0;         // their fingerprint
    bool are_known_to_slot = false;  // it was the slot's last lease
  };
  // A place for a claim of a capture with that frontier: a new one, or one of the same size class
  // that has a slot.
  [[nodiscard]] arena_place& claim(request const& asked, capture_frontier const& frontier,
                                   earlier_users& earlier);
  // So that work may use it.
  void map(arena_place const& place);
  [[nodiscard]] char* address_of(arena_place const& place) const noexcept {
    return range_.begin() + place.begin;
  }
  // Ends the lease in its capture. Throws std::bad_alloc.
  void release(arena_place& place, std::span<cudaGraphNode_t const> after, std::uint64_t edges);
  // The lease ends elsewhere, unless it has ended.
  void keep(arena_place& place) noexcept;
  // The slot's holders are fewer; `is_its_graph`: its graph holds it no more, and no claim gets it.
  // False if one has got it just now.
  [[nodiscard]] bool may_go(arena_place& place, bool is_its_graph) noexcept;
  void remove(arena_place& place) noexcept;

  // Unmaps what is behind the last place. Returns the bytes.
  std::size_t trim() noexcept;
  [[nodiscard]] std::size_t bytes() const noexcept override {
    return mapped_.load(std::memory_order_relaxed);
  }
  void end_scope(std::uint64_t number) noexcept override;  // arena_claims.cpp

  arena(group_order const& group, int device) : group_(group), range_(device) {}

 private:
  struct released_place {
    std::uint64_t stamp;
    graph_nodes after;
    std::uint64_t edges;
  };
  using places = std::list<arena_place>;
  // What one graph has.
  struct layout {
    places all = {};
    struct candidate {
      cudaGraphNode_t after;  // a node that the release came after; null if it came after none
      arena_place* its;
    };
    std::vector<candidate> released = {};
    std::size_t extent = 0;
    // Some of the released ones overlap, or overlap what is taken.
    bool has_overlaps = false;
    // Behind all that other graphs use: where the graph has copies of them is not known.
    bool is_apart = false;
  };

  // The stream's last place of that size, where nothing else overlaps it; null if there is none.
  [[nodiscard]] arena_place* claim_last(request const& asked, capture_frontier const& frontier);
  // The same with a walk through the graph.
  [[nodiscard]] arena_place& claim_best(request const& asked, capture_frontier const& frontier,
                                        graph_nodes& earlier);
  void give_up(arena_place& claimed) noexcept;
  [[nodiscard]] std::vector<released_place> released_in(std::uint64_t graph);
  // All below with the lock.
  // The begin of the smallest gap that suffices between what may not be used, else their end.
  [[nodiscard]] std::size_t choose(request const& asked, layout const& in,
                                   std::vector<std::uint64_t> const& before) const;
  // Takes the place that was made, or that of a slot there, and covers others. Throws
  // std::bad_alloc, as the next.
  [[nodiscard]] arena_place& take(layout& in, places& made, graph_nodes& earlier);
  void mark_taken(arena_place& place);
  void untake(arena_place const& place) noexcept;
  [[nodiscard]] bool is_taken(arena_place const& place) const noexcept;  // a part of it
  static void list_released(layout& in, arena_place& place) noexcept;
  static void unlist(layout& in, arena_place const& place) noexcept;
  // Of all graphs, but for that one; no graph has the id 0.
  [[nodiscard]] std::size_t extent(std::uint64_t without) const noexcept;

  group_order const& group_;  // owns it
  std::mutex mapping_;        // guards the range; held across the calls that map
  address_range range_;
  std::atomic<std::size_t> mapped_{0};  // relaxed: under one of the locks, or a number

  std::mutex mutex_;  // guards all below; taken with or without mapping_
  std::map<std::uint64_t, layout> graphs_;
  std::vector<arena_place*> taken_;  // of all graphs; they do not overlap, and are in order
  std::uint64_t last_stamp_ = 0;
};

// A pool's use of its group's arena, which is asked for once.
struct ESCROW_LOCAL arena_use {
  bool const may_be = false;
  std::once_flag is_known = {};
  std::shared_ptr<arena> its = nullptr;  // null: there is none
  std::atomic<std::size_t> bytes{0};     // of the pool's slots in it. Relaxed: a number
};

}  // namespace escrow::inline v0_1
