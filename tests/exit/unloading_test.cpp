// A plugin with Escrow inside is closed with dlclose: what its worker and CUDA may still call stays
// loaded, all that it held comes back, and the program goes on and ends.
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "../support/build_graph.hpp"
#include "../support/capturing.hpp"
#include "../support/child.hpp"
#include "../support/memory.hpp"
#include "../support/wait_until.hpp"
#include "clean_end.hpp"
#include "plugin.hpp"

namespace escrow::test {
namespace {

[[nodiscard]] bool is_loaded() {
  void* const found = dlopen(ESCROW_EXIT_PLUGIN, RTLD_LAZY | RTLD_NOLOAD);
  if (found != nullptr) dlclose(found);
  return found != nullptr;
}

/// The plugin, from its opening to its closing.
class plugin {
 public:
  explicit plugin(char const* path = ESCROW_EXIT_PLUGIN)
      : handle_(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) throw std::runtime_error{dlerror()};
    function<plugin_count_in>(plugin_count_in_name)(&counts());
  }
  plugin(plugin&&) = delete;
  ~plugin() { close(); }

  void close() {
    if (handle_ == nullptr) return;
    must(dlclose(std::exchange(handle_, nullptr)) == 0, "dlclose");
  }
  void work(cudaStream_t stream) const { function<plugin_work>(plugin_work_name)(stream); }
  void launch(cudaStream_t stream) const { function<plugin_launch>(plugin_launch_name)(stream); }

  /// What the plugin has alive. Never freed.
  [[nodiscard]] static plugin_counts& counts() {
    static plugin_counts& kept = *new plugin_counts;
    return kept;
  }

 private:
  template <class Function>
  [[nodiscard]] Function function(char const* name) const {
    void* const found = dlsym(handle_, name);
    must(found != nullptr, name);
    return reinterpret_cast<Function>(found);
  }

  void* handle_;
};

[[nodiscard]] bool come_back(int how_many) {
  return wait_until([&] { return plugin::counts().gone() == how_many; });
}

/// A graph that waits for `gate` and then does the plugin's work.
[[nodiscard]] owned_graph captured(plugin const& used, cudaStream_t stream, pinned_ints& gate) {
  capture recording{stream, cudaStreamCaptureModeGlobal};
  must(launch_wait_flag(stream, gate.data()));
  used.work(stream);
  must(recording.end());
  return std::move(recording.graph());
}

void go_on(cudaStream_t stream) {
  owned_exec const own = instantiate(tiny_graph());
  must(cudaGraphLaunch(own, stream));
  must(cudaStreamSynchronize(stream));
}

int close_unused() {
  plugin used;
  must(is_loaded(), "the plugin is loaded");
  used.close();
  must(!is_loaded(), "a plugin that never used Escrow is unloaded");
  return 0;
}
child_case const unused("close_unused", &close_unused);

int close_while_the_worker_sleeps() {
  plugin used;
  owned_stream const stream = make_stream();
  used.work(stream);
  must(cudaStreamSynchronize(stream));
  must(come_back(1), "the owner is destroyed");
  std::this_thread::sleep_for(std::chrono::milliseconds{20});  // many times the worker's linger
  used.close();
  must(is_loaded(), "the worker's code is loaded");
  go_on(stream);
  return 0;
}
child_case const worker_sleeps("close_worker_sleeps", &close_while_the_worker_sleeps);

int close_with_releases_queued() {
  plugin used;
  pinned_ints gate;
  owned_stream const stream = make_stream();
  used.work(stream);  // makes the resource, which might wait for the device
  must(launch_wait_flag(stream, gate.data()));
  for (int i = 0; i < 100; ++i) used.work(stream);
  used.close();
  gate.store(0, 1);
  must(come_back(101), "all owners are destroyed");
  go_on(stream);
  return 0;
}
child_case const releases_queued("close_releases_queued", &close_with_releases_queued);

int close_with_its_objects_in_a_graph() {
  plugin used;
  pinned_ints gate;
  gate.store(0, 1);
  owned_stream const stream = make_stream();
  owned_graph graph = captured(used, stream, gate);
  owned_exec exec = instantiate(graph);
  must(cudaGraphLaunch(exec, stream));
  used.close();
  for (int i = 0; i < 10; ++i) must(cudaGraphLaunch(exec, stream));
  owned_exec const another = instantiate(graph);
  must(cudaGraphLaunch(another, stream));
  graph.reset();
  must(cudaStreamSynchronize(stream));
  must(plugin::counts().owners.load() == 1, "the owner stays with the execs");
  exec.reset();
  must(cudaGraphLaunch(another, stream));
  return 0;  // the last exec ends now, its launch in flight
}
child_case const in_a_graph("close_objects_in_a_graph", &close_with_its_objects_in_a_graph);

int close_with_a_launch_in_flight() {
  plugin used;
  pinned_ints gate;
  owned_stream const stream = make_stream();
  owned_exec exec = instantiate(captured(used, stream, gate));
  must(cudaGraphLaunch(exec, stream));
  used.close();
  exec.reset();
  must(plugin::counts().gone() == 0, "nothing is destroyed while the launch runs");
  gate.store(0, 1);
  must(come_back(1), "the owner is destroyed after the launch");
  go_on(stream);
  return 0;
}
child_case const in_flight("close_launch_in_flight", &close_with_a_launch_in_flight);

int close_with_an_exec_of_its_own_in_flight() {
  plugin used;
  pinned_ints gate;
  owned_stream const stream = make_stream();
  used.work(stream);  // makes the resource, which might wait for the device
  must(come_back(1), "the owner is destroyed");
  must(launch_wait_flag(stream, gate.data()));
  used.launch(stream);
  used.close();
  must(plugin::counts().gone() == 1, "nothing is destroyed while the launch runs");
  gate.store(0, 1);
  must(come_back(2), "the owner is destroyed after the launch");
  go_on(stream);
  return 0;
}
child_case const own_exec("close_own_exec_in_flight", &close_with_an_exec_of_its_own_in_flight);

int close_what_a_relative_path_named() {
  std::filesystem::path const path = ESCROW_EXIT_PLUGIN;
  std::filesystem::current_path(path.parent_path());
  plugin used(("./" + path.filename().string()).c_str());
  std::filesystem::current_path("/");  // the name leads nowhere now
  owned_stream const stream = make_stream();
  used.work(stream);
  used.close();
  must(is_loaded(), "the plugin stays");
  must(come_back(1), "the owner is destroyed");
  std::filesystem::current_path(path.parent_path());  // for the names in a sanitizer's report
  return 0;
}
child_case const relative_path("close_relative_path", &close_what_a_relative_path_named);

int close_what_had_a_deleter_at_once() {
  must(setenv(plugin_early, "1", 1) == 0, "setenv");
  plugin used;
  std::this_thread::sleep_for(std::chrono::milliseconds{5});
  used.close();
  must(is_loaded(), "the worker's code is loaded");
  return 0;
}
child_case const early_deleter("close_early_deleter", &close_what_had_a_deleter_at_once);

int open_again() {
  owned_stream const stream = make_stream();
  for (int round = 1; round <= 3; ++round) {
    plugin used;
    used.work(stream);
    must(come_back(round), "the owner is destroyed");
    must(plugin::counts().resources.load() == 1, "the pool is the one from before");
  }
  return 0;
}
child_case const opened_again("close_and_open_again", &open_again);

TEST(Unloading, TakesAPluginThatNeverUsedEscrow) {
  expect_clean_end("close_unused");
}
TEST(Unloading, LeavesTheCodeOfAWorkerThatSleeps) {
  expect_clean_end("close_worker_sleeps");
}
TEST(Unloading, LosesNoReleaseThatIsQueued) {
  expect_clean_end("close_releases_queued");
}
TEST(Unloading, LeavesWhatGraphsAndExecsOfTheProgramStillHold) {
  expect_clean_end("close_objects_in_a_graph");
}
TEST(Unloading, MayComeWhileALaunchIsInFlight) {
  expect_clean_end("close_launch_in_flight");
}
TEST(Unloading, MayComeWhileALaunchOfThePluginsOwnExecIsInFlight) {
  expect_clean_end("close_own_exec_in_flight");
}
TEST(Unloading, LeavesAPluginWhoseNameLeadsNowhereAnyMore) {
  expect_clean_end("close_relative_path");
}
TEST(Unloading, LeavesAPluginThatHasADeleterFromItsLoadingOn) {
  expect_clean_end("close_early_deleter");
}
TEST(Unloading, MayBeFollowedByAnotherLoad) {
  expect_clean_end("close_and_open_again");
}

}  // namespace
}  // namespace escrow::test
