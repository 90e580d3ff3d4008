// SPDX-License-Identifier: Apache-2.0
// Compiled by nvcc: all public headers, and the templates of theirs that a program with kernels
// uses.
#include <escrow/escrow.hpp>

#include <cstddef>
#include <memory>
#include <utility>

__global__ void fill(float* to, std::size_t count, float value) {
  for (std::size_t i = threadIdx.x; i < count; i += blockDim.x) to[i] = value;
}

void use_all(cudaStream_t stream, escrow::scratch_pool& scratch, std::shared_ptr<float> shared) {
  constexpr std::size_t count = 64;
  escrow::launch_config const config{.block = {count}};
  escrow::graph_exec exec(escrow::capture(stream, [&](escrow::stream_ref on) {
    auto block = scratch.claim<float>(on, count);
    escrow::launch(on, fill, config, block, count, 1.0F);
    fill<<<1, count, 0, on.get()>>>(block.data(), count, 2.0F);
  }));
  exec.launch(stream);
  escrow::graph built;
  escrow::build(built).add(escrow::kernel_node(fill, config, shared, count, 3.0F));
  escrow::resource_pool<escrow::event> events({}, [] { return escrow::event(); });
  events.claim(stream)->ref().record(stream);
  escrow::deleter::global().retire(stream, std::move(shared));
  escrow::record_stream(escrow::make_stream_shared<escrow::event>(), stream);
}
