// Walks of graphs and their edges; identification by id.
#include "graph_tree.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <unordered_map>

#include "escrow/core/error.hpp"
#include "escrow/internal/driver.hpp"
#include "escrow/internal/graph_query.hpp"
#include "escrow/internal/reference_set.hpp"

namespace escrow::inline v0_1 {

child_graphs children_of(cudaGraph_t graph) {
  child_graphs found;
  for (cudaGraphNode_t const node : nodes_of(graph)) {
    cudaGraphNodeType type{};
    check(query_type(node, type), "cudaGraphNodeGetType");
    if (type == cudaGraphNodeTypeConditional) ++found.conditionals;
    if (type != cudaGraphNodeTypeGraph) continue;
    check(cudaGraphChildGraphNodeGetGraph(node, &found.graphs.emplace_back()),
          "cudaGraphChildGraphNodeGetGraph");
    found.nodes.push_back(node);
  }
  return found;
}

std::vector<cudaGraph_t> graphs_of(cudaGraph_t root) {
  std::vector<cudaGraph_t> tree{root};
  for (std::size_t i = 0; i < tree.size(); ++i) {
    std::ranges::copy(children_of(tree[i]).graphs, std::back_inserter(tree));
  }
  return tree;
}

void identify(char const* call, cudaGraph_t graph) {
  graph_registry& registry = graph_registry::global();
  auto const known = registry.known(graph);
  if (known.id == 0 || known.is_owned) return;
  std::optional<std::uint64_t> const id = graph_id_of(graph);
  if (!id) throw usage_error(call, "the graph is being captured into", "end the capture first");
  // The graph that had the handle before was destroyed.
  if (*id != known.id) registry.forget(graph);
}

std::optional<std::vector<cudaGraphNode_t>> line_of(cudaGraph_t graph) {
  auto const [from, to, data] = edges_of(graph);
  std::vector<cudaGraphNode_t> line = nodes_of(graph);
  if (data.size() + 1 != line.size()) return std::nullopt;
  std::unordered_map<cudaGraphNode_t, cudaGraphNode_t> next;
  std::unordered_set<cudaGraphNode_t> later;
  for (std::size_t i = 0; i < data.size(); ++i) {
    if (!next.emplace(from[i], to[i]).second || !later.insert(to[i]).second) return std::nullopt;
    if (!ends_after(to[i], data[i])) return std::nullopt;
  }
  auto const is_first = [&later](cudaGraphNode_t node) { return !later.contains(node); };
  line.front() = *std::ranges::find_if(line, is_first);
  for (std::size_t i = 1; i < line.size(); ++i) line[i] = next.at(line[i - 1]);
  return line;
}

std::unordered_set<cudaGraphNode_t> with_earlier(cudaGraph_t graph,
                                                 std::span<cudaGraphNode_t const> last) {
  std::unordered_multimap<cudaGraphNode_t, cudaGraphNode_t> earlier;
  graph_edges const edges = edges_of(graph);
  for (std::size_t i = 0; i < edges.to.size(); ++i) earlier.emplace(edges.to[i], edges.from[i]);
  std::unordered_set<cudaGraphNode_t> all(last.begin(), last.end());
  std::vector<cudaGraphNode_t> open(last.begin(), last.end());
  while (!open.empty()) {
    auto const [begin, end] = earlier.equal_range(open.back());
    open.pop_back();
    for (auto at = begin; at != end; ++at) {
      if (all.insert(at->second).second) open.push_back(at->second);
    }
  }
  return all;
}

}  // namespace escrow::inline v0_1
