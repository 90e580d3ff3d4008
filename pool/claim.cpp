// The steps of a claim: the stream's last slot, another one, a wait, or an error with its reason;
// and which other slot an eager claim gets.
#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/graph_query.hpp"
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
    return state_->claim(asked, state_->size_for(asked.call, asked.bytes));
  });
}

claimed_slot slot_pool::state::claim(claim_request const& asked, size_class& of) {
  require_open(asked.call, of);
  detail::capture_dependencies after;
  capture_info const capture = usable_capture_of(asked.call, asked.stream, &after);
  if (capture.is_active()) [[unlikely]] {
    return claim_other(asked, of, 0, capture, capture_frontier(after));
  }
  std::uint64_t const id = stream_id(asked.stream);
  record_deferred(asked.stream, id);
  if (kind_of(asked) == claim_kind::for_host) return claim_other(asked, of, id, {}, {});
  if (options.streams_outlive_pool && thread_of(asked.stream.get()) == 0) {
    stream_use const on = use_of(asked.stream, id, options.device);
    return claim_local(local_of(of, on, asked), on, asked, of);
  }
  return claim_eager(asked, of, id);
}

claimed_slot slot_pool::state::claim_eager(claim_request const& asked, size_class& of,
                                           std::uint64_t id) {
  if (slot* const own = of.free.take_newest(id)) [[likely]] {
    if (!own->also_ready_.empty()) wait_for(*own, asked.stream, true);
    return leased(*own, use_of(asked.stream, id, options.device), asked.where);
  }
  return claim_other(asked, of, id, {}, {});
}

claimed_slot slot_pool::state::claim_other(claim_request const& asked, size_class& of,
                                           std::uint64_t stream_id, capture_info capture,
                                           capture_frontier frontier) {
  std::uint64_t const capture_id = capture.id;
  // It cannot let its stream wait for eager work on a slot.
  bool const needs_unused = capture.is_active() || kind_of(asked) == claim_kind::for_host;
  stream_use const on = use_of(asked.stream, stream_id, options.device);
  std::optional<host_wait> wait;
  std::optional<std::uint64_t> moves_before_search;
  require_device(asked.call, asked.stream, capture);
  while (true) {
    std::exception_ptr failure;
    slot* const found = capture.is_active() ? take_captured(asked, of, capture, frontier, failure)
                        : needs_unused      ? take_unused(of, &on, failure)
                                            : take_eager(of, asked.stream, stream_id, failure);
    if (found != nullptr) {
      if (capture.is_active() && options.group && !found->is_exclusive_) {
        note_in_group(*found, asked, capture, frontier);
      }
      return leased(*found, on, asked.where, capture_id);
    }
    require_open(asked.call, of);  // if closed meanwhile, it is not exhausted
    // Busy free slots become usable without an announced return, and make room. One that another
    // thread asks about returns soon. Before the look for room: see `shrinking`.
    bool const is_busy = needs_unused ? of.has_busy() : of.free.is_any_looked_at();
    bool is_room = false;
    if (may_make_room(of, failure)) {
      is_room = is_room_coming(of);  // first: moves() counts the room that comes meanwhile
      // At the limit, the first search is repeated: its blocks may have moved between the sizes.
      auto const moves_before = std::exchange(moves_before_search, moves());
      is_room = is_room || (failure == nullptr && moves_before_search != moves_before);
    }
    auto wait_max = asked.host_wait_max.value_or(options.host_wait_max);
    if (!asked.host_wait_max && (is_room || is_busy)) {
      wait_max = std::max(wait_max, options.capture_wait_max);
    }
    if (failure != nullptr && !is_room) wait_max = std::chrono::nanoseconds(0);
    if (wait_max > std::chrono::nanoseconds(0) && !wait) {
      wait.emplace();
      host_waits.fetch_add(1, std::memory_order_relaxed);
    }
    if (!wait || !wait->go_on(wait_max)) {
      if (failure != nullptr || !asked.host_wait_max) refuse(asked, of, failure);
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
  }
}

slot* slot_pool::state::take_eager(size_class& of, stream_ref stream, std::uint64_t stream_id,
                                   std::exception_ptr& failure) {
  std::uint64_t const pass = next_pass();
  slot* found = take_done(of, pass, true);
  if (found == nullptr) found = make_slot(of, failure);  // on failure there may be one to wait for
  if (found == nullptr && of.free.lists() > 1) found = take_done(of, pass);
  if (found == nullptr) found = of.free.take_oldest();
  constexpr int attempts_max = 1000;  // each retry follows another thread's move of a slot
  for (int attempt = 0; found == nullptr && attempt < attempts_max; ++attempt) {
    std::uint64_t const puts_before = of.free.count().puts;
    found = of.free.take_oldest();
    if (found != nullptr || !of.free.has_moved_since(puts_before)) break;
    std::this_thread::yield();
  }
  stream_use const on = use_of(stream, stream_id, options.device);
  // A release on another thread may have come after this claim looked there; also others' claimers.
  if (found == nullptr && give_all(of, on)) found = of.free.take_oldest();
  if (found == nullptr) return grow_in_room(of, failure, &on);
  wait_for(*found, stream, found->key_ == stream_id);
  return found;
}

slot* slot_pool::state::take_unused(size_class& of, stream_use const* on,
                                    std::exception_ptr& failure) {
  std::uint64_t const pass = next_pass();
  // Relaxed: a look that is cut short is repeated.
  bool const may_grow = of.slots.load(std::memory_order_relaxed) < slots_max;
  slot* found = take_done(of, pass, may_grow);
  if (found == nullptr) found = make_slot(of, failure);  // on failure there may be one to wait for
  if (found == nullptr && may_grow) found = take_done(of, pass);
  if (found == nullptr && on != nullptr && give_all(of, *on)) found = take_done(of, next_pass());
  return found != nullptr ? found : grow_in_room(of, failure, on);
}

slot* slot_pool::state::take_done(size_class& of, std::uint64_t pass, bool is_first_look) {
  slot* idle = of.free.take_newest(free_lists::idle);
  if (idle != nullptr) return idle;
  core.recycle_until([&] { return (idle = of.free.take_newest(free_lists::idle)) != nullptr; });
  if (idle != nullptr) return idle;
  // Relaxed: if a slot returns meanwhile, the stream waits for this one.
  bool const is_full = of.slots.load(std::memory_order_relaxed) >= slots_max;
  std::size_t const unasked_max = is_first_look && is_full ? 1 : 0;
  // Those before growth take not longer than making a slot.
  int questions = is_first_look && !is_full ? 32 : std::numeric_limits<int>::max();
  if (of.free.lists() > unasked_max) {
    // A query would invalidate another thread's Global capture, and any of this one.
    relaxed_capture_scope const relaxed;
    for (; questions != 0; --questions) {
      slot* const found = of.free.take_to_ask(pass);
      if (found == nullptr) break;
      bool const is_taken = is_done(*found);
      if (!is_taken) {
        found->asked_in_ = std::max(found->asked_in_, pass);
        if (!of.free.put(*found, true)) destroy(*found);
      }
      // Release: see free_lists::has_moved_since().
      of.free.looked_at.fetch_sub(1, std::memory_order_release);
      if (is_taken) return found;
    }
  }
  ask_for_local_slots(of);
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

slot* slot_pool::state::make_slot(size_class& of, std::exception_ptr& failure) noexcept {
  // Acquire: see size_class::slots. The room of a closed pool's slot stays unused.
  std::size_t count = of.slots.load(std::memory_order_acquire);
  if (count >= slots_max) return nullptr;
  if (!reserve(of)) return nullptr;
  do {
    if (count >= slots_max || is_closed.load(std::memory_order_relaxed)) {
      give_back(of, false);
      return nullptr;
    }
  } while (!of.slots.compare_exchange_weak(count, count + 1, std::memory_order_acquire));
  references.fetch_add(1, std::memory_order_relaxed);  // relaxed: the owner has one
  try {
    device_scope const device(options.device);
    relaxed_capture_scope const relaxed;
    slot* const made = new slot(owner, of, make);
    made->number_ = grown.fetch_add(1, std::memory_order_relaxed);
    raise(of.slots_peak, count + 1);
    raise(bytes_peak, reserved.load(std::memory_order_relaxed));
    return made;
  } catch (...) {
    failure = std::current_exception();
    references.fetch_sub(1, std::memory_order_relaxed);
    of.slots.fetch_sub(1, std::memory_order_relaxed);
    give_back(of, false);
    return nullptr;
  }
}

bool slot_pool::state::may_make_room(size_class const& of,
                                     std::exception_ptr const& failure) const noexcept {
  // Relaxed: a claim may still be refused by the limit itself.
  if (of.slots.load(std::memory_order_relaxed) >= slots_max) return false;
  if (failure == nullptr) return true;
  try {
    std::rethrow_exception(failure);
  } catch (cuda_error const& error) {
    return error.status() == cudaErrorMemoryAllocation;
  } catch (...) {
    return false;
  }
}

slot* slot_pool::state::grow_in_room(size_class& of, std::exception_ptr& failure,
                                     stream_use const* on) {
  constexpr int attempts_max = 16;  // other threads may take the room
  for (int attempt = 0; attempt < attempts_max && may_make_room(of, failure); ++attempt) {
    if (on != nullptr) for_each_size([&](size_class& each) { give_all(each, *on); });
    bool const is_out_of_memory = failure != nullptr;
    if (!is_out_of_memory && of.bytes > bytes_max) return nullptr;
    if (owner.trim(is_out_of_memory ? 0 : bytes_max - of.bytes) == 0) return nullptr;
    failure = nullptr;
    if (slot* const made = make_slot(of, failure)) return made;
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

void slot_pool::state::throw_closed(char const* call, std::string const& label) {
  throw usage_error(call, "the pool \"" + label + "\" is closed", "claim before close_for()");
}

void slot_pool::state::require_device(char const* call, stream_ref stream,
                                      capture_info const& capture, char const* remedy) {
  if (is_only_device) return;
  int const found = capture.is_active() ? device_of_capturing(stream) : device_of(stream);
  if (found == options.device) return;
  throw usage_error(call,
                    "`stream` is not of device " + std::to_string(options.device) +
                        ", the pool \"" + options.label + "\" is",
                    remedy);
}

}  // namespace escrow::inline v0_1
