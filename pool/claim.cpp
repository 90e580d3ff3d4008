// Which slot a claim gets: outside of captures all of it; captured claims go on in
// claim_captured.cpp.
#include <algorithm>
#include <array>
#include <thread>

#include "escrow/core/capture_device.hpp"
#include "escrow/core/cuda_error.hpp"
#include "escrow/core/device_scope.hpp"
#include "escrow/core/relaxed_capture_scope.hpp"
#include "escrow/core/usage_error.hpp"
#include "escrow/deleter/release_hub.hpp"
#include "escrow/pool/pool_exhausted.hpp"
#include "slot_pool_state.hpp"

namespace escrow {

slot_lease slot_pool::claim(char const* call, stream_ref stream, source_location where) {
  own_claim const own = claim_own(call, stream);
  if (own.found != nullptr) [[likely]]
    return slot_lease(*own.found, stream, own.stream_id, 0);
  std::optional<slot_lease> claimed =
      claim_other(call, stream, own.capture, state_->options.host_wait_max, where);
  if (!claimed) throw pool_exhausted(describe_exhaustion(call));
  return std::move(*claimed);
}

std::optional<slot_lease> slot_pool::claim(char const* call, stream_ref stream,
                                           std::chrono::nanoseconds host_wait_max,
                                           source_location where) {
  own_claim const own = claim_own(call, stream);
  if (own.found != nullptr) return slot_lease(*own.found, stream, own.stream_id, 0);
  return claim_other(call, stream, own.capture, host_wait_max, where);
}

slot_pool::own_claim slot_pool::claim_own(char const* call, stream_ref stream) {
  require_open(call);
  own_claim result{.capture = usable_capture_of(call, stream)};
  if (result.capture.is_none()) [[likely]] {
    result.stream_id = stream_id(stream);
    result.found = state_->free.take_newest(result.stream_id);
    if (result.found != nullptr && result.found->also_count_ != 0) {
      wait_for_others(*result.found, stream);  // the stream itself is ordered already
    }
  }
  return result;
}

std::optional<slot_lease> slot_pool::claim_other(char const* call, stream_ref stream,
                                                 capture_info const& capture,
                                                 std::chrono::nanoseconds host_wait_max,
                                                 source_location where) {
  require_device(call, stream, capture, "use a pool of the stream's device");
  if (auto claimed = claim_elsewhere(stream, capture, where)) return claimed;
  return claim_waiting(call, stream, capture, host_wait_max, where);
}

void slot_pool::require_open(char const* call) const {
  // Relaxed: see state::is_closed.
  if (!state_->is_closed.load(std::memory_order_relaxed)) [[likely]]
    return;
  throw usage_error(call, "the pool \"" + state_->options.label + "\" is closed",
                    "claim before close_for()");
}

void slot_pool::require_device(char const* call, stream_ref stream, capture_info const& capture,
                               char const* remedy) const {
  int const device = state_->options.device;
  if (capture.is_active() ? is_captured_on(stream, device) : device_of(stream) == device) return;
  throw usage_error(call,
                    "`stream` is not of device " + std::to_string(device) + ", the pool \"" +
                        state_->options.label + "\" is",
                    remedy);
}

std::optional<slot_lease> slot_pool::claim_waiting(char const* call, stream_ref stream,
                                                   capture_info const& capture,
                                                   std::chrono::nanoseconds host_wait_max,
                                                   source_location where) {
  using clock = std::chrono::steady_clock;
  // Slots also become free without a return, when the event of one that a capture cannot wait for
  // is done.
  constexpr std::chrono::nanoseconds look_again = std::chrono::microseconds(200);
  require_open(call);  // closed since the claim began, it is not exhausted
  if (host_wait_max <= std::chrono::nanoseconds(0)) return std::nullopt;
  auto const begin = clock::now();
  // Relaxed: see state::waiters.
  state_->waiters.fetch_add(1, std::memory_order_relaxed);
  state_->host_waits.fetch_add(1, std::memory_order_relaxed);
  struct leave {
    std::atomic<std::size_t>& waiters;
    ~leave() { waiters.fetch_sub(1, std::memory_order_relaxed); }
  } const leaving{state_->waiters};
  while (true) {
    std::uint64_t const seen = state_->returns_seen();
    require_open(call);
    // Throws what nobody announces: the device is lost, the capture is.
    if (usable_capture_of(call, stream).id != capture.id) {
      throw usage_error(call, "a capture of `stream` has begun or ended while the claim waited",
                        "use a stream on one thread at a time");
    }
    if (auto claimed = claim_elsewhere(stream, capture, where)) return claimed;
    auto const left = host_wait_max - (clock::now() - begin);
    if (left <= std::chrono::nanoseconds(0)) return std::nullopt;
    state_->await_return(seen, std::min(left, look_again));
  }
}

std::optional<slot_lease> slot_pool::claim_elsewhere(stream_ref stream, capture_info const& capture,
                                                     source_location where) {
  // A capture can use only what is done, and what others look at and put back is not.
  auto const look = [&] {
    return capture.is_active() ? claim_captured(stream, capture, where) : claim_eager(stream);
  };
  // What graphs have let go, even if the worker is busy.
  bool const were_others_at_it = !state_->hub.recycle();
  if (auto claimed = look()) return claimed;
  if (!were_others_at_it) return std::nullopt;
  // What they were just taking from graphs to the bins is there after this.
  state_->hub.recycle_after_others();
  return look();
}

std::optional<slot_lease> slot_pool::claim_eager(stream_ref stream) {
  constexpr int attempts_max = 1000;  // each follows a move of a slot by another thread
  for (int attempt = 0; attempt < attempts_max; ++attempt) {
    std::uint64_t const before = state_->free.puts();
    if (auto claimed = try_eager(stream)) return claimed;
    // Relaxed: see state::looked_at.
    bool const may_have_missed = state_->looked_at.load(std::memory_order_relaxed) != 0;
    if (!may_have_missed && state_->free.puts() == before) break;
    std::this_thread::yield();
  }
  return std::nullopt;
}

std::optional<slot_lease> slot_pool::try_eager(stream_ref stream) {
  std::uint64_t const id = stream_id(stream);
  slot* found = take_done();
  if (found == nullptr) found = grow();
  if (found == nullptr) {
    found = state_->free.take_oldest();
    if (found == nullptr) return std::nullopt;
    if (found->stream_ != id) wait_for_last_use(*found, stream);
    wait_for_others(*found, stream);
  }
  return slot_lease(*found, stream, id, 0);
}

slot* slot_pool::take_done() {
  // Within one stream, the oldest release is done first, so one question a stream is enough, unless
  // only other streams that used the slot are behind. Asking about many streams would take longer
  // than making a slot.
  constexpr std::size_t questions_max = 32;
  std::array<std::uint64_t, questions_max> busy_streams{};
  std::size_t busy = 0;
  std::array<slot*, questions_max> kept{};  // out of the bins, so that those behind them are found
  std::size_t kept_count = 0;
  slot* done = nullptr;
  // Relaxed: see state::looked_at.
  state_->looked_at.fetch_add(1, std::memory_order_relaxed);
  for (std::size_t shard = 0; shard < bins::shards && done == nullptr; ++shard) {
    while (busy + kept_count < questions_max && done == nullptr) {
      slot* const found = state_->free.take_oldest_except(shard, {busy_streams.data(), busy});
      if (found == nullptr) break;
      switch (ask(*found)) {
        case progress::done:
          done = found;
          break;
        case progress::others_behind:
          kept[kept_count++] = found;
          break;
        case progress::stream_behind:
          busy_streams[busy++] = found->stream_;
          put_back_unused(*found);
          break;
      }
    }
  }
  while (kept_count > 0) put_back_unused(*kept[--kept_count]);
  state_->looked_at.fetch_sub(1, std::memory_order_relaxed);
  return done;
}

slot_pool::progress slot_pool::ask(slot& free) noexcept {
  if (free.is_done_) return progress::done;
  // Querying would kill a Global capture of another thread, and any of this one.
  try {
    relaxed_capture_scope const relaxed;
    if (!succeeded(cudaEventQuery(free.ready_.get()))) return progress::stream_behind;
    for (std::size_t i = 0; i < free.also_count_; ++i) {
      if (!succeeded(cudaEventQuery(free.also_ready_[i].ready.get()))) {
        return progress::others_behind;
      }
    }
  } catch (std::exception const&) {
    return progress::stream_behind;  // it could not be asked: to be on the safe side
  }
  free.is_done_ = true;
  free.also_count_ = 0;
  return progress::done;
}

slot* slot_pool::grow() {
  // Acquire: see state::slots. The room that a closed pool's slot left is nobody's.
  std::size_t count = state_->slots.load(std::memory_order_acquire);
  do {
    if (count >= state_->options.slots_max) return nullptr;
    if (state_->is_closed.load(std::memory_order_relaxed)) return nullptr;
  } while (!state_->slots.compare_exchange_weak(count, count + 1, std::memory_order_acquire));
  // Relaxed: the pool's owner holds a reference meanwhile.
  state_->references.fetch_add(1, std::memory_order_relaxed);
  try {
    device_scope const device(state_->options.device);
    relaxed_capture_scope const relaxed;
    slot* const made = state_->maker->make(*this);
    state_->grown.fetch_add(1, std::memory_order_relaxed);
    return made;
  } catch (...) {
    state_->references.fetch_sub(1, std::memory_order_relaxed);
    state_->slots.fetch_sub(1, std::memory_order_relaxed);
    throw;
  }
}

void slot_pool::wait_for_last_use(slot& taken, stream_ref stream) {
  if (taken.is_done_) return;
  state_->stream_waits.fetch_add(1, std::memory_order_relaxed);
  wait_or_quarantine(taken, taken.ready_, stream);
}

void slot_pool::wait_for_others(slot& taken, stream_ref stream) {
  // Forgotten only all together: if one wait fails, no lease follows, and the slot needs all its
  // events.
  for (std::size_t i = 0; i < taken.also_count_; ++i) {
    wait_or_quarantine(taken, taken.also_ready_[i].ready, stream);
  }
  taken.also_count_ = 0;
}

void slot_pool::wait_or_quarantine(slot& taken, event const& ready, stream_ref stream) {
  cudaError_t const status = cudaStreamWaitEvent(stream.get(), ready.get(), 0);
  if (status == cudaSuccess) return;
  put_in_quarantine(taken, slot::quarantine::until_done);
  check(status, "cudaStreamWaitEvent");
}

std::string slot_pool::describe_exhaustion(char const* call) const {
  pool_stats const now = stats();
  std::string text = std::string(call) + ": all " + std::to_string(now.slots) + " slots of \"" +
                     state_->options.label + "\" are out (slots_max " +
                     std::to_string(state_->options.slots_max) + "): graphs hold " +
                     std::to_string(now.in_graphs) + ", quarantined are " +
                     std::to_string(now.quarantined) +
                     ", the rest is leased or, in a capture, still in use by the GPU";
  for (holder const& each : state_->ledger.holders(state_->options.label)) {
    text += each.capture_id == 0 ? "; a node of a graph built by hand"
                                 : "; capture " + std::to_string(each.capture_id);
    if (each.where.line() != 0) {
      text += std::string(" begun at ") + each.where.file_name() + ":" +
              std::to_string(each.where.line());
    }
    text += " holds " + std::to_string(each.slots);
  }
  return text + "; raise slots_max, release earlier, or allow a wait with host_wait_max";
}

}  // namespace escrow
