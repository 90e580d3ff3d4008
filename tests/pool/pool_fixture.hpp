// What the tests of pools share: a resource that counts itself, a deleter that keeps its errors,
// and short names for what every test does.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <escrow/core.hpp>
#include <escrow/deleter.hpp>
#include <escrow/detail/device.hpp>
#include <escrow/detail/graph_query.hpp>
#include <escrow/detail/ready_event.hpp>
#include <escrow/detail/retry_cleanup.hpp>
#include <escrow/pool.hpp>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "capturing.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "message_of.hpp"
#include "status.hpp"
#include "wait_until.hpp"

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

/// The errors that a deleter reported. Any thread.
class error_log {
 public:
  void add(std::string text) {
    std::lock_guard const lock{mutex_};
    texts_.push_back(std::move(text));
  }
  [[nodiscard]] std::size_t size() const {
    std::lock_guard const lock{mutex_};
    return texts_.size();
  }
  [[nodiscard]] std::string all() const {
    std::lock_guard const lock{mutex_};
    std::string result;
    for (std::string const& text : texts_) result += text + "\n";
    return result;
  }

 private:
  mutable std::mutex mutex_;  // guards texts_
  std::vector<std::string> texts_;
};

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

/// A test with a deleter of its own. Pools that it makes use that deleter, and must be gone at the
/// end of the test's body, when no resource may be left but those that the test says are lost.
class pool_test : public testing::Test {
 protected:
  pool_test() { must(cudaSetDevice(0)); }

  [[nodiscard]] pool_options options(std::size_t slots_max) {
    pool_options result;
    result.slots_max = slots_max;
    result.label = "blocks";
    result.deleter = worker.get();
    return result;
  }
  [[nodiscard]] block_pool make_pool(pool_options const& given) {
    return block_pool{given, [this] { return block{counts}; }};
  }
  [[nodiscard]] block_pool make_pool(std::size_t slots_max) {
    return make_pool(options(slots_max));
  }
  /// Waits until all that graphs have let go is back in its pool.
  [[nodiscard]] bool drained() { return worker->drain_for(generous); }
  [[nodiscard]] int made() const { return counts.made.load(std::memory_order_relaxed); }

  void TearDown() override {
    EXPECT_TRUE(wait_until([this] { return counts.alive() == lost; }))
        << counts.alive() << " resources are left of " << made() << ", expected " << lost;
    if (errors_expected) return;
    EXPECT_EQ(errors->size(), 0u) << errors->all();
  }

  tally counts;
  int lost = 0;  // resources that stay for ever: nothing tells when the GPU is done with them
  bool errors_expected = false;
  std::shared_ptr<error_log> errors = std::make_shared<error_log>();
  std::unique_ptr<deleter> worker = make_deleter();

 private:
  [[nodiscard]] std::unique_ptr<deleter> make_deleter() {
    deleter_options chosen;
    chosen.on_error = [log = errors](std::exception const& error) { log->add(error.what()); };
    return std::make_unique<deleter>(chosen);
  }
};

}  // namespace escrow::test
