// SPDX-License-Identifier: Apache-2.0
// What a graph holds for a deleter, behind one CUDA user object.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <boost/container/small_vector.hpp>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "escrow/core/event.hpp"
#include "escrow/deleter/deleter_options.hpp"
#include "escrow/detail/reclaimable.hpp"
#include "escrow/internal/held_memory.hpp"
#include "escrow/internal/kept_sets.hpp"
#include "escrow/internal/launch_order.hpp"

namespace escrow::inline v0_2 {

// What: the slots and owners that one graph holds for one deleter. The first claim or retire in a
//   capture creates the set and its user object; later ones append without a CUDA call. Escrow's
//   instantiate, clone, embed, update and hoist seal it; the next claim creates another set. A set
//   only grows, so plain copies of the graph also keep members that are appended later: they
//   release later than necessary, never too early.
// Thread safety: add_ref() and drop_ref() from any thread, also in a destroy callback. Slots are
//   appended under the registry's lock once it has the set: statistics of a group read it. Owners
//   of nodes are appended by the only thread that uses the graph. Without the lock, members are
//   read only while nothing is appended.
// Lifetime: referenced by the graph's user object, execs, hoisted handles and graphs built by hand.
//   The last reference pushes it to the recycle lane, which makes the registry forget it and
//   recycles its slots, and then to the destroy lane, which destroys its owners and the set.
class reference_set final : public reclaimable {
 public:
  // A new set with one reference, the caller's. `order`: a sharing group's, or that of the set
  // whose members it takes over; null: a new one. Throws std::bad_alloc.
  [[nodiscard]] static ref<reference_set> make(deleter_core& core, int device,
                                               std::shared_ptr<launch_order> order);

  // Null: it has a keeper, or is on no graph.
  [[nodiscard]] cudaUserObject_t object() const noexcept { return object_; }

  // Makes room for more members. Throws std::bad_alloc.
  void reserve(std::size_t more) {
    if (members_.capacity() - members_.size() < more) members_.reserve(2 * members_.size() + more);
  }
  // Appends a member; other sets may have it, too. Throws std::bad_alloc if there is no room.
  void append(reclaimable& member, member_use use);
  [[nodiscard]] std::size_t size() const noexcept { return members_.size(); }

  [[nodiscard]] bool is_written() const noexcept { return use_ != member_use::read; }
  // Without a sharing group.
  [[nodiscard]] bool is_exclusive() const noexcept {
    return use_ == member_use::exclusive && order_->group == nullptr;
  }
  [[nodiscard]] std::shared_ptr<launch_order> const& order() const noexcept { return order_; }

  [[nodiscard]] static bool is_set(reclaimable const& thing) noexcept {
    return thing.reclaim_ == &reclaim_set;
  }
  // Where it is. Relaxed, all of it: only the value matters, and the caller orders hoist() and
  // captures into one graph, as CUDA demands.
  //     on_its_graph   the graph that it was made for has it: captures into that may use its slots
  //                    again
  //     hoisted        that graph has it no more; copies may
  //     on_no_graph    CUDA has destroyed its user object, whatever the registry says: a graph that
  //                    is alive was recaptured
  enum class place_state : std::uint8_t { on_its_graph, hoisted, on_no_graph };
  [[nodiscard]] bool is_off_graphs() const noexcept {
    return where_.load(std::memory_order_relaxed) == place_state::on_no_graph;
  }
  [[nodiscard]] bool may_be_reused() const noexcept {
    return where_.load(std::memory_order_relaxed) == place_state::on_its_graph;
  }
  void leave_graphs() noexcept {
    where_.store(place_state::on_no_graph, std::memory_order_relaxed);
  }

  // How many captures of Escrow's that appended to it have ended. A member that came before the
  // last one is of a capture that is over. Relaxed: the ending thread orders the leases.
  [[nodiscard]] std::uint64_t captures_ended() const noexcept {
    return captures_ended_.load(std::memory_order_relaxed);
  }

  // It has no references: its members belong to the recycle lane. Asked under the registry's lock,
  // which that lane takes before it touches them; relaxed, because of that lock.
  [[nodiscard]] bool is_closed() const noexcept {
    return references_.load(std::memory_order_relaxed) == 0;
  }
  // Whoever had it waits for its last launch, and launches it no more. Any thread; where that is
  // changing, the answer may be either. Relaxed: numbers.
  [[nodiscard]] bool is_given_up() const noexcept {
    std::uint32_t const all = given_up_.load(std::memory_order_relaxed);
    return all != 0 && all == references_.load(std::memory_order_relaxed);
  }
  void list_members(std::vector<reclaimable const*>& found) const;
  void list_memory(held_memory& to) const;  // with what nodes have shares of
  // An owner in it does, as its type tells, or, if `or_points`, a pointer in what it points to.
  [[nodiscard]] bool owns(void const* object, bool or_points) const noexcept;

 private:
  friend class graph_registry;
  friend class kept_sets;
  friend struct deferred_release;

  reference_set(deleter_core& core, int device, std::shared_ptr<launch_order> order);
  ~reference_set() = default;

  static void reclaim_set(reclaimable& thing) noexcept;
  void recycle() noexcept;
  void destroy() noexcept;

  boost::container::small_vector<ref<reclaimable>, 4> members_;
  void leave_its_graph() noexcept {  // unless it has left all
    place_state where = place_state::on_its_graph;
    where_.compare_exchange_strong(where, place_state::hoisted, std::memory_order_relaxed);
  }

  std::atomic<place_state> where_{place_state::on_its_graph};
  std::atomic<std::uint64_t> captures_ended_{0};
  std::atomic<std::uint32_t> given_up_{0};  // references
  std::shared_ptr<launch_order> const order_;
  cudaUserObject_t object_ = nullptr;  // of all graphs that have the set
  kept_sets const* keeper_ = nullptr;  // keeps it in place of an object; only compared
  std::weak_ptr<kept_sets> kept_by_;   // the same; guarded by the registry, once that has the set
  std::uint64_t id_ = 0;               // of the graph that it was made for; 0: not known
  reclaimable* owners_ = nullptr;      // for the destroy lane, linked by next_
  bool is_recycled_ = false;           // the recycle lane is done with it
  member_use use_ = member_use::read;  // the greatest of its members; written as they are appended

  // Guarded by the registry.
  enum class phase : std::uint8_t {
    filling,  // its maker alone appends
    open,     // claims of its capture append
    sealed    // nothing is appended any more
  };
  phase phase_ = phase::filling;
  bool is_ordered_ = false;          // an exec has it, or hoisted::launch() was called
  std::vector<cudaGraph_t> graphs_;  // the known graphs that have it: their entries have the set
  std::uint64_t hoisted_off_ = 0;    // id of the last graph that it was hoisted off; 0: none
  int unknown_hoists_ = 0;           // deferred_releases that are of_unknown_launches
  bool is_exposed_ = false;          // others may have instantiated a graph with it: see expose()
  bool is_launched_by_gpu_ = false;  // an exec with it was instantiated for device launch
};

// Makes `graph`, whose id is `id`, hold `member`, which is idle: in the graph's open set if there
// is one, else in a new set. `may_append` false: always a new set, to which nothing is appended
// later. `group`: the sharing group that the set is of; null: none. `keeper`: see
// graph_registry::place. `is_taken` returns whether the member was taken; then it is reclaimed even
// if this throws. Throws usage_error for a capture that was invalidated meanwhile, cuda_error,
// std::bad_alloc. Any thread. Source: cudaUserObjectCreate, cudaGraphRetainUserObject.
void hold_in_graph(reclaimable& member, member_use use, cudaGraph_t graph, std::uint64_t id,
                   bool may_append, std::shared_ptr<group_order> const& group, bool& is_taken,
                   kept_sets* keeper = nullptr);

// Drops one reference to the set's user object. If that fails, the contents are leaked, reported
// and counted. Any thread. Source: cudaUserObjectRelease.
void release_object(cudaUserObject_t object, deleter_accounts& its) noexcept;

// What: a reference to a set, dropped after the last launch. Created in advance, so that waiting
//   cannot fail.
// Lifetime: in a list of an exec or a hoisted handle; its destructor drops the reference.
struct deferred_release {
  explicit deferred_release(reference_set& held) : set(held) {}
  deferred_release(deferred_release&&) = delete;
  ~deferred_release() { drop(); }
  void drop() noexcept;  // the reference, earlier
  void give_up() noexcept;

  ref<reference_set> set;
  // It was hoisted, and others may launch it where they like. Guarded by the registry.
  bool of_unknown_launches = false;
  bool is_given_up = false;  // by release_after()

  // While it waits, guarded by the recycle lane.
  std::shared_ptr<launch_end> end;
  std::uint64_t epoch = 0;
};

using deferred_releases = std::list<deferred_release>;  // transfer allocates nothing

// One for each of `sets`. Throws std::bad_alloc.
[[nodiscard]] deferred_releases hold_all(reference_sets const& sets);
// Drops all references once the event of `end` is done, which must not be recorded again.
void release_after(deferred_releases held, std::shared_ptr<launch_end> const& end) noexcept;
// Leaks and counts them: it will never be known when the GPU is done.
void leak(deferred_releases held) noexcept;
// What the sets hold, each member once. Throws std::bad_alloc.
[[nodiscard]] resource_usage resource_usage_of(deferred_releases const& held);
// `with_arenas`: else what lies in them counts no bytes.
[[nodiscard]] resource_usage resource_usage_of(std::vector<reclaimable const*> members,
                                               bool with_arenas = true);

}  // namespace escrow::inline v0_2
