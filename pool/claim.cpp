// The steps of a claim: the stream's last slot, another one, a wait, or an error with its reason;
// and which other slot an eager claim gets.
#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

#include "device_store.hpp"
#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/driver.hpp"
#include "slot_pool_state.hpp"

namespace escrow::inline v0_1 {

namespace {

// Relaxed: statistics.
void raise(std::atomic<std::size_t>& peak, std::size_t now) noexcept {
  std::size_t most = peak.load(std::memory_order_relaxed);
  while (most < now && !peak.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
  }
}

}  // namespace

std::uint64_t thread_of(cudaStream_t stream) noexcept {
  if (stream != cudaStreamPerThread) [[likely]]
    return 0;
  static std::atomic<std::uint64_t> last{0};  // relaxed: only needs to be unique
  thread_local std::uint64_t const number = last.fetch_add(1, std::memory_order_relaxed) + 1;
  return number;
}

claimed_slot slot_pool::claim(claim_request const& asked) {
  return detail::called_at(asked.call, asked.where,
                           [&] { return state_->claim(asked, state_->smallest); });
}

claimed_slot slot_pool::claim_bytes(claim_request const& asked) {
  return detail::called_at(asked.call, asked.where, [&] {
    state_->retire_unused();
    return state_->claim(asked, state_->size_for(asked.call, asked.bytes, asked.stream));
  });
}

claimed_slot slot_pool::state::claim(claim_request const& asked, size_class& of) {
  require_open(asked.call, of, asked.stream);
  if (!options.streams_outlive_pool || !captures_nothing(asked.stream.get())) {
    detail::capture_dependencies after;
    capture_info const capture = usable_capture_of(asked.call, asked.stream, &after);
    if (capture.is_active()) [[unlikely]] {
      return claim_slowly(asked, of, use_of(asked.stream, 0, options.device), capture,
                          capture_frontier(after));
    }
  }
  stream_use const on = use_of(asked.stream, stream_id(asked.stream), options.device);
  record_deferred(on);
  if (in_arena.may_be && kind_of(asked) == claim_kind::in_order) [[unlikely]] {
    group_scope* const scope = group_scope::of(*options.group->order(), asked.stream.get());
    if (scope != nullptr && ask_for_arena() != nullptr)
      return claim_in_scope(asked, of, on, *scope);
  }
  if (kind_of(asked) == claim_kind::for_host) return claim_slowly(asked, of, on);
  if (options.streams_outlive_pool && on.thread == 0) {
    return claim_uncovered(claimers.lasting, on, asked, of);
  }
  if (slot* const own = take_own(of, on)) [[likely]]
    return leased_in_order(*own, asked, on);
  return claim_slowly(asked, of, on);
}

claimed_slot slot_pool::state::claim_slowly(claim_request const& asked, size_class& of,
                                            stream_use const& on, capture_info capture,
                                            capture_frontier frontier) {
  std::uint64_t const capture_id = capture.id;
  require_device(asked.call, asked.stream, capture);
  bool const may_be_in_arena =
      capture.is_active() && in_arena.may_be && kind_of(asked) == claim_kind::in_order;
  if (of.bytes > bytes_max && (!may_be_in_arena || ask_for_arena() == nullptr)) {
    refuse_size(asked, of);
  }
  search_result seen;
  claim_waits waits;
  while (true) {
    lease_log::room for_note;  // made before a slot is taken, which would be lost
    if (capture.is_active() && options.group && !in_arena.may_be) {
      for_note = graph_registry::global().room_for_lease(capture.id, capture.graph);
    }
    seen.pass = next_pass();
    slot* found = nullptr;
    if (seen.is_first) found = take(asked, of, on, capture, frontier, seen);
    if (found == nullptr && (seen.failure == nullptr || seen.is_out_of_memory)) {
      found = search_at_limit(asked, of, on, capture, frontier, waits.may_wait, seen);
    }
    if (found != nullptr) {
      if (capture.is_active() && options.group) {
        note_in_group(*found, asked, capture, frontier, std::move(for_note));
      }
      return leased(*found, on, asked.where, capture_id);
    }
    require_open(asked.call, of, asked.stream);  // if closed meanwhile, it is not exhausted
    if (!may_search_again(asked, of, seen, waits)) {
      if (!asked.host_wait_max || seen.failure != nullptr) refuse(asked, of, seen);
      return {};
    }
    // Detects a lost device or capture, which is not announced.
    detail::capture_dependencies after;
    capture = usable_capture_of(asked.call, asked.stream, &after);
    if (capture.id != capture_id) {
      throw usage_error(asked.call,
                        "a capture of `stream` has begun or ended while the claim waited",
                        "use a stream on one thread at a time");
    }
    frontier = capture_frontier(after);
    // Another thread may have ended a lease of this stream meanwhile, without a record.
    if (capture.is_none()) record_deferred(on);
  }
}

slot* slot_pool::state::take(claim_request const& asked, size_class& of, stream_use const& on,
                             capture_info const& capture, capture_frontier const& frontier,
                             search_result& seen) {
  if (capture.is_active()) return take_captured(asked, of, capture, frontier, seen);
  if (kind_of(asked) == claim_kind::for_host) return take_unused(of, &on, seen);
  return take_eager(of, asked.stream, on, seen);
}

slot* slot_pool::state::take_eager(size_class& of, stream_ref stream, stream_use const& on,
                                   search_result& seen) {
  slot* found = take_idle(of, seen.pass, true);
  if (found == nullptr) found = grow(of, seen, &on);  // on failure there may be one to wait for
  if (found != nullptr && found->key_ == on.id) wait_for(*found, stream, true);
  if (found == nullptr && of.free.lists() > 1) found = take_idle(of, seen.pass);
  if (found == nullptr) found = of.free.take_oldest();
  // A release on another thread may have come after this claim looked there, and claimers of the
  // stream may have more.
  if (found == nullptr && cover_all(of, on)) found = of.free.take_oldest();
  if (found == nullptr) return seen.is_first ? nullptr : grow_in_room(of, seen, &on);
  wait_for(*found, stream, found->key_ == on.id);
  return found;
}

slot* slot_pool::state::take_unused(size_class& of, stream_use const* on, search_result& seen) {
  bool const may_grow = of.slots.existing() < slots_max;
  slot* found = take_idle(of, seen.pass, may_grow);
  if (found == nullptr) found = grow(of, seen, nullptr);  // the same
  if (found == nullptr && may_grow) found = take_idle(of, seen.pass);
  if (found == nullptr && on != nullptr && cover_all(of, *on)) {
    search_pass again = next_pass();
    found = take_idle(of, again);
  }
  return found != nullptr || seen.is_first ? found : grow_in_room(of, seen, on);
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

slot* slot_pool::state::make_slot(size_class& of, search_result& seen) noexcept {
  if (seen.failure != nullptr) return nullptr;  // nothing has changed since
  if (of.slots.existing() >= slots_max || !reserve(of, seen.has_turn)) return nullptr;
  seen.reclaimed_before = reclaimed();
  // The room of a closed pool's slot stays unused. Relaxed: see slot_count.
  std::size_t const count =
      of.slots.try_add(slots_max, [this] { return !is_closed.load(std::memory_order_relaxed); });
  if (count == 0) {
    give_back(of, false);
    return nullptr;
  }
  references.fetch_add(1, std::memory_order_relaxed);  // relaxed: the owner has one
  try {
    device_scope const device(options.device);
    relaxed_capture_scope const relaxed;
    memory_scope::set const known({.is_of_pool = true});
    slot* const made = new slot(owner, of, make);
    of.bytes_told.store(made->resource_->bytes, std::memory_order_relaxed);
    made->number_ = grown.fetch_add(1, std::memory_order_relaxed);
    raise(of.slots_peak, count);
    raise(bytes_peak, reserved.load(std::memory_order_relaxed));
    return made;
  } catch (...) {
    seen.note_failure();
  }
  references.fetch_sub(1, std::memory_order_relaxed);
  of.slots.remove();
  give_back(of, false);
  return nullptr;
}

bool slot_pool::state::may_make_room(size_class const& of,
                                     search_result const& seen) const noexcept {
  if (of.bytes == 0 || of.slots.existing() >= slots_max) return false;
  return seen.failure == nullptr || seen.is_out_of_memory;
}

slot* slot_pool::state::grow_in_room(size_class& of, search_result& seen, stream_use const* on) {
  // Other threads may take what becomes free, but no room while this one has the turn.
  std::size_t const attempts_max = std::max<std::size_t>(16, slots_of(of, true));
  for (std::size_t attempt = 0; attempt < attempts_max && may_make_room(of, seen); ++attempt) {
    if (on != nullptr) for_each_size([&](size_class& each) { cover_all(each, *on); });
    bool const is_out_of_memory = seen.failure != nullptr;
    std::size_t freed = owner.trim(is_out_of_memory ? 0 : bytes_max - of.bytes);
    if (is_out_of_memory) freed += device_store::global().trim(options.device);
    if (freed == 0 && is_out_of_memory) return nullptr;
    seen.failure = nullptr;
    if (slot* const made = make_slot(of, seen)) return made;
    if (freed == 0) return nullptr;
  }
  return nullptr;
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

}  // namespace escrow::inline v0_1
