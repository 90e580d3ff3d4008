// What a graph, its nodes and the bodies of its conditional nodes share.
#pragma once

#include <cuda_runtime_api.h>

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

// Nothing if it is null. Harms no capture. Ignores the status. Any thread.
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

  // A set of these owners, for the graph or for an exec of it: execs that hold such sets are
  // serialized if they may write an owner. Throws std::bad_alloc.
  [[nodiscard]] ref<reference_set> set_of(std::span<retired_object* const> owners);
  // Knows the payloads of the graph that this is a clone of. Throws cuda_error, std::bad_alloc.
  void copy_payloads(graph_core& original);

  // Bodies of conditional nodes made by hand, nested ones too.
  std::vector<cudaGraph_t> bodies;

 private:
  class change;
  struct kept_owner {
    cudaGraphNode_t node;
    ref<retired_object> owner;
    // That the owner is in, which is on the graph; null: the owner is not yet on the graph.
    reference_set* set = nullptr;
  };
  struct placed_set {
    ref<reference_set> set;
    cudaUserObject_t object;
  };

  // Learns the id. Throws usage_error if it cannot be learned.
  void identify();
  // Places a set of `owners` on the graph.
  reference_set& place(std::span<retired_object* const> owners);
  void take_off(reference_set& set) noexcept;
  // The set that more may be appended to; null if there is none.
  [[nodiscard]] reference_set* open_set() noexcept;
  void drop_hoisted() noexcept;
  void forget_destroyed_nodes();
  void sort_payloads() noexcept;
  // What is kept for the node; null if nothing is.
  [[nodiscard]] kept_owner* find_payload(cudaGraphNode_t node) noexcept;
  template <class Predicate>
  void erase_payloads_if(Predicate is_doomed) noexcept {
    sort_payloads();
    std::erase_if(payloads_, is_doomed);
    sorted_ = payloads_.size();
  }

  cudaGraph_t native_;
  bool is_adopted_;
  std::uint64_t id_;  // 0: not known yet
  bool is_exposed_;
  deleter_core* keeper_ = nullptr;  // null: none was named
  int device_ = current_device();
  std::vector<kept_owner> payloads_;  // the first `sorted_` by their nodes; then those of new nodes
  std::size_t sorted_ = 0;
  std::vector<placed_set> placed_;  // on the graph
  std::shared_ptr<launch_order> order_ = std::make_shared<launch_order>();
};

}  // namespace escrow
