// SPDX-License-Identifier: Apache-2.0
// Operations of the library, and what runs each of them with one call or one allocation failing.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <escrow/pool.hpp>
#include <escrow/sim.hpp>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "deep.hpp"
#include "status.hpp"

namespace escrow::test {

/// What Escrow leaks on purpose in a run. Of events and streams: the most that it may be.
using leftovers = sim::counts;

/// All that an operation needs. It is made and prepared while nothing fails.
class stage {
 public:
  stage() = default;
  stage(stage const&) = delete;
  stage& operator=(stage const&) = delete;
  virtual ~stage() = default;

  /// The visible state, as text. Called while nothing fails.
  [[nodiscard]] virtual std::string seen() = 0;
  /// How many errors a handler was told of.
  [[nodiscard]] virtual std::size_t reports() const = 0;
  /// Expects what must hold whatever failed (nothing freed early, no slot handed out twice...),
  /// destroys everything, in one of several orders, and expects that everything was released.
  [[nodiscard]] virtual leftovers end(int way) = 0;
  /// The same after all calls of `api` have failed. Nothing if what is left cannot be counted: the
  /// deleter has leaked something, or nothing ends what `api` ends.
  [[nodiscard]] virtual std::optional<leftovers> end_after_failures(std::string const& api) = 0;
  /// The same after the device was lost: nothing hangs, nothing is destroyed twice.
  [[nodiscard]] virtual leftovers end_after_loss() = 0;
};

/// The visible state: names and values.
template <class... Parts>
[[nodiscard]] std::string text_of(Parts const&... parts) {
  std::ostringstream text;
  ((text << parts << ' '), ...);
  return text.str();
}

/// What the header says about failures of some calls, by the call's name; "*" is all of them.
using statements = std::map<std::string, std::string>;

/// One public function in one of its ways.
struct operation {
  std::string name;
  std::function<std::unique_ptr<stage>()> prepare;
  std::function<void(stage&)> act;
  /// The guarantee is strong: an operation that throws has changed nothing and can be repeated; one
  /// that does not throw has done its work. For failures of these calls the header promises less.
  statements stated = {};
  /// Part of the visible state in that case, if anything has changed.
  std::string stated_shows = "";
  /// Failures of these calls have another result that serves as well: why.
  statements served_otherwise = {};
  /// CUDA refuses a call also if nothing fails, and the library handles that; if it cannot, it
  /// throws this error.
  cudaError_t refused_first = cudaSuccess;
  /// In how many orders its stage can end.
  int ways_to_end = 1;
};

inline void PrintTo(operation const& it, std::ostream* out) {
  *out << it.name;
}

/// The public functions that an operation tests; public_functions.py reads the source for it.
constexpr char const* runs(char const* functions) {
  return functions;
}

/// Operations on stages of one kind.
template <class Stage>
class operations_in {
 public:
  using step = std::function<void(Stage&)>;
  using steps = std::vector<step>;

  /// Adds a row and returns it: what is done before, and what is done while something fails.
  operation& operator()(std::string name, char const* /*functions*/, steps before, step act) {
    operation added;
    added.name = std::move(name);
    added.prepare = [before = std::move(before)] {
      auto made = std::make_unique<Stage>();
      for (step const& each : before) each(*made);
      return made;
    };
    added.act = [act = std::move(act)](stage& in) { act(static_cast<Stage&>(in)); };
    all_.push_back(std::move(added));
    return all_.back();
  }
  /// All rows of the parts. Those of another device come last: once a process has used two, less is
  /// known after a fault, and the other rows' ends would be judged less strictly.
  [[nodiscard]] static std::vector<operation> of(
      std::initializer_list<void (*)(operations_in&)> parts) {
    operations_in add;
    for (auto const part : parts) part(add);
    std::stable_partition(add.all_.begin(), add.all_.end(), [](operation const& each) {
      return each.name.find("another device") == std::string::npos;
    });
    return add.all_;
  }

 private:
  std::vector<operation> all_;
};

/// What fails in one run: a call with an error, all calls of a function, an allocation, or nothing.
struct fault {
  std::uint64_t call = 0;            // the n-th that can be failed; 0: none
  std::string api = "operator new";  // that call
  cudaError_t error = cudaSuccess;
  std::uint64_t allocation = 0;  // the n-th of the calling thread; 0: none
  std::uint64_t times = 1;       // allocations that fail from there on
  bool is_for_good = false;      // all calls of `api` fail
  bool is_repeated = true;       // an operation that threw is done again

  [[nodiscard]] bool is_none() const { return call == 0 && allocation == 0 && !is_for_good; }
};

/// How one run went.
struct run_result {
  bool threw = false;
  std::vector<sim::recorded_call> calls;
  std::uint64_t allocations = 0;  // counted if one is to fail
};

/// The sums over all runs of a program.
inline struct run_totals {
  std::uint64_t operations = 0;
  std::uint64_t call_sites = 0;
  std::uint64_t errors = 0;  // distinct pairs of an API function and an error
  std::uint64_t call_runs = 0;
  std::uint64_t allocation_sites = 0;
  std::uint64_t allocation_runs = 0;
} totals;

/// What bounds the runs.
inline struct run_limits {
  unsigned seconds = 60;  // of a run, before the program ends with its name; it takes milliseconds
  std::chrono::nanoseconds events = generous;  // a run waits so long for one that leaks
  // Only one in so many is made: ThreadSanitizer takes ten times as long, to see one thread, and
  // AddressSanitizer three times.
  unsigned one_run_in = is_deep() ? 1 : built_with_tsan ? 15 : built_with_asan ? 2 : 1;
} limits;

/// The runs of one operation. Each broken promise is a failure of the running test.
class fault_runner {
 public:
  explicit fault_runner(operation const& it);

  /// Each call that the operation makes fails with each error that its manual names, and the device
  /// is lost at each call, and after the last.
  void every_call();
  /// All calls of each function that the operation calls fail, however often it tries.
  void every_function();
  /// Each allocation that the operation makes fails: alone, and with all that follow.
  void every_allocation();

 private:
  // Nothing fails: fills what is kept for the process, as the streams that ask graphs for their
  // ids.
  void fill();
  void fail_call(std::uint64_t n, std::string const& api);
  // A run for each way to end. In the first, an operation that threw is repeated; one that may
  // leave something (stated_shows) is also run without that.
  void run_each_way(fault failing, std::function<void(run_result const&)> const& judge);
  run_result run(fault const& failing, int way_to_end);
  run_result act(stage& in, fault const& failing);
  void expect_thread_as_before() const;
  void expect_promise(stage& in, fault const& failing, std::string const& before,
                      run_result const& went);

  operation const& it_;
  std::vector<sim::recorded_call> sites_;
  bool fills_ = false;  // this run fills what is kept for the process
  std::string after_;   // what is seen when nothing failed
};

/// The tests of each operation of a program.
class EveryCall : public testing::TestWithParam<operation> {
 protected:
  /// Prints the sums over all runs.
  static void TearDownTestSuite();
};

/// The operation's name as GoogleTest takes it.
[[nodiscard]] std::string name_of(testing::TestParamInfo<operation> const& info);

/// What Escrow keeps for device memory is there, or again, and what could not be freed before is.
inline void have_device_memory() {
  try {
    { device_block const made(1); }
    // The worker may be about to free some: it has when it comes to this.
    deleter::global().retire(std::make_unique<int>(0));
    deleter::global().drain();
  } catch (escrow::cuda_error const&) {  // the device is lost
  }
}

}  // namespace escrow::test
