// What the tests of graphs that are built by hand share: kernels as functions whose parameters are
// known, memory of each kind, and launching what was built.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <escrow/core.hpp>
#include <escrow/detail/device.hpp>
#include <escrow/detail/graph_query.hpp>
#include <escrow/detail/ready_event.hpp>
#include <escrow/detail/retry_cleanup.hpp>
#include <escrow/graph.hpp>
#include <escrow/nodes.hpp>
#include <string>
#include <vector>

#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "message_of.hpp"
#include "node_queries.hpp"

namespace escrow::test {

template <class... Parameters>
using kernel_function = void (*)(Parameters...);

template <class... Parameters>
[[nodiscard]] kernel_function<Parameters...> function_of(kernel_id id) {
  return reinterpret_cast<kernel_function<Parameters...>>(kernel_address(id));
}

class build_test : public testing::Test {
 protected:
  void run(graph_exec& exec) {
    exec.launch(stream_);
    must(cudaStreamSynchronize(stream_));
  }
  void run(graph const& source) {
    graph_exec exec(source);
    run(exec);
  }

  /// Expects a usage_error of `call` with `problem` in it.
  template <class Action>
  static void expect_refused(Action action, std::string const& call, std::string const& problem) {
    std::string const text = message_of<usage_error>(action);
    EXPECT_EQ(text.find(call), 0U) << text;
    EXPECT_NE(text.find(problem), std::string::npos) << text << "\nlacks: " << problem;
  }

  /// A node that adds `value` to a cell.
  node add_to(graph_builder_ref const& at, std::size_t cell, int value) {
    return at.add(kernel_node(add, {}, cells_.data() + cell, value));
  }
  /// A node that sets the condition to what a cell has.
  node look(graph_builder_ref const& at, condition const& set, std::size_t cell) {
    return at.add(kernel_node(set_condition, {}, set.get(), cells_.data() + cell));
  }

  kernel_function<int*, int> const add = function_of<int*, int>(kernel_id::add);
  kernel_function<int*, std::size_t, int> const fill =
      function_of<int*, std::size_t, int>(kernel_id::fill);
  kernel_function<int*, int const*, std::size_t> const copy =
      function_of<int*, int const*, std::size_t>(kernel_id::copy);
  kernel_function<cudaGraphConditionalHandle, int const*> const set_condition =
      function_of<cudaGraphConditionalHandle, int const*>(kernel_id::set_condition);
  kernel_function<cudaGraphConditionalHandle, int const*, int> const set_condition_below =
      function_of<cudaGraphConditionalHandle, int const*, int>(kernel_id::set_condition_below);

  pinned_flag flag_;
  pinned_ints cells_{8};
  device_ints device_{8};
  owned_stream stream_ = make_stream();
  owned_stream other_stream_ = make_stream();
  graph built_;
};

/// Device memory, byte by byte.
[[nodiscard]] inline std::vector<unsigned> bytes_of(device_ints const& memory) {
  auto const ints = memory.read();
  std::vector<unsigned char> bytes(ints.size() * sizeof(int));
  std::memcpy(bytes.data(), ints.data(), bytes.size());
  return {bytes.begin(), bytes.end()};
}

/// Whether the stream has nothing left to do.
[[nodiscard]] inline bool has_finished(cudaStream_t stream) {
  cudaError_t const status = cudaStreamQuery(stream);
  static_cast<void>(cudaGetLastError());
  if (status != cudaErrorNotReady) must(status);
  return status == cudaSuccess;
}

}  // namespace escrow::test
