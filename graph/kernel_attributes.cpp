// SPDX-License-Identifier: Apache-2.0
// Trying, giving and changing attributes. What can fail comes before what cannot be taken back.
#include "kernel_attributes.hpp"

#include <algorithm>
#include <string>

#include "escrow/core/error.hpp"
#include "escrow/internal/retry_cleanup.hpp"

namespace escrow::inline v0_2 {

namespace {

constexpr char const* api = "cudaGraphKernelNodeSetAttribute";
constexpr cudaLaunchAttributeID cluster = cudaLaunchAttributeClusterDimension;

cudaError_t give(cudaGraphNode_t node, cudaLaunchAttribute const& each) noexcept {
  return cudaGraphKernelNodeSetAttribute(node, each.id, &each.val);
}

// For CUDA's answer to the attribute at `place`.
void check_given(cudaError_t status, std::size_t place, cudaLaunchAttribute const& given) {
  if (status == cudaSuccess) return;
  std::string text = "attribute " + std::to_string(place) + " of `config`, of id " +
                     std::to_string(static_cast<int>(given.id)) + ": ";
  text += status == cudaErrorInvalidClusterSize
              ? "give a cluster that divides `grid`, of 1 to 8 blocks"
              : "a node has no such attribute, or not with this value: capture the launch, and add "
                "the graph as a child_node";
  check(status, api, source_location::current(), text);
}

}  // namespace

bool have_clusters(launch_attributes attributes) noexcept {
  auto const is_cluster = [](cudaLaunchAttribute const& each) { return each.id == cluster; };
  return std::ranges::any_of(attributes, is_cluster);
}

void try_attributes(cudaGraph_t trial, cudaKernelNodeParams const& params,
                    launch_attributes attributes) {
  cudaGraphNode_t node = nullptr;
  check(cudaGraphAddKernelNode(&node, trial, nullptr, 0, &params), "cudaGraphAddKernelNode");
  for (std::size_t i = 0; i < attributes.size(); ++i) {
    check_given(give(node, attributes[i]), i, attributes[i]);
  }
}

void give_attributes(cudaGraphNode_t node, launch_attributes attributes) {
  for (std::size_t i = 0; i < attributes.size(); ++i) {
    auto const call = [&] { return give(node, attributes[i]); };
    check_given(retry_cleanup(call), i, attributes[i]);
  }
}

void change_for_attributes(cudaGraphNode_t node, cudaGraphNodeParams& params,
                           launch_attributes attributes) {
  auto const set_params = [&] { return cudaGraphNodeSetParams(node, &params); };
  if (!have_clusters(attributes)) return check(set_params(), "cudaGraphNodeSetParams");
  // The clusters before may not divide the new grid, nor the new ones the grid before.
  cudaLaunchAttribute before{};
  before.id = cluster;
  check(cudaGraphKernelNodeGetAttribute(node, cluster, &before.val),
        "cudaGraphKernelNodeGetAttribute");
  cudaLaunchAttribute none{};
  none.id = cluster;
  check(give(node, none), api);
  cudaError_t const status = set_params();
  if (status != cudaSuccess) {
    static_cast<void>(retry_cleanup([&] { return give(node, before); }));
  }
  check(status, "cudaGraphNodeSetParams");
}

}  // namespace escrow::inline v0_2
