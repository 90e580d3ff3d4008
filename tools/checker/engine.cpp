// SPDX-License-Identifier: Apache-2.0
// Who runs next, and what ends an execution.
#include "engine.hpp"

#include <cstdlib>

#include "library_data.hpp"

namespace escrow::model {

namespace {

constinit engine* made_engine = nullptr;

}  // namespace

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
  made.body = std::move(body);
  made.is_started = false;
  made.runs_body = [this, index] { run_body(index); };
  begin_thread(index);
  if (now_runs.is_thread) {
    // What its maker did happened before.
    step(index);
    made.known = self().known;
    changed();
  }
  return index;
}

void engine::begin_thread(std::uint32_t index) {
  model_thread& begun = *threads_[index];
  begun.runs.prepare(&begun.runs_body);
  begun.now = status::ready;
  begun.object = 0;
  begun.was_woken = false;
  begun.known = begun.fenced = begun.glimpsed = {};
  begun.operations = 0;
  begun.history = mixed(3, index);
  begun.rested_at = begun.time = 0;
  begun.spin_site = nullptr;
  begun.calls.clear();
  begun.is_mistaken = false;
}

void engine::run_body(std::uint32_t index) {
  now_runs.is_checker = false;
  threads_[index]->body();
  now_runs.is_checker = true;
  static_cast<void>(step(0));
  threads_[index]->now = status::ended;
  changed();
  go_to(next_thread());
  std::abort();  // an ended thread is not gone back to
}

void engine::call(void const* where, std::size_t size, std::string const& name) {
  names_.push_back({reinterpret_cast<std::uintptr_t>(where), size, name});
}

// Once for an exploration: what a setup makes is put back for every execution.
void engine::set_up(program const& explored) {
  reset_library_data();
  heap_.clear();
  names_.clear();
  at_end_.clear();
  count_ = 0;
  world made;
  now_runs = {.is_checker = false, .is_setup = true};
  explored(made);
  now_runs = {};
  heap_.keep_setup();
  keep_library_data();
  count_after_setup_ = count_;
}

void engine::begin_execution() {
  // Statics of the test program, which the library's data does not include.
  for (std::size_t i = 0; i < locations_.size(); ++i) {
    location const& each = locations_[i];
    __builtin_memcpy(reinterpret_cast<void*>(each.where), &each.messages.front().value, each.size);
  }
  restore_library_data();
  heap_.restore_setup();
  locations_.clear();
  locks_.clear();
  shadow_.clear();
  fences_ = {};
  count_ = count_after_setup_;
  for (std::uint32_t i = 0; i < count_; ++i) begin_thread(i);
  running_ = 0;
  steps_ = switches_ = older_reads_ = 0;
  changes_ = 0;
  is_cut_short_ = false;
  result_.error.clear();
}

bool engine::run_once() {
  begin_execution();
  now_runs.is_thread = true;
  if (std::uint32_t const first = next_thread(); first < count_) {
    running_ = first;
    threads_[first]->runs.resume_from(main_);
  }
  now_runs = {};
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
      return locations_.find(thread.object)->messages.back().value != thread.value;
    case status::rests:
      if (thread.was_woken) return true;
      if (thread.object == 0) return thread.rested_at != changes_;
      return locations_.find(thread.object)->messages.back().value != thread.value;
    case status::joins:
      return threads_[thread.value]->now == status::ended;
    case status::ended:
      return false;
  }
  return false;
}

// Time passes: who rests goes on, and sees all that was stored until now, though nothing orders it.
void engine::wake_resting() noexcept {
  clock all;
  for (std::size_t i = 0; i < count_; ++i) all.at[i] = threads_[i]->operations;
  for (std::size_t i = 0; i < count_; ++i) {
    model_thread& each = *threads_[i];
    if (each.now == status::rests) {
      each.was_woken = true;
    } else if (each.now == status::sleeps_awhile) {
      each.rested_at = ~changes_;
    } else {
      continue;
    }
    each.known.seen.join(all);
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
    for (std::size_t i = 0; i < count_; ++i) {
      model_thread const& each = *threads_[i];
      bool const is_idle = how_.workers_may_sleep && each.is_started && each.now == status::sleeps;
      all_ended &= each.now == status::ended || is_idle;
    }
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
  if (!how_.knows_states || way_.is_random() || is_traced_ || way_.is_known_way()) return false;
  return !states_.insert(state()).second;
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

std::size_t engine::choose_message(std::size_t oldest, std::size_t newest) {
  if (how_.older_max && older_reads_ >= *how_.older_max) return newest;
  std::size_t const read = newest - way_.choose(newest - oldest + 1);
  if (read != newest) ++older_reads_;
  return read;
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

location& engine::at(std::uintptr_t address, std::size_t size, void const* caller) {
  plain(address, size, access_kind::atomic, caller);
  location& found = locations_.at(address);
  if (found.messages.empty()) {
    message first;
    __builtin_memcpy(&first.value, reinterpret_cast<void const*>(address), size);
    found.messages.push_back(first);
    found.size = size;
  }
  return found;
}

void engine::plain(std::uintptr_t address, std::size_t size, access_kind kind, void const* caller) {
  // Neither stacks, nor what the C and C++ run times have for themselves.
  if (!heap_.has(reinterpret_cast<void const*>(address)) && !is_library_data(address)) return;
  model_thread& thread = self();
  if (kind == access_kind::read) {
    for (std::size_t i = 0; i < size; i += sizeof(std::uint64_t)) {
      std::uint64_t value = 0;
      __builtin_memcpy(&value, reinterpret_cast<char const*>(address) + i,
                       std::min(size - i, sizeof(value)));
      thread.history = mixed(thread.history, value);
    }
  }
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

void engine::freed(std::uintptr_t address, std::size_t size, void const* caller) {
  knowledge const& known = self().known;
  fault found = shadow_.end(address, size, running_, known.happened);
  for (std::size_t i = 0; i < locations_.size(); ++i) {
    location const& each = locations_[i];
    if (each.where - address < size && !each.is_known_to(known.happened)) found = fault::race;
  }
  if (found == fault::none) return;
  trace(caller, "free", address, "<- here");
  fail(found == fault::race ? "memory is freed that others used, and nothing orders the two"
                            : "memory is freed twice");
  end_execution();
}

}  // namespace escrow::model
