// What the tests of kernel arguments share: owners of several types, whose ends are watched.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <escrow/deleter.hpp>
#include <escrow/graph.hpp>
#include <escrow/nodes.hpp>
#include <memory>
#include <utility>

#include "capturing.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "owners.hpp"

namespace escrow::test {

/// Somebody's buffer: a handle to shared device memory, which reset() lets go of.
class their_buffer {
 public:
  explicit their_buffer(fate_ptr fate) : memory_(std::make_shared<memory>(std::move(fate))) {}
  void reset() { memory_.reset(); }
  [[nodiscard]] int* data() const { return memory_->cells.data(); }
  [[nodiscard]] auto share() const { return memory_; }

 private:
  struct memory {
    explicit memory(fate_ptr fate) : inner(std::move(fate)) {}
    device_ints cells;
    probe inner;  // goes first
  };
  std::shared_ptr<memory> memory_;
};

}  // namespace escrow::test

template <>
struct escrow::kernel_argument_traits<escrow::test::their_buffer> {
  static int* device_value(test::their_buffer const& object) { return object.data(); }
  static auto owner(test::their_buffer const& object) { return object.share(); }
};

namespace escrow::test {

/// What a unique_ptr to device memory of one integer frees it with.
struct frees_and_tells {
  fate_ptr fate;
  void operator()(int* memory) const {
    static_cast<void>(cudaFree(memory));
    probe const goes(fate);
  }
};
using unique_int = std::unique_ptr<int, frees_and_tells>;

/// Also in a capture.
inline unique_int make_unique_int(fate_ptr fate) {
  thread_mode_scope const relaxed(cudaStreamCaptureModeRelaxed);
  void* memory = nullptr;
  must(cudaMalloc(&memory, sizeof(int)));
  return {static_cast<int*>(memory), frees_and_tells{std::move(fate)}};
}
inline std::shared_ptr<int> make_shared_int(fate_ptr fate) {
  return make_unique_int(std::move(fate));
}

class launch_test : public testing::Test {
 protected:
  kernel const add{kernel_address(kernel_id::add)};
  kernel const fill{kernel_address(kernel_id::fill)};
  kernel const check{kernel_address(kernel_id::check)};
  kernel const wait_flag{kernel_address(kernel_id::wait_flag)};

  // Nothing that was enqueued with this ends before the flag.
  void hold_up() { launch(stream_, wait_flag, {}, flag_.get()); }
  // Fills the memory and checks it.
  template <class Memory>
  void use(Memory&& memory) {
    launch(stream_, fill, config(), memory, std::size_t{1}, 7);
    launch(stream_, check, config(), std::forward<Memory>(memory), std::size_t{1}, 7,
           mismatches_.data());
  }
  [[nodiscard]] launch_config config() {
    launch_config its;
    its.deleter = &deleter_;
    return its;
  }
  template <class Enqueue>
  [[nodiscard]] graph captured(Enqueue enqueue) {
    return escrow::capture(stream_, [&](stream_ref) { enqueue(); });
  }
  // Whatever has been pushed by now has been reclaimed.
  [[nodiscard]] bool lives() {
    deleter_.drain();
    return !fate_->was_destroyed();
  }
  [[nodiscard]] bool goes() {
    deleter_.drain();
    return fate_->wait() && fate_->times() == 1;
  }
  void run(graph_exec& exec) {
    exec.launch(stream_);
    must(cudaStreamSynchronize(stream_));
    EXPECT_EQ(mismatches_.load(), 0);
  }

  pinned_flag flag_;
  pinned_ints mismatches_;
  pinned_ints cells_{2};
  owned_stream stream_ = make_stream();
  fate_ptr fate_ = make_fate();
  deleter deleter_;
};

}  // namespace escrow::test
