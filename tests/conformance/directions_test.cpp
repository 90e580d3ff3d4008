// SPDX-License-Identifier: Apache-2.0
// The direction that a copy is given is compared with where its memory is.
#include <array>
#include <functional>
#include <string>

#include "graph_nodes.hpp"

namespace escrow::test {
namespace {

class Directions : public testing::Test {
 protected:
  struct operands {
    int* to;
    int const* from;
  };
  using copy = std::function<cudaError_t(operands, cudaMemcpyKind)>;

  // In the order of cudaMemcpyKind, from cudaMemcpyHostToHost to cudaMemcpyDeviceToDevice.
  static void expect_taken(copy const& copied, operands its, std::array<bool, 4> const& taken) {
    for (std::size_t kind = 0; kind < taken.size(); ++kind) {
      cudaError_t const status = tried(copied(its, static_cast<cudaMemcpyKind>(kind)));
      EXPECT_EQ(status, taken[kind] ? cudaSuccess : cudaErrorInvalidValue) << kind;
    }
  }
  void expect_pageable_refused(copy const& copied) {
    expect_taken(copied, {device.data(), device.data() + 1}, {true, true, true, true});
    expect_taken(copied, {device.data(), pinned.data()}, {true, true, true, true});
    expect_taken(copied, {pinned.data(), device.data()}, {true, true, true, true});
    expect_taken(copied, {device.data(), pageable.data()}, {true, true, false, false});
    expect_taken(copied, {pageable.data(), device.data()}, {true, false, true, false});
    expect_taken(copied, {pageable.data(), pinned.data()}, {true, false, true, false});
  }

  static constexpr std::size_t bytes = sizeof(int);
  device_ints device{4};
  pinned_ints pinned{4};
  std::array<int, 4> pageable{};
  owned_stream stream = make_stream();
};

TEST_F(Directions, OfCopiesAtOnce) {
  expect_pageable_refused(
      [](operands its, cudaMemcpyKind kind) { return cudaMemcpy(its.to, its.from, bytes, kind); });
}

TEST_F(Directions, OfCopiesOnAStream) {
  expect_pageable_refused([&](operands its, cudaMemcpyKind kind) {
    cudaError_t const status = cudaMemcpyAsync(its.to, its.from, bytes, kind, stream);
    must(cudaStreamSynchronize(stream));
    return status;
  });
}

TEST_F(Directions, OfNodes) {
  owned_graph const graph = make_graph();
  expect_pageable_refused([&](operands its, cudaMemcpyKind kind) {
    cudaGraphNode_t node = nullptr;
    return cudaGraphAddMemcpyNode1D(&node, graph, nullptr, 0, its.to, its.from, bytes, kind);
  });
}

TEST_F(Directions, OfCopiesInACapture) {
  expect_pageable_refused([&](operands its, cudaMemcpyKind kind) {
    test::capture open{stream, cudaStreamCaptureModeThreadLocal};
    cudaError_t const status = tried(cudaMemcpyAsync(its.to, its.from, bytes, kind, stream));
    static_cast<void>(tried(open.end()));
    return status;
  });
}

}  // namespace
}  // namespace escrow::test
