// One of two plugins, built twice: its pool, its captures and its execs.
#include "plugin.hpp"

#include <escrow/graph.hpp>
#include <escrow/pool.hpp>
#include <escrow/sim.hpp>

#include <chrono>
#include <vector>

namespace {

escrow::scratch_pool& pool() {
  static escrow::scratch_pool only;
  return only;
}

std::vector<escrow::graph_exec>& execs() {
  static std::vector<escrow::graph_exec> all;
  return all;
}

// Several steps, between which other kernels may begin. The arguments are this launch's own.
bool count_kernel(void** arguments) {
  kernel_count& count = **static_cast<kernel_count**>(arguments[0]);
  int& steps_left = *static_cast<int*>(arguments[1]);
  if (steps_left == 8) {
    int const running = count.running.fetch_add(1) + 1;
    if (running > count.most.load()) count.most.store(running);
  }
  if (--steps_left > 0) return false;
  count.running.fetch_sub(1);
  return true;
}

void* kernel_address() {
  static char address = 0;
  static bool const is_registered = [] {
    escrow::sim::register_kernel(&address, &count_kernel, {sizeof(kernel_count*), sizeof(int)});
    return true;
  }();
  static_cast<void>(is_registered);
  return &address;
}

void start() {
  escrow::sim::reset({.stepped = true});
}

cudaStream_t make_stream() {
  cudaStream_t made = nullptr;
  escrow::check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "cudaStreamCreate");
  return made;
}

cudaGraph_t capture(cudaStream_t stream, void (*work)(cudaStream_t, kernel_count&),
                    kernel_count& count) {
  return escrow::capture(stream, [&](escrow::stream_ref on) { work(on.get(), count); }).detach();
}

void claim(cudaStream_t stream, kernel_count& count) {
  auto const block = pool().claim(stream, 256);
  kernel_count* counted = &count;
  int steps = 8;
  void* arguments[] = {&counted, &steps};
  escrow::check(cudaLaunchKernel(kernel_address(), {1}, {1}, arguments, 0, stream),
                "cudaLaunchKernel");
}

std::size_t make_exec(cudaGraph_t graph) {
  execs().emplace_back(graph);
  return execs().size() - 1;
}

bool is_bare(std::size_t exec) {
  return execs().at(exec).is_bare();
}

void launch(std::size_t exec, cudaStream_t stream) {
  execs().at(exec).launch(stream);
}

void run(std::uint64_t seed) {
  escrow::sim::reseed(seed);
  escrow::sim::run_until_idle();
}

bool catches_usage_error(void (*call)()) {
  try {
    call();
  } catch (escrow::usage_error const&) {
    return true;
  }
  return false;
}

void misuse() {
  auto block = pool().claim(make_stream(), 256);
  block.release();
  static_cast<void>(block.get());
}

bool end() {
  execs().clear();
  escrow::sim::run_until_idle();
  return pool().close_for(std::chrono::seconds(10)).empty();
}

}  // namespace

extern "C" [[gnu::visibility("default")]] plugin_calls escrow_test_plugin() {
  return {&start, &make_stream,         &capture, &claim, &make_exec, &is_bare, &launch,
          &run,   &catches_usage_error, &misuse,  &end};
}
