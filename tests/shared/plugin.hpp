// What each of two plugins, both linked with the shared Escrow, offers to the program that loads
// it.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

/// How many launches of the plugins' kernel run. The kernels of a stepped runtime run one at a
/// time, so relaxed would do; the program's.
struct kernel_count {
  std::atomic<int> running{0};
  std::atomic<int> most{0};
};

struct plugin_calls {
  /// A fresh simulated runtime, stepped. Once in a process.
  void (*start)();
  cudaStream_t (*make_stream)();
  /// Captures what `work` enqueues.
  cudaGraph_t (*capture)(cudaStream_t stream, void (*work)(cudaStream_t, kernel_count&),
                         kernel_count& count);
  /// Claims from the plugin's pool for `stream`, and launches a kernel that takes some steps.
  void (*claim)(cudaStream_t stream, kernel_count& count);
  /// An exec of `graph`, the plugin's, until end().
  std::size_t (*make_exec)(cudaGraph_t graph);
  bool (*is_bare)(std::size_t exec);
  void (*launch)(std::size_t exec, cudaStream_t stream);
  /// Runs all that is pending, in an order that the seed chooses.
  void (*run)(std::uint64_t seed);
  /// Whether `call` throws a usage_error that the plugin catches by its type.
  bool (*catches_usage_error)(void (*call)());
  /// Throws a usage_error out of Escrow.
  void (*misuse)();
  /// Destroys the execs; whether all slots of the plugin came back.
  bool (*end)();
};

using plugin_entry = plugin_calls (*)();
