// SPDX-License-Identifier: Apache-2.0
// Two plugins, opened RTLD_LOCAL by a program that is linked with neither Escrow nor CUDA, have one
// copy of the shared Escrow: a claim of one in a capture of the other is known to both. This is the
// program, and with ESCROW_TEST_PLUGIN a plugin: its pool, its captures and its execs.
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

/// How many launches of the plugins' kernel run. The kernels of a stepped runtime run one at a
/// time, so relaxed would do.
struct kernel_count {
  std::atomic<int> running{0};
  std::atomic<int> most{0};
};

/// What a plugin offers.
struct plugin_calls {
  /// A fresh simulated runtime, stepped. Once in a process.
  void (*start)();
  cudaStream_t (*make_stream)();
  /// Captures what `work` enqueues.
  cudaGraph_t (*capture)(cudaStream_t stream, void (*work)(cudaStream_t, kernel_count&),
                         kernel_count& count);
  /// Claims from the plugin's pool for `stream`, and launches a kernel that takes some steps.
  void (*claim)(cudaStream_t stream, kernel_count& count);
  /// An exec of `graph`, the plugin's.
  std::size_t (*make_exec)(cudaGraph_t graph);
  bool (*is_bare)(std::size_t exec);
  void (*launch)(std::size_t exec, cudaStream_t stream);
  /// Runs all that is pending, in an order that the seed chooses.
  void (*run)(std::uint64_t seed);
  /// Whether `call` throws a usage_error that the plugin catches by its type.
  bool (*catches_usage_error)(void (*call)());
  /// Throws a usage_error out of Escrow.
  void (*misuse)();
};

#ifdef ESCROW_TEST_PLUGIN

#include <escrow/graph.hpp>
#include <escrow/pool.hpp>
#include <escrow/sim.hpp>
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

cudaStream_t make_stream() {
  cudaStream_t made = nullptr;
  escrow::check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "cudaStreamCreate");
  return made;
}

void claim(cudaStream_t stream, kernel_count& count) {
  auto const block = pool().claim(stream, 256);
  kernel_count* counted = &count;
  int steps = 8;
  void* arguments[] = {&counted, &steps};
  escrow::check(cudaLaunchKernel(kernel_address(), {1}, {1}, arguments, 0, stream),
                "cudaLaunchKernel");
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

}  // namespace

extern "C" [[gnu::visibility("default")]] plugin_calls escrow_test_plugin() {
  return {.start = [] { escrow::sim::reset({.stepped = true}); },
          .make_stream = &make_stream,
          .capture =
              [](cudaStream_t stream, auto work, kernel_count& count) {
                auto const enqueue = [&](escrow::stream_ref on) { work(on.get(), count); };
                return escrow::capture(stream, enqueue).detach();
              },
          .claim = &claim,
          .make_exec =
              [](cudaGraph_t graph) {
                execs().emplace_back(graph);
                return execs().size() - 1;
              },
          .is_bare = [](std::size_t exec) { return execs().at(exec).is_bare(); },
          .launch = [](std::size_t exec, cudaStream_t stream) { execs().at(exec).launch(stream); },
          .run =
              [](std::uint64_t seed) {
                escrow::sim::reseed(seed);
                escrow::sim::run_until_idle();
              },
          .catches_usage_error = &catches_usage_error,
          .misuse = &misuse};
}

#else

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace {

void must(bool holds, char const* what) {
  if (holds) return;
  std::printf("FAILED: %s\n", what);
  std::exit(1);
}

plugin_calls open(char const* path) {
  void* const opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) std::printf("%s\n", dlerror());
  must(opened != nullptr, "the plugin is opened");
  return reinterpret_cast<plugin_calls (*)()>(dlsym(opened, "escrow_test_plugin"))();
}

// The most kernels that ran at once when two execs were launched on two streams, many times.
int most_at_once(kernel_count& count, auto launch_both, plugin_calls const& runs) {
  count.most.store(0);
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    launch_both();
    runs.run(seed);
  }
  must(count.running.load() == 0, "all kernels end");
  return count.most.load();
}

}  // namespace

int main() {
  plugin_calls const a = open(ESCROW_TEST_PLUGIN_A);
  plugin_calls const b = open(ESCROW_TEST_PLUGIN_B);
  static kernel_count count;

  a.start();
  cudaStream_t const one = a.make_stream();
  cudaStream_t const two = b.make_stream();
  cudaGraph_t const shared = a.capture(one, b.claim, count);
  cudaGraph_t const other = b.capture(two, b.claim, count);

  std::size_t const of_a = a.make_exec(shared);
  std::size_t const of_b = b.make_exec(shared);
  std::size_t const of_other = b.make_exec(other);
  must(a.is_bare(of_a), "an exec of a graph in which the other plugin claimed is bare");
  must(b.is_bare(of_b), "an exec of the other plugin's graph is bare");

  auto const launch_shared = [&] {
    a.launch(of_a, one);
    b.launch(of_b, two);
  };
  must(most_at_once(count, launch_shared, a) == 1, "execs that share a slot are ordered");
  auto const launch_others = [&] {
    a.launch(of_a, one);
    b.launch(of_other, two);
  };
  must(most_at_once(count, launch_others, b) == 2, "execs that share nothing overlap");

  must(a.catches_usage_error(b.misuse), "an exception is caught by its type in the other plugin");
  must(!a.catches_usage_error([] {}), "a call that throws nothing");
  std::printf("one copy\n");
}

#endif
