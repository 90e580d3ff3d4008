// SPDX-License-Identifier: Apache-2.0
// One execution: its threads, who runs, and the memory that they share.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "checker.hpp"
#include "choices.hpp"
#include "fibre.hpp"
#include "heap.hpp"
#include "location.hpp"
#include "shadow.hpp"

namespace escrow::model {

// What runs.
struct mode {
  bool is_checker = true;  // the checker itself, or what is not the model's
  bool is_thread = false;  // if not: a thread of the model
  bool is_setup = false;   // if not: the setup of a program
};
inline constinit mode now_runs;

// Whether a call comes from a thread of the model, and is the checker's to answer.
[[nodiscard]] inline bool is_in_model() noexcept {
  return !now_runs.is_checker && now_runs.is_thread;
}
// Whether it comes from a program that is being set up.
[[nodiscard]] inline bool is_in_setup() noexcept {
  return !now_runs.is_checker && now_runs.is_setup;
}

enum class status : std::uint8_t {
  ready,          // can go on
  wants_lock,     // until the lock at `object` is free
  sleeps,         // on the word at `object`, until it is woken
  sleeps_awhile,  // the same, or until time has passed
  spins,          // until the atomic at `object` has another value than `value`
  rests,          // until another thread has done something, or the atomic at `object`, if there is
                  // one, has another value
  joins,          // until thread `value` has ended
  ended,
};

struct model_thread {
  std::string name;
  std::function<void()> body;
  std::function<void()> runs_body;  // and what comes after it
  fibre runs;

  status now = status::ready;
  std::uintptr_t object = 0;
  std::uint64_t value = 0;
  bool was_woken = false;
  bool is_started = false;  // by std::thread

  knowledge known;
  knowledge fenced;    // at its last release fence
  knowledge glimpsed;  // by relaxed loads, for its next acquire fence
  std::uint32_t operations = 0;
  std::uint64_t history = 0;  // all that it has read, as a hash: what it does next follows from it
  std::uint64_t rested_at = 0;
  std::vector<void const*> calls;  // where the functions that it is in return to
  std::uint64_t time = 0;          // that passed for it, in nanoseconds

  // The last load, to tell spinning.
  void const* spin_site = nullptr;
  std::uintptr_t spin_where = 0;
  std::size_t spin_message = 0;
  std::uint32_t spin_operations = 0;
  std::uint32_t spin_count = 0;
  // What it read last, speculatively, was being written: see operations.cpp.
  bool is_mistaken = false;
};

// A mutex, or the guard of a static.
struct model_lock {
  void begin(std::uintptr_t address) noexcept {
    where = address;
    owner = 0;
    released = {};
  }
  std::uintptr_t where = 0;
  std::uint32_t owner = 0;  // a thread's number plus one
  knowledge released;
};

class engine {
 public:
  static engine& the();
  // Null before it was first needed.
  static engine* if_any() noexcept;

  // Of a whole exploration.
  report explore(options const& how, program const& explored);

  // For a program's setup.
  std::uint32_t add_thread(std::string const& name, std::function<void()> body);
  void call(void const* where, std::size_t size, std::string const& name);
  void at_end(std::function<void()> check) { at_end_.push_back(std::move(check)); }

  [[nodiscard]] heap& memory() noexcept { return heap_; }
  [[nodiscard]] model_thread& self() noexcept { return *threads_[running_]; }
  [[nodiscard]] std::uint32_t running() const noexcept { return running_; }
  [[nodiscard]] model_thread& thread(std::size_t index) noexcept { return *threads_[index]; }
  [[nodiscard]] std::size_t thread_count() const noexcept { return count_; }
  [[nodiscard]] choices& way() noexcept { return way_; }
  [[nodiscard]] report& result() noexcept { return result_; }

  // The running thread has done something that others can see: anyone may go on.
  void after_step();
  // The running thread goes on after what it waits for.
  void wait(status why, std::uintptr_t object = 0, std::uint64_t value = 0);
  // Counts an operation of the running thread, and notes what it has seen.
  moment step(std::uint64_t seen);
  void changed() noexcept { ++changes_; }
  // Ends the execution as failed; does not return when a thread runs.
  void fail(std::string const& what);
  [[noreturn]] void end_execution();

  location& at(std::uintptr_t address, std::size_t size, void const* caller);
  model_lock& lock_at(std::uintptr_t address) { return locks_.at(address); }
  void plain(std::uintptr_t address, std::size_t size, access_kind kind, void const* caller);
  void freed(std::uintptr_t address, std::size_t size, void const* caller);
  // One of the messages from `oldest` to `newest`, that one first.
  std::size_t choose_message(std::size_t oldest, std::size_t newest);
  knowledge& fences() noexcept { return fences_; }
  [[nodiscard]] options const& how() const noexcept { return how_; }

  std::memory_order order_at(void const* caller, location const& where, char const* operation,
                             std::memory_order order);
  // For traces.
  [[nodiscard]] bool is_traced() const noexcept { return is_traced_; }
  void trace(void const* caller, std::string const& operation, std::uintptr_t where,
             std::string const& how);
  [[nodiscard]] std::string name_at(std::uintptr_t where) const;
  // Where the program is: `caller`, or who called the standard library there.
  [[nodiscard]] void const* place_of(void const* caller);

 private:
  bool run_once();
  void set_up(program const& explored);
  void begin_execution();
  void begin_thread(std::uint32_t index);
  void run_body(std::uint32_t index);
  void go_to(std::uint32_t next);
  [[nodiscard]] bool can_run(model_thread const& thread) noexcept;
  std::uint32_t next_thread();
  void wake_resting() noexcept;
  [[nodiscard]] bool is_known_state();
  struct holder;
  [[nodiscard]] std::uint64_t state();
  [[nodiscard]] std::uint64_t state_of_plain(std::vector<holder> const& holders);
  void describe_failure(options const& how);
  std::string describe_waiting();

  options how_;
  choices way_;
  report result_;
  heap heap_;
  std::array<std::unique_ptr<model_thread>, threads_max> threads_;
  std::size_t count_ = 0;
  std::size_t count_after_setup_ = 0;
  std::uint32_t running_ = 0;
  std::size_t steps_ = 0;
  std::size_t switches_ = 0;
  std::size_t older_reads_ = 0;
  std::uint64_t changes_ = 0;
  bool is_traced_ = false;
  bool is_cut_short_ = false;
  fibre main_{fibre::of_the_program{}};

  table<location> locations_;
  table<model_lock> locks_;
  shadow shadow_;
  knowledge fences_;
  std::vector<std::function<void()>> at_end_;
  std::unordered_set<std::uint64_t> states_;

  struct named {
    std::uintptr_t where;
    std::size_t size;
    std::string name;
  };
  std::vector<named> names_;
  std::unordered_map<std::uint64_t, std::memory_order> orders_;
  std::string trace_;
};

// While the checker itself works on behalf of a thread: its own calls are its own.
class in_checker {
 public:
  in_checker() noexcept { now_runs.is_checker = true; }
  in_checker(in_checker&&) = delete;
  ~in_checker() { now_runs.is_checker = false; }
};

}  // namespace escrow::model
