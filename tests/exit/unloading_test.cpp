// SPDX-License-Identifier: Apache-2.0
// A plugin with Escrow inside, or linked with the shared library, is closed with dlclose: code that
// its worker and CUDA may still call stays loaded, all that it held is released, and the program
// goes on and ends. This is the program, and with ESCROW_TEST_PLUGIN the plugin: a pool and the
// global deleter.
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdlib>

/// The program's, and never freed: the plugin's resources and owners count themselves here.
struct plugin_counts {
  std::atomic<int> resources{0};  // alive
  std::atomic<int> owners{0};     // alive
  std::atomic<int> destroyed{0};  // of both; acquire, if what was destroyed matters
};

struct plugin_calls {
  /// Claims from the plugin's pool for `stream`, which may be captured, enqueues a fill, releases,
  /// and retires an owner on it.
  void (*work)(cudaStream_t stream);
  /// Makes an exec that holds a resource and an owner, launches it on `stream`, and destroys it.
  void (*launch)(cudaStream_t stream);
};

/// The one function of the plugin: exit_plugin.
using plugin_entry = plugin_calls (*)(plugin_counts*);
/// With this in the environment, the plugin makes a deleter while it is loaded.
inline constexpr char const* plugin_early = "ESCROW_EXIT_PLUGIN_EARLY";

#ifdef ESCROW_TEST_PLUGIN

#include <escrow/graph.hpp>
#include <escrow/pool.hpp>

#include "../support/handles.hpp"

namespace {

plugin_counts* counts = nullptr;

// Counts in the program's memory; relaxed but for the last, which publishes the destruction.
std::shared_ptr<void> counted(std::atomic<int>& alive) {
  alive.fetch_add(1, std::memory_order_relaxed);
  return {nullptr, [&alive](void*) {
            alive.fetch_sub(1, std::memory_order_relaxed);
            counts->destroyed.fetch_add(1, std::memory_order_release);
          }};
}

struct resource {
  std::shared_ptr<void> alive = counted(counts->resources);
  escrow::device_block memory{256};
};

// Destroyed with the process, like all statics of a plugin that stays loaded.
escrow::resource_pool<resource>& pool() {
  static escrow::resource_pool<resource> only({.slots_max = 64}, [] { return resource{}; });
  return only;
}

// Some plugins have a deleter from their loading on.
std::unique_ptr<escrow::deleter> const early =
    std::getenv(plugin_early) == nullptr ? nullptr : std::make_unique<escrow::deleter>();

void work(cudaStream_t stream) {
  escrow::lease<resource> held = pool().claim(stream);
  escrow::check(cudaMemsetAsync(held->memory.data(), 1, held->memory.size(), stream),
                "cudaMemsetAsync");
  held.release();
  escrow::deleter::global().retire(escrow::stream_ref(stream), counted(counts->owners));
}

void launch(cudaStream_t stream) {
  escrow::test::owned_stream const recording = escrow::test::make_stream();
  escrow::graph_exec exec(
      escrow::capture(recording.get(), [](escrow::stream_ref on) { work(on.get()); }));
  exec.launch(stream);
}

}  // namespace

extern "C" plugin_calls exit_plugin(plugin_counts* given) {
  counts = given;
  return {&work, &launch};
}

#else

#include <dlfcn.h>

#include <filesystem>

#include "child.hpp"
#include "graph_nodes.hpp"

namespace escrow::test {
namespace {

using namespace std::chrono_literals;

/// The plugin with a copy of Escrow inside, or the one that this variable names.
[[nodiscard]] char const* plugin_path() {
  char const* const named = std::getenv("ESCROW_EXIT_PLUGIN");
  return named == nullptr ? ESCROW_EXIT_PLUGIN : named;
}

[[nodiscard]] bool is_loaded() {
  void* const found = dlopen(plugin_path(), RTLD_LAZY | RTLD_NOLOAD);
  if (found != nullptr) dlclose(found);
  return found != nullptr;
}

/// The plugin, from its opening to its closing.
class plugin {
 public:
  explicit plugin(char const* path = plugin_path()) : handle_(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) throw std::runtime_error{dlerror()};
    calls_ = reinterpret_cast<plugin_entry>(dlsym(handle_, "exit_plugin"))(&counts());
  }
  plugin(plugin&&) = delete;
  ~plugin() { close(); }

  void close() {
    if (handle_ == nullptr) return;
    must(dlclose(std::exchange(handle_, nullptr)) == 0, "dlclose");
  }
  void work(cudaStream_t stream) const { calls_.work(stream); }
  void launch(cudaStream_t stream) const { calls_.launch(stream); }

  /// What the plugin has alive. Never freed.
  [[nodiscard]] static plugin_counts& counts() {
    static plugin_counts& kept = *new plugin_counts;
    return kept;
  }
  [[nodiscard]] static int destroyed() {
    return counts().destroyed.load(std::memory_order_acquire);
  }

 private:
  void* handle_;
  plugin_calls calls_{};
};

void must_release(int how_many) {
  must(wait_until([&] { return plugin::destroyed() == how_many; }), "all is released");
}

/// A graph that waits for `gate` and then does the plugin's work.
[[nodiscard]] owned_graph captured(plugin const& used, cudaStream_t stream, pinned_ints& gate) {
  capture recording{stream, cudaStreamCaptureModeGlobal};
  must(launch_wait_flag(stream, gate.data()));
  used.work(stream);
  must(recording.end());
  return std::move(recording.graph());
}

void must_go_on(cudaStream_t stream) {
  owned_exec const own = instantiate(tiny_graph());
  must(cudaGraphLaunch(own, stream));
  must(cudaStreamSynchronize(stream));
}

void unused() {
  plugin used;
  must(is_loaded(), "the plugin is loaded");
  used.close();
  must(!is_loaded(), "a plugin that never used Escrow is unloaded");
}

void while_the_worker_sleeps() {
  plugin used;
  owned_stream const stream = make_stream();
  used.work(stream);
  must(cudaStreamSynchronize(stream));
  must_release(1);
  std::this_thread::sleep_for(20ms);  // many times the worker's linger
  used.close();
  must(is_loaded(), "the worker's code is loaded");
  must_go_on(stream);
}

void with_releases_queued() {
  plugin used;
  pinned_ints gate;
  owned_stream const stream = make_stream();
  used.work(stream);  // makes the resource, which might wait for the device
  must(launch_wait_flag(stream, gate.data()));
  for (int i = 0; i < 100; ++i) used.work(stream);
  used.close();
  gate.store(0, 1);
  must_release(101);
  must_go_on(stream);
}

void with_its_objects_in_a_graph() {
  plugin used;
  pinned_ints gate;
  owned_stream const stream = make_stream();
  owned_graph graph = captured(used, stream, gate);
  owned_exec exec = instantiate(graph);
  must(cudaGraphLaunch(exec, stream));
  used.close();
  owned_exec another = instantiate(graph);
  graph.reset();
  exec.reset();
  gate.store(0, 1);
  must(cudaStreamSynchronize(stream));
  must(plugin::counts().owners.load() == 1, "the owner stays with the other exec");
  for (int i = 0; i < 10; ++i) must(cudaGraphLaunch(another, stream));
  must(cudaStreamSynchronize(stream));
  gate.store(0, 0);
  must(cudaGraphLaunch(another, stream));
  another.reset();
  must(plugin::destroyed() == 0, "nothing is destroyed while the launch runs");
  gate.store(0, 1);
  must_release(1);
  must_go_on(stream);
}

void with_a_launch_of_its_own_exec_in_flight() {
  plugin used;
  pinned_ints gate;
  owned_stream const stream = make_stream();
  used.work(stream);  // makes the resource, which might wait for the device
  must_release(1);
  must(launch_wait_flag(stream, gate.data()));
  used.launch(stream);
  used.close();
  must(plugin::destroyed() == 1, "nothing is destroyed while the launch runs");
  gate.store(0, 1);
  must_release(2);
  must_go_on(stream);
}

void opened_by_a_path_that_is_no_longer_valid() {
  std::filesystem::path const path = plugin_path();
  std::filesystem::current_path(path.parent_path());
  plugin used(("./" + path.filename().string()).c_str());
  std::filesystem::current_path("/");
  owned_stream const stream = make_stream();
  used.work(stream);
  used.close();
  must(is_loaded(), "the plugin stays");
  must_release(1);
  std::filesystem::current_path(path.parent_path());  // for the names in a sanitizer's report
}

void with_a_deleter_from_its_loading_on() {
  must(setenv(plugin_early, "1", 1) == 0, "setenv");
  plugin used;
  std::this_thread::sleep_for(5ms);
  used.close();
  must(is_loaded(), "the worker's code is loaded");
}

void and_opened_again() {
  owned_stream const stream = make_stream();
  for (int round = 1; round <= 3; ++round) {
    plugin used;
    used.work(stream);
    must_release(round);
    must(plugin::counts().resources.load() == 1, "the pool is the one from before");
  }
}

std::vector<named_case> const plugin_cases = register_cases({
    {"Unused", &unused},
    {"WhileTheWorkerSleeps", &while_the_worker_sleeps},
    {"WithReleasesQueued", &with_releases_queued},
    {"WithItsObjectsInGraphsInFlight", &with_its_objects_in_a_graph},
    {"WithALaunchOfItsOwnExecInFlight", &with_a_launch_of_its_own_exec_in_flight},
    {"OpenedByAPathThatIsNoLongerValid", &opened_by_a_path_that_is_no_longer_valid},
    {"WithADeleterFromItsLoadingOn", &with_a_deleter_from_its_loading_on},
    {"AndOpenedAgain", &and_opened_again},
});

using Unloading = child_test;

TEST_P(Unloading, LeavesCodeInUseAndLosesNoRelease) {
  expect_clean_end(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Closed, Unloading, testing::ValuesIn(plugin_cases), &name_of_case);

}  // namespace
}  // namespace escrow::test

#endif
