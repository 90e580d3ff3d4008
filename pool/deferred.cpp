// Slots whose stream is recorded on later: one event for many, or each when it can be recorded.
#include <algorithm>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/ready_event.hpp"
#include "escrow/internal/retry_cleanup.hpp"
#include "slot_pool_state.hpp"

namespace escrow::inline v0_1 {

namespace {

// Upper bound of existing streams' ids: CUDA counts up (measured). 0 on failure. Capture-safe.
std::uint64_t bound_of_stream_ids(int device) noexcept {
  try {
    device_scope const current(device);
    cudaStream_t made = nullptr;
    check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    unsigned long long id = 0;
    bool const is_known = succeeded(cudaStreamGetId(made, &id));
    retry_cleanup([made] { return cudaStreamDestroy(made); });
    return is_known ? id : 0;
  } catch (std::exception const&) {
    return 0;
  }
}

}  // namespace

bool slot_pool::state::is_destroyed(stream_use const& use) noexcept {
  unsigned long long id = 0;
  cudaError_t const status = cudaStreamGetId(use.handle, &id);
  return succeeded(status) ? use.id != 0 && id != use.id : status == cudaErrorInvalidResourceHandle;
}

cudaError_t slot_pool::state::record_uses(slot& used, stream_use const* given) noexcept {
  cudaError_t first_error = cudaSuccess;
  if (given == nullptr && deleter_core::is_reclaiming()) return first_error;
  // True if no work of that stream remains uncovered.
  auto const record = [&](stream_use const& use) {
    if (is_other_thread(use)) return false;
    if (given != nullptr && !is_same_stream(use, *given)) return false;
    cudaError_t status = cudaSuccess;
    try {
      device_scope const current(use.device);  // the null stream is that of the current device
      capture_info capture;
      check(query_recordable(use.handle, capture), "cudaStreamGetCaptureInfo");
      if (!capture.is_none()) return false;
      // The stream was destroyed, and its handle reused.
      if (use.id != 0 && stream_id(use.handle) != use.id) {
        throw cuda_error(cudaErrorInvalidResourceHandle, "cudaEventRecord");
      }
      if (used.also_count_ == used.also_ready_.size()) {
        used.also_ready_.push_back({event_cache::take(use.device), use.device});
      }
      slot::other_event& other = used.also_ready_[used.also_count_];
      record_result const result = record_ready(other.ready, other.device, use.handle);
      if (result.outcome == record_outcome::recorded ||
          result.outcome == record_outcome::recorded_anew) {
        ++used.also_count_;
        return true;
      }
      status = result.status;
    } catch (cuda_error const& error) {
      status = error.status();
    } catch (std::exception const&) {
      status = cudaErrorMemoryAllocation;
    }
    if (first_error == cudaSuccess) first_error = status;
    if (status == cudaErrorInvalidResourceHandle && is_destroyed(use)) used.is_lost_ = true;
    return runs_nothing_after(status);
  };
  std::erase_if(used.unrecorded_, record);
  return first_error;
}

void slot_pool::record_deferred(stream_ref stream, std::uint64_t stream_id) noexcept {
  state_->record_deferred(stream, stream_id);
}

void slot_pool::state::finish_release(slot& used) noexcept {
  if (used.is_lost_) return leak(used);
  if (used.unrecorded_.empty()) return end_lease(used);
  for (stream_use& each : used.unrecorded_) {
    if (each.id == 0 && each.id_below == stream_use::no_bound && !is_ambiguous(each.handle)) {
      each.id_below = bound_of_stream_ids(each.device);
    }
  }
  {
    std::lock_guard const lock(deferred_mutex);
    if (!deferred_is_closed) {
      used.newer_ = std::exchange(deferred, &used);
      budget->deferred.fetch_add(1, std::memory_order_relaxed);
      return;
    }
  }
  leak(used);  // the pool was destroyed: no call gives it a stream any more
}

void slot_pool::state::cover(slot* oldest, stream_use const& on, bool is_asked) noexcept {
  if (oldest == nullptr) return;
  std::shared_ptr<covering_event> covering;
  bool is_gone = false;
  bool is_recordable = false;
  std::optional<device_scope> current;  // the null stream is that of the current device
  try {
    require_stream("claimer::~claimer", on);
    if (is_ambiguous(on.handle)) current.emplace(on.device);
    capture_info capture;
    is_recordable =
        !deleter_core::is_reclaiming() &&
        (is_asked || (!is_other_thread(on) && succeeded(query_recordable(on.handle, capture)) &&
                      capture.is_none()));
    if (is_recordable && oldest->newer_ != nullptr) {  // else the slot's own event will do
      auto made = std::make_shared<covering_event>(options.device);
      record_outcome const outcome = record_ready(made->recorded, made->device, on.handle).outcome;
      if (outcome == record_outcome::recorded || outcome == record_outcome::recorded_anew) {
        covering = std::move(made);
      }
    }
  } catch (usage_error const& error) {
    is_gone = true;
    core.report(error);
  } catch (std::exception const&) {  // each slot has an event of its own
  }
  while (oldest != nullptr) {
    slot& each = *std::exchange(oldest, oldest->newer_);
    each.newer_ = nullptr;
    each.released_at_ = stamp();
    each.covered_by_ = covering;
    if (is_gone) {
      leak(each);
    } else if (covering != nullptr ||
               (is_recordable && succeeded(cudaEventRecord(each.ready_.get(), on.handle)))) {
      each.key_ = on.id;
      go_home(each);
    } else {
      each.key_ = free_lists::own_list_of(each);
      each.unrecorded_.push_back(on);
      cudaError_t const status = record_uses(each);
      if (status != cudaSuccess) core.report(status, "cudaEventRecord");
      finish_release(each);
    }
  }
}

void slot_pool::state::record_deferred_on(stream_ref stream, std::uint64_t id) noexcept {
  int device = -1;  // unknown
  try {
    device = device_of(stream);
  } catch (cuda_error const&) {
  }
  stream_use const given = use_of(stream, id, device);
  auto const is_given = [&](stream_use const& use) { return is_same_stream(use, given); };
  slot* found = nullptr;
  {
    std::lock_guard const lock(deferred_mutex);
    for (slot** at = &deferred; *at != nullptr;) {
      slot& each = **at;
      if (std::ranges::none_of(each.unrecorded_, is_given)) {
        at = &each.newer_;
        continue;
      }
      *at = std::exchange(each.newer_, found);
      found = &each;
      budget->deferred.fetch_sub(1, std::memory_order_relaxed);
    }
  }
  while (found != nullptr) {
    slot& each = *std::exchange(found, found->newer_);
    each.newer_ = nullptr;
    // If nothing but this stream used it, the slot joins its list as the newest. Otherwise a
    // claim must wait for each use: also for the releasing stream's, if that was recorded (then
    // `key_` still is that stream).
    bool const is_only_user = device == options.device && each.also_count_ == 0 &&
                              std::ranges::all_of(each.unrecorded_, is_given) &&
                              each.key_ == free_lists::own_list_of(each);
    static_cast<void>(record_uses(each, &given));
    if (each.unrecorded_.empty()) each.key_ = is_only_user ? id : free_lists::own_list_of(each);
    finish_release(each);
  }
}

}  // namespace escrow::inline v0_1
