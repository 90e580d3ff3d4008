// Which slot a claim outside of captures gets, of those that its stream did not have last, and how
// the stream comes to wait for it.
#include <array>
#include <thread>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/detail/device.hpp"
#include "slot_pool_state.hpp"

namespace escrow {

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

}  // namespace escrow
