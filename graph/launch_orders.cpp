// Waits for other launches, and records of a launch's end.
#include "launch_orders.hpp"

#include <algorithm>
#include <exception>
#include <string>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/ready_event.hpp"
#include "escrow/internal/retry_cleanup.hpp"

namespace escrow::inline v0_1 {

namespace {

[[noreturn]] void throw_busy(char const* call, launch_order const& busy, bool is_own) {
  std::string const what = busy.group == nullptr
                               ? "a graph that shares something with this one"
                               : "a graph of group \"" + busy.group->options.label + "\"";
  throw group_busy(std::string(call) + ": " + (is_own ? "this" : "another") +
                   " thread is between hoisted::enter() and leave() of " + what +
                   (is_own ? "; call leave() first" : "; launch later"));
}

bool is_filled(launch_order const& order) {
  return order.group != nullptr && order.group->options.fill;
}

// A wait would invalidate a capture, as a launch does.
void refuse_to_wait_in_a_capture(char const* call, stream_ref stream) {
  refuse_capturing(call, stream, "`stream`", "add the graph as a child node (graph::add_child)");
}

// No other thread may record on the launcher's stream: it may begin to capture at any time.
[[noreturn]] void refuse_due(char const* call) {
  throw usage_error(call,
                    "it would come after a launch whose end its stream_launcher has not recorded",
                    "call flush() or launch() of that launcher before");
}

}  // namespace

void refuse_capturing(char const* call, stream_ref stream, char const* what, char const* advice) {
  try {
    if (usable_capture_of(call, stream).is_none()) return;
  } catch (cuda_error const& error) {
    if (is_sticky(error.status())) return;
    throw;
  }
  throw usage_error(call, std::string(what) + " is being captured", advice);
}

void record_end(launch_end& end, stream_ref stream) {
  end.is_recorded = true;
  end.failure = cudaSuccess;
  bool const was_due = std::exchange(end.is_due, false);
  record_result const result = record_ready(end.ready, end.device, stream.get());
  switch (result.outcome) {
    case record_outcome::recorded:
      return;
    case record_outcome::device_lost:
      end.is_recorded = false;  // nothing runs any more
      break;
    case record_outcome::failed:
      end.is_recorded = false;
      if (retry_cleanup_relaxed([stream] { return cudaStreamSynchronize(stream.get()); }) ==
          cudaSuccess) {
        return;
      }
      end.is_due = was_due;
      end.failure = result.status;
      break;
  }
  check(result.status, "cudaEventRecord");
}

launch_orders::launch_orders(deferred_releases const& held, launch_orders const* more) {
  if (more != nullptr) orders_ = more->orders_;
  for (auto const& each : held) {
    if (each.set->is_written()) orders_.push_back(each.set->order());
  }
  std::ranges::sort(orders_);
  orders_.erase(std::unique(orders_.begin(), orders_.end()), orders_.end());
  for (auto const& each : orders_) {
    each->execs.fetch_add(1, std::memory_order_relaxed);
    has_group_ |= each->group != nullptr;
  }
}

launch_orders::~launch_orders() {
  for (auto const& each : orders_) each->execs.fetch_sub(1, std::memory_order_relaxed);
}

std::uint64_t launch_orders::wait_for_last(char const* call, stream_ref stream,
                                           launch_end const* own, bool is_same_exec) {
  launch_end const* waited_for = nullptr;
  std::uint64_t own_stream = 0;
  for (auto const& each : orders_) {
    launch_end const* const last = each->last.get();
    if (last == nullptr || last == waited_for) continue;
    if (last == own && is_same_exec && !is_filled(*each)) continue;
    if (last->failure != cudaSuccess && last != own) {
      throw cuda_error(last->failure, call, source_location::current(),
                       "it would come after a launch whose end is not known");
    }
    if (!last->is_recorded && !last->is_due) continue;
    if (own_stream == 0) {
      refuse_to_wait_in_a_capture(call, stream);
      own_stream = stream_id(stream);
    }
    waited_for = last;
    if (last->stream == own_stream) continue;  // ordered by the stream
    if (last->is_due) refuse_due(call);
    check(cudaStreamWaitEvent(stream.get(), last->ready.get(), 0), "cudaStreamWaitEvent");
    if (each->group != nullptr) ++each->group->stream_waits;
  }
  return own_stream;
}

void launch_orders::fill(char const* call, deferred_releases const& held, stream_ref stream,
                         std::shared_ptr<launch_end> const& own) {
  std::exception_ptr failure;
  bool has_filled = false;
  for (auto const& order : orders_) {
    if (!is_filled(*order)) continue;
    if (!has_filled) refuse_to_wait_in_a_capture(call, stream);
    has_filled = true;
    try {
      std::vector<reclaimable const*> members;
      for (auto const& each : held) {
        if (each.set->order() == order) each.set->list_members(members);
      }
      for (reclaimable const* const each : members) {
        if (!each->is_slot()) continue;
        static_cast<slot_reference const*>(each)->fill(stream.get(), *order->group->options.fill);
      }
    } catch (std::exception const&) {
      failure = std::current_exception();
    }
  }
  if (has_filled) note_end(stream, own, 0);
  if (failure != nullptr) std::rethrow_exception(failure);
}

void launch_orders::note_launch(stream_ref stream, std::shared_ptr<launch_end> const& own,
                                std::uint64_t id) {
  for (auto const& each : orders_) {
    if (each->group != nullptr) ++each->group->launches;
  }
  note_end(stream, own, id);
}

void launch_orders::note_end(stream_ref stream, std::shared_ptr<launch_end> const& own,
                             std::uint64_t id) {
  bool is_shared = false;
  for (auto const& each : orders_) {
    if (each->last != own) each->last = own;
    is_shared |= each->group != nullptr || each->execs.load(std::memory_order_relaxed) > 1;
  }
  // Only others use the stream's id, and a group's statistics. Not known: they wait.
  unsigned long long asked = 0;
  if (id == 0 && is_shared && succeeded(cudaStreamGetId(stream.get(), &asked))) id = asked;
  own->stream = id;
  record_end(*own, stream);
}

bool launch_orders::put_off_end(std::uint64_t id, std::shared_ptr<launch_end> const& own) noexcept {
  if (has_group_) return false;
  for (auto const& each : orders_) {
    // Relaxed: see launch_order::execs.
    if (each->execs.load(std::memory_order_relaxed) > 1) return false;
  }
  for (auto const& each : orders_) {
    if (each->last != own) each->last = own;
  }
  own->stream = id;
  own->is_due = true;
  return true;
}

void launch_orders::enter() noexcept {
  for (auto const& each : orders_) each->entered = std::this_thread::get_id();
}

void launch_orders::leave() noexcept {
  for (auto const& each : orders_) {
    each->entered = {};
    each->left.notify_all();
  }
}

void launch_orders::leave_unknown(std::shared_ptr<launch_end> const& own,
                                  cudaError_t failure) noexcept {
  leave();
  own->failure = failure;
  for (auto const& each : orders_) each->last = own;
}

void launch_orders::replace_last(std::shared_ptr<launch_end> const& own,
                                 std::shared_ptr<launch_end> const& known) noexcept {
  for (auto const& each : orders_) {
    if (each->last == own) each->last = known;
  }
}

launch_lock::launch_lock(char const* call, launch_orders const& orders,
                         std::chrono::nanoseconds wait_max)
    : orders_(orders) {
  std::thread::id const no_thread;
  auto const find_busy = [&] {
    return std::ranges::find_if(orders_.orders_,
                                [&](auto const& each) { return each->entered != no_thread; });
  };
  lock();
  auto busy = find_busy();
  if (busy == orders_.orders_.end()) [[likely]]
    return;
  constexpr std::chrono::nanoseconds longest = std::chrono::hours(1 << 16);  // the sum must fit
  auto const end = std::chrono::steady_clock::now() + std::min(wait_max, longest);
  while (busy != orders_.orders_.end()) {
    launch_order& waited_for = **busy;
    bool const is_own = waited_for.entered == std::this_thread::get_id();
    unlock();  // leave() needs all of them
    if (is_own) throw_busy(call, waited_for, true);
    std::unique_lock one(waited_for.mutex);
    bool const has_left =
        waited_for.left.wait_until(one, end, [&] { return waited_for.entered == no_thread; });
    one.unlock();
    if (!has_left) throw_busy(call, waited_for, false);
    lock();
    busy = find_busy();
  }
}

launch_lock::launch_lock(for_leaving, launch_orders const& orders) noexcept : orders_(orders) {
  lock();
}

void launch_lock::lock() noexcept {
  for (auto const& each : orders_.orders_) each->mutex.lock();
}

void launch_lock::unlock() noexcept {
  for (auto const& each : orders_.orders_) each->mutex.unlock();
}

}  // namespace escrow::inline v0_1
