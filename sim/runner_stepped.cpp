// SPDX-License-Identifier: Apache-2.0
// The stepped runner: no threads, one seeded choice at a time, virtual time.
#include "runner_stepped.hpp"

#include "ops.hpp"
#include "runner_shared.hpp"
#include "thread.hpp"

#include <algorithm>

namespace escrow::sim::model {
namespace {

constexpr auto step_time = std::chrono::microseconds(1);

bool callback_is_due(state const& s) {
  return !s.callback_queue.empty() && s.callback_queue.begin()->first.first <= s.virtual_now;
}

void step_callback(std::unique_lock<std::mutex>& lock) {
  auto& s = the();
  auto const what = std::move(s.callback_queue.begin()->second);
  s.callback_queue.erase(s.callback_queue.begin());
  s.fruitless = 0;
  run_callback_unlocked(lock, what);
}

// A kernel that is not done may wait for time to pass: the longer nothing finishes, the larger the
// strides.
void let_time_pass(state& s) {
  auto const rounds = ++s.fruitless / s.choices.size();
  s.virtual_now += step_time * (1 << std::min<std::uint64_t>(rounds, 10));
}

void step_op(std::unique_lock<std::mutex>& lock, std::size_t index) {
  auto& s = the();
  auto const o = std::move(s.choices[index]);
  s.choices[index] = std::move(s.choices.back());
  s.choices.pop_back();
  if (is_abandoned(o)) {
    finish_at_once(o);
  } else if (takes_time(o)) {
    if (!perform_unlocked(lock, o)) {
      s.choices.push_back(o);
      let_time_pass(s);
      return;
    }
    complete(o);
  } else if (auto const* const host = std::get_if<host_work>(&o->what)) {
    run_callback_unlocked(lock, {host->run, host->argument, o});
  } else {
    finish_at_once(o);
  }
  s.fruitless = 0;
}

}  // namespace

bool step_once(std::unique_lock<std::mutex>& lock) {
  auto& s = the();
  if (s.choices.empty() && s.callback_queue.empty()) return false;
  ++s.steps;
  s.vain_queries = 0;
  s.virtual_now += step_time;
  if (s.choices.empty())
    s.virtual_now = std::max(s.virtual_now, s.callback_queue.begin()->first.first);
  auto const ops = s.choices.size();
  auto const chosen = pick(0, ops + (callback_is_due(s) ? 1 : 0) - 1);
  if (chosen == ops) {
    step_callback(lock);
  } else {
    step_op(lock, chosen);
  }
  return true;
}

}  // namespace escrow::sim::model

namespace escrow::sim {

void reseed(std::uint64_t seed) {
  auto& s = model::the();
  std::lock_guard lock(s.mutex);
  if (!s.how.stepped)
    model::give_up("reseed() on a runtime that runs free: call reset({.stepped = true}) first");
  s.how.seed = seed;
  s.random.seed(seed);
  model::begin_run(s);
  s.fruitless = 0;
  s.last_user = s.user_changed_at = 0;  // calls yield by it
}

bool step() {
  auto& s = model::the();
  std::unique_lock lock(s.mutex);
  if (!s.how.stepped)
    model::give_up("step() on a runtime that runs free: call reset({.stepped = true}) first");
  return model::step_once(lock);
}

void advance(std::chrono::nanoseconds how_long) {
  auto& s = model::the();
  std::lock_guard lock(s.mutex);
  if (!s.how.stepped)
    model::give_up("advance() on a runtime that runs free: call reset({.stepped = true}) first");
  s.virtual_now += how_long;
}

std::chrono::nanoseconds kernel_elapsed() {
  std::lock_guard lock(model::the().mutex);
  auto const* const running = model::this_thread_unchecked().kernel;
  if (running == nullptr) model::give_up("kernel_elapsed() outside a kernel");
  return model::time_now() - running->began_at;
}

unsigned int cluster_blocks() {
  auto const* const running = model::this_thread_unchecked().kernel;
  if (running == nullptr) model::give_up("cluster_blocks() outside a kernel");
  auto const& attributes = std::get<model::kernel_work>(running->what).attributes;
  auto const found = attributes.find(cudaLaunchAttributeClusterDimension);
  return found == attributes.end() ? 1 : found->second.clusterDim.x;
}

}  // namespace escrow::sim

unsigned long long escrow_simulated_steps() noexcept {
  auto& s = escrow::sim::model::the();
  std::lock_guard const lock(s.mutex);
  return s.how.stepped ? s.steps + 1 : 0;
}
