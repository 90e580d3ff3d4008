// Objects that are shared with streams: destroyed after the work of all streams that use them.
#pragma once

#include <atomic>
#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

#include "escrow/core/stream.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/detail/reclaimable.hpp"

namespace escrow {

// What: the part of an object of make_stream_shared() that does not depend on its type. Its
//   references are one for all shares together, and one for each use that record_stream() noted.
// Thread safety: any thread may call anything.
// Lifetime: created with the shares' reference. With the last one the worker destroys it.
class shared_object_base : public reclaimable {
 public:
  // See record_stream().
  void note_use(stream_ref stream);

 protected:
  // The object's device is the current one. Throws std::bad_alloc, cuda_error.
  shared_object_base(deleter& its, reclaim_function destroy);
  ~shared_object_base() = default;

 private:
  void keep() noexcept;

  deleter& deleter_;
  std::atomic<bool> is_kept_{false};  // leaked, as work uses it that could not be noted
};

namespace detail {

template <class T>
class stream_shared_object final : public shared_object_base {
 public:
  template <class... Arguments>
  explicit stream_shared_object(deleter& its, Arguments&&... arguments)
      : shared_object_base(
            its,
            [](reclaimable& thing) noexcept { delete static_cast<stream_shared_object*>(&thing); }),
        value(std::forward<Arguments>(arguments)...) {}

  T value;

 private:
  ~stream_shared_object() = default;
};

// What the shares' control block has in place of a delete.
struct stream_shared_deleter {
  shared_object_base* object;
  void operator()(void const* /*value*/) const noexcept { object->drop_ref(); }
};

// The object that `deleter` belongs to; throws usage_error if it is null.
[[nodiscard]] shared_object_base& require_stream_shared(stream_shared_deleter const* deleter);

}  // namespace detail

// Makes a T that is destroyed by the worker of `its`, with the device current that is current now,
// after the last share is dropped, and then only after the work that record_stream() was told of.
// Dropping shares never blocks, calls no CUDA and may be done anywhere, also in a destroy callback
// or a host function. `its` must stay alive as long as record_stream() is called. Throws
// std::bad_alloc, cuda_error, and what T's constructor throws. Any thread.
template <class T, class... Arguments>
requires(std::is_nothrow_destructible_v<T> && !std::is_array_v<T>)
    [[nodiscard]] std::shared_ptr<T> make_stream_shared_by(deleter& its, Arguments&&... arguments) {
  auto* const made =
      new detail::stream_shared_object<T>(its, std::forward<Arguments>(arguments)...);
  return std::shared_ptr<T>(std::addressof(made->value), detail::stream_shared_deleter{made});
}

// The same with the process's own deleter.
template <class T, class... Arguments>
requires(std::is_nothrow_destructible_v<T> && !std::is_array_v<T>)
    [[nodiscard]] std::shared_ptr<T> make_stream_shared(Arguments&&... arguments) {
  return make_stream_shared_by<T>(deleter::global(), std::forward<Arguments>(arguments)...);
}

// Says, after the work was enqueued, that the work which `stream` has so far uses the object; in a
// capture, that the graph uses it, now or later in this capture. The stream may be destroyed at any
// time afterwards. `shared` is a share that make_stream_shared() gave, or one that was made from
// it: of a base, of const, of a part (std::shared_ptr's aliasing constructor). Costs what
// deleter::retire(stream, owner) does, and allocates nothing in steady state. Throws usage_error
// for another shared_ptr and for an invalidated capture: nothing has changed then. usage_error for
// the legacy stream while a blocking stream captures, cuda_error, std::bad_alloc: in a capture, do
// not launch what was captured. Outside of one the object is then leaked and counted
// (deleter_stats::leaked), because the work may still use it; so it is if CUDA does not say whether
// `stream` captures. Any thread.
template <class T>
void record_stream(std::shared_ptr<T> const& shared, stream_ref stream) {
  detail::require_stream_shared(std::get_deleter<detail::stream_shared_deleter>(shared))
      .note_use(stream);
}

// Keeps `owner` until the work enqueued on `stream` so far is done; in a capture, until the graph,
// its clones and execs are destroyed, and their launches done. A std::shared_ptr is copied, so that
// the object stays with those that share it; what cannot be copied, e.g. a std::unique_ptr, is
// moved in. The worker drops the share that is kept; if it is not the last one, the object is
// destroyed where the last one is dropped. Throws as deleter::retire(stream, owner). Any thread.
template <makes_owner Owner>
void retain(stream_ref stream, Owner&& owner) {
  deleter::global().retire(stream, std::forward<Owner>(owner));
}

}  // namespace escrow
