// SPDX-License-Identifier: Apache-2.0
// A resource that counts itself, pools of it, and what a library does with them.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <escrow/core.hpp>
#include <escrow/deleter.hpp>
#include <escrow/pool.hpp>
#include <utility>

#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "status.hpp"

namespace escrow::test {

/// How many resources were made and destroyed. Acquire, so that a test that saw all of them gone
/// may end what they refer to.
struct tally {
  std::atomic<int> made{0};
  std::atomic<int> destroyed{0};

  [[nodiscard]] int alive() const {
    int const gone = destroyed.load(std::memory_order_acquire);
    return made.load(std::memory_order_relaxed) - gone;
  }
};

/// Some device memory that counts itself. Its end overwrites nothing and frees the memory, so that
/// work which still uses it is seen by AddressSanitizer on the simulated runtime.
class block {
 public:
  static constexpr std::size_t length = 64;

  explicit block(tally& counts) : counts_{&counts} {
    void* memory = nullptr;
    escrow::check(cudaMalloc(&memory, length * sizeof(int)), "cudaMalloc");
    data_ = static_cast<int*>(memory);
    number_ = counts.made.fetch_add(1, std::memory_order_relaxed);
  }
  block(block&& other) noexcept
      : counts_{other.counts_},
        data_{std::exchange(other.data_, nullptr)},
        number_{other.number_} {}
  block& operator=(block&&) = delete;
  ~block() {
    if (data_ == nullptr) return;
    static_cast<void>(cudaFree(data_));
    counts_->destroyed.fetch_add(1,
                                 std::memory_order_release);  // the tally may go when all are gone
  }

  [[nodiscard]] int* data() const noexcept { return data_; }
  /// 0 for the first that was made, and so on.
  [[nodiscard]] int number() const noexcept { return number_; }

 private:
  tally* counts_;
  int* data_ = nullptr;
  int number_ = 0;
};

using block_pool = resource_pool<block>;
using block_lease = lease<block>;

}  // namespace escrow::test

/// A kernel gets its memory.
template <>
struct escrow::kernel_argument_traits<escrow::test::block> {
  static int* device_value(test::block const& from) { return from.data(); }
};

namespace escrow::test {

inline void fill(block_lease& held, cudaStream_t stream, int value) {
  must(launch_fill(stream, held->data(), block::length, value));
}

inline void check(block_lease& held, cudaStream_t stream, int expected, pinned_ints& mismatches) {
  must(launch_check(stream, held->data(), block::length, expected, mismatches.data()));
}

inline void sync(cudaStream_t stream) {
  must(cudaStreamSynchronize(stream));
}

[[nodiscard]] inline bool is_idle(cudaStream_t stream) {
  cudaError_t const status = cudaStreamQuery(stream);
  if (status == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  must(status);
  return true;
}

/// For a while: its work waits for other work that is held back.
[[nodiscard]] inline bool stays_busy(cudaStream_t stream) {
  return stays_false([=] { return is_idle(stream); });
}

/// Makes what is enqueued on `after` from now on run after what `before` has now. In a capture this
/// forks `after` off `before`, or joins it.
inline void order(cudaStream_t before, cudaStream_t after) {
  owned_event const event = make_event();
  must(cudaEventRecord(event, before));
  must(cudaStreamWaitEvent(after, event));
}

/// Library code that knows nothing of captures: claim, work, release.
inline void library_work(block_pool& pool, cudaStream_t stream, int value,
                         pinned_ints& mismatches) {
  block_lease scratch = pool.claim(stream);
  fill(scratch, stream, value);
  check(scratch, stream, value, mismatches);
}

}  // namespace escrow::test
