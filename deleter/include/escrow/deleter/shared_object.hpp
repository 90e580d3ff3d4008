// SPDX-License-Identifier: Apache-2.0
// Objects shared with streams: destroyed after the work of all streams that use them.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/detail/reclaimable.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// Internal: the type-independent part of a make_stream_shared() object. It has one reference for
// all shares, and one for each use that record_stream() recorded.
// Thread safety: any thread may call anything.
// Lifetime: created with the shares' reference. After the last one the worker destroys it.
class ESCROW_API shared_object_base : public reclaimable {
 public:
  void note_use(stream_ref stream);  // see record_stream()
  [[nodiscard]] std::size_t object_bytes() const noexcept { return bytes_; }

 protected:
  // The object's device is the current one; with what it is a part of, it has so many bytes. Throws
  // std::bad_alloc, cuda_error.
  shared_object_base(deleter& its, reclaim_function destroy, std::size_t bytes);
  ~shared_object_base() = default;

 private:
  void keep() noexcept;

  deleter& deleter_;
  std::size_t const bytes_;
  std::atomic<bool> is_kept_{false};  // leaked: a use could not be recorded
};

namespace detail {

template <class T>
class stream_shared_object final : public shared_object_base {
 public:
  template <class... Arguments>
  explicit stream_shared_object(deleter& its, Arguments&&... arguments)
      : shared_object_base(
            its,
            [](reclaimable& thing) noexcept { delete static_cast<stream_shared_object*>(&thing); },
            sizeof(stream_shared_object)),
        value(std::forward<Arguments>(arguments)...) {
    pin_this_module();
  }

  T value;

 private:
  ~stream_shared_object() = default;
};

// The deleter in the shares' control block.
struct stream_shared_deleter {
  shared_object_base* object;
  void operator()(void const* /*value*/) const noexcept { object->drop_ref(); }
};

// The object of `deleter`; throws usage_error if it is null.
[[nodiscard]] ESCROW_API shared_object_base& require_stream_shared(
    stream_shared_deleter const* deleter);

}  // namespace detail

// Creates a T. The worker of `its` destroys it after the last share is dropped and the work given
// to record_stream() is done. The device that is current now is current then. Dropping a share
// never blocks, calls no CUDA function and is allowed anywhere, also in destroy callbacks and host
// functions. `its` must outlive all record_stream() calls. Throws std::bad_alloc, cuda_error, and
// what T's constructor throws. Any thread.
template <class T, class... Arguments>
requires(std::is_nothrow_destructible_v<T> && !std::is_array_v<T>)
    [[nodiscard]] std::shared_ptr<T> make_stream_shared_by(deleter& its, Arguments&&... arguments) {
  static_assert(
      !std::is_pointer_v<T>,
      "a pointer or CUDA handle frees nothing: share an object whose destructor frees it");
  auto* const made = detail::called_at("make_stream_shared", source_location(), [&] {
    return new detail::stream_shared_object<T>(its, std::forward<Arguments>(arguments)...);
  });
  return std::shared_ptr<T>(std::addressof(made->value), detail::stream_shared_deleter{made});
}

// The same with the process's own deleter.
// Example: examples/retire.cpp.
template <class T, class... Arguments>
requires(std::is_nothrow_destructible_v<T> && !std::is_array_v<T>)
    [[nodiscard]] std::shared_ptr<T> make_stream_shared(Arguments&&... arguments) {
  return make_stream_shared_by<T>(deleter::global(), std::forward<Arguments>(arguments)...);
}

// Call after enqueueing: the work on `stream` so far uses the object; in a capture, the graph uses
// it, now or later in this capture. The stream may be destroyed afterwards. `shared` is a share
// from make_stream_shared() or derived from one: to a base, const, or a part (std::shared_ptr's
// aliasing constructor). Cost as deleter::retire(stream, owner): no allocation in steady state.
// Throws usage_error for another shared_ptr or an invalidated capture: nothing has changed then. On
// usage_error for the legacy stream while a blocking stream captures, cuda_error or std::bad_alloc:
// in a capture, do not launch the result. Otherwise, or if the capture status is unknown, the
// object is leaked (deleter_stats::leaked), as it may be in use. Any thread.
template <class T>
void record_stream(std::shared_ptr<T> const& shared, stream_ref stream,
                   source_location where = source_location::current()) {
  detail::called_at("record_stream", where, [&] {
    auto const* const made = std::get_deleter<detail::stream_shared_deleter>(shared);
    detail::require_stream_shared(made).note_use(stream);
  });
}

// Keeps `owner` until the work on `stream` so far is done; in a capture, until the graph, its
// clones and execs are destroyed and their launches done. An lvalue is copied, e.g. a
// std::shared_ptr, so that the caller keeps its share; a std::unique_ptr must be moved in. The
// worker drops the kept share; if it is not the last one, the object is destroyed where the last
// one is dropped. Throws as deleter::retire(stream, owner). Any thread.
template <class Owner>
void retain(stream_ref stream, Owner&& owner, source_location where = source_location::current()) {
  deleter::global().retire_as("retain", stream, std::forward<Owner>(owner), where);
}

}  // namespace escrow::inline v0_2
