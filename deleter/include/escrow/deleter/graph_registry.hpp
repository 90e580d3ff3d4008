// Which references of ours each graph has: what hoisting has to find.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "escrow/deleter/graph_bundle.hpp"
#include "escrow/deleter/graph_reference.hpp"
#include "escrow/deleter/resource_usage.hpp"

namespace escrow {

// What: the references in each graph with its user objects, by the id under which the graph was
//   captured: ids are never reused, handles are. A graph gets single references, which a bundle
//   takes the place of the first time that somebody hoists or copies the graph, and bundles of what
//   its nodes keep. Knows nothing of clones that were made with plain cudaGraphClone; one that is
//   captured into later is taken for an original.
// Thread safety: any thread. One lock, held across no call of CUDA, and never taken in a destroy
//   callback.
// Memory ordering: the lock's.
// Lifetime: an entry goes when the last thing that it names is reclaimed, or, for bundles, when the
//   graph is known to be destroyed or its handle stands for another. While the graph is alive, so
//   are the user objects that its entry names; a dead graph's entry is never asked for, because
//   whoever asks has the graph. The registry is leaked on purpose: releases may arrive until the
//   very end of the process.
// Capture: calls no CUDA function.
// Errors: add() and the like throw std::bad_alloc and have changed nothing then.
class graph_registry {
 public:
  struct single {
    graph_reference* node;
    cudaUserObject_t object;
  };
  struct placed_bundle {
    graph_bundle* bundle;
    cudaUserObject_t object;
  };
  // In place of the id of a graph that could not be identified.
  static constexpr std::uint64_t unidentified = ~std::uint64_t{0};

  [[nodiscard]] static graph_registry& global() noexcept;

  // Notes what is about to be moved to `graph`.
  void add(single added, std::uint64_t id, cudaGraph_t graph);
  void add(placed_bundle added, std::uint64_t id, cudaGraph_t graph);
  // Notes that `copy` has the bundles that its original has.
  void add_copy(std::uint64_t original_id, std::uint64_t id, cudaGraph_t copy);
  // Counts references that are about to be moved to a graph as parts of a bundle.
  void add_parts(std::span<graph_reference* const> parts) noexcept;
  // Takes back what add() noted: it could not be moved.
  void withdraw(graph_reference& node) noexcept;
  void withdraw(graph_bundle& bundle, std::uint64_t id) noexcept;
  // Worker: the thing has gone, or is idle again.
  void remove(graph_reference& node) noexcept;
  void remove(graph_bundle& bundle) noexcept;

  // The graph is no more: what it had need not be known any longer. Others are forgotten when their
  // handles stand for other graphs.
  void forget_destroyed(std::uint64_t id) noexcept;

  // Takes the single references of a graph, to bundle them; keep_singles() notes those that stay,
  // and has to follow.
  [[nodiscard]] std::vector<single> take_singles(std::uint64_t id) noexcept;
  void keep_singles(std::uint64_t id, std::vector<single> kept) noexcept;
  [[nodiscard]] bool has_singles(std::uint64_t id) const noexcept;
  [[nodiscard]] std::vector<placed_bundle> bundles_of(std::uint64_t id) const;
  // Whether the graph has the bundle, as far as that was noted.
  [[nodiscard]] bool is_on(graph_bundle const& bundle, std::uint64_t id) const noexcept;

  // Whether a graph with this handle was ever noted and may be alive. If not, no graph of this
  // handle needs to be identified.
  [[nodiscard]] bool may_know(cudaGraph_t graph) const noexcept;
  [[nodiscard]] bool knows(std::uint64_t id) const noexcept;
  // Whether nothing that was ever noted is held by anyone, be it by graphs that nobody knows.
  [[nodiscard]] bool is_empty() const noexcept;

  // What the graphs hold, each thing once. Throws std::bad_alloc.
  [[nodiscard]] resource_usage describe(std::span<std::uint64_t const> ids) const;
  // What these are, each once. Throws std::bad_alloc.
  [[nodiscard]] static resource_usage describe(std::vector<graph_reference const*> held);

 private:
  // In place of a graph's id: the reference is in a bundle.
  static constexpr std::uint64_t bundled = unidentified - 1;

  struct entry {
    cudaGraph_t graph = nullptr;
    std::vector<single> singles;  // if the graph is dead, some may be gone
    std::size_t alive = 0;        // how many of them are not
    std::vector<placed_bundle> bundles;
    bool is_pinned = false;  // between take_singles() and keep_singles()
  };
  using entries = std::unordered_map<std::uint64_t, entry>;

  graph_registry() = default;
  ~graph_registry() = default;
  entry& entry_of(std::uint64_t id, cudaGraph_t graph);
  void forget(std::uint64_t dead_id) noexcept;
  void erase_if_unused(entries::iterator found) noexcept;

  mutable std::mutex mutex_;  // guards all, and where each reference and bundle says it is noted
  entries entries_;
  std::size_t references_ = 0;                                   // noted and not yet reclaimed
  std::unordered_map<cudaGraph_t, std::uint64_t> id_of_handle_;  // the newest: others are dead
};

}  // namespace escrow
