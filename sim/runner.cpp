// What both ways of running share: starting an operation, calling user code, blocking the host.
#include "runner.hpp"

#include "conditionals.hpp"
#include "graph_memory.hpp"
#include "libraries.hpp"
#include "memory.hpp"
#include "ops.hpp"
#include "thread.hpp"

#include "runner_free.hpp"

#include <algorithm>
#include <utility>

namespace escrow::sim::model {
namespace {

bool abandoned(op_ptr const& o) {
  auto const& s = the();
  return s.dropping || s.devices[static_cast<std::size_t>(o->stream->device)].fault != cudaSuccess;
}

// A kernel of an unloaded library: no code is there that the device could run.
bool fails_for_lack_of_code(op_ptr const& o) {
  if (!comes_too_late(*o)) return false;
  ++the().unloaded_launches;
  break_device(o->stream->device, cudaErrorLaunchFailure);
  return true;
}

}  // namespace

bool is_abandoned(op_ptr const& o) {
  return abandoned(o);
}

bool takes_time(op_ptr const& o) {
  return std::holds_alternative<kernel_work>(o->what) ||
         std::holds_alternative<copy_work>(o->what) || std::holds_alternative<fill_work>(o->what);
}

void finish_at_once(op_ptr const& o) {
  if (auto const* const f = std::get_if<free_work>(&o->what)) free_memory(f->address);
  if (auto const* const f = std::get_if<graph_free_work>(&o->what)) vanish(*f->block);
  if (auto const* const a = std::get_if<alloc_work>(&o->what); a != nullptr && !abandoned(o))
    appear(*a->block);
  if (std::holds_alternative<conditional_work>(o->what) && !abandoned(o)) {
    run_conditional(o);
  } else {
    complete(o);
  }
}

void begin(op_ptr const& o) {
  auto& s = the();
  if (abandoned(o)) {
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

bool perform_unlocked(std::unique_lock<std::mutex>& lock, op_ptr const& o) {
  auto& s = the();
  if (fails_for_lack_of_code(o)) return true;
  if (!o->began) {
    o->began = true;
    o->began_at = time_now();
  }
  ++s.running;
  lock.unlock();
  auto& me = this_thread_unchecked();
  auto* const outer = std::exchange(me.kernel, o.get());
  bool const done = perform(o->what);
  me.kernel = outer;
  lock.lock();
  --s.running;
  return fails_for_lack_of_code(o) || done;
}

void run_callback_unlocked(std::unique_lock<std::mutex>& lock, callback const& what) {
  auto& s = the();
  // After a fault no host function runs, not even those of a device that goes on.
  if (what.of == nullptr || (!abandoned(what.of) && s.fault == cudaSuccess)) {
    ++s.running;
    lock.unlock();
    run_callbacks({&what, 1});
    lock.lock();
    --s.running;
  }
  if (what.of != nullptr) complete(what.of);
  notify();
}

void run_callbacks(std::span<callback const> list) {
  auto& me = this_thread_unchecked();
  for (auto const& each : list) {
    ++me.in_callback;
    each.run(each.argument);
    --me.in_callback;
  }
}

void break_device(int device, cudaError_t fault) {
  auto& s = the();
  auto& d = s.devices.at(static_cast<std::size_t>(device));
  d.fault = fault;
  if (s.fault == cudaSuccess) s.fault = fault;
  std::vector<op_ptr> waiting;
  for (auto const& [id, stream] : d.streams) {
    waiting.insert(waiting.end(), stream->runs_on->ready.begin(), stream->runs_on->ready.end());
    stream->runs_on->ready.clear();
    stream->runs_on->wake.notify_one();
  }
  auto const first = std::stable_partition(s.choices.begin(), s.choices.end(), [&](auto const& o) {
    return o->stream->device != device;
  });
  waiting.insert(waiting.end(), first, s.choices.end());
  s.choices.erase(first, s.choices.end());
  for (auto const& o : waiting) complete(o);
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
  if (!s.how.stepped) {
    ++s.waiters;
    bool const in_time = s.changed.wait_for(lock, s.how.sync_limit, ready);
    --s.waiters;
    if (!in_time) give_up(std::string(what) + " blocked for longer than options::sync_limit");
    return;
  }
  auto const limit = std::chrono::steady_clock::now() + s.how.sync_limit;
  while (!ready()) {
    if (s.fruitless > s.how.fruitless_steps_max) {
      give_up(std::string(what) + " blocks, and the kernels that could run never finish");
    }
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

void block_on(std::unique_lock<std::mutex>& lock, std::vector<op_ptr> const& list,
              char const* what) {
  for (auto const& o : list) {
    block(
        lock, [&] { return o->done; }, what);
  }
}

}  // namespace escrow::sim::model
