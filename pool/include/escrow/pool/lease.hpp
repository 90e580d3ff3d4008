// SPDX-License-Identifier: Apache-2.0
// The right to use a pool's resource, until its release.
#pragma once

#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/deleter/kernel_argument.hpp"
#include "escrow/detail/slot_pool.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

class device_block;
class scratch_claimer;
class scratch_pool;
class stream_allocator;

template <class T>
class claimer;
template <class T>
class resource_pool;

// The right to use one resource of a pool from claim() to release. Enqueue on the claiming stream,
// or tell record_stream() or launch() of another one.
// Thread safety: one thread at a time; it may move. During a release no other thread may begin or
//   end a capture of the lease's streams: CUDA's driver crashes then.
// Lifetime: may end anywhere: in a destructor that a deleter calls, in a CUDA callback, after its
//   capture or its pool. The claiming stream, and those of record_stream() and launch(), must be
//   alive then. What cannot be recorded at the end is deferred: it comes back with the pool's next
//   call with that stream (pool_stats::deferred, close_for()), and is leaked and counted if that
//   stream or the pool is gone (deleter_stats::leaked).
// Capture: the graph keeps what is claimed in its capture, and what launch(), retain() or
//   record_stream() give it of before. A lease that ends after escrow::capture() is left to the
//   graph; after a plain capture see leave_to_graph(). Tell record_stream() of eager use after the
//   capture.
// Errors: usage_error: nothing has changed. cuda_error: the same, or the lease is empty and its
//   record deferred.
// Example: examples/cublas_handles.cpp.
template <class T>
class lease {
  // A pool's block of memory stays in its slot: it is not moved out.
  using object = std::conditional_t<std::same_as<T, device_block>, T const, T>;

 public:
  lease(lease const&) = delete;  // std::move it: one owner ends it
  lease(lease&& other) noexcept : claimed_(other.claimed_) { other.claimed_.what = nullptr; }
  // Releases the old slot, as the destructor does, and leaves `other` empty.
  lease& operator=(lease&& other) noexcept {
    lease taken(std::move(other));
    std::swap(claimed_, taken.claimed_);
    return *this;
  }
  // Releases on the claiming stream. In an owner that was retired on that stream, the resource
  // comes back with the owner. Errors go to the deleter's on_error.
  ~lease() {
    if (claimed_.what != nullptr) slot_pool::release_at_end(claimed_);
  }

  // The resource. Throws usage_error if the lease is empty.
  [[nodiscard]] object& get(source_location where = source_location::current()) const
      ESCROW_OF_THIS {
    static_cast<void>(slot_pool::require_slot("lease::get", claimed_, where));
    claimed_.resource->note_access(claimed_.on.id);
    return value();
  }
  [[nodiscard]] object& operator*() const ESCROW_OF_THIS { return get(source_location()); }
  [[nodiscard]] object* operator->() const ESCROW_OF_THIS { return &get(source_location()); }
  // Of memory: its first byte, as get().data().
  [[nodiscard]] void* data(source_location where = source_location::current())
      const requires std::same_as<T, device_block> {
    return get(where).data();
  }

  // Ends the lease after the work on the claiming stream so far. In its capture, later claims of
  // the capture may use the resource from then on, in dependency order. Does not block. For
  // cudaStreamPerThread, only on the thread that claimed.
  void release(source_location where = source_location::current()) {
    detail::called_at("lease::release", where, [&] { slot_pool::release(claimed_); });
  }
  // The same, with the last use on another stream, which must be ordered after all earlier uses.
  void release(stream_ref stream, source_location where = source_location::current()) {
    detail::called_at("lease::release", where, [&] { slot_pool::release(claimed_, stream); });
  }
  // Ends a lease of a capture that is over, without a call with its streams, which may be gone: the
  // graph keeps the resource until its end. After escrow::capture() each release does that. Throws
  // usage_error for a lease that is not of a capture, or was told of a stream after it.
  void leave_to_graph(source_location where = source_location::current()) {
    detail::called_at("lease::leave_to_graph", where,
                      [&] { slot_pool::require_left_to_graph(claimed_); });
  }

  // The resource is used on `stream` too, of any device, until the release. Work on `stream` after
  // this call comes after the earlier users of the resource, and the release waits for it. If the
  // resource was used before on the claiming stream without an event (claimers), `stream` waits
  // also for that stream's work so far; usage_error if that captures. A stream in the lease's
  // capture must be forked into it. Another captured stream, unless the lease's own capture goes
  // on: its graph keeps the resource. After cudaStreamPerThread, release on the same thread.
  void record_stream(stream_ref stream, source_location where = source_location::current()) {
    detail::called_at("lease::record_stream", where,
                      [&] { slot_pool::record_stream(claimed_, stream); });
  }

  // For launch(): record_stream(), unless the lease knows the stream.
  void before_launch(stream_ref stream) { slot_pool::before_launch(claimed_, stream, "launch"); }
  // Internal: for retire() and retain() of this lease on a capturing stream.
  void before_retire(stream_ref stream) { slot_pool::before_retire(claimed_, stream); }

  // For nodes of graphs built by hand: the slot is not handed out until this share is destroyed,
  // too. The caller keeps the lease and orders the graph's launches with other work on the
  // resource. A share kept as a node's argument ends with the last graph, exec and launch that uses
  // it, even while the worker is busy. Throws usage_error if the lease is empty, std::bad_alloc.
  [[nodiscard]] slot_share share_with_node(source_location where = source_location::current()) {
    return detail::called_at("lease::share_with_node", where,
                             [this] { return slot_pool::share_with_node(claimed_); });
  }

  // False once released or moved from.
  [[nodiscard]] explicit operator bool() const noexcept { return claimed_.what != nullptr; }

 private:
  friend class claimer<T>;
  friend class resource_pool<T>;
  friend class scratch_claimer;
  friend class scratch_pool;
  friend class stream_allocator;

  // Of what `claim()` returns, which is not copied.
  template <class Claim>
  requires std::same_as<std::invoke_result_t<Claim>, claimed_slot>
  explicit lease(Claim claim) : claimed_(claim()) {}
  // The same, of a pool with these functions: they recycle what an earlier lease or launch may have
  // used.
  template <class Claim>
  lease(slot_functions<T> const* functions, Claim claim) : lease(claim) {
    if (claimed_.what == nullptr || !claimed_.was_used || !functions->recycle) return;
    functions->recycle(value(), stream_ref(claimed_.on.handle));  // on failure the lease releases
  }

  [[nodiscard]] T& value() const { return static_cast<resource_of<T>&>(*claimed_.resource).value; }
  claimed_slot claimed_;
};

// The kernel receives the resource's value. The caller keeps the lease, which records the stream; a
// node keeps a share of the slot.
template <class T>
requires owning_argument<T>
struct kernel_argument_traits<lease<T>> {
  static auto device_value(lease<T> const& claimed) {
    return kernel_argument_traits<T>::device_value(claimed.get(source_location()));
  }
  static void before_launch(lease<T>& claimed, stream_ref stream) { claimed.before_launch(stream); }
  static slot_share owner_for_node(lease<T>& claimed) {
    return claimed.share_with_node(source_location());
  }
  static std::size_t bytes(lease<T> const& claimed) requires(sized_argument<T>) {
    return kernel_argument_traits<T>::bytes(claimed.get(source_location()));
  }
};

}  // namespace escrow::inline v0_2
