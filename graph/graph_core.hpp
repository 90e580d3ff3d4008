// What a graph, its nodes and the bodies of its conditional nodes share.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "escrow/detail/device.hpp"
#include "escrow/detail/node_payload.hpp"
#include "escrow/detail/reference_set.hpp"
#include "escrow/detail/retired_object.hpp"

namespace escrow {

// The nodes that have a payload. Thread safety: as a vector; find() is const in name and effect
// only once the table is sorted.
class node_table {
 public:
  struct entry {
    cudaGraphNode_t node = nullptr;
    retired_object* owner = nullptr;
    // That the owner is in, which is on the graph; null: the owner is not yet on the graph.
    reference_set* set = nullptr;
  };

  [[nodiscard]] std::vector<entry>& entries() noexcept { return entries_; }
  [[nodiscard]] std::vector<entry> const& entries() const noexcept { return entries_; }

  // So that the next insert() allocates nothing. Throws std::bad_alloc.
  void reserve_one() {
    constexpr std::size_t first_room = 16;
    if (entries_.size() < entries_.capacity()) return;
    entries_.reserve(std::max(first_room, 2 * entries_.size()));
  }
  void insert(entry const& added) noexcept {
    is_sorted_ = is_sorted_ && (entries_.empty() || entries_.back().node < added.node);
    entries_.push_back(added);
  }
  void erase(entry* found) noexcept {
    entries_.erase(entries_.begin() + (found - entries_.data()));
  }

  // The entry of a node, for another, which has no owner if there is to be none. Throws
  // std::bad_alloc.
  void replace(cudaGraphNode_t node, entry const& next) {
    reserve_one();
    if (entry* const found = find(node)) erase(found);
    if (next.owner != nullptr) insert(next);
    sort();
  }

  void sort() noexcept {
    if (!is_sorted_) std::ranges::sort(entries_, {}, &entry::node);
    is_sorted_ = true;
  }
  // Null if the node has no payload.
  [[nodiscard]] entry* find(cudaGraphNode_t node) noexcept {
    sort();
    auto const found = std::ranges::lower_bound(entries_, node, {}, &entry::node);
    return found != entries_.end() && found->node == node ? &*found : nullptr;
  }
  // The table must be sorted.
  [[nodiscard]] entry const* find(cudaGraphNode_t node) const noexcept {
    auto const found = std::ranges::lower_bound(entries_, node, {}, &entry::node);
    return found != entries_.end() && found->node == node ? &*found : nullptr;
  }

 private:
  std::vector<entry> entries_;
  bool is_sorted_ = true;
};

// Harms no capture. Ignores the status. Any thread.
void destroy_graph(cudaGraph_t doomed) noexcept;

// What: owns a cudaGraph_t, and knows what each node that was added by hand keeps alive (its
//   payload). As long as nobody else has the graph's handle, payloads are only collected here; one
//   reference set with all of them is placed on the graph when the handle is asked for or the graph
//   is copied or instantiated (seal, expose). Afterwards each payload is on the graph with its
//   node. Owners of nodes in bodies are the graph's.
// Thread safety: exclusive access, as CUDA demands for the graph.
// Lifetime: shared by the graph and its bodies; nodes only look whether it is there. Its end
//   destroys the graph.
class graph_core : public std::enable_shared_from_this<graph_core> {
 public:
  // A graph that Escrow created, which the registry knows by its handle. Throws std::bad_alloc,
  // cuda_error, and then has not taken the graph.
  explicit graph_core(cudaGraph_t created);
  // One that somebody else created; `id`: 0 if it is not known. Throws the same.
  graph_core(cudaGraph_t native, std::uint64_t id);
  graph_core(graph_core&&) = delete;
  ~graph_core();

  // Null once it was detached.
  [[nodiscard]] cudaGraph_t native() const noexcept { return native_; }
  // The id under which it was captured; 0 if it is not known.
  [[nodiscard]] std::uint64_t id() const noexcept { return is_adopted_ ? 0 : id_; }
  // What the registry knows it by; 0 if that is not known.
  [[nodiscard]] std::uint64_t key() const noexcept { return id_; }
  // The deleter that destroys what nodes keep; the process's own if none was named.
  [[nodiscard]] deleter_core& keeper();
  // Where what nodes keep is destroyed: the device that was current when the graph was made.
  [[nodiscard]] int device() const noexcept { return device_; }
  void set_keeper(deleter_core& keeper) noexcept;

  // Sees to it that all that is kept is on the graph. Throws cuda_error, std::bad_alloc.
  void seal();
  // The handle, for others. Throws as seal().
  [[nodiscard]] cudaGraph_t expose();
  // Gives the handle up. Throws as seal(), and nothing has changed then.
  [[nodiscard]] cudaGraph_t detach();
  // After hoisting: the graph keeps nothing any more.
  void forget_payloads() noexcept;

  // A node in the graph or in one of its bodies. All three throw cuda_error, std::bad_alloc, and
  // then neither the graph nor what it keeps has changed.
  [[nodiscard]] cudaGraphNode_t add(cudaGraph_t in, std::span<cudaGraphNode_t const> after,
                                    cudaGraphNodeParams& params, detail::node_payload payload);
  void set(cudaGraphNode_t changed, cudaGraphNodeParams& params, detail::node_payload payload);
  void destroy(cudaGraphNode_t doomed);

  // The payloads as they are now. Throws as seal().
  [[nodiscard]] std::shared_ptr<node_table const> snapshot();
  // Serializes execs that keep any of the payloads.
  [[nodiscard]] std::shared_ptr<launch_order> const& order() const noexcept { return order_; }
  // Knows the payloads of the graph that this is a clone of. Throws cuda_error, std::bad_alloc.
  void copy_payloads(graph_core& original);

  // Counts the changes of nodes and edges. Others who have the handle can change them, too.
  [[nodiscard]] std::uint64_t shape() const noexcept { return shape_; }
  void note_reshaped() noexcept { ++shape_; }
  [[nodiscard]] bool is_exposed() const noexcept { return is_exposed_; }

  // Bodies of conditional nodes made by hand, nested ones too.
  std::vector<cudaGraph_t> bodies;

 private:
  class change;
  struct placed_set {
    ref<reference_set> set;
    cudaUserObject_t object;
  };

  // Learns the id. Throws usage_error if it cannot be learned.
  void identify();
  // Places a set of `parts` on the graph.
  reference_set& place(std::span<retired_object* const> parts);
  void take_off(reference_set& set) noexcept;
  // The set that more may be appended to; null if there is none.
  [[nodiscard]] reference_set* open_set() noexcept;
  void drop_hoisted() noexcept;
  void forget_destroyed_nodes();

  cudaGraph_t native_;
  bool is_adopted_;
  std::uint64_t id_;  // 0: not known yet
  bool is_exposed_;
  std::uint64_t shape_ = 0;
  deleter_core* keeper_ = nullptr;  // null: none was named
  int device_ = current_device();
  node_table payloads_;
  std::size_t pending_ = 0;         // payloads that are not on the graph
  std::vector<placed_set> placed_;  // on the graph
  std::shared_ptr<launch_order> order_ = std::make_shared<launch_order>();
  std::shared_ptr<node_table const> snapshot_;  // null: not made since the last change
};

}  // namespace escrow
