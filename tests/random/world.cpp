// A program's run: one operation after the other, the machine's and the worker's, and the end.
#include "world.hpp"

#include <algorithm>
#include <escrow/detail/ready_event.hpp>
#include <escrow/detail/reference_set.hpp>
#include <escrow/sim.hpp>

#include "attempt.hpp"
#include "baton.hpp"
#include "machine.hpp"

namespace escrow::test {

world::world(program const& run, planted bug)
    : run_(run), planted_(bug), is_careless_(run.seed % 8 == 0) {
  begin_machine(run.seed);
  static_cast<void>(arena());
  at_begin_ = sim::alive();
  invalidated_ = sim::captures_invalidated();
  deleter_options chosen;
  chosen.own_worker = false;
  chosen.poll_interval_min = std::chrono::microseconds(1);
  worker_ = std::make_unique<deleter>(chosen);
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    streams_[i].device = i == 3 ? 1 : 0;
    make_stream(i);
  }
  for (std::size_t i = 0; i < pools_.size(); ++i) make_pool(i);
}

world::~world() {
  if (worker_ == nullptr) return;
  // One that owes something would get a thread to see to it. It stays as it is, with what it owes.
  static auto& left = *new std::vector<std::unique_ptr<deleter>>;
  left.push_back(std::move(worker_));
}

void world::arm_fault() {
  if (mine_ == nullptr || mine_->what->failing_call == 0 || lost_[0] || lost_[1]) return;
  constexpr std::array errors{cudaErrorMemoryAllocation, cudaErrorUnknown, cudaErrorInvalidValue};
  std::uint8_t const nth = mine_->what->failing_call;
  fault_calls_ = sim::calls();
  sim::fail_nth_here(nth, errors[nth % errors.size()]);
  // Others may meet what comes of it before this one has ended.
  if (baton::is_in_group()) is_disturbed_ = true;
}

bool world::disarm_fault() {
  if (mine_ == nullptr || mine_->what->failing_call == 0 || lost_[0] || lost_[1]) return false;
  sim::clear_faults();
  static_cast<void>(cudaGetLastError());
  if (baton::is_in_group()) {
    counts_.meet(situation::fault_among_others);
    return true;
  }
  if (sim::calls() - fault_calls_ < mine_->what->failing_call) return false;
  counts_.meet(situation::fault_injected);
  is_disturbed_ = true;
  return true;
}

void world::check_captures() {
  std::uint64_t const seen = sim::captures_invalidated();
  if (seen != invalidated_) all_.fail("a capture was harmed by " + sim::last_invalidation());
  invalidated_ = seen;
}

void world::perform(operation const& next) {
  thread_ = next.thread;
  begin_running(next);
  outcome const result = dispatch(next);
  notice_ends();
  if (result != outcome::skipped) sweep_captures();
  check_captures();
  end_running(result == outcome::done);
  ++counts_.operations[static_cast<std::size_t>(next.kind)][static_cast<std::size_t>(result)];
}

outcome world::do_step(unsigned count) {
  for (unsigned i = 0; i <= count; ++i) {
    std::size_t const callbacks = mine_->has_met ? sim::alive().pending_callbacks : 0;
    std::size_t const kernels = all_.runs();
    {
      inside_call const inside;
      if (!sim::step()) break;
    }
    ++counts_.steps;
    if (mine_->has_met) note_step(callbacks, kernels);
  }
  return outcome::done;
}

outcome world::do_poll() {
  return attempt(false, false, [&] { static_cast<void>(worker_->poll()); });
}

void world::poll_until_nothing() {
  for (int idle = 0; idle < 3;) {
    sim::run_until_idle();
    idle = worker_->poll() == 0 ? idle + 1 : 0;
  }
  notice_ends();
}

outcome world::do_settle() {
  poll_until_nothing();
  all_.model.settle();
  expect_nothing_overdue();
  return outcome::done;
}

/// Whether so many things may be left for ever.
bool world::is_accounted_for(std::size_t left, deleter_stats const& now) const {
  // After a fault one that is held may be an exec with all that it holds.
  return left <= now.leaked + kept_for_ever_ + deferred_releases_ ||
         (is_disturbed_ && now.leaked != 0);
}

void world::expect_nothing_overdue() {
  if (lost_[0] || lost_[1]) return;  // a lost device does not even tell which captures there are
  notice_ends();
  std::size_t overdue = 0;
  std::string which;
  for (std::size_t i = 0; i < all_.model.size(); ++i) {
    int const thing = static_cast<int>(i);
    if (all_.model.state_of(thing).gone || all_.model.may_live(thing)) continue;
    ++overdue;
    which += " " + std::to_string(thing);
  }
  deleter_stats const now = worker_->stats();
  if (!is_accounted_for(overdue, now))
    all_.fail("nothing keeps these, and they are not destroyed:" + which);
  if (!all_.model.anything_held() && now.in_graphs != 0 && !is_disturbed_ && !is_careless_)
    all_.fail("no graph is there, and the deleter says that graphs hold something");
}

/// What has to be destroyed as soon as the machine is idle and the worker was there.
std::vector<int> world::due_when_settled() const {
  reference settled = all_.model;
  settled.settle();
  std::vector<int> due;
  for (int thing = 0; thing < static_cast<int>(settled.size()); ++thing)
    if (!settled.state_of(thing).gone && !settled.may_live(thing)) due.push_back(thing);
  return due;
}

void world::expect_gone(std::vector<int> const& due) {
  auto const left =
      std::ranges::count_if(due, [&](int thing) { return !all_.model.state_of(thing).gone; });
  if (!is_accounted_for(static_cast<std::size_t>(left), worker_->stats()))
    all_.fail("a drain has come to its end, and not all that was due when it began is destroyed");
}

/// A drain when nothing goes on on the machine. Others that are under way may be about to hand
/// something over, a step of the machine by a destroy callback, but not a poll.
outcome world::drain_idle() {
  bool drained = false;
  bool const is_all_handed_over = std::ranges::all_of(running_, [](running const& each) {
    return &each == mine_ || each.what == nullptr || each.what->kind == op::poll;
  });
  std::vector<int> due;
  if (is_all_handed_over && !lost_[0] && !lost_[1]) due = due_when_settled();
  outcome const result =
      attempt(false, false, [&] { drained = worker_->drain_for(std::chrono::seconds(60)); });
  if (!drained && !is_disturbed_ && !lost_[0] && !lost_[1])
    all_.fail("nothing goes on, and a drain does not come to its end");
  notice_ends();
  if (drained) expect_gone(due);
  if (mine_->has_met) return result;
  all_.model.settle();
  if (drained) expect_nothing_overdue();
  return result;
}

outcome world::do_drain() {
  bool drained = false;
  sim::counts const machine = sim::alive();
  if (machine.pending_ops == 0 && machine.pending_callbacks == 0) return drain_idle();
  outcome const result =
      attempt(false, false, [&] { drained = worker_->drain_for(std::chrono::nanoseconds(0)); });
  return result != outcome::done || drained ? result : outcome::exhausted;
}

outcome world::do_stop() {
  is_stopped_ = true;
  return attempt(false, false,
                 [&] { static_cast<void>(worker_->stop_for(std::chrono::nanoseconds(0))); });
}

outcome world::do_fail_device(unsigned way) {
  if (is_disturbed_) return outcome::skipped;
  int const device = static_cast<int>(way % 2);
  sim::fail_device(device, cudaErrorIllegalAddress);
  lost_[static_cast<std::size_t>(device)] = true;
  all_.values_count = false;
  all_.model.drop_work(device);
  counts_.meet(situation::device_lost);
  return outcome::done;
}

void world::end_captures() {
  while (!captures_.empty()) {
    open_capture const ended = captures_.back();
    cudaGraph_t native = nullptr;
    static_cast<void>(cudaStreamEndCapture(streams_[ended.origin].handle, &native));
    bool const is_ours = ended.into.has_value();
    if (ended.into) grow_with(ended, all_.model.capture_of(ended.id));
    all_.model.forget_capture(ended.id);
    captures_.pop_back();
    if (is_ours) {
      graph_place& place = graphs_[*ended.into];
      place.is_captured_into = false;
      if (native == nullptr) {
        place.plain = nullptr;
        all_.model.graphs[*ended.into].clear();
      }
    } else if (native != nullptr) {
      graph_lifetime_lock const turn;
      static_cast<void>(cudaGraphDestroy(native));
    }
  }
  static_cast<void>(cudaGetLastError());
  invalidated_ = sim::captures_invalidated();
}

void world::end_leases() {
  for (lease_place& each : leases_) {
    if (!each.held) continue;
    note_release(each, each.stream);
    each.held.reset();
  }
}

void world::finish() {
  bool const is_lost = lost_[0] || lost_[1];
  end_captures();
  end_leases();
  for (std::size_t i = 0; i < execs_.size(); ++i) drop_exec(i);
  for (std::size_t i = 0; i < graphs_.size(); ++i) drop_graph(i);
  for (std::size_t i = 0; i < bodies_.size(); ++i) drop_body(i);
  for (std::size_t i = 0; i < owners_.size(); ++i) static_cast<void>(do_disown(i));
  for (std::size_t i = 0; i < shared_.size(); ++i) static_cast<void>(do_unshare(i));
  for (std::size_t i = 0; i < events_there_.size(); ++i) static_cast<void>(do_drop_event(i));
  for (std::size_t i = 0; i < libraries_.size(); ++i) static_cast<void>(do_unload_library(i));
  sim::run_until_idle();
  free_graph_memory();
  for (std::size_t i = 0; i < hoisted_.size(); ++i) {
    if (!hoisted_[i]) continue;
    all_.model.hoisted[i].clear();
    static_cast<void>(attempt(false, false, [&] { hoisted_[i]->release(); }));
    hoisted_[i].reset();
  }
  for (token const& each : survivors_) all_.model.state_of(each.thing()).handles = 0;
  for (auto const& each : surviving_shares_) all_.model.state_of(each->thing()).handles = 0;
  survivors_.clear();
  surviving_shares_.clear();
  for (std::size_t i = 0; i < pools_.size(); ++i) leave_pool(i);
  leave_scratch();
  for (std::size_t i = 0; i < streams_.size(); ++i)
    if (is_own_stream(i)) static_cast<void>(cudaStreamDestroy(streams_[i].handle));
  poll_until_nothing();
  events_.clear();
  all_.model.settle();
  if (!is_lost) expect_all_gone();
  counts_.kernels = all_.runs();
  counts_.things = all_.model.size();
  counts_.programs = 1;
  static_cast<void>(cudaGetLastError());
  if (is_lost) sim::clear_faults();
  if (is_lost && !is_own_stream(5)) {  // a lost device does not end a capture; this stream stays
    cudaGraph_t left = nullptr;
    static_cast<void>(cudaStreamEndCapture(streams_[5].handle, &left));
    if (left != nullptr) static_cast<void>(cudaGraphDestroy(left));
    static_cast<void>(cudaGetLastError());
  }
  drop_cached_events();
}

void world::expect_all_gone() {
  std::size_t left = 0;
  std::string which;
  for (std::size_t i = 0; i < all_.model.size(); ++i) {
    if (all_.model.state_of(static_cast<int>(i)).gone) continue;
    ++left;
    which += " " + std::to_string(i);
  }
  deleter_stats const now = worker_->stats();
  if (!is_accounted_for(left, now))
    all_.fail("everything has ended, and these are not destroyed:" + which);
  if (now.leaked > deferred_releases_ && !is_disturbed_ && !is_careless_)
    all_.fail("the deleter keeps something for ever, for no reason");
  if (now.leaked != 0) return;
  if (now.in_graphs != 0 || now.pending != 0) all_.fail("the deleter's counts do not return to 0");
  if (was_empty_ && !graph_registry::global().is_empty())
    all_.fail("the registry of graphs is not empty");
}

// The cache is the process's; the next program's machine knows nothing of these events.
void world::drop_cached_events() {
  deleter_stats const owed = worker_->stats();
  bool const has_debts = owed.leaked != 0 || owed.in_graphs != 0 || owed.pending != 0 || lost_[0] ||
                         lost_[1] || !failure().empty();
  if (!has_debts) worker_.reset();
  for (int device = 0; device < 2; ++device) {
    for (std::size_t left = sim::alive().events, before = left + 1; left != 0 && left < before;) {
      static_cast<void>(event_cache::take(device));
      static_cast<void>(event_cache::take(device, event_use::captured));
      before = std::exchange(left, sim::alive().events);
    }
  }
  if (has_debts || lost_[0] || lost_[1] || is_disturbed_ || !failure().empty()) return;
  if (sim::counts const now = sim::alive(); now != at_begin_) {
    all_.fail("left in the machine: " + std::to_string(now.events) + " events, " +
              std::to_string(now.graphs) + " graphs, " + std::to_string(now.execs) + " execs, " +
              std::to_string(now.user_objects) + " user objects, " + std::to_string(now.streams) +
              " streams, " + std::to_string(now.device_allocations) + " blocks of memory, " +
              std::to_string(now.condition_values) + " conditions");
  }
}

}  // namespace escrow::test
