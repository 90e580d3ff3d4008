// SPDX-License-Identifier: Apache-2.0
// Who moves the model: threads when running free, step() when stepped.
#include "runner.hpp"

#include "ops.hpp"
#include "runner_free.hpp"
#include "runner_shared.hpp"
#include "runner_stepped.hpp"

#include <string>
#include <utility>

namespace escrow::sim::model {

void begin(op_ptr const& o) {
  auto& s = the();
  if (is_abandoned(o)) {
    finish_at_once(o);
  } else if (s.how.stepped) {
    s.choices.push_back(o);
  } else if (takes_time(o)) {
    give_to_executor(o);
  } else if (auto const* const host = std::get_if<host_work>(&o->what)) {
    queue_callback({host->run, host->argument, o}, {});
  } else {
    finish_at_once(o);
  }
}

void queue_callback(callback what, std::chrono::nanoseconds delay) {
  auto& s = the();
  s.callback_queue.emplace(std::pair{time_now() + delay, ++s.next_id}, std::move(what));
  if (!s.how.stepped) wake_callback_thread();
}

void defer(callbacks list, std::chrono::microseconds shortest, std::chrono::microseconds longest) {
  auto const low = static_cast<std::uint64_t>(std::chrono::nanoseconds(shortest).count());
  auto const high = static_cast<std::uint64_t>(std::chrono::nanoseconds(longest).count());
  for (auto& each : list)
    queue_callback(std::move(each), std::chrono::nanoseconds(pick(low, high)));
}

void block(std::unique_lock<std::mutex>& lock, std::function<bool()> const& ready,
           char const* what) {
  auto& s = the();
  constexpr std::uint64_t turns_max = 100'000;
  auto const loop = [&s]() -> std::string {
    if (s.loop_turns < 1000) return {};
    return "; the body of a while_node has run " + std::to_string(s.loop_turns) +
           " times: a kernel in it ends the loop by setting the condition to 0";
  };
  if (!s.how.stepped) {
    ++s.waiters;
    bool const in_time = s.changed.wait_for(lock, s.how.sync_limit, ready);
    --s.waiters;
    if (!in_time)
      give_up(std::string(what) + " blocked for longer than options::sync_limit" + loop());
    return;
  }
  auto const limit = std::chrono::steady_clock::now() + s.how.sync_limit;
  while (!ready()) {
    if (s.fruitless > s.how.fruitless_steps_max) {
      give_up(std::string(what) + " blocks, and the kernels that could run never finish");
    }
    if (s.loop_turns > turns_max) give_up(std::string(what) + " blocks" + loop());
    if (step_once(lock)) continue;
    // Another thread may be running the last operation; then it is for that one to end.
    if (s.running == 0 || std::chrono::steady_clock::now() > limit) {
      give_up(std::string(what) + " blocks for ever: nothing is left that could run");
    }
    ++s.waiters;
    s.changed.wait_for(lock, std::chrono::milliseconds(1));
    --s.waiters;
  }
}

void note_vain_query(char const* call) {
  constexpr std::uint64_t most = 1'000'000;
  auto& s = the();
  if (!s.how.stepped || ++s.vain_queries < most) return;
  give_up(std::string(call) + " was called " + std::to_string(most) +
          " times for work that is not done, while time is stepped and nobody steps: call "
          "sim::step() in the loop that asks");
}

void block_on(std::unique_lock<std::mutex>& lock, std::vector<op_ptr> const& list,
              char const* what) {
  for (auto const& o : list) {
    block(
        lock, [&] { return o->done; }, what);
    the().known_done.learn(o->at);
  }
}

void block_on(std::unique_lock<std::mutex>& lock, enqueued_work const& all, char const* what) {
  block_on(lock, all.tails, what);
  learn(all);
}

}  // namespace escrow::sim::model

namespace escrow::sim {

void run_until_idle() {
  auto& s = model::the();
  std::unique_lock lock(s.mutex);
  model::block(
      lock, [&] { return s.pending_ops == 0 && s.callback_queue.empty() && s.running == 0; },
      "run_until_idle");
  for (int device = 0; device < s.how.devices; ++device) learn(model::work_of_device(device));
}

}  // namespace escrow::sim
