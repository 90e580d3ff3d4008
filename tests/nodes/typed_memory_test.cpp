// Memory without a type, as scratch pools give, for kernels whose parameters have types; and how
// large what a node keeps is.
#include <cstddef>
#include <escrow/graph.hpp>
#include <escrow/nodes.hpp>
#include <escrow/pool.hpp>
#include <memory>
#include <utility>

#include "build_fixture.hpp"

namespace escrow::test {
namespace {

class TypedMemory : public build_test {
 protected:
  [[nodiscard]] lease<device_block> claimed() { return pool_.claim(stream_, sizeof(int) * 4); }

  scratch_pool pool_;
};

TEST_F(TypedMemory, OfALeaseIsPassedForAPointerToAnyType) {
  auto memory = claimed();
  launch(stream_, fill, {.block = {4}}, memory, 4U, 7);
  launch(stream_, copy, {.block = {4}}, cells_.data(), memory, 4U);
  must(cudaStreamSynchronize(stream_));
  EXPECT_EQ(cells_.load(0), 7);
  EXPECT_EQ(cells_.load(3), 7);
}

TEST_F(TypedMemory, OfABlockThatIsMovedInIsPassedForAPointerToAnyType) {
  device_block memory(sizeof(int) * 4);
  auto const* const data = static_cast<int const*>(memory.data());
  launch(stream_, fill, {.block = {4}}, std::move(memory), 4U, 7);
  EXPECT_EQ(memory.data(), nullptr);  // NOLINT(bugprone-use-after-move)
  EXPECT_NE(data, nullptr);
  must(cudaStreamSynchronize(stream_));
}

TEST_F(TypedMemory, OfANodeIsPassedForAPointerToAnyType) {
  auto memory = claimed();
  build(built_)
      .add(kernel_node(fill, {.block = {4}}, memory, 4U, 7))
      .add(kernel_node(copy, {.block = {4}}, cells_.data(), memory, 4U));
  run(built_);
  EXPECT_EQ(cells_.load(3), 7);
}

TEST_F(TypedMemory, OfASharedOwnerIsPassedForAPointerToAnyType) {
  std::shared_ptr<void> const shared(device_.data(), [](void*) {});
  launch(stream_, fill, {.block = {4}}, shared, 4U, 7);
  must(cudaStreamSynchronize(stream_));
  EXPECT_EQ(device_.read()[3], 7);
}

// A plain pointer has the type that it has; and memory that may only be read is not written.
static_assert(detail::can_be_passed<int*, device_block>());
static_assert(detail::can_be_passed<int const*, std::shared_ptr<void const>>());
static_assert(!detail::can_be_passed<int*, std::shared_ptr<void const>>());
static_assert(!detail::can_be_passed<int*, void*>());
static_assert(!detail::can_be_passed<int*, std::shared_ptr<float>>());
static_assert(!detail::can_be_passed<int, device_block>());

// What a node keeps of two owners fits in the deleter's node, without an allocation.
template <class Owner>
using kept_of_two = detail::node_arguments<Owner, Owner, int&, float, int&>;
static_assert(sizeof(kept_of_two<std::shared_ptr<int>&>) <= retired_object::capacity);
static_assert(sizeof(kept_of_two<std::unique_ptr<int>>) <= retired_object::capacity);

}  // namespace
}  // namespace escrow::test
