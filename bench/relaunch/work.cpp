// Enqueueing lines of kernels, forked and joined with events.
#include "work.hpp"

#include "kernels.hpp"
#include "status.hpp"

namespace escrow::bench {

work::work(shape const& of) : kernels_(of.kernels) {
  if (of.branches == 1) return;
  fork_ = test::make_event();
  for (int i = 1; i < of.branches; ++i) {
    side_streams_.push_back(test::make_stream());
    joins_.push_back(test::make_event());
  }
}

void work::enqueue(cudaStream_t stream) {
  if (!side_streams_.empty()) test::must(cudaEventRecord(fork_, stream));
  for (std::size_t i = 0; i < side_streams_.size(); ++i) {
    test::must(cudaStreamWaitEvent(side_streams_[i], fork_, 0));
    enqueue_line(side_streams_[i]);
    test::must(cudaEventRecord(joins_[i], side_streams_[i]));
  }
  enqueue_line(stream);
  for (auto const& join : joins_) test::must(cudaStreamWaitEvent(stream, join, 0));
}

void work::enqueue_line(cudaStream_t stream) const {
  for (int i = 0; i < kernels_; ++i) test::must(test::launch_tiny(stream));
}

test::owned_graph captured(cudaStream_t stream, std::function<void()> const& enqueue) {
  test::owned_graph graph;
  test::must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  enqueue();
  test::must(cudaStreamEndCapture(stream, graph.out()));
  return graph;
}

test::owned_graph captured(cudaStream_t stream, shape const& of) {
  work kernels(of);
  return captured(stream, [&] { kernels.enqueue(stream); });
}

}  // namespace escrow::bench
