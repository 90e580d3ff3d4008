// SPDX-License-Identifier: Apache-2.0
// Steps of a program with an arena, from its begin to its end: launches, parking, what ends.
#include "arena_run.hpp"

#include <algorithm>
#include <utility>

namespace escrow::test {

void arena_run::perform(arena_step const& next) {
  random_.seed(next.seed);
  is_failing_ = next.failing_call != 0;
  if (is_failing_) sim::fail_nth_here(next.failing_call, cudaErrorUnknown);
  std::size_t const at = static_cast<std::size_t>(next.what);
  try {
    act(next);
    ++counts_.done[at];
  } catch (usage_error const&) {
    ++counts_.refused[at];
  } catch (pool_exhausted const&) {
    ++counts_.refused[at];
  } catch (cuda_error const& failed) {
    ++counts_.failed;
    bool const may_fail = next.failing_call != 0 || next.what == arena_act::update;
    if (!may_fail) failure_ = std::string(name_of(next.what)) + " failed: " + failed.what();
  } catch (group_busy const&) {
    ++counts_.refused[at];
  } catch (gives_up const&) {
  }
  stop_failing();
  static_cast<void>(cudaGetLastError());
}

void arena_run::act(arena_step const& next) {
  made_graph& place = any_made(graphs_);
  made_graph& other = any_of(graphs_);
  made_exec& exec = any_made(execs_);
  std::size_t const on = below(streams_.size());
  switch (next.what) {
    case arena_act::capture:
      return capture(other);
    case arena_act::capture_two:
      return capture_two(any_of(graphs_), any_of(graphs_));
    case arena_act::leave_capture:
      return leave_capture();
    case arena_act::clone:
      if (place.its && !place.branches) other = {place.its->clone(), place.kept};
      return;
    case arena_act::parent:
      return join(place, other);
    case arena_act::branch:
      return branch(other);
    case arena_act::instantiate:
      if (!place.its || place.has_exec()) return;
      any_of(execs_) = {graph_exec(*place.its), place.kept, place.branches};
      return;
    case arena_act::update:
      if (!place.its || !exec.its) return;
      exec.its->update(*place.its);
      exec.kept = place.kept;
      return;
    case arena_act::launch:
      return launch(exec, 1);
    case arena_act::launch_many:
      return launch(exec, 1 + below(3));
    case arena_act::destroy_exec:
      exec = {};
      return;
    case arena_act::destroy_graph:
      place = {};
      return;
    case arena_act::hoist:
      return take(any_of(taken_), place);
    case arena_act::launch_hoisted:
      return launch_taken(any_made(taken_));
    case arena_act::release_hoisted:
      return release_taken(any_made(taken_), streams_[on]);
    case arena_act::run_eagerly:
      return group_->run(stream_ref(streams_[on].get()), [&] { enqueue(on, nullptr); });
    case arena_act::claim_eagerly:
      return enqueue(on, nullptr);
    case arena_act::read_output:
      return read_output();
    case arena_act::end_output:
      if (outputs_.empty()) return;
      any_of(outputs_)->its.reset();
      std::erase_if(outputs_, [](auto const& each) { return !each->its; });
      return;
    case arena_act::park:
      return park();
    case arena_act::trim:
      static_cast<void>(pool_->trim());
      return;
    case arena_act::poll:
      static_cast<void>(worker().poll());
      return;
    case arena_act::step:
    case arena_act::count:
      for (std::uint64_t i = below(12); i != 0 && sim::step(); --i) continue;
      return;
  }
}

// One graph that runs both, one after the other.
void arena_run::join(made_graph const& first, made_graph const& second) {
  if (!first.its || !second.its || first.branches || second.branches) return;
  made_graph made{graph(worker()), first.kept};
  made.its->add_child(*first.its);
  made.its->add_child(*second.its);
  made.kept.insert(made.kept.end(), second.kept.begin(), second.kept.end());
  any_of(graphs_) = std::move(made);
}

void arena_run::written(outputs const& kept, std::size_t on) {
  for (auto const& each : kept) each->written_on = on;
}

void arena_run::launch(made_exec& place, std::size_t times) {
  if (!place.its) return;
  std::size_t const on = below(streams_.size());
  stream_ref const stream(streams_[on].get());
  if (times == 1) {
    place.its->launch(stream);
  } else {
    place.its->launch_many(stream, times);
  }
  written(place.kept, on);
}

void arena_run::take(taken& place, made_graph& from) {
  if (!from.its || place.its) return;
  hoisted made = hoist(*from.its);
  stop_failing();
  made.release_at_end(stream_ref(streams_[0].get()));
  place.kept = std::exchange(from.kept, {});
  place.its = std::move(made);
  place.source = owned_graph(from.its->detach());
  from = {};
  must(cudaGraphInstantiate(place.exec.out(), place.source, 0));
}

void arena_run::launch_taken(taken& place) {
  if (!place.its) return;
  std::size_t const on = below(streams_.size());
  stream_ref const stream(streams_[on].get());
  place.its->launch(stream, [&](stream_ref s) { return cudaGraphLaunch(place.exec, s.get()); });
  written(place.kept, on);
}

void arena_run::release_taken(taken& place, cudaStream_t behind) {
  if (!place.its) return;
  place.its->release_after(stream_ref(behind));
  stop_failing();
  place = {};
}

// Behind the launch that wrote it.
void arena_run::read_output() {
  for (auto const& each : outputs_) {
    if (!each->its || !each->written_on) continue;
    std::size_t const on = *each->written_on;
    each->its->held.record_stream(stream_ref(streams_[on].get()));
    check(*each->its, on);
  }
}

void arena_run::park() {
  if (coin()) sim::run_until_idle();  // else it may refuse to wait
  static_cast<void>(group_->park({.keep_contents = coin(), .wait_max = {}}));
  for (std::uint64_t i = below(20); i != 0 && sim::step(); --i) continue;
  made_exec& exec = any_of(execs_);
  if (exec.its && coin()) {
    try {
      exec.its->launch(stream_ref(streams_[0].get()));
    } catch (usage_error const&) {
      ++counts_.parked_launches;
    } catch (cuda_error const&) {
    }
  }
  if (coin(4)) exec = {};
  if (coin(4)) any_of(graphs_) = {};
  stop_failing();
  static_cast<void>(group_->unpark());
}

void arena_run::settle() {
  for (int i = 0; i < 50; ++i) {
    sim::run_until_idle();
    if (worker().poll() == 0 && sim::alive().pending_callbacks == 0) break;
  }
}

void arena_run::finish() {
  std::shuffle(outputs_.begin(), outputs_.end(), random_);
  outputs_.clear();
  for (made_graph& each : graphs_) each = {};
  if (coin()) settle();
  for (taken& each : taken_) release_taken(each, streams_[0]);
  for (made_exec& each : execs_) each = {};
  if (coin()) group_.reset();
  settle();
  if (*mismatches_ != 0) failure_ = "memory was overwritten, seen at the end";
  pool_.reset();
  allocator_.reset();
  group_.reset();
  settle();
  if (any_failed_) return;  // something may be leaked
  if (worker().stats().leaked != leaked_before_) failure_ = "something was leaked";
  sim::counts const after = sim::alive();
  if (after.graphs != before_.graphs || after.execs != before_.execs ||
      after.user_objects != before_.user_objects)
    failure_ = "graphs, execs or user objects are left";
  if (after.address_ranges != before_.address_ranges) failure_ = "an arena is left";
}

std::string run_arena_program(arena_program const& drawn, arena_counts& counts,
                              arena_fault planted) {
  arena_run its(drawn, counts, planted);
  return its.run(drawn);
}

}  // namespace escrow::test
