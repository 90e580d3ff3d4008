// SPDX-License-Identifier: Apache-2.0
// What several benches capture: rows of tiny kernels, with and without things that Escrow keeps.
#pragma once

#include <escrow/deleter.hpp>
#include <escrow/graph.hpp>
#include <escrow/pool.hpp>
#include <memory>
#include <optional>

#include "bench.hpp"
#include "handles.hpp"
#include "kernels.hpp"

namespace escrow::bench {

// Whether a stream is captured, and which stream it is: a claim asks both.
inline void ask_about(cudaStream_t stream) {
  cudaStreamCaptureStatus status{};
  unsigned long long id = 0;
  test::must(cudaStreamGetCaptureInfo(stream, &status, &id, nullptr, nullptr, nullptr, nullptr));
  test::must(cudaStreamGetId(stream, &id));
}

[[nodiscard]] inline double free_device_bytes() {
  std::size_t free = 0, total = 0;
  test::must(cudaMemGetInfo(&free, &total));
  return static_cast<double>(free);
}

// Captures what `enqueue()` enqueues, with plain CUDA calls.
template <class Enqueue>
[[nodiscard]] test::owned_graph captured(cudaStream_t stream, Enqueue enqueue) {
  test::owned_graph graph;
  test::must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  enqueue();
  test::must(cudaStreamEndCapture(stream, graph.out()));
  return graph;
}

[[nodiscard]] inline std::vector<test::owned_stream> make_streams(int count) {
  std::vector<test::owned_stream> made;
  for (int i = 0; i < count; ++i) made.push_back(test::make_stream());
  return made;
}

// Enqueues a fork from the first stream to the others, what `enqueue()` enqueues, and their join.
template <class Streams, class Enqueue>
void fork_and_join(Streams const& on, cudaEvent_t event, Enqueue enqueue) {
  test::must(cudaEventRecord(event, on[0]));
  for (std::size_t i = 1; i < on.size(); ++i) test::must(cudaStreamWaitEvent(on[i], event, 0));
  enqueue();
  for (std::size_t i = 1; i < on.size(); ++i) {
    test::must(cudaEventRecord(event, on[i]));
    test::must(cudaStreamWaitEvent(on[0], event, 0));
  }
}

inline void enqueue_row(cudaStream_t stream, int kernels) {
  for (int i = 0; i < kernels; ++i) test::must(test::launch_tiny(stream));
}

// Returns when all that graphs have kept is reclaimed: the graphs are destroyed, their work is
// done.
inline void settle(escrow::deleter& of) {
  test::must(of.drain_for(std::chrono::seconds(10)), "the deleter drains");
  test::must(of.stats().in_graphs == 0, "graphs hold nothing");
}

// A pool and its deleter. What is claimed does not matter, so nothing is made; or blocks of
// `bytes`.
template <class T, std::size_t... bytes>
struct pooled {
  explicit pooled(std::size_t slots_max = 64)
      : pool({.slots_max = slots_max, .label = "bench", .deleter = &deleter},
             [] { return T(bytes...); }) {}

  escrow::deleter deleter;
  resource_pool<T> pool;
};
using pooled_ints = pooled<int>;
using pooled_blocks = pooled<device_block, std::size_t{1} << 20>;

inline void enqueue_claim(pooled_ints& from, cudaStream_t stream) {
  lease<int> const claimed = from.pool.claim(stream);
  test::must(test::launch_tiny(stream));
}

// A row of kernels, and what Escrow keeps for it.
struct content {
  int kernels = 8;
  int owners = 0;
  bool has_claim = false;
};

// Makes graphs with plain CUDA calls and with Escrow's, with the same content or another.
class graph_maker {
 public:
  [[nodiscard]] test::owned_graph plain(content const& of = {}) {
    return captured(stream, [&] { enqueue(of); });
  }
  [[nodiscard]] graph ours(content const& of) {
    return capture(stream_ref(stream.get()), [&](stream_ref) { enqueue(of); });
  }
  void settle() {
    test::must(cudaStreamSynchronize(stream));
    bench::settle(kept_.deleter);
  }

  test::owned_stream const stream = test::make_stream();

 private:
  void enqueue(content const& of) {
    std::optional<lease<int>> claimed;
    if (of.has_claim) claimed.emplace(kept_.pool.claim(stream.get()));
    for (int i = 0; i < of.owners; ++i) {
      kept_.deleter.retire(stream.get(), std::make_unique<int>(i));
    }
    enqueue_row(stream, of.kernels);
  }

  pooled_ints kept_;
};

// Instantiating a graph with owners, beside a plain one.
inline void measure_instantiation(benchmark::State& state, int owners) {
  graph_maker make;
  turns taken;
  repeat(state, [&] {
    make.settle();
    test::owned_graph const plain = make.plain();
    graph const ours = make.ours({.owners = owners});
    test::owned_exec plain_exec;
    std::optional<graph_exec> exec;
    double const us =
        taken.add_us([&] { plain_exec = test::instantiate(plain); }, [&] { exec.emplace(ours); });
    test::must(exec->is_bare(), "the exec is bare");
    return us;
  });
  taken.report(state);
}

}  // namespace escrow::bench
