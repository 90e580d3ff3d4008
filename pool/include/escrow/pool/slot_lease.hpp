// A claim on a slot, without the resource's type.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>

#include "escrow/core/capture.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/detail/reclaimable.hpp"

namespace escrow {

class slot;

// What: what lease<T> is made of; see there for its contract, which is the same.
class slot_lease {
 public:
  slot_lease(slot_lease&& other) noexcept
      : slot_(std::exchange(other.slot_, nullptr)),
        stream_(other.stream_),
        stream_id_(other.stream_id_),
        capture_id_(other.capture_id_),
        thread_(other.thread_) {}
  // Releases what was held, as the destructor does, and leaves `other` empty.
  slot_lease& operator=(slot_lease&& other) noexcept {
    slot_lease taken(std::move(other));
    std::swap(slot_, taken.slot_);
    std::swap(stream_, taken.stream_);
    std::swap(stream_id_, taken.stream_id_);
    std::swap(capture_id_, taken.capture_id_);
    std::swap(thread_, taken.thread_);
    return *this;
  }
  ~slot_lease() {
    if (slot_ != nullptr) release_at_end();
  }

  void release();
  void release(stream_ref stream);
  void record_stream(stream_ref stream);
  // The same unless it is known already, as that of the claim is. Refuses another capture than the
  // lease's in any case.
  void before_launch(stream_ref stream);

  // A share for a node of a graph that is built by hand. Throws usage_error if the lease is empty,
  // std::bad_alloc.
  [[nodiscard]] slot_share share_with_node();

  [[nodiscard]] explicit operator bool() const noexcept { return slot_ != nullptr; }

 protected:
  // The slot; throws usage_error, naming `call`, if the lease is empty.
  [[nodiscard]] slot& held(char const* call) const;
  // Whether what the slot holds may have been used before, by an earlier lease or an earlier
  // launch.
  [[nodiscard]] bool may_have_been_used() const noexcept;

 private:
  friend class slot_pool;

  void release_at_end() noexcept;
  // Throws usage_error if the lease cannot be released on `stream` as it is now.
  [[nodiscard]] capture_info capture_at_release(stream_ref stream) const;
  [[noreturn]] void refuse_capture(char const* call) const;

  // A number for the thread whose stream `stream` names here, never used again for another; 0 for
  // all but cudaStreamPerThread.
  [[nodiscard]] static std::uint64_t thread_of(stream_ref stream) noexcept {
    return stream.get() == cudaStreamPerThread ? number_of_this_thread() : 0;
  }
  [[nodiscard]] static std::uint64_t number_of_this_thread() noexcept;

  slot_lease(slot& claimed, stream_ref stream, std::uint64_t stream_id,
             std::uint64_t capture_id) noexcept
      : slot_(&claimed),
        stream_(stream.get()),
        stream_id_(stream_id),
        capture_id_(capture_id),
        thread_(thread_of(stream)) {}

  slot* slot_;
  cudaStream_t stream_;
  std::uint64_t stream_id_;   // 0: claimed in a capture
  std::uint64_t capture_id_;  // 0: claimed eagerly
  std::uint64_t thread_;      // that of cudaStreamPerThread
};

}  // namespace escrow
