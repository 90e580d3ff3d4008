// A deleter with owners, streams, a capture and a graph, for the fault runner.
#pragma once

#include <escrow/detail/reference_set.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../pool/capture_fixture.hpp"
#include "operation.hpp"
#include "owners.hpp"

namespace escrow::test {

/// An owner that has to be boxed.
struct large_probe {
  explicit large_probe(fate_ptr it) : owned(std::move(it)) {}
  probe owned;
  char padding[100] = {};
};

class deleter_stage : public stage {
 public:
  pinned_ints cell;
  pinned_flag flag;
  std::shared_ptr<error_log> errors = std::make_shared<error_log>();
  std::unique_ptr<deleter> worker = polled();
  std::unique_ptr<deleter> other_worker;
  owned_stream one = make_stream();
  owned_stream other = make_stream();
  owned_graph plain = tiny_graph();
  owned_event ready = make_event();
  std::optional<capture> captured;
  std::vector<fate_ptr> fates;
  std::optional<probe> mine;         // the caller's, until it is retired
  std::optional<large_probe> large;  // the same
  std::shared_ptr<probe> shared;
  bool is_busy = false;  // the stream's work goes on until the flag is raised, and may use owners
  bool is_busy_elsewhere = false;  // on device 1
  bool uses_global = false;        // the process's own deleter, which keeps an event for later
  bool has_drained = false;
  bool polls_when_seen = false;     // what was taken back is reclaimed first
  bool is_reclaimed_apart = false;  // by a worker's thread

  [[nodiscard]] std::unique_ptr<deleter> polled() const {
    deleter_options chosen;
    chosen.own_worker = false;
    chosen.on_error = [log = errors](std::exception const& error) { log->add(error.what()); };
    return std::make_unique<deleter>(chosen);
  }
  [[nodiscard]] fate_ptr const& fate() { return fates.emplace_back(make_fate()); }
  void have_owner() { mine.emplace(fate()); }
  void keep_busy(cudaStream_t stream) {
    must(launch_wait_flag(stream, flag.get()));
    is_busy = true;
    is_busy_elsewhere = current_device() != 0;
  }
  void begin_capture() {
    captured.emplace(one, cudaStreamCaptureModeGlobal);
    must(launch_tiny(one));
  }

  [[nodiscard]] std::string seen() override {
    if (polls_when_seen) worker->poll();
    std::string text = "destroyed";
    for (fate_ptr const& each : fates) {
      text += " " + (is_reclaimed_apart ? "some time" : std::to_string(each->times()));
    }
    text += " mine " + std::to_string(owns()) + " shared " + std::to_string(shared != nullptr) +
            " drained " + std::to_string(has_drained) + " other " +
            std::to_string(other_worker != nullptr) + " capture " +
            std::to_string(captured && captured->is_active());
    if (worker == nullptr) return text + " no deleter";
    deleter_stats const now = worker->stats();
    return text + " in graphs " + std::to_string(now.in_graphs) + " held " +
           std::to_string(now.leaked) + " noted " +
           std::to_string(!graph_registry::global().is_empty()) + " open " +
           std::to_string(worker->core().is_open());
  }
  [[nodiscard]] std::size_t reports() const override {
    return worker == nullptr ? 0 : worker->stats().errors;
  }
  [[nodiscard]] leftovers end(int /*way*/) override {
    shared.reset();
    if (worker != nullptr) {
      worker->poll();
      worker->poll();
    }
    if (is_busy) expect_nothing_destroyed();
    flag.raise();
    if (captured) {
      EXPECT_EQ(captured->end(), cudaSuccess) << "somebody has harmed the capture";
    }
    must(cudaStreamSynchronize(one));
    must(cudaStreamSynchronize(other));
    return end_all();
  }
  [[nodiscard]] leftovers end_after_loss() override {
    shared.reset();
    if (is_busy_elsewhere && worker != nullptr && !sim::has_failed(1)) {
      try {
        worker->poll();
        worker->poll();
      } catch (cuda_error const&) {  // the thread could not be made ready for it
      }
      expect_nothing_destroyed();
    }
    flag.raise();
    return end_all(!sim::has_context(1));
  }

 private:
  [[nodiscard]] int owns() const { return (mine && mine->is_owner() ? 1 : 0) + owns_large(); }
  [[nodiscard]] int owns_large() const { return large && large->owned.is_owner() ? 1 : 0; }
  void expect_nothing_destroyed() const {
    for (fate_ptr const& each : fates) EXPECT_EQ(each->times(), 0) << "destroyed while in use";
  }
  /// Nothing is known of the end of work after a fault in a process that uses two devices.
  leftovers end_all(bool is_anything_known = true) {
    captured.reset();
    plain.reset();
    mine.reset();
    large.reset();
    other_worker.reset();
    std::uint64_t held = 0;
    if (worker != nullptr) {
      EXPECT_TRUE(worker->drain_for(generous)) << "a drain hangs";
      EXPECT_EQ(worker->stats().in_graphs, 0U);
      EXPECT_EQ(worker->stats().pending, 0U);
      held = worker->stats().leaked;
    }
    EXPECT_TRUE(deleter::global().drain_for(generous));
    sim::run_until_idle();  // before the flag goes
    for (fate_ptr const& each : fates) {
      EXPECT_TRUE(!is_reclaimed_apart || !is_anything_known || each->wait());
    }
    std::uint64_t kept = 0;
    for (fate_ptr const& each : fates) {
      EXPECT_LE(each->times(), 1) << "destroyed twice";
      kept += each->was_destroyed() ? 0U : 1U;
    }
    if (is_anything_known) {
      EXPECT_EQ(kept, held) << "an owner is lost, and nobody was told";
    } else if (worker != nullptr && !is_reclaimed_apart) {
      EXPECT_LE(kept, held) << "an owner is lost, and nobody was told";
    }
    leftovers left;
    left.events = 6 * std::max(held, kept) + (uses_global ? 1 : 0);
    return left;
  }
};

}  // namespace escrow::test
