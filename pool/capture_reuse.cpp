// The entries of captures, and the walk from a frontier back.
#include "capture_reuse.hpp"

#include <algorithm>
#include <array>

#include "escrow/core/error.hpp"
#include "escrow/detail/graph_query.hpp"

namespace escrow {

namespace {

using nodes = std::vector<cudaGraphNode_t>;

bool contains(nodes const& set, cudaGraphNode_t node) {
  return std::find(set.begin(), set.end(), node) != set.end();
}

// Whether `node` ends after what is in front of it on the edge. So does a kernel that was launched
// when another one triggered (measured): a capture of such launches has no other edges, and what
// follows in their stream comes after them all.
bool ends_after(cudaGraphNode_t node, cudaGraphEdgeData const& edge) {
  if (is_full_dependency(edge)) return true;
  if (edge.from_port != cudaGraphKernelNodePortProgrammatic) return false;
  cudaGraphNodeType type{};
  check(cudaGraphNodeGetType(node, &type), "cudaGraphNodeGetType");
  return type == cudaGraphNodeTypeKernel;
}

// Calls `found(node, edge)` for each node that `node` depends on.
template <class Found>
void for_each_dependency(cudaGraphNode_t node, Found found) {
  std::array<cudaGraphNode_t, 16> few{};
  std::array<cudaGraphEdgeData, 16> few_edges{};
  std::size_t count = few.size();
  check(cudaGraphNodeGetDependencies(node, few.data(), few_edges.data(), &count),
        "cudaGraphNodeGetDependencies");
  if (count < few.size()) {
    for (std::size_t i = 0; i < count; ++i) found(few[i], few_edges[i]);
    return;
  }
  check(cudaGraphNodeGetDependencies(node, nullptr, nullptr, &count),
        "cudaGraphNodeGetDependencies");
  nodes all(count);
  std::vector<cudaGraphEdgeData> edges(count);
  check(cudaGraphNodeGetDependencies(node, all.data(), edges.data(), &count),
        "cudaGraphNodeGetDependencies");
  for (std::size_t i = 0; i < count; ++i) found(all[i], edges[i]);
}

// Whether all `asked`, which may be destroyed, are nodes of `graph`.
bool has_all(cudaGraph_t graph, nodes const& asked) {
  nodes const all = nodes_of(graph);
  return std::ranges::all_of(asked, [&](cudaGraphNode_t node) { return contains(all, node); });
}

}  // namespace

capture_frontier frontier_of(stream_ref stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraphNode_t const* dependencies = nullptr;
  cudaGraphEdgeData const* edges = nullptr;
  std::size_t count = 0;
  check(cudaStreamGetCaptureInfo(stream.get(), &status, nullptr, nullptr, &dependencies, &edges,
                                 &count),
        "cudaStreamGetCaptureInfo");
  capture_frontier found;
  found.nodes.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (is_full_dependency(edges[i])) found.nodes.push_back(dependencies[i]);
  }
  found.ended = found.nodes.size();
  for (std::size_t i = 0; i < count; ++i) {
    if (!is_full_dependency(edges[i])) found.nodes.push_back(dependencies[i]);
  }
  return found;
}

void capture_frontier::merge(capture_frontier const& other) {
  for (cudaGraphNode_t const node : other.nodes) {
    if (!contains(nodes, node)) nodes.push_back(node);
  }
}

dependency_list dependencies_of(nodes const& asked) {
  dependency_list result;
  for (cudaGraphNode_t const node : asked) {
    auto const begin = static_cast<std::ptrdiff_t>(result.size());
    for_each_dependency(node, [&](cudaGraphNode_t earlier, cudaGraphEdgeData const& edge) {
      result.emplace_back(earlier, edge.from_port * 256U + edge.type);
    });
    std::sort(result.begin() + begin, result.end());
    result.emplace_back(nullptr, 0U);  // where the next one's begin
  }
  return result;
}

capture_reuse::entry* capture_reuse::find(std::uint64_t id) noexcept {
  auto const found = entries_.find(id);
  return found == entries_.end() ? nullptr : &found->second;
}

void capture_reuse::add(slot& held, std::uint64_t id, source_location where) {
  std::lock_guard const lock(mutex_);
  auto const [found, is_new] = entries_.try_emplace(id);
  if (is_new) {
    found->second.since = std::chrono::steady_clock::now();
    found->second.where = where;
  }
  ++found->second.holds;
  held.is_leased_ = held.may_be_in_graphs_ = true;
  if (++held.graph_holds_ == 1) ++slots_held_;
}

bool capture_reuse::remove(slot& held, std::uint64_t id) noexcept {
  std::lock_guard const lock(mutex_);
  auto const found = entries_.find(id);
  remove_reusable(found->second, held);
  if (--found->second.holds == 0) entries_.erase(found);
  if (--held.graph_holds_ != 0) return false;
  --slots_held_;
  return !held.is_leased_;
}

bool capture_reuse::is_held(slot const& asked) const noexcept {
  std::lock_guard const lock(mutex_);
  return asked.graph_holds_ != 0;
}

bool capture_reuse::end_lease(slot& held) noexcept {
  std::lock_guard const lock(mutex_);
  held.is_leased_ = false;
  return held.graph_holds_ == 0;
}

bool capture_reuse::end_lease_in(slot& held, std::uint64_t id, std::vector<cudaGraphNode_t> after,
                                 dependency_list edges) {
  std::lock_guard const lock(mutex_);
  held.released_after_.swap(after);
  held.released_edges_.swap(edges);
  entry* const of = find(id);
  // One that others hold, too, serves no other claim.
  if (of != nullptr && held.graph_holds_ == 1) {
    try {
      if (held.released_after_.empty()) of->reusable.emplace(nullptr, &held);
      for (cudaGraphNode_t const node : held.released_after_) of->reusable.emplace(node, &held);
    } catch (...) {
      remove_reusable(*of, held);
      throw;
    }
    ++of->offers;
    of->barren.clear();
  }
  held.unrecorded_.clear();  // the next lease's from here on
  held.is_leased_ = false;
  return held.graph_holds_ == 0;
}

void capture_reuse::remove_reusable(entry& of, slot& held) noexcept {
  auto const remove_at = [&](cudaGraphNode_t node) {
    auto const [begin, end] = of.reusable.equal_range(node);
    auto const place =
        std::find_if(begin, end, [&](auto const& each) { return each.second == &held; });
    if (place != end) of.reusable.erase(place);
  };
  if (held.released_after_.empty()) return remove_at(nullptr);
  for (cudaGraphNode_t const node : held.released_after_) remove_at(node);
}

bool capture_reuse::take(slot& taken, std::uint64_t id, cudaGraph_t graph) {
  bool is_right = false;
  try {
    is_right = (graph == nullptr || has_all(graph, taken.released_after_)) &&
               dependencies_of(taken.released_after_) == taken.released_edges_;
  } catch (...) {
    std::lock_guard const lock(mutex_);
    taken.is_leased_ = false;
    throw;
  }
  std::lock_guard const lock(mutex_);
  if (entry* const of = find(id)) remove_reusable(*of, taken);
  taken.is_leased_ = is_right;
  return is_right;
}

bool capture_reuse::search::is_seen(cudaGraphNode_t node) const {
  auto const end = frontier_.nodes.begin() + static_cast<std::ptrdiff_t>(frontier_.ended);
  return std::find(frontier_.nodes.begin(), end, node) != end || seen_.contains(node);
}

void capture_reuse::search::add_dependencies(cudaGraphNode_t node) {
  {
    std::lock_guard const lock(reuse_.mutex_);
    entry const* const of = reuse_.find(id_);
    if (of == nullptr || of->barren.contains(node)) return;
  }
  for_each_dependency(node, [&](cudaGraphNode_t earlier, cudaGraphEdgeData const& edge) {
    if (!is_seen(earlier) && ends_after(node, edge)) to_visit_.push_back(earlier);
  });
}

slot* capture_reuse::search::look_at(std::size_t nodes_max) {
  auto const mark = [this](cudaGraphNode_t node) -> slot* {
    std::lock_guard const lock(reuse_.mutex_);
    entry* const of = reuse_.find(id_);
    if (of == nullptr) return nullptr;
    auto const [begin, end] = of->reusable.equal_range(node);
    slot* newest = nullptr;
    for (auto each = begin; each != end; ++each) {
      slot& candidate = *each->second;
      bool const is_before = std::ranges::all_of(
          candidate.released_after_, [this](cudaGraphNode_t other) { return is_seen(other); });
      if (!candidate.is_leased_ && is_before &&
          (newest == nullptr || newest->released_at_ < candidate.released_at_)) {
        newest = &candidate;
      }
    }
    if (newest != nullptr) newest->is_leased_ = true;
    return newest;
  };
  // Once more at a node where what was found is no more what was released there.
  auto const take = [&](cudaGraphNode_t node) -> slot* {
    while (slot* const found = mark(node)) {
      if (reuse_.take(*found, id_, nullptr)) return found;
    }
    return nullptr;
  };

  if (!has_begun_) {
    {
      std::lock_guard const lock(reuse_.mutex_);
      entry const* const of = reuse_.find(id_);
      if (of == nullptr || of->reusable.empty()) return nullptr;
      offers_ = of->offers;
    }
    has_begun_ = true;
    for (std::size_t i = 0; i < frontier_.ended; ++i) {
      if (slot* const found = take(frontier_.nodes[i])) return found;
    }
    if (slot* const found = take(nullptr)) return found;
    for (std::size_t i = 0; i < frontier_.ended; ++i) add_dependencies(frontier_.nodes[i]);
  }
  for (; next_ < to_visit_.size() && nodes_max > 0; ++next_) {
    cudaGraphNode_t const node = to_visit_[next_];
    if (!seen_.insert(node).second) continue;
    --nodes_max;
    if (slot* const found = take(node)) return found;
    add_dependencies(node);
  }
  if (next_ < to_visit_.size()) return nullptr;
  std::lock_guard const lock(reuse_.mutex_);
  entry* const of = reuse_.find(id_);
  if (of == nullptr || of->offers != offers_) return nullptr;
  auto const begin = frontier_.nodes.begin();
  of->barren.insert(begin, begin + static_cast<std::ptrdiff_t>(frontier_.ended));
  return nullptr;
}

slot* capture_reuse::take_unordered(std::uint64_t id, cudaGraph_t graph) {
  auto const mark_oldest = [&]() -> slot* {
    std::lock_guard const lock(mutex_);
    entry* const of = find(id);
    if (of == nullptr) return nullptr;
    slot* oldest = nullptr;
    for (auto const& [node, candidate] : of->reusable) {
      if (candidate->is_leased_) continue;
      if (oldest == nullptr || candidate->released_at_ < oldest->released_at_) oldest = candidate;
    }
    if (oldest != nullptr) oldest->is_leased_ = true;
    return oldest;
  };
  while (slot* const found = mark_oldest()) {
    if (take(*found, id, graph)) return found;
  }
  return nullptr;
}

std::vector<holder> capture_reuse::holders(std::string const& label) const {
  std::lock_guard const lock(mutex_);
  std::vector<holder> result;
  for (auto const& [id, graph] : entries_) {
    result.push_back({.capture_id = id < first_share_id ? id : 0,
                      .label = label,
                      .slots = graph.holds,
                      .since = graph.since,
                      .where = graph.where});
  }
  return result;
}

std::size_t capture_reuse::slots_held() const noexcept {
  std::lock_guard const lock(mutex_);
  return slots_held_;
}

}  // namespace escrow
