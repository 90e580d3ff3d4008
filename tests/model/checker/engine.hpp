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

enum class status : std::uint8_t {
  ready,         // can go on
  wants_lock,    // until the lock at `object` is free
  sleeps,        // on the word at `object`, until it is woken
  sleeps_awhile, // the same, or until time has passed
  spins,         // until the atomic at `object` has another value than `value`
  rests,         // until another thread has done something, or the atomic at `object`, if there is
                 // one, has another value
  joins,         // until thread `value` has ended
  ended,
};

struct model_thread {
  std::string name;
  std::function<void()> body;
  fibre runs;
  status now = status::ready;
  std::uintptr_t object = 0;
  std::uint64_t value = 0;
  bool was_woken = false;

  knowledge known;
  knowledge fenced;    // at its last release fence
  knowledge glimpsed;  // by relaxed loads, for its next acquire fence
  std::uint32_t operations = 0;
  std::uint64_t history = 0;  // all that it has read, as a hash: what it does next follows from it
  std::uint64_t rested_at = 0;
  std::uint64_t time = 0;  // that passed for it, in nanoseconds

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
    owner = 0;
    released = {};
    history = mixed(2, address);
  }
  std::uint32_t owner = 0;  // a thread's number plus one
  knowledge released;
  std::uint64_t history = 0;
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

  // Whether a thread of the model runs, and its calls are the checker's.
  [[nodiscard]] bool is_running() const noexcept { return is_running_; }
  // Whether the program is set up: allocations are the execution's.
  [[nodiscard]] bool uses_heap() const noexcept { return uses_heap_; }
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
  // Counts an operation of the running thread, and mixes `seen` into its history.
  moment step(std::uint64_t seen);
  void changed() noexcept { ++changes_; }
  // Ends the execution as failed; does not return when a thread runs.
  void fail(std::string const& what);
  [[noreturn]] void end_execution();

  location& at(std::uintptr_t address, std::size_t size, void const* caller);
  model_lock& lock_at(std::uintptr_t address) { return locks_.at(address); }
  void plain(std::uintptr_t address, std::size_t size, access_kind kind, void const* caller);
  void freed(std::uintptr_t address, std::size_t size);
  knowledge& fences() noexcept { return fences_; }
  std::uint64_t next_fence() noexcept { return ++fence_count_; }

  std::memory_order order_at(void const* caller, location const& where, char const* operation,
                             std::memory_order order);
  // For traces.
  [[nodiscard]] bool is_traced() const noexcept { return is_traced_; }
  void trace(void const* caller, std::string const& operation, std::uintptr_t where,
             std::string const& how);
  [[nodiscard]] std::string name_at(std::uintptr_t where) const;

 private:
  friend class running_checker;

  bool run_once(program const& explored);
  void set_up(program const& explored);
  void begin_execution();
  void run_fibre(std::uint32_t index);
  void go_to(std::uint32_t next);
  [[nodiscard]] bool can_run(model_thread const& thread) noexcept;
  std::uint32_t next_thread();
  void wake_resting() noexcept;
  [[nodiscard]] bool is_known_state();
  void describe_failure(options const& how, program const& explored);
  std::string describe_waiting();
  [[nodiscard]] bool is_on_a_stack(std::uintptr_t address) const noexcept;

  options how_;
  choices way_;
  report result_;
  heap heap_;
  std::array<std::unique_ptr<model_thread>, threads_max> threads_;
  std::size_t count_ = 0;
  std::uint32_t running_ = 0;
  std::size_t steps_ = 0;
  std::size_t switches_ = 0;
  std::uint64_t changes_ = 0;
  bool is_running_ = false;
  bool uses_heap_ = false;
  bool is_traced_ = false;
  bool is_cut_short_ = false;
  fibre main_{fibre::of_the_program{}};

  table<location> locations_;
  table<model_lock> locks_;
  shadow shadow_;
  knowledge fences_;
  std::uint64_t fence_count_ = 0;
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

// Whether a call comes from a thread of the model, and is the checker's to answer.
[[nodiscard]] bool is_in_model() noexcept;
// Whether it comes from a program that is being set up.
[[nodiscard]] bool is_in_setup() noexcept;

// While the checker itself works on behalf of a thread: its own calls are its own.
class in_checker {
 public:
  in_checker() noexcept;
  in_checker(in_checker&&) = delete;
  ~in_checker();
};

}  // namespace escrow::model
