// The worker thread: reclaims, sleeps, and ends without using freed memory.
#include "core_state.hpp"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <utility>

#include "escrow/internal/profiler.hpp"
#include "wakeup.hpp"

namespace escrow::inline v0_1 {

namespace {

// At process exit CUDA may be torn down while a worker runs. The exit handler stops new passes and
// waits a bounded time for running ones.
constinit shutdown_gate passes;

void end_passes_at_exit() {
  constexpr auto patience = std::chrono::seconds(1);  // a pass may be stuck in a destructor
  passes.close();
  auto const deadline = std::chrono::steady_clock::now() + patience;
  while (!passes.is_empty() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

// Cores whose deleters were destroyed, until their last use is dropped. What is owed at process
// exit stays in this list: leaked on purpose, and reachable for leak checkers.
constinit std::mutex orphans_mutex;  // guards the list, linked by state::next_orphan
constinit deleter_core* orphans = nullptr;

bool register_end_of_passes() {
  return std::atexit(&end_passes_at_exit) == 0;
}

constinit std::mutex unused_mutex;  // guards the list of unused wakeups
constinit wakeup* unused = nullptr;

}  // namespace

wakeup_store::loan wakeup_store::take() {
  std::lock_guard const lock(unused_mutex);
  if (unused == nullptr) return loan(new wakeup);
  wakeup* const taken = unused;
  unused = std::exchange(taken->next_unused, nullptr);
  return loan(taken);
}

void wakeup_store::give_back::operator()(wakeup* returned) const noexcept {
  std::lock_guard const lock(unused_mutex);
  returned->next_unused = std::exchange(unused, returned);
}

void worker::watch_for_exit() {
  [[maybe_unused]] static bool const registered = register_end_of_passes();
}

std::size_t deleter_core::state::guarded_pass(bool& is_thread_relaxed) noexcept {
  // Acquire: pairs with the release below, to see the last pass's state. On failure no pass.
  std::thread::id free{};
  if (!reclaiming_thread.compare_exchange_strong(
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
    if (!is_running()) start();  // to reclaim the rest
  } catch (std::exception const& error) {
    return core_.report(error);
  }
  std::thread running = std::move(thread_);
  wakeup& bell = *state.bell;  // outlives the core
  state.is_left_alone.store(true, std::memory_order_release);
  bell.notify();
  is_owed ? running.detach() : running.join();
}

void worker::run() noexcept {
  deleter_core::state& state = *core_.state_;
  std::string const name = state.options.thread_name.substr(0, 15);
  static_cast<void>(pthread_setname_np(pthread_self(), name.c_str()));
  name_this_thread(name.c_str());
  while (!is_process_exiting()) {
    // Recycling is work, too, which the pass does not count.
    if (!state.nothing_arrived()) last_work_ = std::chrono::steady_clock::now();
    bool const did_something = state.guarded_pass(is_relaxed_) != 0;
    // Acquire: pairs with the release of leave_to_itself().
    bool const is_left_alone = state.is_left_alone.load(std::memory_order_acquire);
    if (is_left_alone) {
      state.store.trim();
      // Acquire: pairs with drop_use(). Without uses nothing can push.
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

  // After the deleter's destruction, sleep while the core has uses: dropping one notifies. The
  // state before the last trim() counts: idle objects have uses too, and never notify.
  auto const may_end = [&] {
    return was_left_alone && state.uses.load(std::memory_order_acquire) == 0;
  };
  bool const may_sleep = !has_pending() && now - last_work_ >= options.linger && !may_end();
  if (may_sleep) {
    // Another thread's pass may have taken what arrived: it notifies at its end.
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

}  // namespace escrow::inline v0_1
