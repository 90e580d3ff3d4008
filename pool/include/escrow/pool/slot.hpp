// A pool's place for one resource.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "escrow/core/event.hpp"
#include "escrow/detail/reclaimable.hpp"

namespace escrow {

class slot;
class slot_pool;

// What: one graph's hold on a slot, let go by the user object that the graph keeps, or by the share
//   that a node keeps.
// Thread safety, Memory ordering, Lifetime, Capture, Errors: as reclaimable.
class graph_hold final : public slot_reference {
 public:
  graph_hold(deleter_core& core, int device, escrow::slot& held)
      : slot_reference(core, device, &graph_is_gone), held_(held) {}

  [[nodiscard]] std::string_view label() const noexcept override;
  [[nodiscard]] std::size_t bytes() const noexcept override;

 private:
  friend class capture_ledger;
  friend class slot_pool;

  static void graph_is_gone(reclaimable& thing) noexcept;

  escrow::slot& held_;
  std::uint64_t capture_id_ = 0;
};

// What: a resource's state. Exactly one of these owns it at a time:
//     a bin (free) | a lease | graphs (after the lease) | quarantine | the worker (to be destroyed)
//   A lease and graphs may hold it together; it goes home when the last of them has let go.
// Thread safety: guarded by who owns it: the bin's lock, the lease's thread, the ledger's lock.
// Memory ordering: through those locks and the release queue.
// Lifetime: made by its pool, destroyed on the worker.
// Capture: none.
// Errors: the constructor throws std::bad_alloc, cuda_error.
class slot : public reclaimable {
 public:
  explicit slot(slot_pool& pool);

  [[nodiscard]] slot_pool& pool() const noexcept { return pool_; }

 protected:
  virtual ~slot();  // destroys the resource

  std::size_t bytes_ = 0;  // the resource's size, 0 if it is not known; set once, when it is made

 private:
  friend class bins;
  friend class capture_ledger;
  friend class graph_hold;
  friend class slot_lease;
  friend class slot_pool;

  enum class quarantine : std::uint8_t {
    none,
    until_done,  // never handed out; may be destroyed after its ready events
    for_ever,    // nothing tells when the GPU is done with it: never destroyed either
  };

  slot_pool& pool_;
  slot* previous_ = nullptr;  // links of the one list that the slot is in
  slot* next_ = nullptr;

  // Eager use: the work before these events may still use the resource.
  event ready_;
  struct other_event {
    event ready;
    int device;  // the event's
  };
  std::vector<other_event> also_ready_;  // of the last lease's other streams, those in use first
  std::size_t also_count_ = 0;           // how many of them are in use
  bool is_done_ = true;                  // known to be idle: no event needs asking
  bool was_used_ = false;                // handed out before
  bool was_shared_ = false;              // nodes may have shares of it
  std::uint64_t stream_ = 0;             // id of the stream that it was released on; 0: none
  std::uint64_t released_at_ = 0;        // the pool's count of releases then
  struct used_stream {
    cudaStream_t handle;
    std::uint64_t thread;  // as slot_lease::thread_
    int device;            // in a capture the pool's, unless the handle names the current device's
  };
  std::vector<used_stream> also_streams_;  // of the present lease

  // Graphs: guarded by the pool's ledger while a graph holds the slot.
  graph_hold first_hold_;
  bool is_leased_ = false;
  std::size_t graph_holds_ = 0;
  std::vector<cudaGraphNode_t> claimed_at_;  // the claiming branch's frontier, in this capture
  struct captured_use {
    std::vector<cudaGraphNode_t> claimed_at;
    std::vector<cudaGraphNode_t> released_at;  // the releasing branches' frontiers
    // What those depend on, as dependencies_of() says.
    std::vector<std::pair<cudaGraphNode_t, unsigned>> released_after;
  };
  std::shared_ptr<captured_use const> last_use_;  // the last lease's, if it ended in the capture
  quarantine quarantine_ = quarantine::none;
};

}  // namespace escrow
