// What a plugin with Escrow inside offers to the program that loads it.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>

/// The program's, and never freed: the plugin's resources and owners count themselves here.
struct plugin_counts {
  std::atomic<int> resources{0};  // alive
  std::atomic<int> owners{0};     // alive
  std::atomic<int> destroyed{0};  // of both

  /// Acquire: pairs with the releases of those that are gone.
  [[nodiscard]] int gone() const { return destroyed.load(std::memory_order_acquire); }
};

extern "C" {
/// Comes before the others.
using plugin_count_in = void (*)(plugin_counts*);
/// Claims from the plugin's pool for `stream`, which may be captured, enqueues a fill, releases,
/// and retires an owner on it.
using plugin_work = void (*)(cudaStream_t stream);
/// Makes an exec that holds a resource and an owner, launches it on `stream`, and ends it.
using plugin_launch = void (*)(cudaStream_t stream);
}

inline constexpr char const* plugin_count_in_name = "exit_plugin_count_in";
inline constexpr char const* plugin_work_name = "exit_plugin_work";
inline constexpr char const* plugin_launch_name = "exit_plugin_launch";
/// With this in the environment, the plugin makes a deleter while it is loaded.
inline constexpr char const* plugin_early = "ESCROW_EXIT_PLUGIN_EARLY";
