// SPDX-License-Identifier: Apache-2.0
// A shutdown that says what it waits for. A pool that tracks its leases names the source line of
// each claim that was not released, and the graphs that still hold something; once they let go,
// closing it succeeds.
#include <chrono>
#include <cstdio>
#include <escrow/graph.hpp>
#include <escrow/pool.hpp>
#include <optional>
#include <string>
#include <vector>

namespace {

using escrow::check;
using namespace std::chrono_literals;
using block_pool = escrow::resource_pool<escrow::device_block>;

constexpr std::size_t bytes = 1 << 16;

void use(block_pool& pool, escrow::stream_ref stream) {
  auto const claimed = pool.claim(stream);
  check(cudaMemsetAsync(claimed->data(), 0, bytes, stream.get()), "cudaMemsetAsync");
}

// Closes the pool, and says who kept it from being closed. Returns how many they are.
std::size_t close(block_pool& pool, std::chrono::nanoseconds timeout) {
  std::vector<escrow::holder> const holders = pool.close_for(timeout);
  for (escrow::holder const& each : holders) {
    std::printf("%s: %s\n", each.label.c_str(), describe(each).c_str());
  }
  return holders.size();
}

bool is_in_this_file(escrow::holder const& holder) {
  return std::string(holder.where.file_name()).find("shutdown.cpp") != std::string::npos;
}

}  // namespace

int main() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  escrow::pool_options options;
  options.label = "blocks";
  options.track_leases = true;  // else one line says how many leases there are
  block_pool pool(options, [] { return escrow::device_block(bytes); });

  std::optional<escrow::graph_exec> exec(escrow::capture(stream, [&](auto on) { use(pool, on); }));
  exec->launch(stream);
  auto forgotten = pool.claim(stream);
  use(pool, stream);  // its block comes back: nobody holds it

  std::printf("%s\n", pool.describe().c_str());  // at any time, e.g. for a debugger
  bool is_right = true;
  for (escrow::holder const& each : pool.holders()) is_right = is_right && is_in_this_file(each);
  is_right = is_right && close(pool, 10ms) == 2;  // the graph and the lease

  exec.reset();
  forgotten.release();
  is_right = is_right && close(pool, 10s) == 0;
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  std::printf("holders were named, and everything came back: %s\n", is_right ? "yes" : "no");
  return is_right ? 0 : 1;
}
