// SPDX-License-Identifier: Apache-2.0
// The whole state of the simulated machine, under one mutex.
#pragma once

#include "handles.hpp"
#include "objects.hpp"
#include "used.hpp"

#include <escrow/sim/control.hpp>
#include <escrow/sim/recording.hpp>

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace escrow::sim::model {

struct device {
  // Why it runs nothing any more.
  cudaError_t fault = cudaSuccess;
  bool has_context = false;
  unsigned resets = 0;  // by cudaDeviceReset
  std::shared_ptr<stream_state> legacy;
  // All streams with or without a handle, by id: destroyed ones stay until their work is done.
  std::map<std::uint64_t, std::shared_ptr<stream_state>> streams;
  CUmemPoolHandle_st pool;  // the default one
  // Of allocations, and what pools keep; graphs' memory does not count.
  std::size_t bytes_in_use = 0;
};

// Of all memory.
constexpr std::align_val_t as_cuda_aligns{256};

struct allocation {
  std::size_t bytes = 0;
  int device = 0;
  bool host = false;
  CUmemPoolHandle_st* pool = nullptr;  // null: of none
  // A call frees it; if that was cudaFreeAsync, the id of its stream.
  bool freeing = false;
  std::uint64_t freed_on = 0;
};

// Memory that was freed lately (freed.hpp).
struct freed_memory {
  std::map<void const*, allocation> all = {};  // what it was
  std::deque<void const*> in_turn = {};
  std::size_t bytes = 0;
};

// Memory of the driver's virtual memory management, by its handle.
struct physical_memory {
  unsigned long long handle = 0;
  std::size_t bytes = 0;
  int device = 0;
  bool is_held = true;  // not released by its maker
  std::size_t maps = 0;
};

struct mapped_piece {
  std::size_t bytes = 0;
  unsigned long long handle = 0;
  int device = 0;
};

// Reserved addresses, and what is mapped there.
struct reserved_range {
  std::size_t bytes = 0;
  std::map<unsigned long long, mapped_piece> pieces;
};

struct allocation_totals {
  std::size_t of_host = 0;
  std::size_t of_device = 0;
  std::size_t device_bytes = 0;

  void add(allocation const& one) {
    ++(one.host ? of_host : of_device);
    device_bytes += one.host ? 0 : one.bytes;
  }
  void subtract(allocation const& one) {
    --(one.host ? of_host : of_device);
    device_bytes -= one.host ? 0 : one.bytes;
  }
};

struct call_fault {
  cudaError_t error = cudaSuccess;
  // Calls still to let pass.
  std::uint64_t skip = 0;
  std::uint64_t times = 1;
  // Whose calls; 0: all threads'.
  std::uint64_t thread = 0;
  bool was_made = false;
};

// Everything. `mutex` guards every member, every object of objects.hpp and the memory that
// recycled.cpp keeps. It is never held while a destructor, a host function or a kernel runs. Leaked
// on purpose: threads may still look at it while the process exits.
struct state {
  std::mutex mutex;
  // Signalled when an operation or a callback is done or a thread has ended, if somebody waits.
  std::condition_variable changed;
  std::size_t waiters = 0;

  options how;
  // Counts resets; a thread that carries an older number starts afresh.
  std::uint64_t epoch = 0;
  // What every call returns once a device has failed, whichever device it is about.
  cudaError_t fault = cudaSuccess;
  // Pending work is being thrown away, by reset() or at exit.
  bool dropping = false;
  bool exiting = false;

  std::vector<device> devices;
  handle_table<cudaStream_t, stream_state> streams;
  handle_table<cudaEvent_t, event_state> events;
  handle_table<cudaGraph_t, graph_state> graphs;
  handle_table<cudaGraphExec_t, exec_state> execs;
  std::unordered_map<cudaUserObject_t, std::unique_ptr<CUuserObject_st>> user_objects;
  std::map<void const*, allocation> allocations;
  freed_memory freed;
  std::map<cudaMemPool_t, std::unique_ptr<CUmemPoolHandle_st>> memory_pools;  // made by the program
  std::map<unsigned long long, physical_memory> physical;
  unsigned long long last_physical = 0;
  std::map<unsigned long long, reserved_range> ranges;
  // Their number and bytes, so that nobody has to walk them: alive() is called at each step.
  allocation_totals allocated;
  std::vector<std::shared_ptr<capture>> captures;
  std::map<cudaGraphConditionalHandle, unsigned int> conditions;
  std::unordered_map<cudaLibrary_t, std::shared_ptr<CUlib_st>> libraries;
  // By handle, those of unloaded libraries too: no handle is given out twice.
  std::map<void const*, std::shared_ptr<CUkern_st>> library_kernels;
  std::uint64_t unloaded_launches = 0;
  // These three survive reset(): programs register kernels and images before main.
  std::map<void const*, kernel_code> kernels;
  std::map<void const*, std::vector<kernel_code>> images;
  std::map<std::string, void const*, std::less<>> image_files;

  std::size_t pending_ops = 0;
  host_knowledge known_done;
  used_memory used;
  // Calls of cudaFree and cudaFreeHost that wait for a device.
  std::size_t waiting_frees = 0;
  std::size_t execs_in_flight = 0;
  std::uint64_t loop_turns = 0;  // of the loop that has run last, if it has not ended
  // Memory that belongs to graphs, by address; a block takes itself out when it ends.
  std::map<void const*, graph_block*> graph_blocks;
  // Those that a launch has let appear and that no call has freed since.
  std::map<void const*, std::shared_ptr<graph_block>> unfreed_blocks;
  std::uint64_t next_id = 0;
  std::uint64_t next_graph_id = 0;
  bool recapture_gives_new_id = false;
  bool may_work_share = false;  // see let_work_share()

  // Operations that may start now; drained by pump().
  std::vector<op_ptr> startable;
  bool pumping = false;
  // Stepped: what a step may choose from.
  std::vector<op_ptr> choices;
  std::uint64_t fruitless = 0;
  std::uint64_t steps = 0;
  std::uint64_t vain_queries = 0;  // since the last step
  // Operations and callbacks being run at this moment, the lock let go.
  std::size_t running = 0;

  // Destructors and host functions, by when they are due and then by age.
  std::map<std::pair<std::chrono::nanoseconds, std::uint64_t>, callback> callback_queue;
  std::condition_variable callback_wake;
  bool callback_thread_started = false;
  std::size_t threads = 0;

  std::mt19937_64 random;
  std::chrono::nanoseconds virtual_now{};
  std::chrono::steady_clock::time_point started;

  std::uint64_t calls = 0;
  // Of calls with a stream or a graph: the thread of the last one, and when another one came.
  std::uint64_t last_user = 0;
  std::uint64_t user_changed_at = 0;
  std::uint64_t calls_in_callbacks = 0;
  // By the address of the name, which is a literal: a name can have several.
  std::unordered_map<char const*, std::uint64_t> calls_by_name;
  // By how many calls are still to pass; the key is an absolute number of injectable calls.
  std::map<std::uint64_t, cudaError_t> faults_by_number;
  std::uint64_t injectable_calls = 0;
  std::map<std::string, std::vector<call_fault>, std::less<>> faults_by_name;
  // By the thread's number: calls still to come until one fails, and how.
  std::map<std::uint64_t, std::pair<std::uint64_t, cudaError_t>> faults_by_thread;
  bool recording = false;
  std::uint64_t recorded_thread = 0;  // 0: all
  std::vector<recorded_call> recorded;
  std::uint64_t captures_invalidated = 0;
  std::string last_invalidation;
};

// The one state; made on first use (reset.cpp).
state& the();

// In a child of fork() CUDA works no more, if it did in the parent; and a lock may be held there by
// a thread that the child has not.
[[nodiscard]] bool is_forked() noexcept;

// Real or virtual time since reset.
std::chrono::nanoseconds time_now();

// A random whole number in [low, high].
std::uint64_t pick(std::uint64_t low, std::uint64_t high);

// The stream's thread ends when it has done its work, and the device knows the stream no more.
void forget_stream(stream_state& stream);

// A run begins: handles and addresses that earlier ones have given up are not given again.
void begin_run(state& s);

// Ends the program with a message that names the seed.
[[noreturn]] void give_up(std::string const& why);

}  // namespace escrow::sim::model
