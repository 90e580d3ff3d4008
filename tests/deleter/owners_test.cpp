// Owners of every kind: what the node can carry, and what happens when moving one throws.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "build_graph.hpp"
#include "escrow/deleter/deleter.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "owners.hpp"

namespace escrow {
namespace {

using test::make_fate;
using test::probe;

class Owners : public testing::Test {
 protected:
  test::owned_stream stream_ = test::make_stream();
  deleter deleter_;
};

template <std::size_t size>
struct padded {
  explicit padded(test::fate_ptr fate) : inner(std::move(fate)) { bytes.fill(7); }
  probe inner;
  std::array<unsigned char, size> bytes;
};

struct alignas(256) aligned {
  explicit aligned(test::fate_ptr fate) : inner(std::move(fate)) {}
  aligned(aligned&& other) noexcept : inner(std::move(other.inner)) {}
  ~aligned() {
    if (inner.is_owner()) is_aligned = reinterpret_cast<std::uintptr_t>(this) % 256 == 0;
  }
  probe inner;
  static inline std::atomic<bool> is_aligned{false};
};

TEST_F(Owners, OfAnySizeAreDestroyedOnce) {
  std::vector<test::fate_ptr> fates;
  auto const next = [&] { return fates.emplace_back(make_fate()); };
  deleter_.retire(stream_, padded<1>(next()));
  deleter_.retire(stream_, padded<retired_object::capacity - sizeof(probe)>(next()));
  deleter_.retire(stream_, padded<retired_object::capacity - sizeof(probe) + 1>(next()));
  deleter_.retire(stream_, padded<100'000>(next()));
  deleter_.retire(padded<100'000>(next()));
  deleter_.retire(test::tiny_graph().get(), padded<100'000>(next()));
  deleter_.drain();
  for (auto const& fate : fates) EXPECT_EQ(fate->times(), 1);
}

TEST_F(Owners, KeepTheirAlignment) {
  auto const fate = make_fate();
  deleter_.retire(stream_, aligned(fate));
  deleter_.drain();
  EXPECT_EQ(fate->times(), 1);
  EXPECT_TRUE(aligned::is_aligned);
}

TEST_F(Owners, MayBeSharedAndTheLastOneDestroys) {
  auto const fate = make_fate();
  auto shared = std::make_shared<probe>(fate);
  std::shared_ptr<probe> const kept = shared;
  deleter_.retire(stream_, shared);  // a copy: the caller's stays as it is
  ASSERT_NE(shared, nullptr);
  deleter_.retire(stream_, std::move(shared));
  deleter_.drain();
  EXPECT_EQ(kept.use_count(), 1);
  EXPECT_FALSE(fate->was_destroyed());
}

TEST_F(Owners, MayBeALambdaThatOwnsWhatItCaptures) {
  auto const fate = make_fate();
  deleter_.retire(stream_, [buffer = std::make_unique<probe>(fate), name = std::string(100, 'x')] {
    return buffer->is_owner() && !name.empty();
  });
  deleter_.drain();
  EXPECT_EQ(fate->times(), 1);
}

TEST_F(Owners, MayBeConst) {
  auto const fate = make_fate();
  auto const shared = std::make_shared<probe>(fate);
  std::weak_ptr<probe> const watch = shared;
  deleter_.retire(stream_, shared);
  deleter_.drain();
  EXPECT_EQ(watch.use_count(), 1);
}

TEST_F(Owners, AreCudaMemoryThatTheWorkerFrees) {
  for (int i = 0; i < 20; ++i) {
    void* memory = nullptr;
    test::must(cudaMalloc(&memory, 1024));
    using freed = std::unique_ptr<void, void (*)(void*)>;
    deleter_.retire(stream_, freed(memory, [](void* it) { EXPECT_EQ(cudaFree(it), cudaSuccess); }));
  }
  deleter_.drain();
  EXPECT_EQ(deleter_.stats().errors, 0U);
}

struct throws_when_moved {
  explicit throws_when_moved(test::fate_ptr fate) : inner(std::move(fate)) {}
  throws_when_moved(throws_when_moved&& other) : inner(make_fate()) {
    if (other.inner.is_owner()) throw std::runtime_error("cannot be moved");
  }
  probe inner;
};

struct large_and_throws : throws_when_moved {
  using throws_when_moved::throws_when_moved;
  std::array<std::byte, 1000> bytes{};
};

template <class Owner>
void expect_to_stay(deleter& its, cudaStream_t stream, cudaGraph_t graph) {
  auto const fate = make_fate();
  Owner owner(fate);
  test::owned_event const event = test::make_event();
  EXPECT_THROW(its.retire(stream, std::move(owner)), std::runtime_error);
  EXPECT_THROW(its.retire(std::move(owner)), std::runtime_error);
  EXPECT_THROW(its.retire(graph, std::move(owner)), std::runtime_error);
  EXPECT_THROW(its.retire_after(event.get(), std::move(owner)), std::runtime_error);
  its.drain();
  EXPECT_TRUE(owner.inner.is_owner());
  EXPECT_FALSE(fate->was_destroyed());
  EXPECT_EQ(its.stats().in_graphs, 0U);
}

TEST_F(Owners, WhoseMoveThrowsStayWithTheCaller) {
  test::owned_graph const graph = test::tiny_graph();
  for (int round = 0; round < 3; ++round) {
    expect_to_stay<throws_when_moved>(deleter_, stream_, graph);
    expect_to_stay<large_and_throws>(deleter_, stream_, graph);
  }
  auto const fate = make_fate();
  deleter_.retire(stream_, probe(fate));
  deleter_.drain();
  EXPECT_EQ(fate->times(), 1);
}

TEST_F(Owners, ReuseTheirNodesInSteadyState) {
  // An owner goes back to the store with its node's event: nothing is created any more.
  auto const round = [&] {
    for (int i = 0; i < 10; ++i) deleter_.retire(stream_, probe(make_fate()));
    deleter_.drain();
  };
  round();
  deleter_stats const before = deleter_.stats();
  for (int i = 0; i < 100; ++i) round();
  EXPECT_GE(deleter_.stats().reclaimed - before.reclaimed, 1000U);
  EXPECT_EQ(deleter_.stats().pending, 0U);
  EXPECT_EQ(deleter_.stats().leaked, 0U);
}

}  // namespace
}  // namespace escrow
