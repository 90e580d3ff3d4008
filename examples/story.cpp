// SPDX-License-Identifier: Apache-2.0
// A library whose own pool was replaced step by step: eager, in a graph, in many graphs of a group,
// and in production. The guide docs/guides/story.md tells it with the parts marked here.
#include <array>
#include <chrono>
#include <cstdio>
#include <escrow/escrow.hpp>
#include <map>
#include <string>
#include <vector>

using escrow::check;
using namespace std::chrono_literals;

// [pool]
escrow::sharing_group const& graphs() {
  static escrow::sharing_group const group({.label = "expand"});
  return group;
}

escrow::scratch_pool& scratch() {
  static escrow::scratch_pool pool({.slots_max = 8,         // of each size, eager work only
                                    .host_wait_max = 50ms,  // then pool_exhausted
                                    .label = "expand",
                                    .track_leases = true,  // texts name the line of each claim
                                    .group = graphs()},
                                   {.bytes_max = std::size_t{1} << 30, .idle_max = 30s});
  return pool;
}
// [pool]

// [work]
// Fills `bytes` bytes of `result` by way of scratch.
void expand(cudaStream_t stream, void* result, std::size_t bytes, int value) {
  auto block = scratch().claim(stream, bytes);
  check(cudaMemsetAsync(block->data(), value, bytes, stream), "cudaMemsetAsync");
  check(cudaMemcpyAsync(result, block->data(), bytes, cudaMemcpyDefault, stream), "cudaMemcpy");
}  // released here, in stream order
// [work]

// [capture]
escrow::graph_exec captured(cudaStream_t stream, void* result, std::size_t bytes, int value) {
  return escrow::graph_exec(escrow::capture(
      stream, [&](escrow::stream_ref on) { expand(on.get(), result, bytes, value); }));
}
// [capture]

// [many]
constexpr std::size_t row = 1 << 20;

std::map<int, escrow::graph_exec> one_for_each_batch(cudaStream_t stream, void* result) {
  std::map<int, escrow::graph_exec> execs;
  for (int batch : {1, 8, 64}) {  // in any order: together they need what 64 needs
    execs.emplace(batch, captured(stream, result, row * static_cast<std::size_t>(batch), batch));
  }
  return execs;
}
// [many]

// [limits]
// False: too busy, and nothing was enqueued. The caller tries again or refuses the request.
bool try_expand(cudaStream_t stream, void* result, std::size_t bytes, int value) {
  try {
    expand(stream, result, bytes, value);
    return true;
  } catch (escrow::pool_exhausted const& error) {
    std::puts(error.what());  // who holds what, and which option would have helped
    return false;
  }
}
// [limits]

// [statistics]
void log_memory() {
  std::puts(to_json(scratch().stats()).c_str());
  std::puts(graphs().describe().c_str());  // its bytes, launches, and graphs that nothing orders
  std::puts(to_json(escrow::deleter::global().stats()).c_str());  // "leaked" should be 0
}
// [statistics]

// [parking]
// While others have the device: the memory is theirs, and all addresses stay.
template <class Turn>
bool park_during(Turn turn) {
  bool is_parked = true;
  for (escrow::parked_group const& each : escrow::park_all()) {  // waits for launches in flight
    if (each.refusal.empty()) continue;
    std::puts(each.refusal.c_str());  // it keeps its memory: what must end before
    is_parked = false;
  }
  turn();
  escrow::unpark_all();  // the same execs launch on
  return is_parked;
}
// [parking]

// [shutdown]
bool shut_down() {  // after the execs are destroyed, perhaps with launches in flight
  std::vector<escrow::holder> const left = scratch().close_for(5s);  // refuses claims from now on
  for (escrow::holder const& each : left) std::puts(describe(each).c_str());
  return escrow::deleter::global().drain_for(5s) && left.empty();
}
// [shutdown]

bool has(void const* result, int value) {
  unsigned char first = 0;
  check(cudaMemcpy(&first, result, 1, cudaMemcpyDefault), "cudaMemcpy");
  return first == value;
}

int main() {
  std::array<cudaStream_t, 2> streams{};
  for (cudaStream_t& each : streams) {
    check(cudaStreamCreateWithFlags(&each, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  escrow::device_buffer<unsigned char> result(64 * row);
  auto const launched = [&](escrow::graph_exec& exec, cudaStream_t stream, int value) {
    exec.launch(stream);
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    return has(result.data(), value);
  };
  bool is_right = try_expand(streams[0], result.data(), row, 3);
  check(cudaStreamSynchronize(streams[0]), "cudaStreamSynchronize");
  is_right = is_right && has(result.data(), 3);

  std::map<int, escrow::graph_exec> execs = one_for_each_batch(streams[0], result.data());
  is_right = is_right && graphs().stats().bytes <= 66 * row;  // in steps of 2 MiB
  for (auto& [batch, exec] : execs) {                         // on two streams
    is_right = is_right && launched(exec, streams[batch == 8 ? 1 : 0], batch);
  }
  log_memory();
  is_right = park_during([] { log_memory(); }) && is_right;
  is_right = is_right && launched(execs.at(8), streams[1], 8);

  execs.at(64).launch(streams[0]);
  execs.clear();  // with a launch in flight
  is_right = shut_down() && is_right;
  for (cudaStream_t const& each : streams) check(cudaStreamDestroy(each), "cudaStreamDestroy");
  std::printf("results, bytes and shutdown are right: %s\n", is_right ? "yes" : "no");
  return is_right ? 0 : 1;
}
