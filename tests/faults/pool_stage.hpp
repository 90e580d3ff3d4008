// A pool with all that an operation needs, for the fault runner.
#pragma once

#include <optional>
#include <string>

#include "../pool/fault_world.hpp"
#include "operation.hpp"

namespace escrow::test {

class pool_stage : public stage, public fault_world {
 public:
  std::optional<scratch_pool> scratch;
  std::optional<lease<device_block>> memory;  // of `scratch`
  std::optional<slot_share> share;
  std::optional<device_block> single;
  owned_stream elsewhere;          // of device 1; if it is there, its work uses the held slot
  bool recycles_when_seen = true;  // not if that is the operation

  /// Work of device 1 uses what is held, until the flag is raised.
  void keep_busy_elsewhere() {
    device_scope const there(1);
    elsewhere = make_stream();
    held->record_stream(elsewhere);
    must(launch_wait_flag(elsewhere, flag.get()));
  }

  [[nodiscard]] std::string seen() override {
    if (recycles_when_seen) worker->core().recycle();
    std::string text =
        "held " + std::to_string(held && *held) + " kept " + std::to_string(kept && *kept) +
        " shared " + std::to_string(share.has_value()) + " memory " +
        std::to_string(memory && *memory) + " single " + std::to_string(single.has_value());
    if (scratch) text += " scratch";
    if (!pool) return text + " no pool";
    pool_stats const now = pool->stats();
    return text + " in graphs " + std::to_string(now.in_graphs) + " deferred " +
           std::to_string(now.deferred);
  }
  [[nodiscard]] std::size_t reports() const override { return worker->stats().errors; }
  [[nodiscard]] leftovers end(int /*way*/) override {
    if (pool) {
      share.reset();
      expect_sound(*this);
    }
    memory.reset();
    expect_unharmed_capture(*this);
    captured.reset();
    end_scratch();
    auto const lost = static_cast<std::size_t>(end_world(*this));
    sim::run_until_idle();  // before the flag goes
    return kept_for_ever(lost);
  }
  [[nodiscard]] leftovers end_after_loss() override {
    if (pool && !is_closed) {
      // At once, though it might wait for a minute: the lost device gives nothing back.
      EXPECT_THROW(static_cast<void>(pool->claim(third)), std::exception);
      EXPECT_THROW(static_cast<void>(pool->try_claim_for(third, std::chrono::minutes(1))),
                   std::exception);
    }
    memory.reset();
    captured.reset();
    share.reset();
    held.reset();
    kept.reset();
    end_scratch();
    if (pool) {
      EXPECT_LE(pool->close_for(std::chrono::milliseconds(10)).size(), 1U);
    }
    pool.reset();
    if (elsewhere.get() != nullptr && !sim::has_failed(1)) expect_nothing_destroyed();
    flag.raise();
    EXPECT_TRUE(worker->drain_for(generous)) << "a drain hangs";
    sim::run_until_idle();  // before the flag goes
    auto const lost = static_cast<std::size_t>(worker->stats().leaked);
    auto const blocks = static_cast<std::size_t>(counts.alive());
    EXPECT_LE(blocks, lost);
    EXPECT_TRUE(blocks == lost || has_scratch_);
    leftovers left = kept_for_ever(blocks);
    left.device_allocations = lost;
    left.events = 3 * lost;
    left.device_bytes += (lost - blocks) * scratch_bytes;
    return left;
  }

 private:
  void expect_nothing_destroyed() {
    try {
      worker->poll();
      worker->poll();
    } catch (cuda_error const&) {  // the thread could not be made ready for it
    }
    EXPECT_EQ(counts.destroyed.load(), 0) << "freed while the other device's work may run";
  }
  static constexpr std::size_t scratch_bytes = 512;  // of what claims of up to so many get

  void end_scratch() {
    has_scratch_ = scratch.has_value();
    memory.reset();
    scratch.reset();
    single.reset();
  }
  // Slots that nothing tells of stay, each with its block and its events: for its own stream and
  // two others.
  static leftovers kept_for_ever(std::size_t slots) {
    leftovers left;
    left.device_allocations = slots;
    left.events = 3 * left.device_allocations;
    left.device_bytes = left.device_allocations * block::length * sizeof(int);
    return left;
  }

  bool has_scratch_ = false;
};

}  // namespace escrow::test
