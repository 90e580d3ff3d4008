// SPDX-License-Identifier: Apache-2.0
// Recording the uses of a shared object.
#include "escrow/deleter/shared_object.hpp"

#include <exception>
#include <utility>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/device.hpp"

namespace escrow::inline v0_2 {

shared_object_base& detail::require_stream_shared(stream_shared_deleter const* deleter) {
  if (deleter != nullptr) return *deleter->object;
  throw usage_error("record_stream", "`shared` is empty or was not made by make_stream_shared()",
                    "make it so, or keep a share with retain()");
}

shared_object_base::shared_object_base(deleter& its, reclaim_function destroy, std::size_t bytes)
    : reclaimable(its.core(), release_lane::destroy, current_device(), destroy),
      deleter_(its),
      bytes_(bytes) {
  add_ref();
}

void shared_object_base::note_use(stream_ref stream) {
  ref<shared_object_base> share(*this);
  try {
    auto begun = deleter_.begin_use(stream, "record_stream");
    begun.object->emplace(std::move(share));
    deleter_.finish(std::move(begun));
  } catch (std::exception const& error) {
    // If the share was taken, the deleter is responsible. A failed capture will not be launched.
    capture_info found;
    bool const is_known = succeeded(detail::query_capture(stream.get(), found));
    if (share && (!is_known || found.is_none())) {
      keep();
      core().report(error);
    }
    throw;
  }
}

void shared_object_base::keep() noexcept {
  // Relaxed: only needs to select one thread.
  if (is_kept_.exchange(true, std::memory_order_relaxed)) return;
  add_ref();  // never dropped
  deleter_core::leak(*this);
}

}  // namespace escrow::inline v0_2
