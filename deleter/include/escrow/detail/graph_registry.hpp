// Which reference sets each graph has.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "escrow/detail/reference_set.hpp"

namespace escrow {

// What: the reference sets of each graph, by the id under which the graph was captured: ids are
//   never reused, handles are. A graph that Escrow created has a key of its own in place of the
//   id; as long as it is alive, its handle leads to it. Knows nothing of plain copies
//   (cudaGraphClone).
// Thread safety: any thread. One lock, held across no CUDA call, never taken in a destroy callback.
// Lifetime: an entry ends with its last set. Never destroyed: releases may arrive until the end of
//   the process.
// Capture: calls no CUDA function.
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
  // Notes that `copy` has the sets that its original has.
  void add_copy(std::uint64_t original_id, std::uint64_t id, cudaGraph_t copy);
  // The set is not on that graph, or not any more.
  void remove(reference_set const& set, std::uint64_t id) noexcept;
  // No graph and exec holds the set any more.
  void forget_set(reference_set& set) noexcept;

  // A set that was made, or is about to be freed. All sets are known here, leaked ones, too.
  void add_set(reference_set& made) noexcept;
  void remove_set(reference_set& doomed) noexcept;

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

  graph_registry() = default;
  ~graph_registry() = default;
  [[nodiscard]] std::uint64_t resolve(std::uint64_t id, cudaGraph_t graph) const noexcept;
  entry& entry_of(std::uint64_t id, cudaGraph_t graph);
  void erase_if_unused(entries::iterator found) noexcept;
  void forget_entry(std::uint64_t dead_id) noexcept;
  static void reserve_ids(reference_set& set);

  mutable std::mutex mutex_;  // guards all, and the registry's fields of each set
  entries entries_;
  reference_set* first_set_ = nullptr;  // of all
  std::uint64_t last_key_ = 0;                             // of adopted graphs
  std::unordered_map<cudaGraph_t, known_handle> handles_;  // the newest graph of each handle
};

}  // namespace escrow
