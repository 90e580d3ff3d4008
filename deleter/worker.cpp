// SPDX-License-Identifier: Apache-2.0
// The worker thread: reclaims, sleeps, and ends without using freed memory.
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <utility>

#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/profiler.hpp"
#include "escrow/internal/wakeup.hpp"

namespace escrow::inline v0_2 {

namespace {

// At process exit CUDA may be torn down while a worker runs. The exit handler stops new passes and
// waits a bounded time for running ones.
constinit shutdown_gate passes;

void end_passes_at_exit() {
  passes.close();
  passes.wait_until_empty();
}

// Cores whose deleters were destroyed, until their last use is dropped. What is owed at process
// exit stays in this list: leaked on purpose, and reachable for leak checkers.
constinit std::mutex orphans_mutex;  // guards the list, linked by next_orphan_
constinit deleter_core* orphans = nullptr;

bool register_end_of_passes() {
  return std::atexit(&end_passes_at_exit) == 0;
}

constinit std::atomic<deleter_core::rest_function> at_rest{nullptr};

constinit std::mutex unused_mutex;  // guards the list
constinit wakeup* unused_wakeups = nullptr;

}  // namespace

wakeup_store::loan wakeup_store::take() {
  std::lock_guard const lock(unused_mutex);
  if (unused_wakeups == nullptr) return loan(new wakeup);
  wakeup* const taken = unused_wakeups;
  unused_wakeups = std::exchange(taken->next_unused, nullptr);
  return loan(taken);
}

void wakeup_store::give_back::operator()(wakeup* returned) const noexcept {
  std::lock_guard const lock(unused_mutex);
  returned->next_unused = std::exchange(unused_wakeups, returned);
}

void deleter_core::set_at_rest(rest_function call) noexcept {
  at_rest.store(call, std::memory_order_release);  // with what it uses
}

// False: nothing is left to do before the worker sleeps.
bool deleter_core::is_needed_at_rest() noexcept {
  auto const call = at_rest.load(std::memory_order_acquire);
  if (call == nullptr || !passes.try_enter()) return false;
  bool const is_needed = call();
  passes.leave();
  return is_needed;
}

void deleter_core::watch_for_exit() {
  [[maybe_unused]] static bool const registered = register_end_of_passes();
}

std::size_t deleter_core::guarded_pass(bool& is_thread_relaxed) noexcept {
  // Acquire: pairs with the release below, to see the last pass's state. On failure no pass.
  std::thread::id free{};
  if (!reclaiming_thread_.compare_exchange_strong(
          free, std::this_thread::get_id(), std::memory_order_acquire, std::memory_order_relaxed)) {
    return 0;
  }
  std::size_t count = 0;
  if (passes.try_enter()) {
    profiler_range const range("escrow: pass");
    count = pass(is_thread_relaxed);
    if (count != 0) {
      // Handlers run in reverse order: one registered after CUDA was used runs before CUDA's.
      [[maybe_unused]] static bool const registered = register_end_of_passes();
    }
    // Release: pairs with the acquire in rest(), whose reader sees what the pass took.
    has_pending_.store(waiting_.size() != 0 || !ready_.empty() || recycled_.deferred() != 0,
                       std::memory_order_release);
    passes.leave();
  }
  reclaiming_thread_.store(std::thread::id{}, std::memory_order_release);
  return count;
}

bool deleter_accounts::is_process_exiting() noexcept {
  return passes.is_closed();
}

void deleter_core::start_worker() {
  thread_ = std::thread(&deleter_core::run_worker, this);
}

void deleter_core::leave_to_worker(bool is_owed) noexcept {
  {
    std::lock_guard const lock(orphans_mutex);
    next_orphan_ = std::exchange(orphans, this);
  }
  try {
    if (!thread_.joinable()) start_worker();  // to reclaim the rest
  } catch (std::exception const& error) {
    return report(error);
  }
  std::thread running = std::move(thread_);
  wakeup& bell = *bell_;  // outlives the core
  is_left_alone_.store(true, std::memory_order_release);
  bell.notify();
  is_owed ? running.detach() : running.join();
}

void deleter_core::run_worker() noexcept {
  std::string const name = options_.thread_name.substr(0, 15);
  static_cast<void>(pthread_setname_np(pthread_self(), name.c_str()));
  name_this_thread(name.c_str());
  while (!is_process_exiting()) {
    // Recycling is work, too, which the pass does not count.
    if (!nothing_arrived()) last_work_ = std::chrono::steady_clock::now();
    bool const did_something = guarded_pass(is_relaxed_) != 0;
    // Acquire: pairs with the release of leave_to_worker().
    bool const is_left_alone = is_left_alone_.load(std::memory_order_acquire);
    if (is_left_alone) {
      store_.trim();
      // Acquire: pairs with drop_use(). Without uses nothing can push.
      if (uses_.load(std::memory_order_acquire) == 0) return free_orphan();
    }
    rest(did_something, is_left_alone);
  }
  // ThreadSanitizer takes a thread that has ended and that nobody joins for a leak. So it sleeps
  // until the process ends, or its deleter, which notifies.
  // Acquire: pairs with the release of leave_to_worker().
  auto const is_owned = [this] { return !is_left_alone_.load(std::memory_order_acquire); };
  while (is_owned()) {
    if (bell_->try_sleep(is_owned)) bell_->wait_for_notify();
  }
}

void deleter_core::free_orphan() noexcept {
  tell_taken(&uses_);
  {
    std::lock_guard const lock(orphans_mutex);
    deleter_core** link = &orphans;
    while (*link != this) link = &(*link)->next_orphan_;
    *link = next_orphan_;
  }
  delete this;
}

void deleter_core::rest(bool did_something, bool was_left_alone) noexcept {
  using clock = std::chrono::steady_clock;
  auto const now = clock::now();
  // Acquire: see guarded_pass().
  auto const has_pending = [this] { return has_pending_.load(std::memory_order_acquire); };
  if (did_something || has_pending()) last_work_ = now;

  // After the deleter's destruction, sleep while the core has uses: dropping one notifies. The
  // state before the last trim() counts: idle objects have uses too, and never notify.
  auto const may_end = [&] { return was_left_alone && uses_.load(std::memory_order_acquire) == 0; };
  bool const may_sleep = !has_pending() && now - last_work_ >= options_.linger && !may_end();
  if (may_sleep && !is_needed_at_rest()) {
    // Another thread's pass may have taken what arrived: it notifies at its end.
    auto const nothing_to_do = [&] {
      return nothing_arrived() && !has_pending() &&
             is_left_alone_.load(std::memory_order_acquire) == was_left_alone && !may_end();
    };
    if (bell_->try_sleep(nothing_to_do)) bell_->wait_for_notify();
    interval_ = options_.poll_interval_min;
    return;
  }
  interval_ = did_something ? options_.poll_interval_min
                            : std::clamp(interval_ * 2, options_.poll_interval_min,
                                         options_.poll_interval_max);
  std::this_thread::sleep_for(interval_);
}

}  // namespace escrow::inline v0_2
