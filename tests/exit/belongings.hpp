// SPDX-License-Identifier: Apache-2.0
// What a program may have of Escrow when it ends, or when a device is lost. What is included here
// is there for the tests, too.
#pragma once

#include <array>
#include <cstdlib>
#include <escrow/graph.hpp>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "blocks.hpp"
#include "build_graph.hpp"
#include "child.hpp"
#include "owners.hpp"

#ifdef ESCROW_TEST_RUNTIME_SIM
#include <escrow/sim.hpp>
#endif

namespace escrow::test {

/// On the device that is current when it is made: a stream, a deleter, a pool of that deleter, a
/// graph that runs `work` and uses a slot, and holds an owner, its exec, and a lease.
class belongings {
 public:
  /// Takes a while, unless `its_work` says otherwise: the process ends earlier.
  explicit belongings(kernel_call its_work = sleep_call(20'000), bool has_worker = true)
      : own(std::in_place, deleter_options{.own_worker = has_worker}), work(std::move(its_work)) {}
  belongings(belongings&&) = delete;

  /// Enqueues a launch, and work on the lease behind it.
  void launch() {
    exec->launch(stream.get());
    fill(*held, stream, 2);
  }
  void retire(fate_ptr const& it) { own->retire(stream_ref(stream.get()), probe(it)); }
  void claim_and_retire() {
    block_lease scratch = pool->claim(stream.get());
    fill(scratch, stream, 3);
    retire(make_fate());
  }
  /// Destroys all that holds anything, but the pool and the deleter.
  void end_holders() {
    held.reset();
    exec.reset();
    source = graph();
  }

  owned_stream stream = make_stream();
  std::shared_ptr<tally> counts = std::make_shared<tally>();  // the pool's, too
  // Counted before cudaFree, which would wait for work that still uses the resource.
  std::shared_ptr<std::atomic<int>> slots_destroyed = std::make_shared<std::atomic<int>>(0);
  fate_ptr in_graph = make_fate();
  fate_ptr behind = make_fate();
  std::optional<deleter> own;
  std::optional<block_pool> pool{
      std::in_place, pool_options{.slots_max = 4, .label = "blocks", .deleter = &*own},
      [its = counts] { return block{*its}; }, block_pool::recycle_function{},
      [its = slots_destroyed](block&) { its->fetch_add(1, std::memory_order_relaxed); }};
  std::optional<block_lease> held{pool->claim(stream.get())};
  kernel_call work;
  graph source = escrow::capture(stream.get(), [this](stream_ref on) {
    block_lease claimed = pool->claim(on);
    must(work.launch(on.get()));
    fill(claimed, on.get(), 1);
    own->retire(on, probe(in_graph));
  });
  std::optional<graph_exec> exec{source};
};

/// What tests of lost devices make before they have belongings, which may be of another device.
struct made_first {
  owned_stream failing = make_stream();  // of device 0
  pinned_ints flag;
  pinned_ints kernels_done;
};

}  // namespace escrow::test
