// The operations of a pool, each in a world of its own, for the tests that make something fail in
// them.
#pragma once

#include <escrow/sim.hpp>
#include <functional>
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

struct fault_scenario {
  char const* name;
  std::function<void(fault_world&)> prepare;
  std::function<void(fault_world&)> act;
};

inline void claim_on(fault_world& world, cudaStream_t stream) {
  world.held.emplace(world.pool->claim(stream));
  world.claimed_on = stream;
}

inline void PrintTo(fault_scenario const& scenario, std::ostream* out) {
  *out << scenario.name;
}

/// Claims on ordinary streams.
inline std::vector<fault_scenario> eager_claim_scenarios() {
  using world = fault_world;
  return {
      {"MakeAPool", [](world&) {}, [](world& w) { w.make_pool(); }},
      {"ClaimANewSlot", [](world& w) { w.make_pool(); }, [](world& w) { claim_on(w, w.one); }},
      {"ClaimTheStreamsOwn",
       [](world& w) {
         w.make_pool();
         block_lease held = w.pool->claim(w.one);
         w.keep_busy(held, w.one);
       },
       [](world& w) { claim_on(w, w.one); }},
      {"ClaimTheStreamsOwnThatOthersUsed",
       [](world& w) {
         w.make_pool(1);
         block_lease held = w.pool->claim(w.one);
         held.also_used_on(w.other);
         held.also_used_on(w.third);
         w.keep_busy(held, w.other);
       },
       [](world& w) { claim_on(w, w.one); }},
      {"ClaimOneThatIsDone",
       [](world& w) {
         w.make_pool();
         w.pool->claim(w.one).release();
         sync(w.one);
       },
       [](world& w) { claim_on(w, w.other); }},
      {"ClaimABusyOne",
       [](world& w) {
         w.make_pool(1);
         block_lease held = w.pool->claim(w.one);
         held.also_used_on(w.third);
         w.keep_busy(held, w.one);
       },
       [](world& w) { claim_on(w, w.other); }},
  };
}

/// Claims in a capture, and one in vain.
inline std::vector<fault_scenario> captured_claim_scenarios() {
  using world = fault_world;
  return {
      {"ClaimANewSlotInACapture",
       [](world& w) {
         w.make_pool();
         w.begin_capture(w.one);
       },
       [](world& w) { claim_on(w, w.one); }},
      {"ClaimADoneSlotInACapture",
       [](world& w) {
         w.make_pool(1);
         w.pool->claim(w.other).release();
         sync(w.other);
         w.begin_capture(w.one);
       },
       [](world& w) { claim_on(w, w.one); }},
      {"ClaimAReleasedSlotOfTheCapture",
       [](world& w) {
         w.make_pool(1);
         w.begin_capture(w.one);
         library_work(*w.pool, w.one, 1, w.mismatches);
       },
       [](world& w) { claim_on(w, w.one); }},
      {"ClaimWithAnEdge",
       [](world& w) {
         w.make_pool(1);
         w.begin_capture(w.one);
         order(w.one, w.other);
         library_work(*w.pool, w.other, 1, w.mismatches);
         order(w.other, w.third);
       },
       [](world& w) { claim_on(w, w.one); }},
      {"TryClaimForInVain",
       [](world& w) {
         w.make_pool(1);
         w.kept.emplace(w.pool->claim(w.one));
       },
       [](world& w) {
         auto found = w.pool->try_claim_for(w.other, std::chrono::milliseconds{1});
         if (found) w.held.emplace(std::move(*found));
       }},
  };
}

/// Releases on ordinary streams.
inline std::vector<fault_scenario> eager_release_scenarios() {
  using world = fault_world;
  return {
      {"Release",
       [](world& w) {
         w.make_pool(1);
         claim_on(w, w.one);
         w.keep_busy(*w.held, w.one);
       },
       [](world& w) { w.held->release(); }},
      {"ReleaseOnAnotherStream",
       [](world& w) {
         w.make_pool(1);
         claim_on(w, w.one);
         w.keep_busy(*w.held, w.other);
       },
       [](world& w) { w.held->release(w.other.get()); }},
      {"ReleaseWithOtherStreams",
       [](world& w) {
         w.make_pool(1);
         claim_on(w, w.one);
         w.held->also_used_on(w.other);
         w.held->also_used_on(w.third);
         w.keep_busy(*w.held, w.third);
       },
       [](world& w) { w.held->release(); }},
      {"EndALease",
       [](world& w) {
         w.make_pool(1);
         claim_on(w, w.one);
         w.held->also_used_on(w.other);
         w.keep_busy(*w.held, w.other);
       },
       [](world& w) { w.held.reset(); }},
      {"EndALegacyLeaseWhileABlockingStreamCaptures",
       [](world& w) {
         w.make_pool(1);
         claim_on(w, cudaStreamLegacy);
         w.keep_busy(*w.held, cudaStreamLegacy);
         w.begin_capture(w.blocking);
       },
       [](world& w) { w.held.reset(); }},
  };
}

/// Releases in and after a capture.
inline std::vector<fault_scenario> captured_release_scenarios() {
  using world = fault_world;
  return {
      {"ReleaseInACapture",
       [](world& w) {
         w.make_pool(1);
         w.begin_capture(w.one);
         claim_on(w, w.one);
         order(w.one, w.other);
         w.held->also_used_on(w.other);
       },
       [](world& w) { w.held->release(); }},
      {"EndALeaseInACapture",
       [](world& w) {
         w.make_pool(1);
         w.begin_capture(w.one);
         claim_on(w, w.one);
       },
       [](world& w) { w.held.reset(); }},
      {"ReleaseAfterTheCapture",
       [](world& w) {
         w.make_pool(1);
         w.begin_capture(w.one);
         claim_on(w, w.one);
         must(w.captured->end());
         w.keep_busy(*w.held, w.one);
       },
       [](world& w) { w.held->release(); }},
      {"ReleaseAfterTheGraph",
       [](world& w) {
         w.make_pool(1);
         w.begin_capture(w.one);
         claim_on(w, w.one);
         must(w.captured->end());
         w.captured.reset();
         w.worker->poll();
         w.keep_busy(*w.held, w.one);
       },
       [](world& w) { w.held->release(); }},
      {"ReleaseInAForeignCapture",
       [](world& w) {
         w.make_pool(1);
         claim_on(w, w.one);
         w.begin_capture(w.one);
       },
       [](world& w) { w.held->release(); }},
  };
}

/// The rest.
inline std::vector<fault_scenario> other_scenarios() {
  using world = fault_world;
  return {
      {"AlsoUsedOn",
       [](world& w) {
         w.make_pool(1);
         claim_on(w, w.one);
       },
       [](world& w) { w.held->also_used_on(w.other); }},
      {"AlsoUsedOnInACapture",
       [](world& w) {
         w.make_pool(1);
         w.begin_capture(w.one);
         claim_on(w, w.one);
         order(w.one, w.other);
         order(w.other, w.one);
       },
       [](world& w) { w.held->also_used_on(w.other); }},
      {"CloseFor",
       [](world& w) {
         w.make_pool();
         w.kept.emplace(w.pool->claim(w.one));
         block_lease held = w.pool->claim(w.other);
         w.keep_busy(held, w.other);
       },
       [](world& w) {
         w.is_closed = true;
         EXPECT_EQ(w.pool->close_for(std::chrono::nanoseconds{0}).size(), 1u);
       }},
      {"DestroyThePool",
       [](world& w) {
         w.make_pool();
         w.kept.emplace(w.pool->claim(w.one));
         block_lease held = w.pool->claim(w.other);
         w.keep_busy(held, w.other);
       },
       [](world& w) { w.pool.reset(); }},
      {"ReturnFromAGraph",
       [](world& w) {
         w.make_pool(1);
         w.begin_capture(w.one);
         library_work(*w.pool, w.one, 1, w.mismatches);
         must(w.captured->end());
         w.captured.reset();
       },
       [](world& w) { w.worker->poll(); }},
  };
}

/// Every public operation, in each way that it can go.
inline std::vector<fault_scenario> const& fault_scenarios() {
  static std::vector<fault_scenario> const all = [] {
    std::vector<fault_scenario> joined;
    for (auto const& group :
         {eager_claim_scenarios(), captured_claim_scenarios(), eager_release_scenarios(),
          captured_release_scenarios(), other_scenarios()}) {
      joined.insert(joined.end(), group.begin(), group.end());
    }
    return joined;
  }();
  return all;
}

/// Runs the operation; what it threw, or nothing.
[[nodiscard]] inline std::string thrown_by(fault_scenario const& scenario, fault_world& world) {
  try {
    scenario.act(world);
  } catch (std::exception const& error) {
    return error.what();
  }
  return {};
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
/// again is ordered after its last use, and no slot is lost but those in quarantine.
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
    EXPECT_EQ(out.size() + world.pool->stats().quarantined, world.slots) << "a slot was lost";
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
  int const held = static_cast<int>(world.worker->stats().held);
  EXPECT_EQ(world.counts.alive(), held);
  return held;
}

}  // namespace escrow::test
