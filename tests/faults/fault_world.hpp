// SPDX-License-Identifier: Apache-2.0
// What all stages have: a deleter, streams, a capture and owners; and the stage of core and
// deleters.
#pragma once

#include <algorithm>
#include <array>
#include <escrow/core.hpp>
#include <escrow/deleter.hpp>
#include <escrow/internal/deleter_core.hpp>
#include <escrow/internal/device.hpp>
#include <escrow/internal/graph_registry.hpp>
#include <escrow/pool.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "blocks.hpp"
#include "build_graph.hpp"
#include "capturing.hpp"
#include "fault_runner.hpp"
#include "owners.hpp"
#include "status.hpp"

namespace escrow::test {

/// How many graphs, execs, captures and libraries there are.
[[nodiscard]] inline std::string alive_graphs() {
  sim::counts const now = sim::alive();
  return text_of("graphs", now.graphs, "execs", now.execs + now.execs_in_flight, "captures",
                 now.captures, "libraries", now.libraries);
}

/// What may happen to a poll in which a call fails.
inline statements const at_next_poll{{"*", "what could not be reclaimed is at the next poll"}};

/// A world whose deleter has no thread, so that the n-th CUDA call is always the same one.
class fault_world : public stage {
 public:
  tally counts;            // of the blocks of pools
  pinned_ints mismatches;  // freed after the flag is raised, since freeing waits for the device
  pinned_ints cells{2};    // what kernels write to
  pinned_flag flag;
  std::shared_ptr<error_log> errors = std::make_shared<error_log>();
  std::unique_ptr<deleter> worker = polled();
  owned_stream one = make_stream();
  owned_stream other = make_stream();
  std::optional<capture> captured;
  std::vector<fate_ptr> fates;  // of all owners
  std::string answer = "none";  // the result of a query

  [[nodiscard]] std::unique_ptr<deleter> polled() const {
    deleter_options chosen{.own_worker = false};
    chosen.on_error = [log = errors](std::exception const& error) { log->add(error.what()); };
    return std::make_unique<deleter>(chosen);
  }
  [[nodiscard]] fate_ptr const& fate() { return fates.emplace_back(make_fate()); }
  /// An owner whose end makes no call.
  [[nodiscard]] std::shared_ptr<void> new_owner() {
    return {nullptr,
            [its = fate()](void*) { its->destroyed.fetch_add(1, std::memory_order_release); }};
  }
  void begin_capture(cudaStream_t stream) {
    captured.emplace(stream, cudaStreamCaptureModeGlobal);
    must(launch_tiny(stream));
  }
  [[nodiscard]] std::size_t reports() const override { return worker->stats().errors; }
  void expect_none_destroyed() const {
    for (fate_ptr const& each : fates) EXPECT_EQ(each->times(), 0) << "destroyed while in use";
  }
  /// How many owners were not destroyed, once everything has ended.
  [[nodiscard]] std::size_t owners_left() const {
    std::size_t count = 0;
    for (fate_ptr const& each : fates) {
      EXPECT_LE(each->times(), 1) << "destroyed twice";
      count += each->was_destroyed() ? 0U : 1U;
    }
    return count;
  }
  /// An owner that is left is counted as leaked. After a fault in a process that uses two devices
  /// nothing is known about the end of work, and more may be counted.
  void expect_counted(bool is_end_known) const {
    std::size_t const left = owners_left();
    EXPECT_TRUE(is_destroy_refused() || (is_end_known ? left == leaked() : left <= leaked()))
        << left << " owners leaked, and " << leaked() << " are counted";
  }
  /// Everything that can be reclaimed is, also by the process's own deleter.
  void drain_all() const {
    EXPECT_TRUE(worker->drain_for(generous)) << "a drain hangs";
    EXPECT_TRUE(deleter::global().drain_for(generous));
    EXPECT_TRUE(is_something_kept() || worker->stats().in_graphs == 0U);
    EXPECT_EQ(worker->stats().pending, 0U);
  }
  void expect_unharmed_capture() {
    if (!captured) return;
    EXPECT_EQ(captured->end(), cudaSuccess) << "a failed call harmed the capture";
  }
  /// What this world's deleter, or the process's own, has leaked.
  [[nodiscard]] std::uint64_t leaked() const {
    return worker->stats().leaked + deleter::global().stats().leaked - leaked_before_;
  }
  /// Whether CUDA has not destroyed a graph or exec, once everything has ended.
  [[nodiscard]] bool is_destroy_refused() const {
    sim::counts const now = sim::alive();
    return now.graphs > before_.graphs || now.execs > before_.execs;
  }
  [[nodiscard]] bool is_something_kept() const { return leaked() != 0 || is_destroy_refused(); }
  /// Polls although nothing may work any more.
  void try_to_poll() const {
    try {
      worker->poll();
      worker->poll();
    } catch (cuda_error const&) {  // the thread could not be made ready for it
    }
  }
  [[nodiscard]] bool is_capturing() const { return captured && captured->is_active(); }

  [[nodiscard]] leftovers end(int /*way*/) override {
    before_end(false);
    flag.raise();
    expect_unharmed_capture();
    captured.reset();
    sync(one);
    sync(other);
    return end_all(false, true);
  }
  [[nodiscard]] std::optional<leftovers> end_after_failures(std::string const& api) override {
    // Outside of Relaxed mode the end of an exec invalidates the capture.
    if (api == "cudaThreadExchangeStreamCaptureMode") captured.reset();
    leftovers const left = end(0);
    bool const is_an_end =
        std::ranges::any_of(std::array{"Destroy", "Free", "Unload", "EndCapture"},
                            [&](char const* part) { return api.find(part) != std::string::npos; });
    return is_an_end || is_something_kept() ? std::nullopt : std::optional(left);
  }
  [[nodiscard]] leftovers end_after_loss() override {
    before_end(true);
    flag.raise();
    captured.reset();
    // In a process that uses two devices, nothing is known about the end of work after a fault.
    return end_all(true, !sim::has_context(1));
  }

 protected:
  /// Expects what must hold while work may run.
  virtual void before_end(bool /*is_lost*/) {}
  /// Once all work is done, if its end is known: destroys everything.
  virtual leftovers end_all(bool /*is_lost*/, bool /*is_end_known*/) { return {}; }

  sim::counts const before_ = sim::alive();  // tests before may have leaked

 private:
  std::uint64_t const leaked_before_ = deleter::global().stats().leaked;
};

/// Steps of all stages.
inline constexpr auto poll = [](auto& in) { in.worker->poll(); };
inline constexpr auto capturing = [](auto& in) { in.begin_capture(in.one); };

/// An owner that needs a block of its own.
struct large_probe : probe {
  using probe::probe;
  char padding[100] = {};
};

/// Streams, events, a graph, and owners that are retired.
class deleter_stage : public fault_world {
 public:
  std::unique_ptr<deleter> other_worker;
  owned_graph plain = tiny_graph();
  owned_event ready = make_event();
  std::optional<probe> mine;         // the caller's, until it is retired
  std::optional<large_probe> large;  // the same
  std::shared_ptr<probe> shared;
  std::optional<event> recorded;
  std::optional<event> taken;
  std::optional<event> kept_event;  // the caller's, until an owner is retired after it
  int device = -1;                  // the result of a query
  bool is_busy = false;  // the stream's work runs until the flag is raised, and may use owners
  bool is_busy_elsewhere = false;  // on device 1
  bool uses_global = false;        // the process's own deleter, which keeps an event for later
  bool has_drained = false;
  bool polls_when_seen = false;     // references that were taken back are reclaimed first
  bool is_reclaimed_apart = false;  // by a worker's thread
  std::optional<int> reclaimed_on;  // the device that is current as owners are destroyed

  void have_owner() { mine.emplace(fate()); }
  void share() { shared = make_stream_shared_by<probe>(*worker, fate()); }
  void keep_busy(cudaStream_t stream) {
    must(launch_wait_flag(stream, flag.get()));
    is_busy = true;
    is_busy_elsewhere = current_device() != 0;
  }

  [[nodiscard]] std::string seen() override {
    if (polls_when_seen) worker->poll();
    std::string text = "destroyed ";
    for (fate_ptr const& each : fates)
      text += is_reclaimed_apart ? "some time " : text_of(each->times());
    bool const owns = (mine && mine->is_owner()) || (large && large->is_owner());
    deleter_stats const now = worker->stats();
    return text + text_of("mine", owns, "shared", shared != nullptr, "drained", has_drained,
                          "other", other_worker != nullptr, "capture", is_capturing(), "in graphs",
                          now.in_graphs, "leaked", now.leaked, "noted",
                          !graph_registry::global().is_empty(), "open", worker->core().is_open(),
                          "event", recorded && *recorded, "taken", taken && *taken, "answer",
                          answer, "device", device);
  }
  [[nodiscard]] std::optional<leftovers> end_after_failures(std::string const& api) override {
    if (api == "cudaSetDevice") reclaimed_on.reset();  // it can be on the current one only
    return fault_world::end_after_failures(api);
  }

 private:
  void before_end(bool is_lost) override {
    shared.reset();
    if (is_lost && (!is_busy_elsewhere || sim::has_failed(1))) return;
    try_to_poll();
    if (is_busy) expect_none_destroyed();
  }
  leftovers end_all(bool /*is_lost*/, bool is_end_known) override {
    plain.reset();
    mine.reset();
    large.reset();
    recorded.reset();
    taken.reset();
    other_worker.reset();
    drain_all();
    sim::run_until_idle();  // before the flag is freed
    for (fate_ptr const& each : fates)
      EXPECT_TRUE(!is_reclaimed_apart || !is_end_known || leaked() != 0 || each->wait());
    if (is_end_known || !is_reclaimed_apart) expect_counted(is_end_known);
    if (is_end_known) expect_reclaimed_on_their_device();
    leftovers kept;
    kept.events =
        6 * std::max<std::size_t>(worker->stats().leaked, owners_left()) + (uses_global ? 1 : 0);
    return kept;
  }
  /// Owners are destroyed with their device current. -1: the owner's own query was made to fail.
  void expect_reclaimed_on_their_device() const {
    for (fate_ptr const& each : fates) {
      if (!reclaimed_on || !each->was_destroyed()) continue;
      EXPECT_TRUE(each->device == *reclaimed_on || each->device == -1) << each->device;
    }
  }
};

}  // namespace escrow::test
