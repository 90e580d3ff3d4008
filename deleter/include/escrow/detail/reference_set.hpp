// What one graph holds for one deleter, behind one CUDA user object; and which graph has what.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "escrow/core/event.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/detail/never_destroyed.hpp"
#include "escrow/detail/ready_event.hpp"
#include "escrow/detail/reclaimable.hpp"

namespace escrow {

// What: the end of an exec's last launch: an event that the exec records after each launch.
// Thread safety: the exec's thread writes it, under the launch orders of what the exec holds; other
//   threads read it under one of these.
// Lifetime: shared by the exec, by the launch orders in which its launch is the last, and by the
//   deferred releases that wait for it.
// Errors: the constructor, which is capture-safe, throws cuda_error, std::bad_alloc.
struct launch_end {
  explicit launch_end(int of_device) : ready(event_cache::take(of_device)), device(of_device) {}
  launch_end(launch_end&&) = delete;
  ~launch_end() { event_cache::put(device, std::move(ready)); }

  event ready;
  int device;                         // the event's
  bool is_recorded = false;           // if not, the event says nothing
  std::uint64_t stream = 0;           // id of the stream of the last launch; 0: not known
  cudaError_t failure = cudaSuccess;  // why the end of the last launch is not known
};

// What: serializes the launches of execs that may write the same resources. A launch holds the
//   mutex from its wait for the last launch to the record of its own end.
// Thread safety: by its mutex. Several are locked in the order of their addresses. Held across the
//   calls of one launch, none of which runs a destructor.
// Lifetime: shared by reference sets that have members in common.
struct launch_order {
  std::mutex mutex;                  // guards `last`, and the launch_end of each exec of this order
  std::shared_ptr<launch_end> last;  // null: nothing was launched yet
  // Execs of this order. Relaxed: a launch that misses a new exec leaves its stream unnamed, and
  // the other one waits once without need.
  std::atomic<int> execs{0};
};

// What: what one graph holds for one deleter: slots and owners. The first claim or retire in a
//   capture makes the set and its user object; later ones append to it with no CUDA call. Escrow's
//   instantiate, clone, embed, update and hoist seal it; the next claim makes another set. A set
//   only grows, so plain copies of the graph keep what is appended later, too: later than needed,
//   never earlier.
// Thread safety: add_ref() and drop_ref() from any thread, also in a destroy callback. Members are
//   appended under the registry's lock, or by the thread that made the set, before others see it.
// Lifetime: references are the graph's user object, execs, hoisted handles and graphs built by
//   hand. With the last one the set closes: the list's head becomes `closed`, and the set is pushed
//   to the recycle lane, which recycles slots, and then to the destroy lane, which destroys owners.
//   The memory stays until the registry has forgotten the set.
// Capture: place() is capture-safe, also on a graph that is being captured into.
class reference_set final : public reclaimable {
 public:
  // An empty set with one reference, the caller's. A set that takes over members of another one
  // has its `order`. Throws std::bad_alloc.
  [[nodiscard]] static ref<reference_set> make(
      deleter_core& core, int device,
      std::shared_ptr<launch_order> order = std::make_shared<launch_order>());

  void add_ref() noexcept { reclaimable::add_ref(); }
  void drop_ref() noexcept {
    if (drop_ref_only()) close();
  }

  // Appends an idle member, which gets its first reference. False if the set is closed.
  // `is_written`: launches that use it need an order.
  [[nodiscard]] bool append(reclaimable& member, bool is_written) noexcept;

  // Members that other sets may hold, too: what nodes of graphs built by hand keep. Room has to be
  // reserved first, which throws std::bad_alloc. Only while no other thread sees the set.
  void reserve_shared(std::size_t more) { shared_.reserve(shared_.size() + more); }
  void append_shared(ref<reclaimable> member, bool is_written) noexcept {
    is_written_ |= is_written;
    shared_.push_back(std::move(member));
  }
  [[nodiscard]] std::vector<ref<reclaimable>> const& shared() const noexcept { return shared_; }

  [[nodiscard]] bool is_written() const noexcept { return is_written_; }
  [[nodiscard]] std::shared_ptr<launch_order> const& order() const noexcept { return order_; }

  [[nodiscard]] static bool is_set(reclaimable const& thing) noexcept {
    return thing.reclaim_ == &reclaim_set;
  }
  void list_members(std::vector<reclaimable const*>& found) const;
  // The set was taken off its graph for good. See slot_reference.
  void end_reuse() noexcept;

 private:
  friend class graph_registry;

  reference_set(deleter_core& core, int device, std::shared_ptr<launch_order> order);
  ~reference_set() = default;

  void close() noexcept;
  static void reclaim_set(reclaimable& thing) noexcept;
  void recycle() noexcept;
  void destroy() noexcept;

  // The newest member, linked by next_; `closed` once the last reference was dropped.
  std::atomic<reclaimable*> newest_{nullptr};
  std::vector<ref<reclaimable>> shared_;
  std::shared_ptr<launch_order> const order_;
  reclaimable* owners_ = nullptr;  // what is left for the destroy lane, linked by next_
  bool is_recycled_ = false;       // the recycle lane is done with it
  bool is_written_ = false;        // written as members are appended

  // Guarded by the registry.
  bool is_open_ = false;                  // claims of its capture may append
  bool is_sealed_ = false;                // nothing may be appended any more
  std::vector<std::uint64_t> graph_ids_;  // of the graphs that have it, as far as is known
};

using reference_sets = std::vector<ref<reference_set>>;

// Has `graph`, which the registry knows as `id`, hold `member`, which is idle: appends to the
// graph's open set if there is one, else makes a set. `may_append` false: always makes a set, to
// which nothing is appended. Throws usage_error for a capture that was invalidated meanwhile,
// cuda_error, std::bad_alloc; returns whether the member was taken through `is_taken`: a member
// that was taken is reclaimed all the same. Any thread. Source: cudaUserObjectCreate,
// cudaGraphRetainUserObject.
void hold_in_graph(reclaimable& member, bool is_written, cudaGraph_t graph, std::uint64_t id,
                   bool may_append, bool& is_taken);

// Puts `set` on `graph`, which the registry knows as `id`: the graph's user object has a reference
// then. Returns that object. Throws cuda_error, std::bad_alloc, and then the graph is as before.
cudaUserObject_t place(reference_set& set, cudaGraph_t graph, std::uint64_t id, bool is_open);

// Drops one reference to a user object. If CUDA refuses, what it holds is leaked, reported and
// counted. Any thread. Source: cudaUserObjectRelease.
void release_object(cudaUserObject_t object, deleter_core& core) noexcept;

// What: a reference to a set that is dropped once the last launch is done. Made ahead, so that
//   waiting cannot fail.
// Lifetime: an exec or a hoisted handle owns it, in a list, and drops the reference by its end.
struct deferred_release {
  explicit deferred_release(reference_set& held) : set(held) {}
  deferred_release(deferred_release&&) = delete;

  ref<reference_set> set;

  // While it waits, guarded by the recycle lane.
  cudaEvent_t ready = nullptr;
  std::shared_ptr<launch_end> owner;  // of the event; null: it is a caller's
  int device = -1;                    // the event's
  bool is_reported = false;
  std::uint64_t epoch = 0;
  std::uint64_t serial = 0;  // its place in the lane's list
};

// In a list, so that handing them over allocates nothing.
using deferred_releases = std::list<deferred_release>;

// One for each of `sets`. Throws std::bad_alloc.
[[nodiscard]] deferred_releases hold_all(reference_sets const& sets);
// Drops all references once `ready`, an event of `device`, is done. `owner` owns the event if it is
// Escrow's. The event must not be recorded again.
void release_after(deferred_releases held, cudaEvent_t ready, int device,
                   std::shared_ptr<launch_end> const& owner) noexcept;
// Never drops them, and counts that: nothing tells when the GPU is done.
void leak(deferred_releases held) noexcept;
// What the sets hold, each thing once. Throws std::bad_alloc.
[[nodiscard]] resource_usage resource_usage_of(deferred_releases const& held);
[[nodiscard]] resource_usage resource_usage_of(std::vector<reclaimable const*> members);

// What: the reference sets of each graph, by the id under which the graph was captured: ids are
//   never reused, handles are. A graph that Escrow created has a key of its own in place of the
//   id; as long as it is alive, its handle leads to it. Knows nothing of plain copies
//   (cudaGraphClone).
// Thread safety: any thread. One lock, held across no CUDA call, never taken in a destroy callback.
// Lifetime: an entry ends with its last set. Never destroyed: releases may arrive until the end of
//   the process.
// Errors: what may allocate throws std::bad_alloc and then has changed nothing.
class graph_registry {
 public:
  struct placed_set {
    reference_set* set;
    cudaUserObject_t object;
  };

  [[nodiscard]] static graph_registry& global() noexcept;

  // A key for a graph that Escrow has created and will destroy; forget_graph() ends it.
  [[nodiscard]] std::uint64_t adopt(cudaGraph_t created);
  // The adopted graph has a plain owner from now on, who knows it by its id.
  void give_id(std::uint64_t key, std::uint64_t id, cudaGraph_t graph) noexcept;
  // The graph is about to be destroyed, or given away.
  void forget_graph(cudaGraph_t graph, std::uint64_t id) noexcept;

  // Appends to the open set of that deleter. Nothing if there is none; false if the set is closed:
  // its graph was destroyed.
  enum class appended { yes, no_set, closed };
  [[nodiscard]] appended append(deleter_core const& core, std::uint64_t id, cudaGraph_t graph,
                                reclaimable& member, bool is_written) noexcept;

  // Notes a set that is about to be placed on `graph`; open() follows once it is there. Returns the
  // id under which it is noted: the key of an adopted graph that is captured into.
  std::uint64_t add(placed_set added, std::uint64_t id, cudaGraph_t graph);
  void open(reference_set const* set, std::uint64_t id) noexcept;
  void add_copy(std::uint64_t original_id, std::uint64_t id, cudaGraph_t copy);
  // The set is not on that graph, or not any more.
  void remove(reference_set& set, std::uint64_t id) noexcept;
  void forget_set(reference_set& set) noexcept;

  // A set that was made, or is about to be freed. All sets are known here, leaked ones, too.
  void add_set(reference_set const& made);
  void remove_set(reference_set const& doomed) noexcept;

  // The graph's sets. From now on nothing is appended to them.
  [[nodiscard]] std::vector<placed_set> seal(std::uint64_t id);
  [[nodiscard]] bool is_sealed(reference_set const& set) const noexcept;
  [[nodiscard]] bool is_on(reference_set const& set, std::uint64_t id) const noexcept;

  // The newest graph with this handle that was noted. Nothing: none that is alive was, so there is
  // no need to learn the id of a graph with this handle. Not adopted: it may be another one by now.
  struct known_handle {
    std::uint64_t id;
    bool is_adopted;
  };
  [[nodiscard]] std::optional<known_handle> find(cudaGraph_t graph) const noexcept;
  [[nodiscard]] bool knows(std::uint64_t id) const noexcept;
  // Whether there is no set at all, also on graphs that are not known.
  [[nodiscard]] bool is_empty() const noexcept;

  // What the graphs hold, each thing once. Throws std::bad_alloc.
  [[nodiscard]] resource_usage describe(std::vector<std::uint64_t> const& ids) const;

 private:
  friend class reference_set;
  struct entry {
    cudaGraph_t graph = nullptr;
    std::vector<placed_set> sets;
  };
  using entries = std::unordered_map<std::uint64_t, entry>;

  friend class never_destroyed<graph_registry>;
  graph_registry() = default;
  ~graph_registry() = default;
  [[nodiscard]] std::uint64_t resolve(std::uint64_t id, cudaGraph_t graph) const noexcept;
  void note(std::uint64_t id, cudaGraph_t graph, std::span<placed_set const> added);
  [[nodiscard]] std::span<placed_set const> sets_of(std::uint64_t id) const noexcept;
  void take_out(reference_set const& set, std::uint64_t id) noexcept;
  void erase_if_unused(entries::iterator found) noexcept;
  static bool is_key(std::uint64_t id) noexcept { return id >= first_key; }
  void forget_entry(std::uint64_t dead_id) noexcept;

  mutable std::mutex mutex_;  // guards all, and the registry's fields of each set
  entries entries_;
  std::unordered_map<cudaGraph_t, std::uint64_t> handles_;  // the newest graph of each handle
  std::unordered_set<reference_set const*> sets_;           // all
  static constexpr std::uint64_t first_key = std::uint64_t{1} << 62;  // CUDA's ids begin with 1
  std::uint64_t next_key_ = first_key;                                // of adopted graphs
};

}  // namespace escrow
