// SPDX-License-Identifier: Apache-2.0
// Launches of a graph with a reduction of CUB, whose scratch is Escrow's, CUDA's, or allocated
// beforehand.
//
// cub_relaunch/FORM takes turns with a graph whose scratch was allocated beforehand. escrow and
// memory_nodes: CUB takes scratch in the capture, from Escrow's memory resource, or as it does
// without one.
#include <cub/device/device_reduce.cuh>
#include <cuda/std/execution>
#include <escrow/memory_resource.hpp>

#include "graphs.hpp"
#include "launches.hpp"
#include "resource_arms.hpp"

namespace escrow::bench {
namespace {

constexpr int numbers = 1 << 24;  // about 25 us of an H200

// What one graph reads and writes.
struct reduction {
  reduction() {
    test::must(cudaMemset(input.data(), 0, input.size()));
    std::size_t bytes = 0;
    test::must(cub::DeviceReduce::Sum(nullptr, bytes, from(), to(), numbers));
    scratch.emplace(bytes);
  }
  [[nodiscard]] int const* from() const { return static_cast<int const*>(input.data()); }
  [[nodiscard]] int* to() const { return static_cast<int*>(output.data()); }

  void with_scratch(cudaStream_t stream) {
    std::size_t bytes = scratch->size();
    test::must(cub::DeviceReduce::Sum(scratch->data(), bytes, from(), to(), numbers, stream));
  }
  void with_resource(cudaStream_t stream) {
    test::must(cub::DeviceReduce::Sum(
        from(), to(), numbers, cuda::std::execution::env{cuda::stream_ref(stream), resource}));
  }
  void without_resource(cudaStream_t stream) {
    test::must(cub::DeviceReduce::Sum(from(), to(), numbers, cuda::stream_ref(stream)));
  }

  escrow::deleter deleter;
  device_block input{numbers * sizeof(int)};
  device_block output{sizeof(int)};
  std::optional<device_block> scratch;
  // Not with braces, for which nvcc 13.0 aborts.
  memory_resource resource =
      memory_resource(stream_allocator({.label = "cub", .deleter = &deleter}));
};

// By plain CUDA calls.
form_maker plainly(void (reduction::*enqueue)(cudaStream_t)) {
  return [=](cudaStream_t stream) {
    auto const data = std::make_shared<reduction>();
    return form_of(captured(stream, [&] { ((*data).*enqueue)(stream); }), [data] {});
  };
}

relaunch_form by_escrow(cudaStream_t stream) {
  auto const data = std::make_shared<reduction>();
  auto const enqueue = [&](stream_ref on) { data->with_resource(on.get()); };
  return form_of(capture(stream_ref(stream), enqueue), [data] { settle(data->deleter); });
}

}  // namespace

void register_cub_relaunch(settings const& how) {
  constexpr sizes size{.instances = 4, .row = 200, .steady = 200, .bursts = 2};
  form_maker const bare = plainly(&reduction::with_scratch);
  add_launches(how, "cub_relaunch/bare_again", bare, bare, size);
  add_launches(how, "cub_relaunch/escrow", bare, by_escrow, size);
  add_launches(how, "cub_relaunch/memory_nodes", bare, plainly(&reduction::without_resource), size);
}

}  // namespace escrow::bench
