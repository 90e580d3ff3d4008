// SPDX-License-Identifier: Apache-2.0
// What the programs use: owners and slots that tell when they are destroyed, and kernels that check
// what they find when they run.
#pragma once

#include <cstring>
#include <deque>
#include <escrow/deleter.hpp>
#include <escrow/sim.hpp>
#include <memory>
#include <optional>

#include "program.hpp"
#include "reference.hpp"

namespace escrow::test {

class things;

/// The blocks that a thread has freed so far.
struct freed_memory {
  std::size_t bytes = 0;
  std::size_t last = 0;  // of the last one
};

/// The one owner of a thing, which is destroyed with it.
class token {
 public:
  token(things& all, int thing) noexcept : all_(&all), thing_(thing) {}
  token(token&& other) noexcept : all_(std::exchange(other.all_, nullptr)), thing_(other.thing_) {}
  token& operator=(token&&) = delete;
  ~token();

  int thing() const noexcept { return thing_; }
  explicit operator bool() const noexcept { return all_ != nullptr; }

 private:
  things* all_;
  int thing_;
};

/// An argument that shares a thing.
struct shared_token {
  std::shared_ptr<token> share;
};

/// The same for a node that writes memory, or reads it.
struct memory_share : shared_token {
  void* memory;
};

/// The condition of a node, as kernels set it.
struct looked_at {
  cudaGraphConditionalHandle handle = 0;
  unsigned chosen = 0;     // the body runs
  unsigned otherwise = 0;  // it does not
  bool can_run = true;     // false: a loop without an end
  int launches = 0;
  int turns = 0;
};

/// What one kernel does, and what it uses.
struct piece_of_work {
  enum class role : std::uint8_t { plain, fill, look, close, visit, output };
  struct use {
    int thing = 0;
    int generation = -1;  // of a slot that a graph has: nothing else has it; -1: any
  };

  things* all = nullptr;
  int rounds = 0;  // how often it runs without being done
  int mark = 0;    // set when it has run
  std::vector<use> uses;
  role what = role::plain;
  int slot = -1;
  int value = 0;           // that of the lease
  bool is_racy = false;    // the slot was, when this was enqueued
  void* memory = nullptr;  // of a block, which is written and read
  looked_at* sets = nullptr;
  bool ends_turn = false;  // of a loop, which ends with every second
  int clusters = 0;        // the blocks of each; 0: not known
  // Of a node built by hand: how often launches that were enqueued have to run it, and it ran.
  bool is_counted = false;
  int due = 0;
  int ran = 0;
};

/// What: all things of a run, the work, and the first thing that went wrong.
/// Thread safety: none; one operation at a time.
class things {
 public:
  things() { running_ = this; }
  things(things&&) = delete;
  ~things() { running_ = nullptr; }

  reference model;
  run_counts counts;

  token make(thing_state::kind is) { return {*this, model.add(is)}; }
  /// A thing without a token, which is destroyed with `handle`, an object of CUDA.
  int make_of(void const* handle, thing_state::kind is, situation when_gone) {
    int const made = model.add(is);
    if (!handles_.emplace(handle, handle_state{made, when_gone}).second)
      fail("a new object has the handle of one that is there");
    return made;
  }
  /// The thing of that handle, if it is not destroyed.
  std::optional<int> thing_of(void const* handle) const {
    auto const found = handles_.find(handle);
    return found == handles_.end() ? std::nullopt : std::optional(found->second.thing);
  }
  /// CUDA destroys that handle, whosever it is: see baton.cpp.
  static void handle_gone(void const* handle) noexcept {
    if (running_ == nullptr) return;
    auto const found = running_->handles_.extract(handle);
    if (found.empty()) return;
    auto const [thing, when_gone] = found.mapped();
    thing_state const& block = running_->model.state_of(thing);
    freed_here_ = {.bytes = freed_here_.bytes + block.bytes, .last = block.bytes};
    running_->counts.meet(when_gone);
    running_->counts.meet(situation::memory_given_back_unused, block.checks == given_back);
    running_->gone(thing);
  }
  static constexpr unsigned given_back = 3;  // `checks`: two, and the worker has it
  /// By the calling thread.
  static freed_memory freed_here() { return freed_here_; }
  /// A new value for a lease.
  int begin_use() {
    closes_.push_back(false);
    fills_.push_back(false);
    return static_cast<int>(closes_.size()) - 1;
  }
  /// Its last piece of work is on its way.
  void will_close(int value) { closes_.at(static_cast<std::size_t>(value)) = true; }
  bool is_closing(int value) const { return closes_.at(static_cast<std::size_t>(value)); }

  void write_by_host(int thing, int value) {
    thing_state& slot = model.state_of(thing);
    if (values_count && !slot.racy && slot.open != 0 && is_closing(slot.open))
      fail("the host writes slot " + std::to_string(thing) + " while another use goes on");
    slot.value = value;
  }

  piece_of_work& add_work() {
    piece_of_work& added = work_.emplace_back();
    added.all = this;
    added.rounds = static_cast<int>(work_.size() % 3);
    return added;
  }
  looked_at& add_condition() { return conditions_.emplace_back(); }
  /// A kernel's run; false if it goes on.
  bool run(piece_of_work& work, int& rounds_left) {
    bool const all_there = check_uses(work);
    if (rounds_left-- > 0) return false;
    if (work.slot >= 0 && all_there) check_value(work);
    if (work.sets != nullptr) set_condition(work);
    model.set_mark(work.mark);
    ++runs_;
    check_runs(work);
    return true;
  }
  /// The machine is idle: whatever was launched has run.
  void expect_all_ran() {
    for (piece_of_work const& each : work_)
      if (each.is_counted && each.ran < each.due && values_count)
        fail("a node ran " + std::to_string(each.ran) + " times, and was launched " +
             std::to_string(each.due) + " times");
  }
  void gone(int thing) noexcept {
    thing_state& state = model.state_of(thing);
    if (state.gone) return fail("thing " + std::to_string(thing) + " was destroyed twice");
    if (std::string const why = model.why_alive(thing); !why.empty())
      fail("thing " + std::to_string(thing) + " was destroyed, but " + why);
    state.gone = true;
  }

  void fail(std::string what) {
    if (failure_.empty()) failure_ = std::move(what);
  }
  std::string const& failure() const { return failure_; }
  std::size_t runs() const { return runs_; }

  bool values_count = true;  // false: a device was lost, and its events order nothing

 private:
  struct handle_state {
    int thing;
    situation when_gone;
  };

  static void set_condition(piece_of_work const& work) {
    looked_at& at = *work.sets;
    if (work.ends_turn) {
      if (++at.turns % 2 == 0) sim::set_conditional(at.handle, 0);
      return;
    }
    bool const is_chosen = ++at.launches % 3 != 0 && at.can_run;
    sim::set_conditional(at.handle, is_chosen ? at.chosen : at.otherwise);
  }
  bool check_uses(piece_of_work const& work) {
    bool all_there = true;
    for (piece_of_work::use const& each : work.uses) {
      if (model.state_of(each.thing).gone) {
        fail("work runs whose thing " + std::to_string(each.thing) + " is destroyed");
        all_there = false;
      }
      if (each.generation >= 0 && model.state_of(each.thing).generation != each.generation)
        fail("a graph runs whose slot " + std::to_string(each.thing) + " was handed out again");
    }
    return all_there;
  }
  void check_runs(piece_of_work& work) {
    if (++work.ran > work.due && work.is_counted && values_count)
      fail("a node ran more often than it was launched, or is disabled");
    if (work.clusters != 0 && work.clusters != static_cast<int>(sim::cluster_blocks()))
      fail("a kernel runs in clusters of another size than its node was given");
  }
  void check_value(piece_of_work const& work) {
    thing_state& slot = model.state_of(work.slot);
    std::string const name = "slot " + std::to_string(work.slot);
    bool const is_ordered = values_count && !slot.racy && !work.is_racy;
    int found = slot.value;
    if (work.memory != nullptr) std::memcpy(&found, work.memory, sizeof found);
    switch (work.what) {
      case piece_of_work::role::plain:
        return;
      case piece_of_work::role::fill:
        if (is_ordered && slot.open != 0 && is_closing(slot.open))
          fail(name + " is written by one use while another goes on");
        write(slot, work);
        slot.open = work.value;
        fills_.at(static_cast<std::size_t>(work.value)) = true;
        return;
      case piece_of_work::role::visit:  // in no order with the others of its lease
        if (is_ordered && slot.open != 0 && slot.open != work.value && is_closing(slot.open))
          fail(name + " is used on a stream that was told, while an earlier use goes on");
        return write(slot, work);
      case piece_of_work::role::output:  // which its graph leaves
        if (is_ordered && fills_.at(static_cast<std::size_t>(work.value)) && found != work.value)
          fail(name + ", an output, was written by another use");
        return;
      case piece_of_work::role::close:
        if (is_ordered && found != work.value) fail(name + " was written by another use");
        slot.open = 0;
        return;
      case piece_of_work::role::look:
        if (is_ordered && found != work.value) fail(name + " was written before its use was over");
    }
  }

  static void write(thing_state& slot, piece_of_work const& work) {
    slot.value = work.value;
    if (work.memory != nullptr) std::memcpy(work.memory, &work.value, sizeof work.value);
  }

  std::map<void const*, handle_state> handles_;
  std::deque<piece_of_work> work_;
  std::deque<looked_at> conditions_;
  std::vector<bool> closes_{false};  // of each value
  std::vector<bool> fills_{false};   // the first work of the lease ran
  std::string failure_;
  std::size_t runs_ = 0;
  static inline things* running_ = nullptr;  // those of the program that runs
  static inline thread_local freed_memory freed_here_;
};

inline token::~token() {
  if (all_ != nullptr) all_->gone(thing_);
}

// The kernels: (work, rounds), and the same with something that is kept.

template <class T>
T& argument(void** arguments, std::size_t index) {
  return *static_cast<T*>(arguments[index]);
}

inline bool run_work(void** arguments) {
  piece_of_work& work = *argument<piece_of_work*>(arguments, 0);
  return work.all->run(work, argument<int>(arguments, 1));
}

/// The same, at an address of its own: a kernel with other parameters.
inline bool run_keeping_work(void** arguments) {
  return run_work(arguments);
}

inline bool run_memory_work(void** arguments) {
  piece_of_work& work = *argument<piece_of_work*>(arguments, 0);
  if (work.memory != nullptr && argument<void*>(arguments, 2) != work.memory)
    work.all->fail("a kernel got another address than that of its lease");
  if (work.memory != nullptr && work.slot < 0) {  // of a graph: there while its kernel runs
    auto& first = *static_cast<int volatile*>(work.memory);
    first = first + 1;
  }
  return run_work(arguments);
}

/// The kernel of that function, registered once.
template <bool (*run)(void**), class... Parameters>
auto kernel_of(char const* name) {
  [[maybe_unused]] static bool const registered =
      (sim::register_kernel(reinterpret_cast<void const*>(run), run, {sizeof(Parameters)...}, name),
       true);
  return reinterpret_cast<void (*)(Parameters...)>(reinterpret_cast<void*>(run));
}

inline auto work_kernel() {
  return kernel_of<&run_work, piece_of_work*, int>("work");
}
inline auto work_kernel_that_keeps() {
  return kernel_of<&run_keeping_work, piece_of_work*, int, int>("keeping_work");
}
inline auto work_kernel_of_memory() {
  return kernel_of<&run_memory_work, piece_of_work*, int, void*>("memory_work");
}

}  // namespace escrow::test
