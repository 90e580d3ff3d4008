// Two plugins, opened RTLD_LOCAL by a program that is linked with neither Escrow nor CUDA, have one
// copy of the shared Escrow: a claim of one in a capture of the other is known to both.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "plugin.hpp"

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
  return reinterpret_cast<plugin_entry>(dlsym(opened, "escrow_test_plugin"))();
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
