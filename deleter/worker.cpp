// The worker thread: reclaim, rest, and end without touching what was freed.
#include "core_state.hpp"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <utility>

#include "shutdown_gate.hpp"

namespace escrow {

namespace {

// At process exit CUDA may be torn down under a worker. From the exit handler on no pass begins,
// and the handler waits for the passes that have begun, for a bounded time.
constinit shutdown_gate passes;

void end_passes_at_exit() {
  constexpr auto patience = std::chrono::seconds(1);  // a pass may be stuck in a destructor
  passes.close();
  auto const deadline = std::chrono::steady_clock::now() + patience;
  while (!passes.is_empty() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

// The cores whose deleters were destroyed, until the last use of each is dropped. What is owed at
// process exit stays here: leaked on purpose, and known to a leak checker.
constinit std::mutex orphans_mutex;  // guards the list, linked by state::next_orphan
constinit deleter_core* orphans = nullptr;

bool register_end_of_passes() {
  return std::atexit(&end_passes_at_exit) == 0;
}

}  // namespace

void worker::watch_for_exit() {
  [[maybe_unused]] static bool const registered = register_end_of_passes();
}

std::size_t deleter_core::state::guarded_pass(bool& is_thread_relaxed) noexcept {
  // Acquire: pairs with the release below; what the last pass left is seen. Relaxed: no pass, then.
  std::thread::id free{};
  if (!reclaiming_thread.compare_exchange_strong(
          free, std::this_thread::get_id(), std::memory_order_acquire, std::memory_order_relaxed)) {
    return 0;
  }
  std::size_t count = 0;
  if (passes.try_enter()) {
    count = pass(is_thread_relaxed);
    if (count != 0) {
      // Handlers run in the opposite order: one more, now that CUDA was used, runs before it ends.
      [[maybe_unused]] static bool const registered = register_end_of_passes();
    }
    // Release: pairs with the acquire in rest(), so that a thread which sees this sees what the
    // pass took.
    has_pending.store(waiting.size() != 0 || !ready.empty() || recycled.deferred() != 0,
                      std::memory_order_release);
    passes.leave();
  }
  reclaiming_thread.store(std::thread::id{}, std::memory_order_release);
  return count;
}

bool worker::is_process_exiting() noexcept {
  return passes.is_closed();
}

void worker::start() {
  thread_ = std::thread(&worker::run, this);
}

void worker::leave_to_itself(bool is_owed) noexcept {
  deleter_core::state& state = *core_.state_;
  {
    std::lock_guard const lock(orphans_mutex);
    state.next_orphan = std::exchange(orphans, &core_);
  }
  try {
    if (!is_running()) start();  // to see the rest through
  } catch (std::exception const& error) {
    return core_.report(error);
  }
  std::thread running = std::move(thread_);
  wakeup& bell = *state.bell;  // stays when the core is freed
  state.is_left_alone.store(true, std::memory_order_release);
  bell.notify();
  is_owed ? running.detach() : running.join();
}

void worker::run() noexcept {
  deleter_core::state& state = *core_.state_;
  std::string const name = state.options.thread_name.substr(0, 15);
  static_cast<void>(pthread_setname_np(pthread_self(), name.c_str()));
  while (!is_process_exiting()) {
    if (!state.nothing_arrived()) last_work_ = std::chrono::steady_clock::now();
    bool const did_something = state.guarded_pass(is_relaxed_) != 0;
    // Acquire: pairs with the release of leave_to_itself().
    bool const is_left_alone = state.is_left_alone.load(std::memory_order_acquire);
    if (is_left_alone) {
      state.store.trim();
      // Acquire: pairs with drop_use(). Nothing can push once there is no use.
      if (state.uses.load(std::memory_order_acquire) == 0) return free_core();
    }
    rest(did_something, is_left_alone);
  }
}

void worker::free_core() noexcept {
  {
    std::lock_guard const lock(orphans_mutex);
    deleter_core** link = &orphans;
    while (*link != &core_) link = &(*link)->state_->next_orphan;
    *link = core_.state_->next_orphan;
  }
  delete &core_;
}

void worker::rest(bool did_something, bool was_left_alone) noexcept {
  using clock = std::chrono::steady_clock;
  deleter_core::state& state = *core_.state_;
  deleter_options const& options = state.options;
  auto const now = clock::now();
  // Acquire: see guarded_pass().
  auto const has_pending = [&state] { return state.has_pending.load(std::memory_order_acquire); };
  if (did_something || has_pending()) last_work_ = now;

  // Left to itself, it sleeps as long as the core has a use: dropping one notifies. What
  // counts is how it was before the last trim(): idle objects have uses, too, and never notify.
  auto const may_end = [&] {
    return was_left_alone && state.uses.load(std::memory_order_acquire) == 0;
  };
  bool const may_sleep = !has_pending() && now - last_work_ >= options.linger && !may_end();
  if (may_sleep) {
    // Another thread's pass may have taken what arrived, since we looked: it notified at its end,
    // or will.
    auto const nothing_to_do = [&] {
      return state.nothing_arrived() && !has_pending() &&
             state.is_left_alone.load(std::memory_order_acquire) == was_left_alone && !may_end();
    };
    if (state.bell->try_sleep(nothing_to_do)) state.bell->wait_for_notify();
    interval_ = options.poll_interval_min;
    return;
  }
  interval_ = did_something
                  ? options.poll_interval_min
                  : std::clamp(interval_ * 2, options.poll_interval_min, options.poll_interval_max);
  std::this_thread::sleep_for(interval_);
}

}  // namespace escrow
