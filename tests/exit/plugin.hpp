// What a plugin with Escrow inside offers to the program that loads it.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>

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
