// A claim's way: the slot that its stream had last, another one, a wait, or an error that says why;
// and which other one a claim outside of captures gets.
#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <thread>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/detail/deleter_core.hpp"
#include "escrow/detail/device.hpp"
#include "escrow/detail/graph_query.hpp"
#include "slot_pool_state.hpp"

namespace escrow {

namespace {

constexpr std::size_t all = std::numeric_limits<std::size_t>::max();

claimed_slot claim_of(slot& taken, stream_ref stream, std::uint64_t stream_id) noexcept {
  return {
      .what = &taken, .stream = stream.get(), .stream_id = stream_id, .thread = thread_of(stream)};
}

}  // namespace

std::uint64_t thread_of(stream_ref stream) noexcept {
  if (stream.get() != cudaStreamPerThread) [[likely]]
    return 0;
  // Relaxed: only that each thread gets another number counts.
  static std::atomic<std::uint64_t> last{0};
  thread_local std::uint64_t const number = last.fetch_add(1, std::memory_order_relaxed) + 1;
  return number;
}

claimed_slot slot_pool::claim(char const* call, stream_ref stream, source_location where) {
  pool_options const& options = state_->options;
  auto const claimed =
      state_->claim(call, stream, options.host_wait_max, options.capture_wait_max, where);
  if (!claimed) throw pool_exhausted(state_->describe_exhaustion(call));
  return *claimed;
}

std::optional<claimed_slot> slot_pool::try_claim(char const* call, stream_ref stream,
                                                 std::chrono::nanoseconds host_wait_max,
                                                 source_location where) {
  return state_->claim(call, stream, host_wait_max, {}, where);
}

std::optional<claimed_slot> slot_pool::state::claim(char const* call, stream_ref stream,
                                                    std::chrono::nanoseconds host_wait_max,
                                                    std::chrono::nanoseconds busy_wait_max,
                                                    source_location where) {
  require_open(call);
  capture_info const capture = usable_capture_of(call, stream);
  if (capture.is_none()) [[likely]] {
    std::uint64_t const id = stream_id(stream);
    record_deferred(stream, id);
    if (slot* const own = free.take_newest(id)) {
      if (own->also_count_ != 0) wait_for(*own, stream, true);
      return claim_of(*own, stream, id);
    }
  }
  return claim_other(call, stream, capture, host_wait_max, busy_wait_max, where);
}

std::optional<claimed_slot> slot_pool::state::claim_other(char const* call, stream_ref stream,
                                                          capture_info const& capture,
                                                          std::chrono::nanoseconds host_wait_max,
                                                          std::chrono::nanoseconds busy_wait_max,
                                                          source_location where) {
  using clock = std::chrono::steady_clock;
  // Slots also become free without a return, when the event of one that a capture cannot wait for
  // is done.
  constexpr std::chrono::nanoseconds look_again = std::chrono::microseconds(200);
  auto const look = [&] {
    return capture.is_active() ? claim_captured(stream, capture, where) : claim_eager(stream);
  };
  require_device(call, stream, capture, "use a pool of the stream's device");
  if (auto claimed = look()) return claimed;
  require_open(call);  // closed since the claim began, it is not exhausted

  auto const begin = clock::now();
  // How long it may wait now: for slots that are not out, which only a capture may not use yet, or
  // for any.
  auto const left = [&] {
    bool const is_for_work = capture.is_active() && busy_wait_max > host_wait_max &&
                             (!free.is_empty() || free.looked_at.load(std::memory_order_relaxed));
    return (is_for_work ? busy_wait_max : host_wait_max) - (clock::now() - begin);
  };
  constexpr std::chrono::nanoseconds none{0};
  if (left() <= none) return std::nullopt;
  // Relaxed: see state::waiters.
  waiters.fetch_add(1, std::memory_order_relaxed);
  host_waits.fetch_add(1, std::memory_order_relaxed);
  struct leave {
    std::atomic<std::size_t>& waiters;
    ~leave() { waiters.fetch_sub(1, std::memory_order_relaxed); }
  } const leaving{waiters};
  while (true) {
    std::uint64_t const seen = returns_seen();
    require_open(call);
    // Throws what is not announced: the device is lost, the capture is.
    if (usable_capture_of(call, stream).id != capture.id) {
      throw usage_error(call, "a capture of `stream` has begun or ended while the claim waited",
                        "use a stream on one thread at a time");
    }
    if (auto claimed = look()) return claimed;
    auto const rest = left();
    if (rest <= none) return std::nullopt;
    await_return(seen, std::min(rest, look_again));
  }
}

std::optional<claimed_slot> slot_pool::state::claim_eager(stream_ref stream) {
  constexpr int attempts_max = 1000;  // each follows a move of a slot by another thread
  std::uint64_t const id = stream_id(stream);
  for (int attempt = 0; attempt < attempts_max; ++attempt) {
    std::uint64_t puts_before = 0;
    if (slot* const found = take_eager(id, puts_before)) {
      wait_for(*found, stream, found->key_ == id);
      return claim_of(*found, stream, id);
    }
    // Relaxed: see free_lists::looked_at.
    bool const is_looked_at = free.looked_at.load(std::memory_order_relaxed) != 0;
    if (!is_looked_at && free.puts() == puts_before) break;
    std::this_thread::yield();
  }
  return std::nullopt;
}

slot* slot_pool::state::take_eager(std::uint64_t stream_id, std::uint64_t& puts_before) {
  // Asking about more streams would take longer than making a slot.
  constexpr std::size_t questions_before_growth = 32;
  if (slot* const idle = free.take_newest(free_lists::idle)) return idle;
  core.recycle();  // also what another thread is just taking from graphs to the lists
  std::uint64_t const pass = passes.fetch_add(1, std::memory_order_relaxed) + 1;
  if (slot* const done = take_done(pass, questions_before_growth)) return done;
  std::exception_ptr failure;
  try {
    if (slot* const made = grow()) return made;
  } catch (...) {
    failure = std::current_exception();  // unless there is one to wait for
  }
  puts_before = free.puts();
  if (slot* const done = take_done(pass, all)) return done;
  if (slot* const own = free.take_newest(stream_id)) return own;
  if (slot* const oldest = free.take_oldest()) return oldest;
  if (failure != nullptr) std::rethrow_exception(failure);
  return nullptr;
}

slot* slot_pool::state::take_done(std::uint64_t pass, std::size_t questions_max) {
  if (slot* const idle = free.take_newest(free_lists::idle)) return idle;
  for (std::size_t asked = 0; asked < questions_max; ++asked) {
    slot* const found = free.take_to_ask(pass);
    if (found == nullptr) return nullptr;
    progress const answer = ask(*found);
    if (answer == progress::others_behind) found->key_ = free_lists::own_list_of(*found);
    bool const is_done = answer == progress::done;
    if (!is_done && !free.put_asked(*found, pass)) destroy(*found);
    free.looked_at.fetch_sub(1, std::memory_order_relaxed);
    if (is_done) return found;
  }
  return nullptr;
}

slot_pool::state::progress slot_pool::state::ask(slot& free) noexcept {
  if (free.is_done_) return progress::done;
  // Querying would invalidate a Global capture of another thread, and any of this one.
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

slot* slot_pool::state::grow() {
  // Acquire: see state::slots. The room that a closed pool's slot left stays empty.
  std::size_t count = slots.load(std::memory_order_acquire);
  do {
    if (count >= options.slots_max) return nullptr;
    if (is_closed.load(std::memory_order_relaxed)) return nullptr;
  } while (!slots.compare_exchange_weak(count, count + 1, std::memory_order_acquire));
  // Relaxed: the pool's owner holds a reference meanwhile.
  references.fetch_add(1, std::memory_order_relaxed);
  try {
    device_scope const device(options.device);
    relaxed_capture_scope const relaxed;
    slot* const made = make(owner);
    made->number_ = grown.fetch_add(1, std::memory_order_relaxed);
    return made;
  } catch (...) {
    references.fetch_sub(1, std::memory_order_relaxed);
    slots.fetch_sub(1, std::memory_order_relaxed);
    throw;
  }
}

void slot_pool::state::wait_for(slot& taken, stream_ref stream, bool is_its_own) {
  if (taken.is_done_) return;
  auto const wait = [&](event const& ready) {
    cudaError_t const status = cudaStreamWaitEvent(stream.get(), ready.get(), 0);
    if (status == cudaSuccess) return;
    put_back(taken);
    check(status, "cudaStreamWaitEvent");
  };
  if (!is_its_own) {
    stream_waits.fetch_add(1, std::memory_order_relaxed);
    wait(taken.ready_);
  }
  // Forgotten only all together: if one wait fails, no lease follows, and the slot needs all its
  // events.
  for (std::size_t i = 0; i < taken.also_count_; ++i) wait(taken.also_ready_[i].ready);
  taken.also_count_ = 0;
}

void slot_pool::state::require_open(char const* call) const {
  // Relaxed: see state::is_closed.
  if (!is_closed.load(std::memory_order_relaxed)) [[likely]]
    return;
  throw usage_error(call, "the pool \"" + options.label + "\" is closed",
                    "claim before close_for()");
}

void slot_pool::state::require_device(char const* call, stream_ref stream,
                                      capture_info const& capture, char const* remedy) {
  if (is_only_device) return;
  int const found =
      capture.is_active() ? device_of_capturing(stream, capture.id) : device_of(stream);
  if (found == options.device) return;
  throw usage_error(call,
                    "`stream` is not of device " + std::to_string(options.device) +
                        ", the pool \"" + options.label + "\" is",
                    remedy);
}

std::string slot_pool::state::describe_exhaustion(char const* call) {
  pool_stats const now = owner.stats();
  std::string text = std::string(call) + ": all " + std::to_string(now.slots) + " slots of \"" +
                     options.label + "\" are out (slots_max " + std::to_string(options.slots_max) +
                     "): graphs hold " + std::to_string(now.in_graphs) + ", " +
                     std::to_string(now.deferred) +
                     " wait until the pool is given their stream outside of captures, the rest is "
                     "leased or, in a capture, still in use by the GPU";
  for (holder const& each : reuse.holders(options.label)) {
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
