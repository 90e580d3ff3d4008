// SPDX-License-Identifier: Apache-2.0
// Nodes of graphs that are built by hand: what tests ask CUDA about them, and the kinds whose
// parameters can be changed.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <escrow/internal/graph_query.hpp>
#include <escrow/nodes.hpp>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "../../graph/graph_core.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "status.hpp"

namespace escrow::test {

/// What one of CUDA's calls reads of a node.
template <class Answer>
[[nodiscard]] Answer ask(node const& of, cudaError_t (*get)(cudaGraphNode_t, Answer*)) {
  Answer answer{};
  must(get(of.get(), &answer));
  return answer;
}

[[nodiscard]] inline cudaGraphNodeType type_of(node const& of) {
  return ask(of, &cudaGraphNodeGetType);
}
[[nodiscard]] inline cudaKernelNodeParams kernel_params_of(node const& of) {
  return ask(of, &cudaGraphKernelNodeGetParams);
}
[[nodiscard]] inline cudaMemsetParams memset_params_of(node const& of) {
  return ask(of, &cudaGraphMemsetNodeGetParams);
}
[[nodiscard]] inline cudaMemcpy3DParms memcpy_params_of(node const& of) {
  return ask(of, &cudaGraphMemcpyNodeGetParams);
}
[[nodiscard]] inline cudaHostNodeParams host_params_of(node const& of) {
  return ask(of, &cudaGraphHostNodeGetParams);
}
[[nodiscard]] inline cudaMemAllocNodeParams alloc_params_of(node const& of) {
  return ask(of, &cudaGraphMemAllocNodeGetParams);
}
[[nodiscard]] inline cudaGraph_t embedded_in(node const& of) {
  return ask(of, &cudaGraphChildGraphNodeGetGraph);
}
[[nodiscard]] inline void* freed_by(node const& of) {
  void* address = nullptr;
  must(cudaGraphMemFreeNodeGetParams(of.get(), &address));
  return address;
}
/// Of a node that records, or waits.
[[nodiscard]] inline cudaEvent_t event_of(node const& of) {
  bool const records = type_of(of) == cudaGraphNodeTypeEventRecord;
  return ask(of, records ? &cudaGraphEventRecordNodeGetEvent : &cudaGraphEventWaitNodeGetEvent);
}

[[nodiscard]] inline std::vector<node> as_nodes(graph_builder_ref const& at,
                                                std::vector<cudaGraphNode_t> const& handles) {
  std::vector<node> found;
  for (cudaGraphNode_t const each : handles) found.push_back(at.node_of(each));
  return found;
}

[[nodiscard]] inline std::vector<node> predecessors_of(node const& of) {
  return of.predecessors();
}
[[nodiscard]] inline std::vector<node> successors_of(node const& of) {
  return of.successors();
}

using edge_list = std::vector<std::pair<node, node>>;

[[nodiscard]] inline edge_list edges_at(graph_builder_ref const& at, cudaGraph_t graph) {
  edge_list edges;
  for (node const& from : as_nodes(at, nodes_of(graph))) {
    for (node const& to : successors_of(from)) edges.emplace_back(from, to);
  }
  return edges;
}

/// Of a graph, without asking it for its handle, which would put on it what its nodes keep.
[[nodiscard]] inline std::vector<node> nodes_in(graph const& of) {
  return as_nodes(of, nodes_of(of.core()->native()));
}
[[nodiscard]] inline edge_list edges_in(graph const& of) {
  return edges_at(of, of.core()->native());
}
[[nodiscard]] inline std::vector<node> nodes_in(body_graph const& of) {
  return as_nodes(of, nodes_of(of.get()));
}
[[nodiscard]] inline edge_list edges_in(body_graph const& of) {
  return edges_at(of, of.get());
}

// The kinds of nodes whose parameters can be changed: each runs in way 1 or 2, and shows in which.

/// What the nodes work on.
struct changes_world {
  pinned_ints sources{3};
  pinned_ints target;
  device_ints device{1};
  std::array<std::shared_ptr<event const>, 3> events{
      std::make_shared<event>(), std::make_shared<event>(), std::make_shared<event>()};
  kernel const copy{kernel_address(kernel_id::copy)};

  changes_world() {
    for (int i = 0; i < 3; ++i) sources.store(static_cast<std::size_t>(i), i);
  }
  [[nodiscard]] int* source(int way) const { return sources.data() + way; }
  [[nodiscard]] event const& event_of(int way) const {
    return *events.at(static_cast<std::size_t>(way));
  }
};

/// A `Kind` has make(world, way), which gives a node's kind.
template <class Kind>
struct changeable {
  static node add(changes_world& it, graph_builder_ref const& at, int way) {
    return at.add(Kind::make(it, way));
  }
  static void set(changes_world& it, node const& changed, int way) {
    changed.set(Kind::make(it, way));
  }
  static void set(changes_world& it, graph_exec& exec, node const& changed, int way) {
    escrow::set(exec, changed, Kind::make(it, way));
  }
  /// Expects that `run`, which runs an exec that has the node, runs it in this way: most kinds
  /// write the way to the target.
  static void expect(changes_world& it, auto run, int way) {
    it.target.store(0, 0);
    run();
    EXPECT_EQ(it.target.load(), way);
  }
};

struct of_launch : changeable<of_launch> {
  static auto make(changes_world& it, int way) {
    int const* const source = it.source(way);
    return kernel_node(it.copy, {}, it.target.data(), source, std::size_t{1});
  }
};

/// A kernel whose parameters are known converts its arguments.
struct of_function : changeable<of_function> {
  static auto make(changes_world& it, int way) {
    return kernel_node(function_of<int*, int const*, std::size_t>(kernel_id::copy), {},
                       it.target.data(), it.source(way), 1U);
  }
};

struct of_memset : changeable<of_memset> {
  static auto make(changes_world& it, int way) {
    auto const value = static_cast<unsigned>(way);
    return memset_node(it.device.data(), {.value = value, .element_bytes = 4, .width = 1});
  }
  static void expect(changes_world& it, auto run, int way) {
    run();
    EXPECT_EQ(it.device.read()[0], way);
  }
};

struct of_memcpy : changeable<of_memcpy> {
  static auto make(changes_world& it, int way) {
    return memcpy_node(it.target.data(), it.source(way), sizeof(int));
  }
};

struct of_callable : changeable<of_callable> {
  static auto make(changes_world& it, int way) {
    return host_node([&it, way] { it.target.store(0, way); });
  }
};

struct of_record : changeable<of_record> {
  static auto make(changes_world& it, int way) {
    return record_node(it.events.at(static_cast<std::size_t>(way)));
  }
  /// All events wait for a flag; the one that the node records again is then done.
  static void expect(changes_world& it, auto run, int way) {
    pinned_flag flag;
    owned_stream const blocked = make_stream();
    must(launch_wait_flag(blocked, flag.get()));
    for (auto const& each : it.events) must(cudaEventRecord(each->get(), blocked));
    run();
    for (int i = 0; i < 3; ++i) EXPECT_EQ(it.event_of(i).ref().is_done(), i == way) << i;
    flag.raise();
    must(cudaStreamSynchronize(blocked));
  }
};

struct of_borrowed_event : changeable<of_borrowed_event> {
  static auto make(changes_world& it, int way) { return record_node(it.event_of(way).ref()); }
  static void expect(changes_world& it, auto run, int way) { of_record::expect(it, run, way); }
};

struct of_wait : changeable<of_wait> {
  static auto make(changes_world& it, int way) {
    return wait_node(it.events.at(static_cast<std::size_t>(way)));
  }
  /// The run waits for the event that the node waits for.
  static void expect(changes_world& it, auto run, int way) {
    pinned_flag flag;
    owned_stream const blocked = make_stream();
    must(launch_wait_flag(blocked, flag.get()));
    it.event_of(way).ref().record(blocked.get());
    std::atomic<bool> has_run{false};
    std::thread running([&] {
      run();
      has_run.store(true);
    });
    EXPECT_TRUE(stays_false([&] { return has_run.load(); }));
    flag.raise();
    running.join();
  }
};

}  // namespace escrow::test
