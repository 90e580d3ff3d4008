// A pool in a world of its own, for the tests that make something fail in it, and what must hold
// afterwards.
#pragma once

#include <escrow/sim.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "capture_fixture.hpp"

namespace escrow::test {

/// A pool with all that an operation needs. Its deleter has no thread, so that the n-th CUDA call
/// is always the same one.
struct fault_world {
  static constexpr std::size_t slots_max = 2;

  tally counts;
  pinned_ints mismatches;  // freed after the flag is raised, since freeing waits for the device
  pinned_flag flag;
  std::shared_ptr<error_log> errors = std::make_shared<error_log>();
  std::unique_ptr<deleter> worker;
  owned_stream one = make_stream();
  owned_stream other = make_stream();
  owned_stream third = make_stream();
  owned_stream blocking = make_stream(cudaStreamDefault);
  std::optional<block_pool> pool;
  std::optional<capture> captured;
  std::optional<block_lease> held;
  std::optional<block_lease> kept;
  bool is_closed = false;
  std::size_t slots = 0;                   // the pool's limit
  int busy_number = -1;                    // the block that keep_busy() used
  std::optional<cudaStream_t> claimed_on;  // where `held` was claimed after that

  fault_world() {
    deleter_options chosen;
    chosen.own_worker = false;
    chosen.on_error = [log = errors](std::exception const& error) { log->add(error.what()); };
    worker = std::make_unique<deleter>(chosen);
  }
  void make_pool(std::size_t limit = slots_max) {
    slots = limit;
    pool_options chosen;
    chosen.slots_max = limit;
    chosen.deleter = worker.get();
    pool.emplace(chosen, [this] { return block{counts}; });
  }
  /// Work that uses what is held and does not end before the flag is raised; then it leaves 7 in
  /// it.
  void keep_busy(block_lease& used, cudaStream_t stream) {
    must(launch_wait_flag(stream, flag.get()));
    fill(used, stream, 7);
    busy_number = used->number();
    claimed_on.reset();
  }
  void begin_capture(cudaStream_t stream) {
    captured.emplace(stream, cudaStreamCaptureModeGlobal);
    must(launch_tiny(stream));
  }
};

inline void claim_on(fault_world& world, cudaStream_t stream) {
  world.held.emplace(world.pool->claim(stream));
  world.claimed_on = stream;
}

/// Ends the capture as its caller would and expects that nobody has harmed it.
inline void expect_unharmed_capture(fault_world& world) {
  if (!world.captured || world.captured->info().status == cudaStreamCaptureStatusNone) return;
  EXPECT_TRUE(world.captured->is_active());
  for (cudaStream_t const branch : {world.other.get(), world.third.get()}) {
    if (info_of(branch).status == cudaStreamCaptureStatusActive) order(branch, world.one);
  }
  EXPECT_EQ(world.captured->end(), cudaSuccess);
}

/// Work on what was handed out must find what the busy work leaves there, if it is the same block.
inline void expect_after_busy_work(fault_world& world, block_lease& found, cudaStream_t stream) {
  if (found->number() == world.busy_number) check(found, stream, 7, world.mismatches);
}

/// Whatever failed: work that runs keeps its resource, no slot is in two hands, what is handed out
/// again is ordered after its last use, and no slot is lost but those that wait for a record.
inline void expect_sound(fault_world& world) {
  expect_unharmed_capture(world);
  world.captured.reset();
  world.worker->poll();
  EXPECT_EQ(world.counts.destroyed.load(), 0) << "freed while the work may run";
  owned_stream const asking = make_stream();
  std::set<int> out;
  std::vector<block_lease> claimed;
  for (std::optional<block_lease>* const mine : {&world.held, &world.kept}) {
    if (*mine && **mine) out.insert((**mine)->number());
  }
  if (world.claimed_on && world.held && *world.held) {
    expect_after_busy_work(world, *world.held, *world.claimed_on);
  }
  if (world.pool && !world.is_closed) {
    while (auto found = world.pool->try_claim(asking)) {
      EXPECT_TRUE(out.insert((*found)->number()).second) << "one slot in two hands";
      expect_after_busy_work(world, *found, asking);
      claimed.push_back(std::move(*found));
    }
    EXPECT_EQ(out.size() + world.pool->stats().deferred, world.slots) << "a slot was lost";
  }
  world.flag.raise();
  sync(asking);
  if (world.claimed_on) sync(*world.claimed_on);
  EXPECT_EQ(world.mismatches.load(), 0) << "handed out before its work was done";
}

/// Ends the world in the usual order and expects that nothing is left but what cannot be known to
/// be idle. Returns how many resources that is.
inline int end_world(fault_world& world) {
  world.held.reset();
  world.kept.reset();
  world.pool.reset();
  world.flag.raise();
  for (cudaStream_t const stream : {world.one.get(), world.other.get(), world.third.get()}) {
    static_cast<void>(cudaStreamSynchronize(stream));
  }
  EXPECT_TRUE(world.worker->drain_for(generous));
  int const held = static_cast<int>(world.worker->stats().leaked);
  EXPECT_EQ(world.counts.alive(), held);
  return held;
}

}  // namespace escrow::test
