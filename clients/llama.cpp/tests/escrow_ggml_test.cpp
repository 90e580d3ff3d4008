// SPDX-License-Identifier: Apache-2.0
// escrow_ggml.hpp in a made-up engine that works as ggml-cuda does: eager, captured, launched.
#include <cuda_runtime_api.h>
#include <escrow/escrow.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "status.hpp"

// What ggml-cuda has.
#define GGML_ABORT(...) (std::fprintf(stderr, __VA_ARGS__), std::abort())
constexpr int GGML_CUDA_MAX_DEVICES = 16;
struct ggml_cuda_pool {
  virtual ~ggml_cuda_pool() = default;
  virtual void* alloc(std::size_t bytes, std::size_t* actual_bytes) = 0;
  virtual void free(void* claimed, std::size_t bytes) = 0;
};

#include "escrow_ggml.hpp"

namespace escrow::test {
namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;
constexpr std::size_t values = 64;

// A context with one captured graph.
class engine {
 public:
  explicit engine(int* mismatches)
      : mismatches_(mismatches), pool_(new escrow_ggml_pool(0, stream_.get(), nullptr)) {}
  ~engine() {
    if (instance_ != nullptr) must(cudaGraphExecDestroy(instance_));
    must(cudaGraphDestroy(graph_));
    pool_.reset();
    must(cudaStreamSynchronize(stream_.get()));
  }

  void run_eagerly(std::size_t mebibytes) {
    escrow_ggml_run(false, *pool_, [&] { evaluate(mebibytes, 1); });
  }
  // Of `more` nodes than the others.
  void capture(std::size_t mebibytes, int more = 0) {
    must(cudaGraphDestroy(graph_));
    escrow_ggml_run(true, *pool_, [&] {
      must(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeRelaxed));
      for (int i = 0; i <= more; ++i) evaluate(mebibytes, 2 + i);
      must(cudaStreamEndCapture(stream_.get(), &graph_));
    });
  }
  // True: the exec was updated.
  bool update_or_instantiate() {
    bool const is_new = instance_ == nullptr;
    if (is_new) must(cudaGraphInstantiate(&instance_, graph_, nullptr, nullptr, 0));
    cudaGraphExecUpdateResultInfo unused{};
    cudaError_t const status = cudaGraphExecUpdate(instance_, graph_, &unused);
    if (status == cudaSuccess) return !is_new;
    must_be(status, cudaErrorGraphExecUpdateFailure);
    must(cudaGraphExecDestroy(instance_));
    must(cudaGraphInstantiate(&instance_, graph_, nullptr, nullptr, 0));
    return false;
  }
  void launch() { must(cudaGraphLaunch(instance_, stream_.get())); }
  void synchronize() { must(cudaStreamSynchronize(stream_.get())); }

 private:
  // Two blocks, as on a stack.
  void evaluate(std::size_t mebibytes, int value) {
    std::size_t const bytes = mebibytes * mebibyte / 2;
    std::size_t actual = 0;
    void* const first = pool_->alloc(bytes, &actual);
    EXPECT_EQ(actual, bytes);
    must(launch_fill(stream_.get(), static_cast<int*>(first), values, value));
    void* const second = pool_->alloc(bytes, &actual);
    EXPECT_EQ(actual, bytes);
    must(launch_fill(stream_.get(), static_cast<int*>(second), values, value + 10));
    for (void* const each : {second, first}) {
      int const expected = each == first ? value : value + 10;
      must(launch_check(stream_.get(), static_cast<int*>(each), values, expected, mismatches_));
      pool_->free(each, actual);
    }
  }

  owned_stream stream_ = make_stream();
  int* mismatches_;
  std::unique_ptr<ggml_cuda_pool> pool_;
  escrow_captured* graph_ = nullptr;
  escrow_exec* instance_ = nullptr;
};

class LlamaPort : public testing::Test {
 protected:
  std::unique_ptr<engine> make_engine() { return std::make_unique<engine>(mismatches_.data()); }
  void TearDown() override {
    unsetenv("ESCROW_GGML_GROUP");
    must(cudaDeviceSynchronize());
    EXPECT_EQ(mismatches_.data()[0], 0);
    bool is_drained = false;
    EXPECT_EQ(escrow_drain(20'000'000'000U, &is_drained), ESCROW_OK);
    EXPECT_TRUE(is_drained);
    EXPECT_EQ(statistics().bytes_in_arenas, 0U);
  }
  static escrow_process_stats statistics() {
    escrow_process_stats stats{};
    stats.size = sizeof stats;
    EXPECT_EQ(escrow_process_statistics(0, &stats), ESCROW_OK);
    return stats;
  }
  static void expect_arenas(std::size_t mebibytes) {
    EXPECT_EQ(statistics().bytes_in_arenas, mebibytes * mebibyte);
    EXPECT_EQ(statistics().bytes_reserved, mebibytes * mebibyte);
  }

 private:
  pinned_ints mismatches_{1};
};

TEST_F(LlamaPort, EagerWorkAndTheGraphUseTheSameMemory) {
  auto const its = make_engine();
  its->run_eagerly(8);
  its->capture(8);
  EXPECT_FALSE(its->update_or_instantiate());
  for (int i = 0; i < 5; ++i) {
    its->launch();
    its->run_eagerly(6);
  }
  its->synchronize();
  expect_arenas(8);
}

TEST_F(LlamaPort, GrowingEagerWorkBesideAGraphNeedsWhatTheLargestNeeds) {
  auto const its = make_engine();
  its->run_eagerly(4);
  its->capture(4);
  its->update_or_instantiate();
  for (std::size_t i = 1; i <= 12; ++i) {
    its->run_eagerly(2 * i);
    its->launch();
  }
  its->synchronize();
  expect_arenas(24);
}

TEST_F(LlamaPort, AGraphThatFitsUpdatesTheExecAndAnotherReplacesIt) {
  auto const its = make_engine();
  its->capture(4);
  EXPECT_FALSE(its->update_or_instantiate());
  its->launch();
  its->capture(6);
  EXPECT_TRUE(its->update_or_instantiate());
  its->launch();
  its->capture(6, 1);
  EXPECT_FALSE(its->update_or_instantiate());
  its->launch();
  its->synchronize();
  expect_arenas(6);
}

TEST_F(LlamaPort, EachContextHasItsArena) {
  std::vector<std::unique_ptr<engine>> all;
  for (int i = 0; i < 4; ++i) {
    all.push_back(make_engine());
    all.back()->run_eagerly(4);
  }
  for (auto const& each : all) each->synchronize();
  expect_arenas(16);
}

TEST_F(LlamaPort, ContextsOfOneGroupRunOneAfterAnotherInOneArena) {
  setenv("ESCROW_GGML_GROUP", "process", 1);
  std::vector<std::unique_ptr<engine>> all;
  for (int i = 0; i < 8; ++i) {
    all.push_back(make_engine());
    all.back()->run_eagerly(8);
    all.back()->capture(8);
    all.back()->update_or_instantiate();
  }
  {
    std::vector<std::jthread> threads;
    for (auto const& each : all) {
      threads.emplace_back([&each] {
        for (int i = 0; i < 50; ++i) {
          each->launch();
          each->run_eagerly(6);
        }
        each->synchronize();
      });
    }
  }
  expect_arenas(8);
}

}  // namespace
}  // namespace escrow::test
