// SPDX-License-Identifier: Apache-2.0
// The free-running runner: a thread for each stream that has work, and one for all callbacks.
#include "runner_free.hpp"

#include "ops.hpp"
#include "runner_shared.hpp"

#include <pthread.h>

#include <string>
#include <thread>

namespace escrow::sim::model {
namespace {

// How long a thread whose kernels all say "not yet" waits before it asks again.
constexpr auto pause_between_polls = std::chrono::microseconds(20);

void executor_main(std::shared_ptr<executor> const& me) {
  auto& s = the();
  std::unique_lock lock(s.mutex);
  std::size_t fruitless = 0;
  while (!s.dropping) {
    if (me->ready.empty()) {
      if (me->stop) break;
      me->wake.wait(lock);
      continue;
    }
    auto const o = std::move(me->ready.front());
    me->ready.pop_front();
    if (is_abandoned(o) || perform_unlocked(lock, o)) {
      fruitless = 0;
      complete(o);
      continue;
    }
    me->ready.push_back(o);
    if (++fruitless >= me->ready.size()) me->wake.wait_for(lock, pause_between_polls);
  }
  me->started = false;
  --s.threads;
  notify();
}

void callback_main() {
  auto& s = the();
  std::unique_lock lock(s.mutex);
  while (!s.dropping) {
    if (s.callback_queue.empty()) {
      s.callback_wake.wait(lock);
      continue;
    }
    auto const first = s.callback_queue.begin();
    auto const wait = first->first.first - time_now();
    if (wait > std::chrono::nanoseconds::zero()) {
      s.callback_wake.wait_for(lock, wait);
      continue;
    }
    auto const what = std::move(first->second);
    s.callback_queue.erase(first);
    run_callback_unlocked(lock, what);
  }
  s.callback_thread_started = false;
  --s.threads;
  notify();
}

// Detached, because it is counted: stop_threads() waits for the count. The state's mutex is held,
// so the new thread cannot run before the caller is done with the state.
template <class Main>
void start_thread(char const* name, Main main) {
  ++the().threads;
  std::thread thread(std::move(main));
  ::pthread_setname_np(thread.native_handle(), name);
  thread.detach();
}

// What threads had queued when they ended is done for: all of it completes without being run.
void drop_pending(state& s) {
  for (auto& d : s.devices) {
    auto const streams = d.streams;
    for (auto const& [id, stream] : streams) {
      auto const ready = std::move(stream->runs_on->ready);
      stream->runs_on->ready.clear();
      for (auto const& o : ready) complete(o);
    }
  }
  auto const queue = std::move(s.callback_queue);
  s.callback_queue.clear();
  for (auto const& [due, what] : queue) {
    if (what.of != nullptr) complete(what.of);
  }
  auto const choices = std::move(s.choices);
  s.choices.clear();
  for (auto const& o : choices) finish_at_once(o);
}

}  // namespace

void give_to_executor(op_ptr const& o) {
  auto const& runs_on = o->stream->runs_on;
  runs_on->ready.push_back(o);
  if (!runs_on->started) {
    runs_on->started = true;
    start_thread("sim-stream", [runs_on] { executor_main(runs_on); });
  }
  runs_on->wake.notify_one();
}

void wake_callback_thread() {
  auto& s = the();
  if (!s.callback_thread_started) {
    s.callback_thread_started = true;
    start_thread("sim-callbacks", callback_main);
  }
  s.callback_wake.notify_one();
}

bool stop_threads(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds limit) {
  auto& s = the();
  s.dropping = true;
  for (auto const& d : s.devices) {
    for (auto const& [id, stream] : d.streams) stream->runs_on->wake.notify_all();
  }
  s.callback_wake.notify_all();
  ++s.waiters;
  bool const ended = s.changed.wait_for(lock, limit, [&] { return s.threads == 0; });
  --s.waiters;
  if (ended) drop_pending(s);
  // At exit nothing may start again.
  if (!s.exiting) s.dropping = false;
  return ended;
}

}  // namespace escrow::sim::model
