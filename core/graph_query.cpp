// SPDX-License-Identifier: Apache-2.0
// Reads a graph's id from the driver, or else from the graph's DOT text.
#include "escrow/internal/graph_query.hpp"

#include <cuda.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/detail/cuda12.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/driver.hpp"

namespace escrow::inline v0_2 {

namespace {

// The id that CUDA's text of a graph begins with; nothing if it has another format.
std::optional<std::uint64_t> id_in_dot(std::string_view text) {
  std::string const before = "digraph dot {\nsubgraph cluster_";
  std::uint64_t id = 0;
  if (!text.starts_with(before)) return std::nullopt;
  std::from_chars(text.data() + before.size(), text.data() + text.size(), id);
  std::string const number = std::to_string(id);
  if (!text.starts_with(before + number + " {\nlabel=\"graph_" + number + "\"")) {
    return std::nullopt;
  }
  return id;
}

std::optional<std::uint64_t> printed_id(cudaGraph_t graph) {
  int const file = memfd_create("escrow", MFD_CLOEXEC);  // unnamed, in memory
  // CUDA's status for an unwritable file. The caller's last error is not touched.
  if (file < 0) throw cuda_error(cudaErrorOperatingSystem, "cudaGraphDebugDotPrint");
  std::array<char, 32> path{"/proc/self/fd/"};
  std::to_chars(path.data() + std::strlen(path.data()), path.end() - 1, file);
  cudaError_t const status = cudaGraphDebugDotPrint(graph, path.data(), 0);
  std::array<char, 128> text;  // NOLINT(cppcoreguidelines-pro-type-member-init): read into
  ssize_t const count = ::pread(file, text.data(), text.size(), 0);
  ::close(file);
  check(status, "cudaGraphDebugDotPrint", source_location::current(),
        status == cudaErrorInvalidValue ? "the handle is of no graph, or of one that was destroyed"
                                        : "");
  return id_in_dot({text.data(), count > 0 ? static_cast<std::size_t>(count) : 0});
}

using graph_id_function = CUresult(CUDAAPI*)(CUgraph, unsigned*);

// cuGraphGetId, which headers before CUDA 13.1 do not declare; null if the driver lacks it.
graph_id_function find_graph_id() noexcept {
  constexpr int since = 13010;
  // The version first: a failed lookup would replace the caller's last error.
  int version = 0;
  if (!succeeded(cudaDriverGetVersion(&version)) || version < since) return nullptr;
  try {
    return find_in_driver<graph_id_function>("cuGraphGetId", since);
  } catch (std::exception const&) {
    return nullptr;
  }
}

// cuGraphGetId returns 32 bits, capture ids have 64. It is trusted if both methods agree on the
// first graph, and while its results stay below `answer_max`. After that only the text is used.
enum class driver_answers { unchecked, are_ids, are_not_ids };

}  // namespace

std::optional<std::uint64_t> graph_id_of(cudaGraph_t graph) {
  static graph_id_function const driver_id_of = find_graph_id();
  // Relaxed: it publishes nothing; a thread that reads an older value uses both methods.
  static constinit std::atomic<driver_answers> known{driver_answers::unchecked};
  constexpr unsigned answer_max = 1U << 31U;

  driver_answers const answers = known.load(std::memory_order_relaxed);
  if (driver_id_of == nullptr || answers == driver_answers::are_not_ids) return printed_id(graph);
  unsigned answer = 0;
  if (driver_id_of(graph, &answer) != CUDA_SUCCESS) return printed_id(graph);
  if (answers == driver_answers::are_ids && answer < answer_max) return answer;
  std::optional<std::uint64_t> const id = printed_id(graph);
  if (id == answer && answer < answer_max) {
    driver_answers expected = driver_answers::unchecked;  // keeps are_not_ids
    known.compare_exchange_strong(expected, driver_answers::are_ids, std::memory_order_relaxed);
  } else {
    known.store(driver_answers::are_not_ids, std::memory_order_relaxed);
  }
  return id;
}

bool ends_after(cudaGraphNode_t node, cudaGraphEdgeData const& edge) {
  if (is_full_dependency(edge)) return true;
  if (edge.from_port != cudaGraphKernelNodePortProgrammatic) return false;
  return type_of(node) == cudaGraphNodeTypeKernel;
}

std::vector<cudaGraphNode_t> nodes_of(cudaGraph_t graph) {
  std::vector<cudaGraphNode_t> nodes(64);  // room for most graphs, which then need one call
  std::size_t count = nodes.size();
  cudaError_t const status = cudaGraphGetNodes(graph, nodes.data(), &count);
  check(status, "cudaGraphGetNodes", source_location::current(),
        status == cudaErrorInvalidValue
            ? "the graph, or one that was named as its body, is null or was destroyed"
            : "");
  if (count == nodes.size()) {
    check(cudaGraphGetNodes(graph, nullptr, &count), "cudaGraphGetNodes");
    nodes.resize(count);
    check(cudaGraphGetNodes(graph, nodes.data(), &count), "cudaGraphGetNodes");
  }
  nodes.resize(count);
  return nodes;
}

graph_edges edges_of(cudaGraph_t graph) {
  constexpr char const* api = "cudaGraphGetEdges";
  std::size_t count = 0;
  check(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &count), api);
  graph_edges all{std::vector<cudaGraphNode_t>(count), std::vector<cudaGraphNode_t>(count),
                  std::vector<cudaGraphEdgeData>(count)};
  if (count == 0) return all;
  // Without the data, programmatic edges are an error.
  check(cudaGraphGetEdges(graph, all.from.data(), all.to.data(), all.data.data(), &count), api);
  return all;
}

}  // namespace escrow::inline v0_2
