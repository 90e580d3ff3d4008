// A program's run: its machine, one operation after the other, and the faults inside them.
#include "world.hpp"

#include <algorithm>

#include "allocation_watch.hpp"
#include "baton.hpp"

namespace escrow::test {

namespace {

/// The library makes one more stream when a lease of the legacy stream ends during a capture: once
/// in a process.
void release_during_a_capture() {
  deleter worker({.own_worker = false});
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

/// The library spreads streams by their ids, which are never reused: a program has the same ones,
/// as far as that goes, whatever ran before.
void align_stream_ids() {
  constexpr unsigned long long spread = 64;
  for (unsigned long long id = 1; id % spread != 0;) {
    owned_stream const made = make_stream();
    must(cudaStreamGetId(made, &id));
  }
}

/// The machine is not reset between programs, because the library keeps a stream and events of it.
/// None of that differs from program to program: there is such a stream for each device and thread,
/// and no event.
void begin_machine(std::uint64_t seed) {
  [[maybe_unused]] static bool const is_first = [] {
    sim::reset({.stepped = true});
    release_during_a_capture();
    return true;
  }();
  sim::reseed(seed);
  align_stream_ids();
}

/// One of the library's allocations fails, until the end of this, which says whether there was one.
/// 0: none; nothing is watched then, since that takes ten times as long.
class failing_allocation {
 public:
  failing_allocation(std::uint64_t number, bool& failed) : number_(number), failed_(failed) {
    if (number != 0) watch_.emplace(number);
  }
  failing_allocation(failing_allocation&&) = delete;
  ~failing_allocation() { failed_ = watch_ && watch_->count() >= number_; }

 private:
  std::uint64_t number_;
  bool& failed_;
  std::optional<allocation_watch> watch_;
};

}  // namespace

/// A call of the library, inside of which others may go on.
class world::inside_call {
 public:
  inside_call() {
    baton::open_points();
    if (mine_ != nullptr) mine_->is_inside = true;
  }
  inside_call(inside_call&&) = delete;
  ~inside_call() {
    if (mine_ != nullptr) mine_->is_inside = false;
    baton::close_points();
  }
};

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
    create_stream(i);
  }
  for (std::size_t i = 0; i < pools_.size(); ++i) create_pool(i);
}

world::~world() {
  if (worker_ == nullptr) return;
  // Destroying one that still owes something would start a thread for it. It is leaked.
  static auto& left = *new std::vector<std::unique_ptr<deleter>>;
  left.push_back(std::move(worker_));
}

bool world::has_what_is_asked(char asked, nth at, operation const& by) const {
  std::uint64_t const made_of = execs_[by.arguments[0] % execs_.size()].made_of;
  if (asked == 'c') return capture_at(at).is_active();
  if (asked == 'i') return capture_at(at).is_none();
  if (asked == 'r') return is_origin(at);
  if (asked == 'g') return is_usable(at);
  if (asked == 'G') return !graphs_[at].is_there();
  // The graph of the exec, and now and then another.
  if (asked == 'u') return is_usable(at) && (by.arguments[2] == 3 || graphs_[at].serial == made_of);
  if (asked == 'q') return is_there(nodes_[at]) && nodes_[at].serial == made_of;
  if (asked == 'b') return is_body_usable(bodies_[at]);
  if (asked == 'B') return !bodies_[at].own;
  if (asked == 'e') return execs_[at].is_there();
  if (asked == 'l') return leases_[at].held.has_value();
  if (asked == 'n') return is_there(nodes_[at]);
  if (asked == 'y') return libraries_[at].found.has_value();
  if (asked == 'v') return events_[at] != nullptr;
  if (asked == 'a') return allocations_[at].made.has_value();
  if (asked == 'h') return hoisted_[at].has_value();
  if (asked == 'o') return owners_[at].share != nullptr;
  if (asked == 'x') return shared_[at] != nullptr;
  if (asked == 'p') return pools_[at] != nullptr;
  char const filled = letter_of(asked);
  return filled == asked || !has_what_is_asked(filled, at, by);
}

void world::resolve(operation& next) const {
  std::string_view const asked = spec_of(next.kind).arguments;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    unsigned const places = places_of(letter_of(asked[i]));
    for (unsigned tried = 0; tried < places; ++tried) {
      unsigned const place = (next.arguments[i] + tried) % places;
      // Two of a kind are not the same: a graph is not its own child.
      if (i == 1 && asked[0] == asked[1] && place == next.arguments[0] && tried + 1 < places)
        continue;
      if (!has_what_is_asked(asked[i], place, next)) continue;
      next.arguments[i] = static_cast<std::uint8_t>(place);
      break;
    }
  }
}

template <class... Place>
outcome world::call(outcome (world::*operation)(Place...), std::array<std::uint8_t, 4> const& at) {
  return [&]<std::size_t... i>(std::index_sequence<i...>) {
    return (this->*operation)(at[i]...);
  }
  (std::index_sequence_for<Place...>{});
}

void world::perform(operation const& next) {
  outcome result = skipped;
  thread_ = next.thread;
  begin_running(next);
  switch (next.kind) {
#define ESCROW_CASE(name, ...)                        \
  case op::name:                                      \
    result = call(&world::do_##name, next.arguments); \
    break;
    ESCROW_RANDOM_OPERATIONS(ESCROW_CASE)
    case op::count:
      break;
  }
  if (result != skipped) sweep_captures();
  check_captures();
  end_running(result == done);
  ++counts_.operations[static_cast<std::size_t>(next.kind)][static_cast<std::size_t>(result)];
}

outcome world::attempt(bool may_refuse, bool may_fail, std::function<void()> const& action,
                       bool const& may_refuse_by_then) {
  outcome result = done;
  std::string what;
  arm_fault();
  bool ran_out = false;
  try {
    inside_call const inside;
    failing_allocation const failing(mine_ == nullptr ? 0 : mine_->what->failing_allocation,
                                     ran_out);
    action();
  } catch (pool_exhausted const&) {
    result = exhausted;
  } catch (usage_error const& error) {
    result = refused;
    what = error.what();
  } catch (std::exception const& error) {
    result = failed;
    what = error.what();
  }
  meet(allocation_failed, ran_out);
  is_disturbed_ = is_disturbed_ || ran_out;
  bool const disturbed = disarm_fault() || is_disturbed_ || is_lost();
  if (!disturbed && ((result == refused && !may_refuse && !may_refuse_by_then) ||
                     (result == failed && !may_fail)))
    all_.fail("an operation threw for no reason: " + what);
  check_captures();
  return result;
}

void world::arm_fault() {
  if (mine_ == nullptr || mine_->what->failing_call == 0 || is_lost()) return;
  constexpr std::array errors{cudaErrorMemoryAllocation, cudaErrorUnknown, cudaErrorInvalidValue};
  std::uint8_t const number = mine_->what->failing_call;
  fault_calls_ = sim::calls();
  sim::fail_nth_here(number, errors[number % errors.size()]);
  // Others may meet the consequences before this one has ended.
  if (baton::is_in_group()) is_disturbed_ = true;
}

bool world::disarm_fault() {
  if (mine_ == nullptr || mine_->what->failing_call == 0 || is_lost()) return false;
  sim::clear_faults();
  forget_error();
  if (baton::is_in_group()) {
    meet(fault_among_others);
    return true;
  }
  if (sim::calls() - fault_calls_ < mine_->what->failing_call) return false;
  meet(fault_injected);
  return is_disturbed_ = true;
}

void world::check_captures() {
  std::uint64_t const seen = sim::captures_invalidated();
  if (seen != invalidated_) all_.fail("a capture was harmed by " + sim::last_invalidation());
  invalidated_ = seen;
}

outcome world::do_step(nth count) {
  for (std::size_t i = 0; i <= count; ++i) {
    std::size_t const callbacks = mine_->has_met ? sim::alive().pending_callbacks : 0;
    std::size_t const kernels = all_.runs();
    {
      inside_call const inside;
      if (!sim::step()) break;
    }
    ++counts_.steps;
    if (mine_->has_met) note_step(callbacks, kernels);
  }
  return done;
}

}  // namespace escrow::test
