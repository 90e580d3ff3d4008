// SPDX-License-Identifier: Apache-2.0
// Waits for other launches, records of a launch's end, and what is dropped after it.
#include "holding.hpp"

#include <algorithm>
#include <atomic>
#include <string>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/retry_cleanup.hpp"
#include "late_release.hpp"

namespace escrow::inline v0_2 {

namespace {

[[noreturn]] void throw_busy(char const* call, launch_order const& busy, bool is_own) {
  std::string const where =
      busy.group == nullptr
          ? " thread is inside hoisted::launch() of a graph that shares something with this one"
          : " thread is inside hoisted::launch() of a graph of group \"" +
                busy.group->options.label + "\", or inside its run(), park() or unpark()";
  if (is_own) throw usage_error(call, "this" + where, "call it after that has returned");
  throw group_busy(std::string(call) + ": another" + where + "; call it later");
}

// A statistic that changes under a mutex.
void count_one(std::atomic<std::uint64_t>& count) noexcept {
  count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

}  // namespace

void refuse_capturing(char const* call, stream_ref stream, char const* advice, char const* what) {
  try {
    if (usable_capture_of(call, stream).is_none()) return;
  } catch (cuda_error const& error) {
    if (is_sticky(error.status())) return;
    throw;
  }
  throw usage_error(call, std::string(what) + " is being captured", advice);
}

void refuse_unknown(char const* call, launch_end const& end, char const* what) {
  throw cuda_error(end.failure, call, source_location::current(), what);
}

holding::holding(reference_sets const& sets)
    : held(hold_all(sets)), end(std::make_shared<launch_end>(current_device())) {
  for (auto const& each : held) {
    if (each.set->is_written()) orders_.push_back(each.set->order());
  }
  std::ranges::sort(orders_);
  orders_.erase(std::unique(orders_.begin(), orders_.end()), orders_.end());
  for (auto const& each : orders_) each->execs.fetch_add(1, std::memory_order_relaxed);
}

holding::holding(std::shared_ptr<launch_order> order) : holding(turn_of(std::move(order))) {
  end = std::make_shared<launch_end>(current_device());
}

holding holding::turn_of(std::shared_ptr<launch_order> order) {
  holding its;
  its.orders_.push_back(std::move(order));
  its.orders_.front()->execs.fetch_add(1, std::memory_order_relaxed);
  return its;
}

holding::~holding() {
  for (auto const& each : orders_) each->execs.fetch_sub(1, std::memory_order_relaxed);
  if (held.empty() || end == nullptr) return;
  release_behind(std::move(held), end);
}

reference_sets holding::sets() const {
  reference_sets found;
  for (auto const& each : held) found.push_back(each.set);
  return found;
}

std::uint64_t holding::wait_for_last(char const* call, stream_ref stream,
                                     launch_end const* same_exec, launch_end* besides) {
  launch_end const* waited_for = nullptr;
  std::uint64_t own_stream = 0;
  // Returns whether the stream waits.
  auto const wait_for = [&](launch_end* last) {
    if (last == nullptr || last == waited_for || last->known() == end_state::none) return false;
    // Ordered by the stream. Not if it is recorded: that stream may be gone, and this has its
    // handle.
    if (last->known() == end_state::late && last->on == stream.get()) return false;
    if (own_stream == 0) {
      // A wait would invalidate a capture, as a launch does.
      refuse_capturing(call, stream, "add the graph as a child node (graph::add_child)");
      own_stream = stream_id(stream);
    }
    waited_for = last;
    if (last->stream == own_stream) return false;  // ordered by the stream
    if (!last->record_late()) {
      throw usage_error(call,
                        "it would come after a launch on a stream that is being captured, whose "
                        "end is not recorded (sharing_options::streams_outlive_group)",
                        "call it after that capture has ended");
    }
    end_state const known = last->known();
    if (known == end_state::none) return false;
    if (known == end_state::due) {
      // This thread may not record on the launcher's stream: that may begin to capture at any time.
      throw usage_error(
          call, "it would come after a launch whose end its stream_launcher has not recorded",
          "call flush() or launch() of that launcher before");
    }
    if (known == end_state::unknown) {
      refuse_unknown(call, *last,
                     "it would come after a launch whose end is not known: launch on the stream of "
                     "that one before, or that exec again");
    }
    check(cudaStreamWaitEvent(stream.get(), last->ready.get(), 0), "cudaStreamWaitEvent");
    return true;
  };
  static_cast<void>(wait_for(besides));
  for (auto const& each : orders_) {
    launch_end* const last = each->last.get();
    if (last != same_exec && wait_for(last) && each->group != nullptr)
      count_one(each->group->stream_waits);
  }
  return own_stream;
}

void holding::note_launch(stream_ref stream, std::uint64_t id, recorded_by whom) {
  become_last();
  end->stream = id;
  bool const is_late = streams_outlive() && !is_ambiguous(stream.get());
  end->on = is_late ? stream.get() : nullptr;
  auto const learn_stream = [&] {  // if it is not known, others wait
    unsigned long long asked = 0;
    if (end->stream != 0 || !succeeded(detail::query_stream_id(stream.get(), asked))) return;
    end->stream = asked;
  };
  if (is_shared()) {  // only others use the stream's id, and a group's statistics
    for (auto const& each : orders_) {
      if (each->group != nullptr) count_one(each->group->launches);
    }
    if (is_late) {
      end->become(end_state::late);
      return release_kept_for(stream.get());
    }
    learn_stream();
  }
  cudaError_t const status = record_end(*end, stream, whom);
  if (status != cudaSuccess) learn_stream();  // for those that come to share something with it
  check(status, "cudaEventRecord");
}

void holding::lose_launch(cudaError_t why, std::uint64_t id) noexcept {
  become_last();
  end->failure = why;
  end->stream = id;
  end->on = nullptr;
  end->become(end_state::unknown);
}

bool holding::put_off_end(std::uint64_t id) noexcept {
  if (is_shared()) return false;
  become_last();
  end->stream = id;
  end->become(end_state::due);
  return true;
}

bool holding::is_shared() const noexcept {
  return std::ranges::any_of(orders_, [](auto const& each) {
    // Relaxed: see launch_order::execs.
    return each->group != nullptr || each->execs.load(std::memory_order_relaxed) > 1;
  });
}

bool holding::streams_outlive() const noexcept {
  return std::ranges::any_of(orders_, [](auto const& each) {
    return each->group != nullptr && each->group->options.streams_outlive_group;
  });
}

void holding::become_last() noexcept {
  for (auto const& each : orders_) {
    if (each->last != end) each->last = end;
  }
}

void holding::enter() noexcept {
  for (auto const& each : orders_) each->entered = std::this_thread::get_id();
}

void holding::end_turn() noexcept {
  for (auto const& each : orders_) {
    each->entered = {};
    each->left.notify_all();
  }
}

void holding::step_out() noexcept {
  launch_lock const lock(*this);
  end_turn();
}

void holding::pin(char const* call, group_pins& pins) const {
  for (auto const& each : orders_) pins.add(call, each);
}

void holding::leave(char const* call, stream_ref stream, std::uint64_t id) {
  launch_lock const lock(*this);
  end_turn();
  capture_info info;
  auto const ask = [&] { return detail::query_capture(stream.get(), info, nullptr); };
  cudaError_t const status = retry_cleanup(ask);
  bool const is_known = status == cudaSuccess || is_sticky(status);
  if (is_known && info.is_none()) return note_launch(stream, id);
  lose_launch(is_known ? cudaErrorStreamCaptureUnsupported : status, id);
  if (!is_known) check(status, "cudaStreamGetCaptureInfo");
  throw usage_error(call, "`stream` is being captured at its end",
                    "end a capture where it was begun, and launch on `stream` again");
}

launch_lock::launch_lock(char const* call, holding const& its, std::chrono::nanoseconds wait_max,
                         parked groups)
    : orders_(its.orders_) {
  lock_in_turn(call, wait_max);
  if (groups == parked::allowed) return;
  for (auto const& each : orders_) {
    // Relaxed: it changes by the thread in `entered`, which there is none of now.
    if (each->group == nullptr || !each->group->is_parked.load(std::memory_order_relaxed))
        [[likely]]
      continue;
    std::shared_ptr<launch_order> const its_order = each;
    unlock();
    refuse_parked(call, *its_order->group);
  }
}

void launch_lock::lock_in_turn(char const* call, std::chrono::nanoseconds wait_max) {
  std::thread::id const no_thread;
  auto const find_busy = [&] {
    return std::ranges::find_if(orders_,
                                [&](auto const& each) { return each->entered != no_thread; });
  };
  lock();
  auto busy = find_busy();
  if (busy == orders_.end()) [[likely]]
    return;
  constexpr std::chrono::nanoseconds longest = std::chrono::hours(1 << 16);  // the sum must fit
  auto const end = std::chrono::steady_clock::now() + std::min(wait_max, longest);
  while (busy != orders_.end()) {
    launch_order& waited_for = **busy;
    bool const is_own = waited_for.entered == std::this_thread::get_id();
    unlock();  // leave() needs all of them
    std::unique_lock one(waited_for.mutex);
    bool const has_left = !is_own && waited_for.left.wait_until(
                                         one, end, [&] { return waited_for.entered == no_thread; });
    one.unlock();
    if (!has_left) throw_busy(call, waited_for, is_own);
    lock();
    busy = find_busy();
  }
}

void launch_lock::lock() noexcept {
  for (auto const& each : orders_) each->mutex.lock();
}

void launch_lock::unlock() noexcept {
  for (auto const& each : orders_) each->mutex.unlock();
}

}  // namespace escrow::inline v0_2
