// SPDX-License-Identifier: Apache-2.0
// A model checker for threads that meet in atomics: what a test sees of it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace escrow::model {

// The threads of a program run as fibres, one at a time, and every atomic operation, lock, futex,
// sleep and start of a thread in them is the checker's: code that is compiled with the
// instrumentation of ThreadSanitizer calls the checker where that run time would be called, and the
// linker hands it the system's calls. So the library's own objects run here, unchanged, with the
// plain accesses that they make, which are checked for races and for memory that is gone.
//
// Memory is weak: a load may return any store that the C++ memory model lets it see, but for what
// follows. Not modelled: a store that takes a place in the modification order before one that was
// made earlier in the execution (some outcomes of 2+2W and the like); a load that sees a store that
// comes later in the execution (load buffering, out of thin air); a compare-exchange that fails
// without cause; objects of 16 bytes; accesses of mixed size. A sequentially consistent fence
// orders other such fences, and operations beside it less than C++ demands.
// Time passes only in sleeps and waits. A sleep ends when another thread has done something, or
// when nobody else can.

// One atomic operation in the source.
struct site {
  std::string function;
  std::string location;
  std::string operation;
  std::memory_order order;
  bool operator<(site const& other) const {
    return std::tie(function, location, operation, order) <
           std::tie(other.function, other.location, other.operation, other.order);
  }
};

// A bug to plant: that operation gets that order.
struct weakening {
  site at;
  std::memory_order to;
};

struct options {
  std::string name;                              // of what is explored, for the report
  std::uint64_t random = 0;                      // how many executions at random; 0: all there are
  std::uint64_t seed = 1;                        // of the first of those
  std::uint64_t executions_max = 50'000'000;     // all there are: at most so many
  std::size_t steps_max = 20'000;                // an execution that takes more has no end
  std::optional<std::size_t> switches_max = {};  // away from a thread that could go on
  std::optional<std::size_t> older_max = {};     // reads that are not of the newest value
  bool knows_states = true;  // ends an execution where another has been; costs time at each step
  std::optional<weakening> planted = {};
  bool lists_sites = false;
  bool workers_may_sleep = false;  // at the end, threads that std::thread started
  bool has_fences = false;         // the program uses fences, which makes more states
};

struct report {
  std::uint64_t executions = 0;  // that ran to their end, or met a known state
  std::uint64_t states = 0;      // told apart; 0 at random
  std::uint64_t steps = 0;
  bool is_complete = false;  // there is no other way
  std::string error;         // empty: none
  std::string trace;         // of the execution that failed
  std::uint64_t seed = 0;    // of that execution
  double seconds = 0;
  std::set<std::string> outcomes;  // what note() said
  std::set<site> sites;
};

// What a program is made of; gone after each execution.
class world {
 public:
  // Makes an object that the threads share. Not destroyed: its memory goes with the execution.
  template <class T, class... Arguments>
  T& make(std::string const& name, Arguments&&... arguments) {
    auto* const made = new T(std::forward<Arguments>(arguments)...);
    call(made, sizeof(T), name);
    return *made;
  }
  // A name for some bytes, for traces.
  void call(void const* where, std::size_t size, std::string const& name);
  void thread(std::string const& name, std::function<void()> body);
  // Called when all threads have ended: may call require() and note().
  void at_end(std::function<void()> check);
};

using program = std::function<void(world&)>;

// Runs the program in all ways, or in many.
[[nodiscard]] report explore(options const& how, program const& explored);

// In a program's threads: the execution fails unless `holds`.
void require(bool holds, char const* what);
// In a thread: what it does from here on depends on nothing that it has read so far, but on this
// and on what is in memory. Lets more states be known for the same.
void forget(std::uint64_t all_that_counts);
// A futex without the standard library around it.
void sleep_while(void const* word, std::uint32_t value);
void wake_one(void const* word);
// Adds to report::outcomes.
void note(std::string const& outcome);
// Plants each weaker order at each operation that the program makes, one at a time, and says which
// of these bugs were found.
struct planted {
  weakening bug;
  report found;
};
[[nodiscard]] std::vector<planted> plant_each(options const& how, program const& explored);
// The same for the operations of that order in one function, until one such bug is found.
[[nodiscard]] bool finds_planted(options const& how, program const& explored,
                                 std::string const& function, std::memory_order from,
                                 std::memory_order to);
// One line for people.
void print(planted const& each);

// Whether the executions of ESCROW_DEEP=1 are asked for.
[[nodiscard]] bool is_deep();
// One line for people: what was explored, how far, and how long it took.
void print(options const& how, report const& result);

[[nodiscard]] char const* name_of(std::memory_order order) noexcept;

}  // namespace escrow::model
