// The pool without its resource's type: who gets which slot, and when.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/pool/holder.hpp"
#include "escrow/pool/pool_options.hpp"
#include "escrow/pool/pool_stats.hpp"
#include "escrow/pool/slot.hpp"
#include "escrow/pool/slot_lease.hpp"

namespace escrow {

struct capture_frontier;

// What: makes and destroys the resources, in their slots.
// Thread safety: make() may be called by several threads at a time.
// Memory ordering: none.
// Lifetime: owned by the slot_pool, until its last slot has gone.
// Capture: make() is called in Relaxed mode with the pool's device current.
// Errors: make() may throw anything; the claim then fails with it.
class slot_maker {
 public:
  virtual ~slot_maker() = default;
  [[nodiscard]] virtual slot* make(slot_pool& pool) = 0;
};

// What: the pool that resource_pool<T> and scratch_pool wrap. Choice of slot, eager: the one
//   released last on this very stream, which needs no wait; one whose work is done; a new one; the
//   oldest, with a wait in the stream. In a capture: one that this capture released before, in
//   dependency order; one whose work is done; a new one; one that another branch of this capture
//   released, with a dependency edge.
// Thread safety: any thread may call anything; not close_and_leave().
// Memory ordering: what a thread did before it released a slot happens before its next claim.
// Lifetime: freed by close_and_leave() if no slot is left, else on the worker, with the last slot.
// Capture: any mode, any thread; claims in a capture that invalidate nothing.
// Errors: usage_error, cuda_error, pool_exhausted, and what make() throws. A failed claim has
//   changed nothing, but for a slot that is quarantined if CUDA refuses the wait for its last use.
class slot_pool {
 public:
  // `options.device` must be a device. Throws cuda_error.
  slot_pool(pool_options const& options, std::unique_ptr<slot_maker> maker);
  slot_pool(slot_pool&&) = delete;

  // Claims a slot; blocks the host for `host_wait_max` at most, and then returns nothing. `call` is
  // the public function, for the text of errors.
  [[nodiscard]] std::optional<slot_lease> claim(char const* call, stream_ref stream,
                                                std::chrono::nanoseconds host_wait_max,
                                                source_location where);
  // The same, with the options' wait; throws pool_exhausted.
  [[nodiscard]] slot_lease claim(char const* call, stream_ref stream, source_location where);

  // Refuses claims, destroys what is free, waits for the rest, and returns who holds what is left.
  [[nodiscard]] std::vector<holder> close_for(std::chrono::nanoseconds timeout);
  // The owner's last call: closes without waiting.
  void close_and_leave() noexcept;

  [[nodiscard]] pool_stats stats() const noexcept;
  [[nodiscard]] int device() const noexcept;
  [[nodiscard]] std::string const& label() const noexcept;
  [[nodiscard]] deleter_core& core() const noexcept;

 private:
  friend class graph_hold;
  friend class slot;
  friend class slot_lease;
  struct state;

  ~slot_pool();

  // slot_lease.cpp: cudaStreamPerThread names another stream on another thread than `thread`.
  static void require_same_thread(char const* call, std::uint64_t thread,
                                  std::string_view what_it_did);

  // claim.cpp, claim_captured.cpp
  struct own_claim {
    capture_info capture;
    std::uint64_t stream_id = 0;
    slot* found = nullptr;  // the stream's own; null if there is none
  };
  own_claim claim_own(char const* call, stream_ref stream);
  std::optional<slot_lease> claim_other(char const* call, stream_ref stream,
                                        capture_info const& capture,
                                        std::chrono::nanoseconds host_wait_max,
                                        source_location where);
  std::optional<slot_lease> claim_elsewhere(stream_ref stream, capture_info const& capture,
                                            source_location where);
  std::optional<slot_lease> claim_waiting(char const* call, stream_ref stream,
                                          capture_info const& capture,
                                          std::chrono::nanoseconds host_wait_max,
                                          source_location where);
  std::optional<slot_lease> claim_eager(stream_ref stream);
  std::optional<slot_lease> try_eager(stream_ref stream);
  std::optional<slot_lease> claim_captured(stream_ref stream, capture_info const& capture,
                                           source_location where);
  slot* take_done();
  slot* grow();
  slot* take_reusable(capture_info const& capture, capture_frontier const& frontier);
  slot* take_with_edge(stream_ref stream, capture_info const& capture);
  // Whether a free slot's work is done; if not, whether the stream that it was released on is
  // behind, and with it all later releases there, or only other streams.
  enum class progress : std::uint8_t { done, others_behind, stream_behind };
  [[nodiscard]] static progress ask(slot& free) noexcept;
  void wait_for_last_use(slot& taken, stream_ref stream);
  void wait_for_others(slot& taken, stream_ref stream);
  void wait_or_quarantine(slot& taken, event const& ready, stream_ref stream);
  void attach(slot& taken, capture_info const& capture, source_location where);
  void hold_in_graph(slot& taken, capture_info const& capture, source_location where);
  // A hold that the ledger knows, with no holder yet.
  [[nodiscard]] graph_hold& make_hold(slot& taken, std::uint64_t id, source_location where);
  [[nodiscard]] slot_share share(slot& leased);
  void require_open(char const* call) const;
  // `remedy`: what to do instead, for the error.
  void require_device(char const* call, stream_ref stream, capture_info const& capture,
                      char const* remedy) const;
  [[nodiscard]] std::string describe_exhaustion(char const* call) const;

  // release.cpp: for slot_lease. `id` is the stream's, 0 if it is to be asked for, which kills a
  // capture.
  void release(slot_lease& lease, stream_ref stream, capture_info const& capture, std::uint64_t id);
  void release_eager(slot_lease& lease, stream_ref stream, std::uint64_t id);
  void release_captured(slot_lease& lease, stream_ref stream, capture_info const& capture);
  void release_in_foreign_capture(slot_lease& lease, capture_info const& capture);
  cudaError_t record_again(slot& used, stream_ref stream, cudaError_t first) noexcept;
  static void require_recordable(slot::used_stream const& also);
  cudaError_t record_uses(slot& used, stream_ref stream) noexcept;
  static cudaError_t record_other_use(slot& used, slot::used_stream const& also) noexcept;
  static cudaError_t record_use(slot& used, event& ready, int& device,
                                cudaStream_t stream) noexcept;
  void let_go(slot& used, std::uint64_t capture_id, bool reusable) noexcept;
  // The end of a lease that is no more than its capture, if it has one, can tell.
  void end_lease(slot& used, std::uint64_t capture_id) noexcept;
  void graph_is_gone(graph_hold& hold) noexcept;
  void go_home(slot& idle) noexcept;
  void put_back(slot& idle) noexcept;
  void put_back_unused(slot& looked_at) noexcept;

  // close.cpp
  void close() noexcept;
  [[nodiscard]] static bool is_still_captured(slot_lease const& lease) noexcept;
  static void avoid_legacy(slot_lease& lease);
  void abandon(slot_lease& lease, bool nothing_runs) noexcept;
  void put_in_quarantine(slot& suspect, slot::quarantine kind) noexcept;
  void destroy(slot& idle) noexcept;
  void leak(slot& unknown) noexcept;
  static void destroy_slot(reclaimable& node) noexcept;
  [[nodiscard]] bool is_last_reference() noexcept;
  // For who may hold a lock, or capture: the pool, if this was the last, ends on the worker.
  void drop_reference() noexcept;
  // Ends what the user gave the pool: on the worker, or with the pool's owner.
  void end() noexcept;

  std::unique_ptr<state> state_;
};

}  // namespace escrow
