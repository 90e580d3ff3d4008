// The beginning and the end of a pool, and of its slots.
#include <algorithm>
#include <atomic>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/detail/deleter_core.hpp"
#include "escrow/detail/device.hpp"
#include "escrow/detail/ready_event.hpp"
#include "legacy_stream_proxy.hpp"
#include "slot_pool_state.hpp"

namespace escrow {

namespace {

pool_options with_device(pool_options options) {
  if (options.device < 0) options.device = current_device();
  int devices = 0;
  check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  if (options.device >= devices) check(cudaErrorInvalidDevice, "cudaSetDevice");
  return options;
}

deleter_core& core_of(pool_options const& options) {
  return (options.deleter != nullptr ? *options.deleter : deleter::global()).core();
}

}  // namespace

slot_pool::slot_pool(pool_options const& options, std::unique_ptr<slot_maker> maker)
    : state_(std::make_unique<state>(*this, with_device(options), std::move(maker),
                                     core_of(options))) {
  state_->core.add_use();
}

slot_pool::~slot_pool() = default;

int slot_pool::device() const noexcept {
  return state_->options.device;
}

std::string const& slot_pool::label() const noexcept {
  return state_->options.label;
}

deleter_core& slot_pool::core() const noexcept {
  return state_->core;
}

pool_stats slot_pool::stats() const noexcept {
  return {
      .slots = state_->slots.load(std::memory_order_relaxed),
      .in_graphs = state_->ledger.slots_held(),
      .quarantined = state_->quarantined_count.load(std::memory_order_relaxed),
      .grown = state_->grown.load(std::memory_order_relaxed),
      .stream_waits = state_->stream_waits.load(std::memory_order_relaxed),
      .host_waits = state_->host_waits.load(std::memory_order_relaxed),
      .edges_added = state_->edges_added.load(std::memory_order_relaxed),
  };
}

void slot_pool::close() noexcept {
  state_->is_closed.store(true, std::memory_order_relaxed);  // see there
  state_->free.close();
  while (slot* const idle = state_->free.take_any()) destroy(*idle);
  slot* suspect = nullptr;
  {
    std::lock_guard const lock(state_->quarantine_mutex);
    suspect = std::exchange(state_->quarantined, nullptr);
    state_->quarantine_is_closed = true;
  }
  while (suspect != nullptr) {
    slot& next = *std::exchange(suspect, suspect->next_);
    state_->quarantined_count.fetch_sub(1, std::memory_order_relaxed);
    next.quarantine_ == slot::quarantine::for_ever ? leak(next) : destroy(next);
  }
}

std::vector<holder> slot_pool::close_for(std::chrono::nanoseconds timeout) {
  using clock = std::chrono::steady_clock;
  constexpr std::chrono::nanoseconds look_again = std::chrono::milliseconds(1);
  auto const begin = clock::now();
  close();
  // Relaxed: see state::waiters.
  state_->waiters.fetch_add(1, std::memory_order_relaxed);
  while (state_->slots.load(std::memory_order_relaxed) != 0) {
    std::uint64_t const seen = state_->returns_seen();
    state_->core.recycle();
    auto const left = timeout - (clock::now() - begin);
    if (left <= std::chrono::nanoseconds(0)) break;
    state_->await_return(seen, std::min(left, look_again));
  }
  state_->waiters.fetch_sub(1, std::memory_order_relaxed);

  std::vector<holder> result = state_->ledger.holders(state_->options.label);
  std::size_t const in_graphs = state_->ledger.slots_held();
  std::size_t const out = state_->slots.load(std::memory_order_relaxed);
  if (out > in_graphs) {
    result.push_back({.label = state_->options.label, .slots = out - in_graphs, .where = {}});
  }
  return result;
}

void slot_pool::close_and_leave() noexcept {
  close();
  if (is_last_reference()) end();
}

void slot_pool::put_in_quarantine(slot& suspect, slot::quarantine kind) noexcept {
  suspect.quarantine_ = kind;
  {
    std::lock_guard const lock(state_->quarantine_mutex);
    if (!state_->quarantine_is_closed) {
      suspect.next_ = std::exchange(state_->quarantined, &suspect);
      state_->quarantined_count.fetch_add(1, std::memory_order_relaxed);
      return;
    }
  }
  kind == slot::quarantine::for_ever ? leak(suspect) : destroy(suspect);
}

bool slot_pool::is_still_captured(slot_lease const& lease) noexcept {
  try {
    return capture_of(lease.stream_).id == lease.capture_id_;
  } catch (std::exception const&) {
    return false;
  }
}

void slot_pool::avoid_legacy(slot_lease& lease) {
  auto const replace = [](cudaStream_t& stream, int device) {
    if (stream != nullptr && stream != cudaStreamLegacy) return;
    device_scope const current(device);
    capture_info ignored;
    cudaError_t const status = detail::query_capture(stream, ignored);
    if (!succeeded(status) && status == cudaErrorStreamCaptureImplicit) {
      stream = legacy_stream_proxy(device);
    }
  };
  replace(lease.stream_, lease.slot_->pool().device());
  for (slot::used_stream& also : lease.slot_->also_streams_) replace(also.handle, also.device);
}

void slot_pool::abandon(slot_lease& lease, bool nothing_runs) noexcept {
  slot& used = *std::exchange(lease.slot_, nullptr);
  used.also_streams_.clear();
  if (lease.capture_id_ != 0) {
    // After its capture, the lease may have been used eagerly, which no event covers.
    if (!is_still_captured(lease)) used.quarantine_ = slot::quarantine::for_ever;
    return let_go(used, lease.capture_id_, false);
  }
  used.quarantine_ = nothing_runs ? slot::quarantine::until_done : slot::quarantine::for_ever;
  used.is_done_ = nothing_runs;
  end_lease(used, 0);
}

void slot_pool::destroy(slot& idle) noexcept {
  state_->slots.fetch_sub(1, std::memory_order_release);  // see there
  state_->announce_return();
  if (!idle.is_done_) idle.reclaim_after(idle.ready_.get(), {});
  idle.push();
}

void slot_pool::leak(slot& unknown) noexcept {
  deleter_core::leak(unknown);
  state_->slots.fetch_sub(1, std::memory_order_release);  // see there
  state_->announce_return();
}

void slot_pool::destroy_slot(reclaimable& node) noexcept {
  auto& idle = static_cast<slot&>(node);
  // A graph may have had it last, and CUDA let it go, perhaps too early.
  if (may_work_go_on_untold()) return deleter_core::leak(idle);
  for (; idle.also_count_ > 0; --idle.also_count_) {
    cudaEvent_t const other = idle.also_ready_[idle.also_count_ - 1].ready.get();
    cudaError_t const status = cudaEventQuery(other);
    if (!succeeded(status) && answer_of(status) != ready_answer::done) {
      return idle.reclaim_again_after(other);
    }
  }
  slot_pool& pool = idle.pool_;
  delete &idle;
  if (pool.is_last_reference()) pool.end();
}

bool slot_pool::is_last_reference() noexcept {
  // acq_rel: what every holder did with the pool happens before its end.
  return state_->references.fetch_sub(1, std::memory_order_acq_rel) == 1;
}

void slot_pool::drop_reference() noexcept {
  if (is_last_reference()) state_->end_on_worker.push();
}

void slot_pool::end() noexcept {
  deleter_core& core = state_->core;
  delete this;
  core.drop_use();
}

}  // namespace escrow
