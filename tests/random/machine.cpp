// What a program finds when it begins is the same for all.
#include "machine.hpp"

#include <cuda_runtime_api.h>

#include <escrow/deleter.hpp>
#include <escrow/detail/graph_query.hpp>
#include <escrow/detail/ready_event.hpp>
#include <escrow/pool.hpp>
#include <escrow/sim.hpp>
#include <optional>
#include <vector>

#include "baton.hpp"
#include "handles.hpp"
#include "program.hpp"
#include "status.hpp"

namespace escrow::test {

namespace {

/// The library makes one more stream when a lease of the legacy stream ends beside a capture: once.
void release_beside_a_capture() {
  deleter_options chosen;
  chosen.own_worker = false;
  deleter worker(chosen);
  {
    pool_options of;
    of.device = 0;
    of.deleter = &worker;
    resource_pool<int> pool(of, [] { return 0; });
    std::optional<lease<int>> held(pool.claim(cudaStreamLegacy));
    owned_stream blocking;
    must(cudaStreamCreate(blocking.out()));
    must(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed));
    held.reset();
    owned_graph captured;
    must(cudaStreamEndCapture(blocking, captured.out()));
  }
  sim::run_until_idle();
  static_cast<void>(worker.poll());
  for (std::size_t left = sim::alive().events; left != 0; --left)
    static_cast<void>(event_cache::take(0));
}

/// The library spreads streams by their ids, which are never reused: a program has the same ones,
/// as far as that goes, whatever ran before.
void align_stream_ids() {
  constexpr unsigned long long spread = 64;
  for (unsigned long long id = 1; id % spread != 0;) {
    cudaStream_t made = nullptr;
    must(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
    must(cudaStreamGetId(made, &id));
    must(cudaStreamDestroy(made));
  }
}

}  // namespace

void begin_machine(std::uint64_t seed) {
  [[maybe_unused]] static bool const is_first = [] {
    sim::options how;
    how.stepped = true;
    sim::reset(how);
    release_beside_a_capture();
    return true;
  }();
  sim::reseed(seed);
  align_stream_ids();
}

}  // namespace escrow::test
