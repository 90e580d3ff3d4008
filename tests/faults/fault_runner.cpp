// SPDX-License-Identifier: Apache-2.0
// One run: a new stage, one failure, and everything that must hold afterwards.
#include "fault_runner.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <escrow/core.hpp>
#include <escrow/internal/device.hpp>
#include <escrow/internal/ready_event.hpp>
#include <escrow/pool.hpp>
#include <exception>
#include <iostream>
#include <new>
#include <optional>
#include <set>
#include <string_view>

#include "allocation_watch.hpp"
#include "status.hpp"

namespace escrow::test {
namespace {

/// What CUDA's manual says about one call.
struct documented_call {
  std::string_view api;
  bool may_initialise;  // "may also return errors of initialisation"
  std::vector<cudaError_t> errors;
};

/// The errors that a call may return. Empty if the table has no such call.
std::vector<cudaError_t> errors_of(std::string_view api) {
  static std::vector<documented_call> const all{
#include "documented_errors.inc"
  };
  auto const found = std::ranges::find(all, api, &documented_call::api);
  if (found == all.end()) return {};
  std::vector<cudaError_t> errors = found->errors;
  if (found->may_initialise) {
    errors.insert(errors.end(),
                  {cudaErrorInitializationError, cudaErrorInsufficientDriver, cudaErrorNoDevice});
  }
  errors.push_back(cudaErrorUnknown);  // one that the manual does not name
  // "May also return error codes from previous, asynchronous launches", which every call may.
  errors.push_back(cudaErrorIllegalAddress);
  return errors;
}

/// Ends the program with the name of a run that hangs.
class hang_alarm {
 public:
  hang_alarm(std::string const& what, unsigned seconds) {
    std::snprintf(text().data(), text().size(), "%s: hangs\n", what.c_str());
    std::signal(SIGALRM, [](int) {
      static_cast<void>(!::write(STDERR_FILENO, text().data(), std::strlen(text().data())));
      ::_exit(1);
    });
    ::alarm(seconds);
  }
  hang_alarm(hang_alarm const&) = delete;
  hang_alarm& operator=(hang_alarm const&) = delete;
  ~hang_alarm() { ::alarm(0); }

 private:
  static std::array<char, 256>& text() {
    static std::array<char, 256> kept{};
    return kept;
  }
};

std::string describe(operation const& it, fault const& failing) {
  std::string text = it.name;
  if (failing.call != 0) {
    text += ", call " + std::to_string(failing.call) + ", " + failing.api + ": " +
            cudaGetErrorName(failing.error);
  }
  if (failing.allocation != 0) {
    text += ", allocation " + std::to_string(failing.allocation);
    if (failing.times != 1) text += " and all that follow";
  }
  if (failing.is_for_good) text += ", each " + failing.api;
  return text;
}

std::string describe(sim::counts const& it) {
  return text_of("streams", it.streams, "events", it.events, "graphs", it.graphs, "execs",
                 it.execs + it.execs_in_flight, "user objects", it.user_objects,
                 "device allocations", it.device_allocations, "bytes", it.device_bytes,
                 "host allocations", it.host_allocations, "captures", it.captures, "operations",
                 it.pending_ops + it.pending_callbacks, "libraries", it.libraries);
}

/// Without events and streams, of which there may be fewer.
sim::counts sum(sim::counts of, leftovers const& more) {
  of.graphs += more.graphs;
  of.execs += more.execs;
  of.user_objects += more.user_objects;
  of.device_allocations += more.device_allocations;
  of.device_bytes += more.device_bytes;
  of.libraries += more.libraries;
  return of;
}

/// Whether the failure explains the exception.
bool is_reason(fault const& failing, std::exception const& thrown) {
  auto const* const from_cuda = dynamic_cast<cuda_error const*>(&thrown);
  if (failing.allocation != 0) {
    return dynamic_cast<std::bad_alloc const*>(&thrown) != nullptr ||
           (from_cuda != nullptr && from_cuda->status() == cudaErrorMemoryAllocation);
  }
  // What CUDA says with these: the legacy stream while another captures, the stream of a device
  // that is not the event's.
  bool const is_about_a_stream = failing.error == cudaErrorStreamCaptureImplicit ||
                                 failing.error == cudaErrorInvalidResourceHandle;
  if (is_about_a_stream && dynamic_cast<usage_error const*>(&thrown) != nullptr) return true;
  // A slot that cannot be asked for whether it is done is not free.
  bool const is_of_a_question =
      failing.api == "cudaEventQuery" || failing.api == "cudaThreadExchangeStreamCaptureMode";
  if (is_of_a_question && dynamic_cast<pool_exhausted const*>(&thrown) != nullptr) return true;
  return from_cuda != nullptr && from_cuda->status() == failing.error;
}

/// Whether a statement is about failures of that call.
bool applies(statements const& said, std::string const& api) {
  return said.contains("*") || said.contains(api);
}

// More often than any call is repeated, but for the questions of a wait, which would not end.
constexpr std::uint64_t failures_in_a_row = 200;
constexpr std::uint64_t steps_max = 400;  // no operation has as many calls, or allocations

bool is_selected() {
  static std::uint64_t asked = 0;
  return asked++ % limits.one_run_in == 0;
}

/// No event is kept for reuse, so that the operation has to make its own, and events can be
/// counted.
void empty_event_cache() {
  for (int device = 0; device < 2; ++device) {
    if (!sim::has_context(device)) continue;
    std::uint64_t const before = sim::calls("cudaEventCreateWithFlags");
    while (sim::calls("cudaEventCreateWithFlags") == before)
      static_cast<void>(event_cache::take(device));
  }
}

/// A worker's thread returns an event after it has destroyed the owner, which a test may see
/// before. An event that leaks never comes back.
void await_events(std::size_t at_most) {
  static_cast<void>(wait_until(
      [at_most] {
        empty_event_cache();
        return sim::alive().events <= at_most;
      },
      limits.events));
}

}  // namespace

fault_runner::fault_runner(operation const& it) : it_(it) {
  // Else a graph may get a handle that the library knows of one before, and asks for its id.
  [[maybe_unused]] static bool const is_first = (sim::reset({.reuses_handles = false}), true);
  // The driver's functions are looked up once.
  [[maybe_unused]] static auto const context = is_in_use(0) ? context_id_of(0) : 0;
  fill();
  sites_ = run({}, 0).calls;
  std::vector<sim::recorded_call> const again = run({}, 0).calls;
  auto const [here, there] = std::ranges::mismatch(sites_, again);
  EXPECT_TRUE(again == sites_) << it.name
                               << " does not make the same calls each time: " << sites_.size()
                               << " and " << again.size() << ", the first other one is "
                               << (here == sites_.end() ? "missing" : here->api) << " and "
                               << (there == again.end() ? "missing" : there->api);
}

void fault_runner::fill() {
  fills_ = true;
  static_cast<void>(run({}, 0));
  fills_ = false;
}

void fault_runner::every_call() {
  ASSERT_LT(sites_.size(), steps_max);
  ++totals.operations;
  totals.call_sites += sites_.size();
  for (std::uint64_t n = 1; n <= sites_.size(); ++n) {
    fail_call(n, sites_[n - 1].api);
    if (testing::Test::HasFailure()) return;
  }
  run({.call = sites_.size() + 1, .api = "none", .error = cudaErrorIllegalAddress}, 0);
  ++totals.call_runs;
}

void fault_runner::every_function() {
  std::set<std::string> called;
  for (sim::recorded_call const& each : sites_) called.emplace(each.api);
  for (std::string const& api : called)
    run({.api = api, .error = cudaErrorUnknown, .is_for_good = true}, 0);
}

void fault_runner::run_each_way(fault failing,
                                std::function<void(run_result const&)> const& judge) {
  bool const is_lost = is_sticky(failing.error);
  int const ways = is_lost ? 1 : std::max(it_.ways_to_end, it_.stated_shows.empty() ? 1 : 2);
  for (int way = 0; way < ways && !testing::Test::HasFailure(); ++way) {
    failing.is_repeated = way == 0;
    judge(run(failing, way % it_.ways_to_end));
    if (is_lost) fill();  // what the lost device has cost
  }
}

void fault_runner::fail_call(std::uint64_t n, std::string const& api) {
  static std::set<std::pair<std::string, cudaError_t>> met;
  auto const errors = errors_of(api);
  ASSERT_FALSE(errors.empty()) << api << " has no row in the table of documented errors";
  for (cudaError_t const error : errors) {
    if (!is_selected()) continue;
    if (met.emplace(api, error).second) ++totals.errors;
    run_each_way({.call = n, .api = api, .error = error}, [&](run_result const& went) {
      ++totals.call_runs;
      ASSERT_GE(went.calls.size(), n) << it_.name << ": the call was not reached";
      EXPECT_EQ(went.calls[n - 1].api, api);
    });
    if (testing::Test::HasFailure()) return;
  }
}

void fault_runner::every_allocation() {
  bool is_reached = true;
  for (std::uint64_t n = 1; is_reached; ++n) {
    ASSERT_LT(n, steps_max);
    is_reached = false;
    for (std::uint64_t const times : {std::uint64_t{1}, allocation_watch::for_ever}) {
      if (!is_selected() && times != 1) continue;  // the first ends the search
      run_each_way({.allocation = n, .times = times}, [&](run_result const& went) {
        is_reached |= went.allocations >= n;
        if (is_reached) ++totals.allocation_runs;
      });
      if (testing::Test::HasFailure()) return;
    }
    if (is_reached) ++totals.allocation_sites;
  }
}

run_result fault_runner::run(fault const& failing, int way_to_end) {
  std::string const what = describe(it_, failing);
  SCOPED_TRACE(what);
  hang_alarm const bound(what, limits.seconds);
  empty_event_cache();
  have_device_memory();
  sim::counts const before = sim::alive();
  run_result went;
  std::optional<leftovers> left;  // nothing: it cannot be counted
  bool const loses_device = failing.call != 0 && is_sticky(failing.error);
  {
    auto const in = it_.prepare();
    std::string const seen = in->seen();
    empty_event_cache();
    went = act(*in, failing);
    if (loses_device) {
      left = in->end_after_loss();
    } else if (failing.is_for_good) {
      bool const is_running = failing.api == "cudaEventRecord";  // though the operation threw
      if (went.threw && !is_running && in->seen() == seen) {
        EXPECT_NO_THROW(it_.act(*in)) << "it cannot be done again";
      }
      left = in->end_after_failures(failing.api);
    } else {
      EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "an error was left behind";
      expect_thread_as_before();
      expect_promise(*in, failing, seen, went);
      left = in->end(way_to_end);
    }
  }
  sim::clear_faults();
  static_cast<void>(cudaGetLastError());
  if (loses_device) expect_thread_as_before();
  sim::run_until_idle();
  EXPECT_EQ(sim::calls_in_callbacks(), 0U);
  if (fills_ || !left) return went;
  await_events(before.events + left->events);
  have_device_memory();
  sim::counts const after = sim::alive();
  sim::counts expected = sum(before, *left);
  if (after.events <= before.events + left->events) expected.events = after.events;
  if (after.streams <= before.streams + left->streams) expected.streams = after.streams;
  EXPECT_TRUE(after == expected) << "before:" << describe(before) << "\nafter: " << describe(after)
                                 << "\nkept on purpose:" << describe(*left);
  return went;
}

run_result fault_runner::act(stage& in, fault const& failing) {
  run_result went;
  sim::start_recording(sim::recorded_threads::this_one);
  if (failing.call != 0) sim::fail_nth_here(failing.call, failing.error);
  if (failing.is_for_good) sim::fail_call_here(failing.api, failing.error, 1, failures_in_a_row);
  if (failing.is_for_good && failing.api == "cudaEventRecord")  // in its place, which would block
    sim::fail_call_here("cudaStreamSynchronize", failing.error, 1, failures_in_a_row);
  std::optional<allocation_watch> watch;
  try {
    if (failing.allocation != 0) watch.emplace(failing.allocation, failing.times);  // it takes time
    it_.act(in);
    if (watch) went.allocations = watch->count();
    watch.reset();
  } catch (std::exception const& thrown) {
    if (watch) went.allocations = watch->count();
    watch.reset();
    went.threw = true;
    auto const* const first = dynamic_cast<cuda_error const*>(&thrown);
    bool const is_first = first != nullptr && first->status() == it_.refused_first;
    EXPECT_TRUE(is_first || is_reason(failing, thrown)) << thrown.what();
  }
  went.calls = sim::stop_recording();
  bool const is_reached = failing.call != 0 && failing.call <= went.calls.size();
  // A lost device stays lost; a call that was not reached is not to fail later.
  if (is_sticky(failing.error)) {
    if (!is_reached) sim::fail_device(0, failing.error);
  } else {
    sim::clear_faults();
  }
  return went;
}

void fault_runner::expect_thread_as_before() const {
  int device = -1;
  must(cudaGetDevice(&device));
  EXPECT_EQ(device, 0) << "another device is current";
  must(cudaSetDevice(0));
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  must(cudaThreadExchangeStreamCaptureMode(&mode));
  EXPECT_EQ(mode, cudaStreamCaptureModeGlobal);
}

void fault_runner::expect_promise(stage& in, fault const& failing, std::string const& before,
                                  run_result const& went) {
  std::string const seen = in.seen();
  if (failing.is_none()) {
    EXPECT_FALSE(went.threw);
    after_ = seen;
    return;
  }
  std::string const& api = failing.api;
  if (!went.threw) {
    if (seen == after_ || applies(it_.served_otherwise, api)) return;
    EXPECT_TRUE(applies(it_.stated, api)) << "it did not throw, nor do its work:\n"
                                          << seen << "\n"
                                          << after_;
    EXPECT_NE(seen.find(it_.stated_shows), std::string::npos) << "it is not as stated: " << seen;
    EXPECT_NE(in.reports(), 0U) << "nobody was told that it has not done its work";
    return;
  }
  if (seen != before && applies(it_.stated, api)) {
    EXPECT_NE(seen.find(it_.stated_shows), std::string::npos) << "it is not as stated: " << seen;
    EXPECT_TRUE(it_.stated_shows.empty() || in.reports() != 0) << "no handler was told";
    return;
  }
  EXPECT_EQ(seen, before) << "it threw and has changed something";
  if (!failing.is_repeated) return;
  EXPECT_NO_THROW(it_.act(in)) << "it cannot be done again";
  EXPECT_EQ(in.seen(), after_) << "done again, it has not done its work";
}

TEST_P(EveryCall, FailsOnceWithEachErrorAndThePromiseIsKept) {
  fault_runner(GetParam()).every_call();
}

TEST_P(EveryCall, OfAFunctionFailsAndNothingIsFreedEarlyHangsOrLeaksUncounted) {
  fault_runner(GetParam()).every_function();
}

TEST_P(EveryCall, RunsOutOfMemoryAtEachAllocationAndThePromiseIsKept) {
  fault_runner(GetParam()).every_allocation();
}

void EveryCall::TearDownTestSuite() {
  std::cout << "operations " << totals.operations << ", call sites " << totals.call_sites
            << ", errors " << totals.errors << ", runs " << totals.call_runs
            << "; allocation sites " << totals.allocation_sites << ", runs "
            << totals.allocation_runs << std::endl;
}

std::string name_of(testing::TestParamInfo<operation> const& info) {
  std::string name;
  bool begins = true;
  for (char const each : info.param.name) {
    bool const is_part = std::isalnum(static_cast<unsigned char>(each)) != 0;
    if (is_part) name += begins ? static_cast<char>(std::toupper(each)) : each;
    begins = !is_part;
  }
  return name;
}

}  // namespace escrow::test
