// A claim's way: the slot that its stream had last, another one, a wait, or an error that says why.
// Which other one: claim_eager.cpp and claim_captured.cpp.
#include <algorithm>

#include "escrow/core/error.hpp"
#include "escrow/detail/capture_device.hpp"
#include "escrow/detail/deleter_core.hpp"
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
  // What graphs have released, even if the worker is busy.
  state_->core.recycle();
  return look();
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
