// SPDX-License-Identifier: Apache-2.0
// One cuBLAS handle for several graphs and eager calls, each with a workspace of its own.
#include <algorithm>
#include <escrow/cublas_workspace.hpp>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

struct destroy_handle {
  void operator()(cublasContext* handle) const noexcept {
    static_cast<void>(cublasDestroy(handle));
  }
};
using owned_handle = std::unique_ptr<cublasContext, destroy_handle>;

void must_blas(cublasStatus_t status) {
  must(status == CUBLAS_STATUS_SUCCESS, cublasGetStatusString(status));
}

owned_handle make_handle() {
  cublasHandle_t made = nullptr;
  must_blas(cublasCreate(&made));
  return owned_handle(made);
}

cudaStream_t stream_of(owned_handle const& handle) {
  cudaStream_t found = nullptr;
  must_blas(cublasGetStream(handle.get(), &found));
  return found;
}

class CublasWorkspace : public pool_world {
 protected:
  // Long and thin, so that cuBLAS splits the sum and needs the workspace.
  static constexpr int n = 64;
  static constexpr int length = 1 << 14;
  static constexpr std::size_t bytes = 32 << 20;

  /// result = factor * a * b, where all entries of a and b are 1.
  void multiply(cudaStream_t stream, float factor, float* result) {
    multiply(pool, stream, factor, result);
  }
  void multiply(scratch_pool& from, cudaStream_t stream, float factor, float* result) {
    cublas_workspace const bound(from, handle.get(), stream, bytes);
    float const zero = 0;
    must_blas(cublasSgemm(handle.get(), CUBLAS_OP_N, CUBLAS_OP_N, n, n, length, &factor, ones(), n,
                          ones(), length, &zero, result, n));
  }
  [[nodiscard]] owned_graph captured_product(float factor, float* result) {
    return captured_plainly([&](cudaStream_t on) { multiply(on, factor, result); });
  }
  [[nodiscard]] float* ones() const { return inputs.data(); }
  [[nodiscard]] static float* of(device_buffer<float> const& result) { return result.data(); }
  [[nodiscard]] static bool is_all(device_buffer<float> const& result, float expected) {
    std::vector<float> found(result.size());
    must(cudaMemcpy(found.data(), result.data(), found.size() * sizeof(float), cudaMemcpyDefault));
    return std::all_of(found.begin(), found.end(), [&](float each) { return each == expected; });
  }

  void SetUp() override {
    std::vector<float> const values(inputs.size(), 1.0F);
    must(cudaMemcpy(ones(), values.data(), values.size() * sizeof(float), cudaMemcpyDefault));
  }

  scratch_pool pool{options(8)};
  owned_handle handle = make_handle();
  device_buffer<float> inputs{std::size_t{n} * length};
};

TEST_F(CublasWorkspace, OfEachGraphIsItsOwnAndOutlivesTheHandle) {
  device_buffer<float> const of_first(std::size_t{n} * n);
  device_buffer<float> const of_second(std::size_t{n} * n);
  {
    owned_graph const first = captured_product(1, of(of_first));
    owned_graph const second = captured_product(2, of(of_second));
    EXPECT_EQ(pool.stats().bytes_in_graphs, 2 * bytes);
    owned_exec const execs[] = {instantiate(first), instantiate(second)};
    handle.reset();
    for (int i = 0; i < 50; ++i) {  // concurrently
      must(cudaGraphLaunch(execs[0], one));
      must(cudaGraphLaunch(execs[1], two));
    }
    sync_all();
  }
  EXPECT_TRUE(is_all(of_first, length));
  EXPECT_TRUE(is_all(of_second, 2 * length));
  EXPECT_TRUE(wait_until([&] { return pool.stats().bytes_in_graphs == 0; }));
}

TEST_F(CublasWorkspace, IsUsedAgainByTheNextCallsOnTheStream) {
  device_buffer<float> const result(std::size_t{n} * n);
  for (int i = 1; i <= 10; ++i) multiply(one, static_cast<float>(i), of(result));
  sync(one);
  EXPECT_TRUE(is_all(result, 10 * length));
  EXPECT_EQ(pool.stats().bytes, bytes);
}

TEST_F(CublasWorkspace, OfAGroupThatIsParkedIsThereAgain) {
  sharing_group group({.label = "products"});
  scratch_pool shared(with(options(8), &pool_options::group, group));
  device_buffer<float> const result(std::size_t{n} * n);
  auto const product = [&](float factor) {
    return graph_exec(captured([&](cudaStream_t on) { multiply(shared, on, factor, of(result)); }));
  };
  graph_exec once = product(1);
  graph_exec twice = product(2);
  for (int i = 0; i < 20; ++i) {
    once.launch(one);
    twice.launch(two);
    EXPECT_GE(group.park(), bytes);
    EXPECT_TRUE(is_all(result, 2 * length));
    group.unpark();
    once.launch(one);
    sync(one);
    EXPECT_TRUE(is_all(result, length));
  }
}

TEST_F(CublasWorkspace, BindsTheHandleAndBindsItBack) {
  must_blas(cublasSetStream(handle.get(), two));
  {
    cublas_workspace const bound(pool, handle.get(), one.get());
    EXPECT_EQ(stream_of(handle), one.get());
    EXPECT_GE(pool.stats().bytes_in_use, cublas_workspace::workspace_bytes(0));
  }
  EXPECT_EQ(stream_of(handle), two.get());
  EXPECT_EQ(pool.stats().bytes_in_use, 0U);
}

TEST_F(CublasWorkspace, ThatFailsLeavesTheHandleAsItWas) {
  must_blas(cublasSetStream(handle.get(), two));
  scratch_pool small(options(8), {.bytes_max = 1 << 20});
  EXPECT_THROW(cublas_workspace(small, handle.get(), one.get(), bytes), pool_exhausted);
  EXPECT_THROW(cublas_workspace(pool, nullptr, one.get(), bytes), cublas_error);
  EXPECT_EQ(stream_of(handle), two.get());
  EXPECT_EQ(pool.stats().bytes_in_use, 0U);
}

}  // namespace
}  // namespace escrow::test
