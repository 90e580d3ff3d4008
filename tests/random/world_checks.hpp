// SPDX-License-Identifier: Apache-2.0
// What a program begins with, the worker's operations, what must hold when nothing goes on, and a
// program's end.
#pragma once

#include <escrow/internal/device.hpp>
#include <escrow/internal/driver.hpp>
#include <escrow/internal/graph_query.hpp>
#include <escrow/internal/graph_registry.hpp>

#include "world_parts.hpp"

namespace escrow::test {

/// The library makes one more stream when a lease of the legacy stream ends during a capture: once
/// in a process.
inline void release_during_a_capture() {
  // Never destroyed: it owes something, for which its end would start a thread. That would take
  // locks at any time, and so decide what programs do.
  static auto& worker = *new deleter({.own_worker = false});
  {
    resource_pool<int> pool({.device = 0, .deleter = &worker}, [] { return 0; });
    std::optional<lease<int>> held(pool.claim(cudaStreamLegacy));
    owned_stream blocking;
    must(cudaStreamCreate(blocking.out()));
    must(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed));
    held.reset();
    owned_graph captured;
    must(cudaStreamEndCapture(blocking, captured.out()));
  }
  sim::run_until_idle();
  static_cast<void>(worker.poll());
  for (std::size_t left = sim::alive().events; left != 0; --left)
    static_cast<void>(event_cache::take(0));
}

/// What the library has of code, and of each device's memory, it makes at the first use of that;
/// and it drops the latter with the last block. So there is always one, or else it would depend on
/// what earlier programs leaked.
inline void use_memory_and_code_once() {
  static auto& worker = *new deleter({.own_worker = false});
  static auto& blocks = *new std::vector<device_block>;
  for (int const device : {0, 1}) {
    must(cudaSetDevice(device));
    blocks.emplace_back(64);
  }
  must(cudaSetDevice(0));
  static_cast<void>(library::load(world_owners::code(), worker).find("work"));
  static_cast<void>(worker.poll());
}

/// The library spreads streams by their ids, which are never reused: a program has the same ones,
/// as far as that goes, whatever ran before.
inline void align_stream_ids() {
  constexpr unsigned long long spread = 64;
  for (unsigned long long id = 1; id % spread != 0;) {
    owned_stream const made = make_stream();
    must(cudaStreamGetId(made, &id));
  }
}

/// What each thread asks CUDA once, of each device.
inline void ask_on_each_thread() {
  auto const ask = [] {
    for (int const device : {1, 0}) {
      must(cudaSetDevice(device));
      owned_stream const asked = make_stream();
      static_cast<void>(device_of_capturing(stream_ref(asked.get())));
    }
  };
  for (std::size_t thread = 0; thread < program::threads_max; ++thread)
    baton::run({{thread, 0, ask}});
}

/// What a process makes, or asks CUDA, at its first use. Where two of a group came to it at the
/// same time, the one that has the baton would wait for the other for ever.
inline void use_once() {
  for (int device : {0, 1}) static_cast<void>(event_cache::take(device));
  static_cast<void>(work_kernel());
  static_cast<void>(work_kernel_that_keeps());
  static_cast<void>(work_kernel_of_memory());
  static_cast<void>(world_owners::code());
  owned_graph made;
  must(cudaGraphCreate(made.out(), 0));
  static_cast<void>(graph_id_of(made));
  owned_stream const asked = make_stream();
  auto state = cudaStreamCaptureStatusNone;
  must(query_is_capturing(asked, state));
  static_cast<void>(capture_of(asked));
  static_cast<void>(stream_id(asked));
  static_cast<void>(runs_nothing_after(cudaErrorIllegalAddress));
}

/// The machine is not reset between programs, because the library keeps a stream and events of it.
/// None of that differs from program to program: there is such a stream for each device and thread,
/// and no event.
inline void begin_machine(std::uint64_t seed) {
  [[maybe_unused]] static bool const is_first = [] {
    // Ids of as many digits in all programs, and in 32 bits.
    sim::reset({.stepped = true, .first_graph_id = 100'000'000});
    sim::let_work_share(true);  // programs look at lifetimes, not at what is in memory
    release_during_a_capture();
    use_memory_and_code_once();
    use_once();
    ask_on_each_thread();
    return true;
  }();
  align_stream_ids();  // first: its handles are given again in its run, as often as there are ids
  sim::reseed(seed);
}

struct world_checks : world_parts {
  static std::string names_of(std::vector<int> const& things) {
    std::string names;
    for (int const each : things) names += " " + std::to_string(each);
    return names;
  }

  outcome do_poll() {
    return attempt([&] { static_cast<void>(worker_->poll()); });
  }

  outcome do_settle() {
    poll_until_nothing();
    all_.expect_all_ran();
    model_.settle();
    expect_nothing_overdue();
    return done;
  }

  outcome do_drain() {
    bool drained = false;
    sim::counts const machine = sim::alive();
    if (machine.pending_ops == 0 && machine.pending_callbacks == 0) return drain_idle();
    outcome const result =
        attempt([&] { drained = worker_->drain_for(std::chrono::nanoseconds(0)); });
    return result != done || drained ? result : exhausted;
  }

  outcome do_stop() {
    is_stopped_ = true;
    return attempt([&] { static_cast<void>(worker_->stop_for(std::chrono::nanoseconds(0))); });
  }

  outcome do_fail_device(nth way) {
    if (is_disturbed_) return skipped;
    int const device = static_cast<int>(way % 2);
    sim::fail_device(device, cudaErrorIllegalAddress);
    lost_[static_cast<std::size_t>(device)] = true;
    all_.values_count = false;
    model_.drop_work(device);
    meet(device_lost);
    return done;
  }

  void poll_until_nothing() {
    for (int idle = 0; idle < 3;) {
      sim::run_until_idle();
      idle = worker_->poll() == 0 ? idle + 1 : 0;
    }
  }

  /// Whether so many things may have been leaked.
  bool is_accounted_for(nth left, deleter_stats const& now) const {
    // After a fault one that was leaked may be an exec with all that it holds.
    return left <= now.leaked + leaked_by_hoisted_ + deferred_releases_ ||
           (is_disturbed_ && now.leaked != 0);
  }

  void expect_nothing_overdue() {
    if (is_lost()) return;  // a lost device does not even tell which captures there are
    std::vector<int> const overdue = model_.left(true);
    deleter_stats const now = worker_->stats();
    if (!is_accounted_for(overdue.size(), now))
      fail("nothing keeps these, and they are not destroyed:" + names_of(overdue));
    if (!model_.anything_held() && now.in_graphs != 0 && !is_disturbed_ && !is_careless_)
      fail("no graph is there, and the deleter says that graphs hold something");
  }

  /// A drain when nothing goes on on the machine. Others that are under way may be about to hand
  /// something over, a step of the machine by a destroy callback, but not a poll.
  outcome drain_idle() {
    bool drained = false;
    bool const is_all_handed_over = std::ranges::all_of(running_, [](running const& each) {
      return &each == mine_ || each.what == nullptr || each.what->kind == op::poll;
    });
    std::vector<int> due;
    if (is_all_handed_over && !is_lost()) {
      reference settled = model_;
      settled.settle();
      due = settled.left(true);
    }
    outcome const result = attempt([&] { drained = worker_->drain_for(std::chrono::seconds(60)); });
    if (!drained && !is_disturbed_ && !is_lost())
      fail("nothing goes on, and a drain does not come to its end");
    std::erase_if(due, [&](int thing) { return state_of(thing).gone; });
    if (drained && !is_accounted_for(due.size(), worker_->stats()))
      fail("a drain has come to its end, and not all that was due when it began is destroyed");
    if (mine_->has_met) return result;
    model_.settle();
    if (drained) expect_nothing_overdue();
    return result;
  }

  void end_captures() {
    while (!captures_.empty()) {
      open_capture const ended = captures_.back();
      cudaGraph_t native = nullptr;
      static_cast<void>(cudaStreamEndCapture(streams_[ended.origin].handle, &native));
      if (ended.into) {
        grow_with(ended, model_.capture_of(ended.id));
        forget_capture_into(*ended.into, native != nullptr);
      } else if (native != nullptr) {
        graph_lifetime_lock const turn;
        static_cast<void>(cudaGraphDestroy(native));
      }
      model_.forget_capture(ended.id);
      captures_.pop_back();
    }
    forgive_captures();
  }

  /// Everything that the test has is destroyed.
  void end_everything() {
    auto const each = [this](char empty, auto ends) {
      for (nth i = 0; i < places_of(letter_of(empty)); ++i)
        if (!has_what_is_asked(empty, i)) static_cast<void>((this->*ends)(i));
    };
    end_captures();
    for (nth h = 0; h < turns_.size(); ++h)
      if (turns_[h]) static_cast<void>(do_leave(h));
    for (lease_place& held : leases_) {
      // An address can be freed on any stream of its device.
      if (held.held && held.held->is_address())
        static_cast<void>(release(static_cast<nth>(&held - leases_.data()), 0, 1));
      if (!held.held) continue;
      note_release(held, held.stream);
      held.held.reset();
    }
    for (exec_place& place : execs_) {
      if (!place.bound) continue;
      auto const flush = [&] { static_cast<void>(attempt([&] { place.bound->flush(); })); };
      baton::run({{place.thread, 0, flush}});
    }
    each('E', &world_checks::drop_exec);
    drop_set();
    each('G', &world_checks::drop_graph);
    each('B', &world_checks::drop_body);
    each('O', &world_checks::do_disown);
    each('X', &world_checks::do_unshare);
    each('V', &world_checks::do_drop_event);
    each('Y', &world_checks::do_unload_library);
    sim::run_until_idle();
    ended_by_host_functions_.clear();  // also on a lost device, which does not call them
    free_graph_memory();
    for (std::size_t i = 0; i < hoisted_.size(); ++i) {
      if (!hoisted_[i]) continue;
      model_.hoisted[i].clear();
      static_cast<void>(attempt([&] { hoisted_[i]->release(); }));
      hoisted_[i].reset();
    }
    for (auto const& left : survivors_) state_of(left->thing()).handles = 0;
    survivors_.clear();
    // Claimers end before their pools, and all must come back; or after them.
    bool const is_first = run_->seed % 2 == 0;
    if (is_first) {
      each('J', &world_checks::do_end_claimer);
      expect_nothing_lost();
    }
    each('P', &world_checks::do_destroy_pool);
    static_cast<void>(do_destroy_scratch());
    each('J', &world_checks::do_end_claimer);
    for (std::size_t i = 0; i < streams_.size(); ++i)
      if (is_own_stream(i)) static_cast<void>(cudaStreamDestroy(streams_[i].handle));
  }

  /// All is over, and no claimer is there: each slot is back.
  void expect_nothing_lost() {
    if (is_disturbed_ || is_careless_ || is_lost() || is_stopped_ || any_stream_gone_) return;
    poll_until_nothing();
    for (nth p = 0; p < pools_.size(); ++p) expect_no_slot_lost(p);
    expect_no_memory_lost();
  }

  void finish() {
    end_everything();
    poll_until_nothing();
    all_.expect_all_ran();
    model_.settle();
    if (!is_lost()) expect_all_gone();
    counts_.kernels = all_.runs();
    counts_.things = static_cast<std::uint64_t>(model_.size());
    counts_.programs = 1;
    forget_error();
    if (is_lost()) sim::clear_faults();
    if (is_lost() &&
        !is_own_stream(5)) {  // a lost device does not end a capture; this stream stays
      cudaGraph_t left = nullptr;
      static_cast<void>(cudaStreamEndCapture(streams_[5].handle, &left));
      if (left != nullptr) static_cast<void>(cudaGraphDestroy(left));
      forget_error();
    }
    expect_clean_machine();
  }

  void expect_all_gone() {
    std::vector<int> const left = model_.left(false);
    deleter_stats const now = worker_->stats();
    if (!is_accounted_for(left.size(), now))
      fail("everything has ended, and these are not destroyed:" + names_of(left));
    if (now.leaked > deferred_releases_ + model_.count_deferred() && !is_disturbed_ &&
        !is_careless_)
      fail("the deleter has leaked something for no reason");
    if (now.leaked != 0) return;
    if (now.in_graphs != 0 || now.pending != 0) fail("the deleter's counts do not return to 0");
    if (!graph_registry::global().is_empty()) fail("the registry of graphs is not empty");
  }

  /// Takes all events and memory out of what the process keeps: the next program's machine knows
  /// nothing of them. Then as much is there as before.
  void expect_clean_machine() {
    deleter_stats const owed = worker_->stats();
    bool const has_debts = owed.leaked != 0 || owed.in_graphs != 0 || owed.pending != 0 ||
                           is_lost() || !all_.failure().empty();
    if (!has_debts) worker_.reset();
    group_ = sharing_group();  // the last launch's event goes back, too
    for (int device = 0; device < 2; ++device) {
      try {
        static_cast<void>(trim_device_memory(device));
      } catch (cuda_error const& error) {
        fail(std::string("a device was lost by what ran: ") + error.what());
        sim::clear_faults();
      }
      for (std::size_t left = sim::alive().events, before = left + 1; left != 0 && left < before;) {
        static_cast<void>(event_cache::take(device));
        before = std::exchange(left, sim::alive().events);
      }
    }
    sim::counts const now = sim::alive();
    if (has_debts || is_disturbed_ || !all_.failure().empty() || now == at_begin_) return;
    std::string what = "left in the machine:";
    for (auto const& [count, name] : {std::pair{now.events, " events, "},
                                      {now.graphs, " graphs, "},
                                      {now.execs, " execs, "},
                                      {now.user_objects, " user objects, "},
                                      {now.streams, " streams, "},
                                      {now.device_allocations, " blocks of memory, "},
                                      {now.condition_values, " conditions"}})
      what += ' ' + std::to_string(count) + name;
    fail(what);
  }
};

}  // namespace escrow::test
