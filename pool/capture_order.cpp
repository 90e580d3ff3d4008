// Walking a captured graph from its frontier back.
#include "capture_order.hpp"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>

#include "escrow/core/error.hpp"
#include "escrow/detail/graph_query.hpp"

namespace escrow {

namespace {

using nodes = std::vector<cudaGraphNode_t>;

constexpr std::size_t visits_max = 4096;  // of a walk

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

bool contains(nodes const& set, cudaGraphNode_t node) {
  return std::find(set.begin(), set.end(), node) != set.end();
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

void merge_frontier(nodes& frontier, nodes const& more) {
  for (cudaGraphNode_t const node : more) {
    if (!contains(frontier, node)) frontier.push_back(node);
  }
}

namespace {

// What a walk has yet to find.
class wanted_spans {
 public:
  explicit wanted_spans(std::vector<captured_span> const& spans) : spans_(spans) {
    missing_.reserve(spans.size());
    for (std::size_t i = 0; i < spans.size(); ++i) {
      missing_.push_back(spans[i].to->size());
      for (cudaGraphNode_t const node : *spans[i].to) by_node_.emplace(node, i);
    }
  }

  // Notes that the walk has come to `node`, for the first time; the span that it completes, if any.
  [[nodiscard]] std::optional<std::size_t> meet(cudaGraphNode_t node) {
    auto const [begin, end] = by_node_.equal_range(node);
    std::optional<std::size_t> completed;
    for (auto each = begin; each != end; ++each) {
      bool const is_complete = --missing_[each->second] == 0;
      if (is_complete && (!completed || each->second < *completed)) completed = each->second;
    }
    return completed;
  }

  // A span before all nodes, which any walk comes to in the end.
  [[nodiscard]] std::optional<std::size_t> before_all() const {
    auto const found = std::find(missing_.begin(), missing_.end(), 0u);
    if (found == missing_.end()) return std::nullopt;
    return static_cast<std::size_t>(found - missing_.begin());
  }

  // Whether all spans lie after the node.
  [[nodiscard]] bool are_all_after(cudaGraphNode_t node) const {
    return std::all_of(spans_.begin(), spans_.end(),
                       [node](captured_span const& each) { return contains(*each.from, node); });
  }

 private:
  std::vector<captured_span> const& spans_;
  std::vector<std::size_t> missing_;  // nodes of each span
  std::unordered_multimap<cudaGraphNode_t, std::size_t> by_node_;
};

}  // namespace

std::optional<std::size_t> last_before(capture_frontier const& frontier,
                                       std::vector<captured_span> const& spans) {
  wanted_spans wanted(spans);
  std::optional<std::size_t> const fallback = wanted.before_all();
  std::unordered_set<cudaGraphNode_t> seen;
  auto const begin = frontier.nodes.begin();
  nodes to_visit(begin, begin + static_cast<std::ptrdiff_t>(frontier.ended));
  for (std::size_t next = 0; next < to_visit.size() && seen.size() < visits_max; ++next) {
    cudaGraphNode_t const node = to_visit[next];
    if (!seen.insert(node).second) continue;
    if (auto const found = wanted.meet(node)) return found;
    if (wanted.are_all_after(node)) continue;
    for_each_dependency(node, [&](cudaGraphNode_t earlier, cudaGraphEdgeData const& edge) {
      if (ends_after(node, edge)) to_visit.push_back(earlier);
    });
  }
  return fallback;
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

bool has_all(cudaGraph_t graph, nodes const& asked) {
  std::size_t count = 0;
  check(cudaGraphGetNodes(graph, nullptr, &count), "cudaGraphGetNodes");
  nodes all(count);
  check(cudaGraphGetNodes(graph, all.data(), &count), "cudaGraphGetNodes");
  return std::all_of(asked.begin(), asked.end(),
                     [&all](cudaGraphNode_t node) { return contains(all, node); });
}

}  // namespace escrow
