// A plugin with Escrow inside, or linked with the shared library, is closed with dlclose: code that
// its worker and CUDA may still call stays loaded, all that it held is released, and the program
// goes on and ends.
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "build_graph.hpp"
#include "capturing.hpp"
#include "child.hpp"
#include "memory.hpp"
#include "plugin.hpp"
#include "wait_until.hpp"

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
