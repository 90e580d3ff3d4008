// Objects that are shared with streams: destroyed after the work of all streams that use them.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

#include "escrow/core/event.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/detail/reclaimable.hpp"

namespace escrow {

// What: the part of an object of make_stream_shared() that does not depend on its type: the uses
//   that record_stream() has noted, and the way to the worker, which destroys the object after all
//   of them. Its holders are the shares of the object together, and each graph that uses it.
// Thread safety: note() and drop_ref() from any thread.
// Lifetime: created with one holder, for the shares. After the last has dropped its reference it is
//   reclaimed again as long as one of its events is not done yet, and then frees itself with the
//   object.
// Capture: note() is capture-safe.
// Errors: as record_stream().
class shared_object_base : public reclaimable {
 public:
  // The object is used by the work that `stream` has so far, or by the graph that it captures.
  void note(stream_ref stream);

 protected:
  using destroy_function = void (*)(shared_object_base&) noexcept;

  // The object's device is the current one. Throws std::bad_alloc, cuda_error.
  shared_object_base(deleter& its, destroy_function destroy);
  ~shared_object_base();

 private:
  struct use {
    std::uint64_t stream;
    event ready = event::none();
    int device = -1;           // the event's
    bool is_recorded = false;  // not if the last record failed: nothing tells when it is over
  };

  // Worker:
  static void reclaim_uses(reclaimable& node) noexcept;
  void await(use const& last) noexcept;
  void drop_last() noexcept;

  void record(use& noted, stream_ref stream);
  void use_for_ever();
  [[nodiscard]] use& use_on(std::uint64_t stream);
  void make_room();
  void forget_uses_that_are_over();

  deleter& deleter_;
  destroy_function const destroy_;
  int const home_;  // the object's device

  // Guards the rest until the last reference is dropped. Held across event queries and one record,
  // which run no destructor: other threads that note a use of this object wait for that.
  std::mutex mutex_;
  std::vector<use> uses_;            // one a stream: a later record covers the earlier ones
  bool is_in_use_for_ever_ = false;  // by work that could not be noted
  bool awaits_last_ = false;         // the worker said that the last use is over
};

namespace detail {

template <class T>
class stream_shared_object final : public shared_object_base {
 public:
  template <class... Arguments>
  explicit stream_shared_object(deleter& its, Arguments&&... arguments)
      : shared_object_base(its,
                           [](shared_object_base& base) noexcept {
                             delete static_cast<stream_shared_object*>(&base);
                           }),
        value(std::forward<Arguments>(arguments)...) {}

  T value;

 private:
  ~stream_shared_object() = default;
};

// What the shares' control block has in place of a delete.
struct stream_shared_deleter {
  shared_object_base* uses;
  void operator()(void const* /*object*/) const noexcept { uses->drop_ref(); }
};

// The uses that `deleter` belongs to; throws usage_error if it is null.
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
// it: of a base, of const, of a part (std::shared_ptr's aliasing constructor). Costs one event
// record. Throws usage_error for another shared_ptr, for an invalidated capture, and in a capture
// if the deleter was stopped: nothing has changed then. usage_error for the legacy stream while a
// blocking stream captures, cuda_error, std::bad_alloc: in a capture, do not launch what was
// captured. If recording fails outside a capture, or CUDA does not say whether `stream` captures,
// the object is leaked when the last share is dropped, and counted (deleter_stats::leaked), because
// the work may still use it. A later successful call with the same stream cancels this, unless the
// failure was that usage_error, for which CUDA does not say the stream's id. Any thread.
template <class T>
void record_stream(std::shared_ptr<T> const& shared, stream_ref stream) {
  detail::require_stream_shared(std::get_deleter<detail::stream_shared_deleter>(shared))
      .note(stream);
}

// Keeps `owner` until the work enqueued on `stream` so far is done; in a capture, until the graph,
// its clones and execs are destroyed, and their launches done. A std::shared_ptr is copied, so that
// the object stays with those that share it; what cannot be copied, e.g. a std::unique_ptr, is
// moved in. The worker drops the share that is kept; if it is not the last one, the object is
// destroyed where the last one is dropped. Throws as deleter::retire(stream, owner). Any thread.
template <class Owner>
requires retirable<std::remove_cvref_t<Owner>> &&
    std::constructible_from<std::remove_cvref_t<Owner>, Owner>
void retain(stream_ref stream, Owner&& owner) {
  deleter::global().retire(stream, std::forward<Owner>(owner));
}

}  // namespace escrow
