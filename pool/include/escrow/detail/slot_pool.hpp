// The pool without its resource's type: which claim gets which slot, and when.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/detail/reclaimable.hpp"
#include "escrow/detail/slot.hpp"

namespace escrow {

// The options of a pool, copied by it. The deleter is used only while the pool is made; what the
// pool needs of it outlives it.
struct pool_options {
  // The most resources that the pool makes. A graph holds those that it uses until it, its clones,
  // execs and launches are destroyed.
  std::size_t slots_max = 64;
  // The device that the resources belong to; -1 means the device current when the pool is made.
  int device = -1;
  // How long claim() may block the host when all resources are out. Zero: it throws at once.
  std::chrono::nanoseconds host_wait_max{0};
  // How long claim() in a capture may block the host for the eager work that uses all resources
  // that are not out: a capture cannot wait for it in its stream.
  std::chrono::nanoseconds capture_wait_max = std::chrono::seconds(10);
  // The pool's name in errors and reports.
  std::string label = "pool";
  // Whose worker recycles and destroys; null means deleter::global().
  escrow::deleter* deleter = nullptr;
};

// Counts, read one by one while others go on. Claims that find their stream's own slot, the common
// ones, are not counted, because counting would cost more than it tells.
struct pool_stats {
  std::size_t slots = 0;           // resources that exist, but for those that were leaked
  std::size_t in_graphs = 0;       // of them, held by graphs
  std::size_t deferred = 0;        // of them, released, but not yet recorded: see lease
  std::uint64_t grown = 0;         // resources made so far
  std::uint64_t stream_waits = 0;  // claims that made their stream wait for another
  std::uint64_t host_waits = 0;    // claims that blocked the host
  std::uint64_t edges_added = 0;   // claims in a capture that ordered one branch after another
};

// One holder of slots of a pool that is being closed: a graph, with its clones and execs; the
// leases that are out; or a stream that a record is missing on.
struct holder {
  // The id under which the graph was captured; 0: none, or a node of a graph built by hand.
  std::uint64_t capture_id = 0;
  std::string label;                              // the pool's label
  std::size_t slots = 0;                          // how many it holds
  std::chrono::steady_clock::time_point since{};  // of its first claim or share; zero for leases
  // The line of its first claim, in a capture; empty for others.
  source_location where = {};
  // Not null: these slots were released while this stream captured. They come back when the pool is
  // given the stream again outside of captures.
  cudaStream_t waits_for = nullptr;
};

// All slots of the pool are out, no more may be made, and the claim may not wait (any longer). The
// text names the holders and what to do. A capture in progress stays valid.
class pool_exhausted : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What a lease knows of its claim. Empty without a slot.
struct claimed_slot {
  slot* what = nullptr;
  cudaStream_t stream = nullptr;
  std::uint64_t stream_id = 0;   // 0: claimed in a capture
  std::uint64_t capture_id = 0;  // 0: claimed eagerly
  std::uint64_t thread = 0;      // as stream_use::thread
};

// The pool that resource_pool<T> and scratch_pool wrap; their contracts are its own.
class slot_pool {
 public:
  // Called with the pool's device current and in Relaxed capture mode, by several threads at a
  // time.
  using make_function = std::function<slot*(slot_pool&)>;

  // `options.device` must be a device. Throws cuda_error.
  slot_pool(pool_options const& options, make_function make);
  slot_pool(slot_pool&&) = delete;

  // Claims a slot; `call` is the public function, for the text of errors. Throws pool_exhausted.
  [[nodiscard]] claimed_slot claim(char const* call, stream_ref stream, source_location where);
  // The same, but blocks the host for `host_wait_max` at most, and then returns nothing.
  [[nodiscard]] std::optional<claimed_slot> try_claim(char const* call, stream_ref stream,
                                                      std::chrono::nanoseconds host_wait_max,
                                                      source_location where);

  // For lease<T>, of whatever pool. Those that release leave the lease empty, or throw.
  static void release(claimed_slot& lease);
  static void release(claimed_slot& lease, stream_ref stream);
  static void release_at_end(claimed_slot& lease) noexcept;
  static void record_stream(claimed_slot const& lease, stream_ref stream);
  static void before_launch(claimed_slot const& lease, stream_ref stream);
  [[nodiscard]] static slot_share share_with_node(claimed_slot const& lease);
  // The slot; throws usage_error, naming `call`, if the lease is empty.
  [[nodiscard]] static slot& require_slot(char const* call, claimed_slot const& lease);

  // Refuses claims, destroys what is free, waits for the rest, and returns the holders of what is
  // left.
  [[nodiscard]] std::vector<holder> close_for(std::chrono::nanoseconds timeout);
  // The owner's last call: closes without waiting. The pool ends with its last slot.
  void close_and_leave() noexcept;

  [[nodiscard]] pool_stats stats() const noexcept;
  [[nodiscard]] int device() const noexcept;
  [[nodiscard]] std::string const& label() const noexcept;
  [[nodiscard]] deleter_core& core() const noexcept;

 private:
  friend class graph_hold;
  friend class slot;
  struct state;

  ~slot_pool();
  static void destroy_slot(reclaimable& thing) noexcept;  // graph_hold.cpp

  std::unique_ptr<state> state_;
};

}  // namespace escrow
