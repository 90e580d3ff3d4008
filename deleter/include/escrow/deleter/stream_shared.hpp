// A shared_ptr whose object outlives the work of all streams that used it.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include "escrow/core/stream.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/deleter/stream_uses.hpp"

namespace escrow {

namespace detail {

template <class T>
class stream_shared_object final : public stream_uses {
 public:
  template <class... Arguments>
  explicit stream_shared_object(deleter& its, Arguments&&... arguments)
      : stream_uses(
            its,
            [](stream_uses& base) noexcept { delete static_cast<stream_shared_object*>(&base); }),
        value(std::forward<Arguments>(arguments)...) {}

  T value;

 private:
  ~stream_shared_object() = default;
};

// What the shares' control block has in place of a delete.
struct stream_shared_deleter {
  stream_uses* uses;
  void operator()(void const* /*object*/) const noexcept { uses->let_go(); }
};

// The uses that `deleter` belongs to; throws usage_error if it is null.
[[nodiscard]] stream_uses& require_stream_shared(stream_shared_deleter const* deleter);

}  // namespace detail

// Makes a T that is destroyed by the worker of `its`, with the device current that is current now,
// after the last share has gone, and then only after the work that record_stream() was told of.
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
// it: of a base, of const, of a part (std::shared_ptr's aliasing constructor). Costs one event
// record. Throws usage_error for another shared_ptr, for an invalidated capture, and in a capture
// if the deleter was stopped: nothing has changed then. usage_error for the legacy stream while a
// blocking stream captures, cuda_error, std::bad_alloc: in a capture, do not launch what was
// captured. Eager, or if CUDA does not even say which, the object is kept for ever once the last
// share has gone, and counted (deleter_stats::held), since the work may be using it; unless CUDA
// named the stream, which it does not for that usage_error, and a later record_stream() with it
// succeeds. Any thread.
template <class T>
void record_stream(std::shared_ptr<T> const& shared, stream_ref stream) {
  detail::require_stream_shared(std::get_deleter<detail::stream_shared_deleter>(shared))
      .note(stream);
}

}  // namespace escrow
