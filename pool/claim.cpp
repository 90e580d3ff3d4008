// SPDX-License-Identifier: Apache-2.0
// A claim: the stream's last slot, or a search; and what both need.
#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <optional>
#include <utility>

#include "claim_search.hpp"
#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/driver.hpp"
#include "escrow/internal/environment.hpp"

namespace escrow::inline v0_2 {

claimed_slot slot_pool::claim(claim_request const& asked) {
  return detail::called_at(asked.call, asked.where,
                           [&] { return state_->claim(asked, state_->sizes.smallest); });
}

claimed_slot slot_pool::claim_bytes(claim_request const& asked) {
  return detail::called_at(asked.call, asked.where, [&] {
    state_->retire_unused();
    return state_->claim(asked, state_->size_for(asked.call, asked.bytes, asked.stream));
  });
}

claimed_slot slot_pool::state::claim(claim_request const& asked, size_class& of) {
  require_open(asked.call, of, asked.stream);
  if (in_arena.may_be && kind_of(asked) == claim_kind::in_order) [[unlikely]] {
    group_scope* const scope = group_scope::of(*options.group->order(), asked.stream.get());
    if (scope != nullptr && ask_for_arena() != nullptr && captures_nothing(asked.stream.get())) {
      stream_use const on = use_of(asked.stream, scope->stream_id, options.device);
      record_deferred(on);
      return claim_search(*this, asked, of, on).run_in(*scope);
    }
    refuse_beside_arena(asked);
  }
  if (!options.streams_outlive_pool || !captures_nothing(asked.stream.get())) {
    detail::capture_dependencies after;
    capture_info const capture = usable_capture_of(asked.call, asked.stream, &after);
    if (capture.is_active()) [[unlikely]] {
      stream_use const without_id = use_of(asked.stream, 0, options.device);
      return claim_search(*this, asked, of, without_id, capture, capture_frontier(after)).run();
    }
  }
  stream_use const on = use_of(asked.stream, stream_id(asked.stream), options.device);
  record_deferred(on);
  if (kind_of(asked) == claim_kind::for_host) return claim_search(*this, asked, of, on).run();
  if (options.streams_outlive_pool && on.thread == 0) {
    return claim_uncovered(claimers.lasting, on, asked, of);
  }
  if (slot* const own = is_reused_late ? nullptr : take_own(of, on)) [[likely]]
    return leased_in_order(*own, asked, on);
  return claim_search(*this, asked, of, on).run();
}

void slot_pool::state::refuse_beside_arena(claim_request const& asked) {
  if (kind_of(asked) != claim_kind::in_order) return;
  if (environment::asked_audits() != environment::audits::on) return;
  if (!group_scope::is_in(*options.group->order()) || ask_for_arena() == nullptr) return;
  if (!captures_nothing(asked.stream.get())) return;
  throw usage_error(asked.call,
                    "inside sharing_group::run() it shares nothing: its memory would be the "
                    "pool's own (ESCROW_AUDIT=1)",
                    "claim from the pool, not from a claimer, for the stream that run() was "
                    "given; or by claim_kept");
}

slot* slot_pool::state::take_idle(size_class& of, search_pass& pass, bool is_first_look) {
  slot* idle = of.free.take_newest(free_lists::idle);
  if (idle != nullptr) return idle;
  auto const has_idle = [&] { return (idle = of.free.take_newest(free_lists::idle)) != nullptr; };
  if (!std::exchange(pass.has_asked_execs, true)) {
    core.recycle_until(has_idle);
  } else {
    core.recycle_queued();
    static_cast<void>(has_idle());
  }
  if (idle != nullptr) return idle;
  // If a slot returns meanwhile, the stream waits for this one.
  bool const is_full = of.slots.existing() >= slots_max;
  std::size_t const unasked_max = is_first_look && is_full ? 1 : 0;
  // Those before growth take not longer than making a slot.
  int questions = is_first_look && !is_full ? 32 : std::numeric_limits<int>::max();
  if (of.free.lists() > unasked_max) {
    // A query would invalidate another thread's Global capture, and any of this one.
    std::optional<relaxed_capture_scope> relaxed;
    for (; questions != 0; --questions) {
      slot* const found = of.free.take_to_ask(pass.number);
      if (found == nullptr) break;
      std::exception_ptr failure;
      try {
        if (!relaxed) relaxed.emplace();
      } catch (...) {
        failure = std::current_exception();
      }
      bool const is_taken = failure == nullptr && is_done(*found);
      if (!is_taken) {
        if (failure == nullptr) found->asked_in_ = std::max(found->asked_in_, pass.number);
        if (!of.free.put(*found, true)) destroy(*found);
      }
      // Release: see free_lists::is_any_looked_at().
      of.free.looked_at.fetch_sub(1, std::memory_order_release);
      if (failure != nullptr) std::rethrow_exception(failure);
      if (is_taken) return found;
    }
  }
  claimers.ask(of);
  return nullptr;
}

bool slot_pool::state::is_done(slot& free) noexcept {
  if (!succeeded(cudaEventQuery(free.ready()))) return false;
  for (cached_event const& also : free.also_ready_) {
    if (succeeded(cudaEventQuery(also.recorded.get()))) continue;
    free.key_ = free_lists::own_list_of(free);
    return false;
  }
  free.is_done_ = true;
  free.also_ready_.clear();
  return true;
}

void slot_pool::state::wait_for(slot& taken, stream_ref stream, bool is_its_own) {
  if (taken.is_done_) return;
  auto const wait = [&](cudaEvent_t ready) {
    cudaError_t const status = cudaStreamWaitEvent(stream.get(), ready, 0);
    if (status == cudaSuccess) return;
    taken.key_ = free_lists::own_list_of(taken);
    go_home(taken);
    check(status, "cudaStreamWaitEvent");
  };
  if (!is_its_own) {
    stream_waits.fetch_add(1, std::memory_order_relaxed);
    wait(taken.ready());
  }
  // Kept until the lease's end: other streams that use it wait for them, too.
  for (cached_event const& also : taken.also_ready_) wait(also.recorded.get());
}

// After it has recorded what was deferred on the stream.
void slot_pool::state::throw_closed(char const* call, std::string const& label, stream_ref stream) {
  if (stream_use on = use_of(stream, 0, options.device); deferred.may_have(on)) {
    try {
      if (capture_of(stream).is_none()) on.id = stream_id(stream);
      if (on.id != 0) record_deferred(on);
    } catch (cuda_error const&) {  // the refusal stays
    }
  }
  throw usage_error(call, "the pool \"" + label + "\" is closed", "claim before close_for()");
}

void slot_pool::state::require_device(char const* call, stream_ref stream,
                                      capture_info const& capture, char const* remedy) {
  if (is_only_device) return;
  int const found = capture.is_active() ? device_of_capturing(stream) : device_of(stream);
  if (found == options.device) return;
  throw usage_error(call,
                    "`stream` is of device " + std::to_string(found) + ", the pool \"" +
                        options.label + "\" of device " + std::to_string(options.device),
                    remedy);
}

}  // namespace escrow::inline v0_2
