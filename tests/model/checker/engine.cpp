// Who runs next, and what ends an execution.
#include "engine.hpp"

#include <cstdlib>

#include "library_data.hpp"

namespace escrow::model {

namespace {

constinit bool works_for_itself = true;
constinit engine* made_engine = nullptr;

}  // namespace

in_checker::in_checker() noexcept {
  works_for_itself = true;
}

in_checker::~in_checker() {
  works_for_itself = false;
}

// Calls into the program, from the checker.
class running_checker {
 public:
  running_checker() noexcept { works_for_itself = false; }
  running_checker(running_checker&&) = delete;
  ~running_checker() { works_for_itself = true; }
};

bool is_in_model() noexcept {
  return !works_for_itself && made_engine->is_running();
}

bool is_in_setup() noexcept {
  return !works_for_itself && made_engine->uses_heap() && !made_engine->is_running();
}

engine* engine::if_any() noexcept {
  return made_engine;
}

engine& engine::the() {
  if (made_engine == nullptr) made_engine = new engine;  // leaked; one thread runs at a time
  return *made_engine;
}

std::uint32_t engine::add_thread(std::string const& name, std::function<void()> body) {
  if (count_ == threads_max) std::abort();
  auto const index = static_cast<std::uint32_t>(count_++);
  if (threads_[index] == nullptr) threads_[index] = std::make_unique<model_thread>();
  model_thread& made = *threads_[index];
  made.name = name;
  made.body = [this, index, body = std::move(body)] {
    threads_[index]->history = mixed(threads_[index]->history, 0);  // begun: another state
    works_for_itself = false;
    body();
    works_for_itself = true;
    model_thread& ended = *threads_[index];
    step(0);
    ended.now = status::ended;
    ++changes_;
    go_to(next_thread());
    std::abort();  // an ended thread is not gone back to
  };
  made.runs.prepare(&made.body);
  made.now = status::ready;
  made.was_woken = false;
  made.known = made.fenced = made.glimpsed = {};
  made.operations = 0;
  made.history = mixed(3, index);
  made.rested_at = made.time = 0;
  made.spin_site = nullptr;
  made.is_mistaken = false;
  if (is_running_) {
    // What its maker did happened before.
    step(index);
    made.known = self().known;
    ++changes_;
  }
  return index;
}

void engine::call(void const* where, std::size_t size, std::string const& name) {
  names_.push_back({reinterpret_cast<std::uintptr_t>(where), size, name});
}

void engine::begin_execution() {
  restore_library_data();
  heap_.clear();
  locations_.clear();
  locks_.clear();
  shadow_.clear();
  fences_ = {};
  fence_count_ = 0;
  names_.clear();
  at_end_.clear();
  count_ = 0;
  running_ = 0;
  steps_ = switches_ = 0;
  changes_ = 0;
  is_cut_short_ = false;
  result_.error.clear();
}

void engine::set_up(program const& explored) {
  world made;
  uses_heap_ = true;
  {
    running_checker const in_program;
    explored(made);
  }
}

bool engine::run_once(program const& explored) {
  begin_execution();
  set_up(explored);
  is_running_ = true;
  if (std::uint32_t const first = next_thread(); first < count_) {
    running_ = first;
    threads_[first]->runs.resume_from(main_);
  }
  is_running_ = false;
  uses_heap_ = false;
  result_.steps += steps_;
  if (result_.error.empty() && !is_cut_short_) {
    for (auto const& check : at_end_) check();
  }
  return result_.error.empty();
}

bool engine::can_run(model_thread const& thread) noexcept {
  switch (thread.now) {
    case status::ready:
      return true;
    case status::wants_lock:
      return locks_.at(thread.object).owner == 0;
    case status::sleeps:
      return thread.was_woken;
    case status::sleeps_awhile:
      return thread.was_woken || thread.rested_at != changes_;
    case status::spins:
      return locations_.at(thread.object).messages.back().value != thread.value;
    case status::rests:
      if (thread.was_woken) return true;
      if (thread.object == 0) return thread.rested_at != changes_;
      return locations_.at(thread.object).messages.back().value != thread.value;
    case status::joins:
      return threads_[thread.value]->now == status::ended;
    case status::ended:
      return false;
  }
  return false;
}

void engine::wake_resting() noexcept {
  for (std::size_t i = 0; i < count_; ++i) {
    status const now = threads_[i]->now;
    if (now == status::rests) threads_[i]->was_woken = true;
    if (now == status::sleeps_awhile) threads_[i]->rested_at = ~changes_;
  }
}

// The number of the thread that goes on; threads_max if the execution ends here.
std::uint32_t engine::next_thread() {
  constexpr auto none = static_cast<std::uint32_t>(threads_max);
  if (steps_ > how_.steps_max) {
    fail("no end after many steps:" + describe_waiting());
    return none;
  }
  std::array<std::uint32_t, threads_max> runnable{};
  std::size_t count = 0;
  auto const collect = [&] {
    count = 0;
    bool const first = running_ < count_ && can_run(*threads_[running_]);
    if (first) runnable[count++] = running_;
    for (std::uint32_t i = 0; i < count_; ++i) {
      if (i != running_ && can_run(*threads_[i])) runnable[count++] = i;
    }
    return first;
  };
  bool can_go_on = collect();
  if (count == 0) {
    wake_resting();  // time passes
    can_go_on = collect();
  }
  if (count == 0) {
    bool all_ended = true;
    for (std::size_t i = 0; i < count_; ++i) all_ended &= threads_[i]->now == status::ended;
    if (!all_ended) fail("nobody can go on:" + describe_waiting());
    return none;
  }
  if (is_known_state()) {
    is_cut_short_ = true;
    return none;
  }
  bool const may_switch = !can_go_on || !how_.switches_max || switches_ < *how_.switches_max;
  std::size_t const chosen = may_switch ? way_.choose_thread(count, can_go_on) : 0;
  if (can_go_on && chosen != 0) ++switches_;
  return runnable[chosen];
}

bool engine::is_known_state() {
  if (way_.is_random() || is_traced_ || way_.is_known_way()) return false;
  std::uint64_t hash = how_.switches_max ? mixed(switches_, running_) : 0;
  for (std::size_t i = 0; i < count_; ++i) {
    model_thread const& each = *threads_[i];
    bool const rests_still =
        (each.now == status::rests || each.now == status::sleeps_awhile) && !can_run(each);
    std::uint64_t const what = (static_cast<std::uint64_t>(each.now) << 2U) |
                               (each.was_woken ? 2U : 0U) | (rests_still ? 1U : 0U);
    hash = mixed(mixed(hash, each.history), what ^ each.object);
  }
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < locations_.size(); ++i) sum += locations_[i].state();
  for (std::size_t i = 0; i < locks_.size(); ++i) sum += locks_[i].history;
  return !states_.insert(mixed(hash, sum)).second;
}

void engine::go_to(std::uint32_t next) {
  if (next == threads_max) return end_execution();
  if (next == running_) return;
  fibre& from = self().runs;
  running_ = next;
  self().runs.resume_from(from);
}

void engine::end_execution() {
  main_.resume_from(self().runs);
  std::abort();
}

void engine::after_step() {
  ++steps_;
  self().now = status::ready;
  go_to(next_thread());
}

void engine::wait(status why, std::uintptr_t object, std::uint64_t value) {
  ++steps_;
  model_thread& waiting = self();
  waiting.now = why;
  waiting.object = object;
  waiting.value = value;
  waiting.rested_at = changes_;
  waiting.was_woken = false;
  go_to(next_thread());
  waiting.now = status::ready;
}

moment engine::step(std::uint64_t seen) {
  model_thread& thread = self();
  moment const now{running_, ++thread.operations};
  if (now.when > how_.steps_max) {
    fail("no end after many operations of " + thread.name);
    end_execution();
  }
  thread.known.happened.at[running_] = thread.known.seen.at[running_] = now.when;
  thread.history = mixed(thread.history, seen);
  return now;
}

bool engine::is_on_a_stack(std::uintptr_t address) const noexcept {
  for (std::size_t i = 0; i < count_; ++i) {
    if (threads_[i]->runs.has(address)) return true;
  }
  return false;
}

location& engine::at(std::uintptr_t address, std::size_t size, void const* caller) {
  plain(address, size, access_kind::atomic, caller);
  location& found = locations_.at(address);
  if (found.messages.empty()) {
    message first;
    __builtin_memcpy(&first.value, reinterpret_cast<void const*>(address), size);
    found.messages.push_back(first);
  }
  return found;
}

void engine::plain(std::uintptr_t address, std::size_t size, access_kind kind, void const* caller) {
  if (is_on_a_stack(address)) return;
  model_thread& thread = self();
  // It happens before what the thread does next, and after what it did last.
  moment const now{running_, thread.operations + 1};
  clock next;
  for (std::size_t i = 0; i < count_; ++i) next.at[i] = threads_[i]->operations + 1;
  std::uint32_t mistaken = 0;
  fault const found =
      shadow_.access(address, size, kind, now, thread.known.happened, next, mistaken);
  for (std::size_t i = 0; mistaken != 0; ++i, mistaken >>= 1U) {
    if ((mistaken & 1U) != 0) threads_[i]->is_mistaken = true;
  }
  if (found == fault::none) return;
  char const* const what = kind == access_kind::read    ? "read"
                           : kind == access_kind::write ? "write"
                                                        : "operation";
  trace(caller, what, address, "<- here");
  fail(found == fault::race ? std::string("a data race: a plain ") + what
                            : std::string("memory is used that is gone: a ") + what);
  end_execution();
}

void engine::freed(std::uintptr_t address, std::size_t size) {
  knowledge const& known = self().known;
  fault found = shadow_.end(address, size, known.happened);
  for (std::size_t i = 0; i < locations_.size(); ++i) {
    location const& each = locations_[i];
    if (each.where - address < size && !each.is_known_to(known.happened)) found = fault::race;
  }
  if (found == fault::none) return;
  fail(found == fault::race ? "memory is freed that others used, and nothing orders the two"
                            : "memory is freed twice");
  end_execution();
}

}  // namespace escrow::model
