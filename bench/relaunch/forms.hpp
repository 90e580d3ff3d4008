// SPDX-License-Identifier: Apache-2.0
// Graphs of the same tiny kernels, which keep nothing, or what Escrow keeps.
#pragma once

#include "graphs.hpp"
#include "launches.hpp"

namespace escrow::bench {

// Lines of tiny kernels that run side by side.
struct shape {
  char const* name;  // as it stands in the names of benchmarks
  int branches;
  int kernels;  // in each of them
};

inline constexpr shape line_of_8{"kernels:8", 1, 8};

// Enqueues a shape on a stream and others of its own. Must outlive a capture of it.
class work {
 public:
  work(cudaStream_t stream, shape const& of)
      : kernels_(of.kernels), side_streams_(make_streams(of.branches - 1)), on_{stream} {
    on_.insert(on_.end(), side_streams_.begin(), side_streams_.end());
  }

  void enqueue() {
    fork_and_join(on_, event_, [this] {
      for (cudaStream_t const each : on_) enqueue_row(each, kernels_);
    });
  }

 private:
  int kernels_;
  std::vector<test::owned_stream> side_streams_;
  std::vector<cudaStream_t> on_;
  test::owned_event event_ = test::make_event();
};

[[nodiscard]] inline test::owned_graph captured_shape(cudaStream_t stream, shape const& of) {
  work kernels(stream, of);
  return captured(stream, [&] { kernels.enqueue(); });
}

// The capture claims its temporary from the pool, and retires so many owners.
[[nodiscard]] inline graph pooled_shape(pooled_blocks& from, cudaStream_t stream, shape const& of,
                                        int owners = 0) {
  work kernels(stream, of);
  return capture(stream_ref(stream), [&](stream_ref capturing) {
    auto const temporary = from.pool.claim(capturing);
    for (int i = 0; i < owners; ++i) from.deleter.retire(capturing, std::make_unique<int>(i));
    kernels.enqueue();
  });
}

[[nodiscard]] inline relaunch_form make_bare(cudaStream_t stream, shape const& of) {
  return form_of(captured_shape(stream, of));
}

template <int owners>
[[nodiscard]] relaunch_form make_escrow(cudaStream_t stream, shape const& of) {
  auto const around = std::make_shared<pooled_blocks>();
  relaunch_form made =
      form_of(pooled_shape(*around, stream, of, owners), [=] { settle(around->deleter); });
  test::must(made.facts == facts_of(captured_shape(stream, of)), "both graphs have the same nodes");
  return made;
}

// Of the relaunch bench, in a file of its own.
void register_interference(settings const& how);

}  // namespace escrow::bench
