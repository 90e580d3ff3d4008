// SPDX-License-Identifier: Apache-2.0
// Slots whose stream is recorded on later: one event for many, or each when it can be recorded.
#include <algorithm>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/ready_event.hpp"
#include "slot_pool_state.hpp"

namespace escrow::inline v0_2 {

record_status slot_pool::state::record_uses(slot& used, stream_use const* given) noexcept {
  record_status first;
  std::erase_if(used.unrecorded_, [&](stream_use const& use) {
    if (given != nullptr && !is_same_stream(use, *given)) return false;
    cached_event& to = used.also_ready_.emplace_back(use.device);
    auto const [status, call] = record(use, to, given != nullptr);
    if (status == cudaSuccess) return true;
    used.also_ready_.pop_back();
    if (status == cudaErrorInvalidResourceHandle && is_destroyed(use)) used.is_lost_ = true;
    if (first.status == cudaSuccess && status != not_now) first = {status, call};
    return runs_nothing_after(status);
  });
  if (given == nullptr && first.status != cudaSuccess) core.report(first.status, first.call);
  return first;
}

void slot_pool::state::finish_release(slot& used) noexcept {
  if (used.is_lost_) return leak(used);
  if (used.unrecorded_.empty()) return end_lease(used);
  for (stream_use& each : used.unrecorded_) {
    if (each.id == 0 && each.id_below == stream_use::no_bound && !is_ambiguous(each.handle)) {
      each.id_below = bound_of_stream_ids(each.device);
      used.is_lost_ |= each.id_below == 0;
    }
  }
  if (used.is_lost_) {
    leak(used);
    return report_leaked(1, leak_reason::stream_gone, &used);
  }
  if (deferred.add(used)) return;
  leak(used);  // the pool was destroyed: no call gives it a stream any more
  report_leaked(1, leak_reason::not_recorded, &used);
}

void slot_pool::state::cover(slot* oldest, stream_use const& on, bool is_asked,
                             char const* call) noexcept {
  if (oldest == nullptr) return;
  std::shared_ptr<cached_event> covering;  // one slot has its own
  bool is_recorded = false;
  bool is_gone = false;
  try {
    require_stream(call, on);
    if (oldest->newer_ != nullptr) covering = std::make_shared<cached_event>(options.device);
    cached_event& to = covering != nullptr ? *covering : oldest->ready_;
    is_recorded = record(on, to, is_asked).status == cudaSuccess;
  } catch (usage_error const& error) {
    is_gone = true;
    core.report(error);
  } catch (std::exception const&) {  // each gets an event of its own
  }
  if (!is_recorded) covering.reset();
  while (oldest != nullptr) {
    slot& each = *std::exchange(oldest, oldest->newer_);
    each.newer_ = each.older_ = nullptr;
    each.released_at_ = stamp();
    each.covered_by_ = covering;
    size_class::end_uncovered(each);
    each.key_ = is_recorded ? on.id : free_lists::own_list_of(each);
    each.is_lost_ = is_gone;
    if (!is_recorded && !is_gone) {
      each.unrecorded_.push_back(on);
      static_cast<void>(record_uses(each));
    }
    finish_release(each);
  }
}

void slot_pool::state::record_deferred_on(stream_use given) noexcept {
  slot* found = deferred.take(given);
  if (found == nullptr) return;
  given.device = -1;  // unknown
  try {
    given.device = device_of(given.handle);
  } catch (cuda_error const&) {
  }
  auto const is_given = [&](stream_use const& use) { return is_same_stream(use, given); };
  std::size_t gone = 0;
  while (found != nullptr) {
    slot& each = *std::exchange(found, found->newer_);
    each.newer_ = nullptr;
    if (each.is_lost_) {
      leak(each);
      ++gone;
      continue;
    }
    // If nothing but this stream used it, the slot joins its list as the newest. Otherwise a
    // claim must wait for each use: also for the releasing stream's, if that was recorded (then
    // `key_` still is that stream).
    bool const is_only_user = given.device == options.device && each.also_ready_.empty() &&
                              std::ranges::all_of(each.unrecorded_, is_given) &&
                              each.key_ == free_lists::own_list_of(each);
    static_cast<void>(record_uses(each, &given));
    if (each.unrecorded_.empty())
      each.key_ = is_only_user ? given.id : free_lists::own_list_of(each);
    finish_release(each);
  }
  if (gone != 0) report_leaked(gone, leak_reason::stream_gone);
}

void slot_pool::state::report_leaked(std::size_t count, leak_reason why, slot const* one) noexcept {
  char const* const end = sizes.smallest.bytes != 0 ? "~scratch_pool" : "~resource_pool";
  try {
    std::string const pool = "\"" + options.label + "\"";
    std::string const slots = std::to_string(count) + (count == 1 ? " slot of " : " slots of ");
    char const* const claimed = count == 1 ? " (claimed at " : " (one was claimed at ";
    std::string const claim = one == nullptr ? std::string() : one->claim_text(claimed);
    std::string const are = claim + (count == 1 ? " is leaked" : " are leaked");
    bool const has_stream = one != nullptr && !one->unrecorded_.empty();
    switch (why) {
      case leak_reason::stream_gone:
        return core.report(usage_error(
            "lease::~lease",
            slots + pool + are + ": a record on a stream that was destroyed was still to come",
            "release a lease before its stream ends, or keep the stream until the pool's next "
            "call with it"));
      case leak_reason::not_recorded:
        return core.report(usage_error(
            end,
            slots + pool + are + ": the release was on a stream where CUDA recorded nothing then" +
                (has_stream ? ", " + name_of(one->unrecorded_.front().handle) : std::string()),
            "before the pool ends, make another call of it with that stream, outside of captures "
            "and callbacks"));
      case leak_reason::not_closed:
        return core.report(usage_error(
            end,
            pool + " is held until it is closed, and was not: " + slots + "captured graphs" + are,
            "call close_for() once none of these graphs is launched any more"));
    }
  } catch (std::bad_alloc const&) {  // no memory for the text: they are counted all the same
  }
}

}  // namespace escrow::inline v0_2
