// SPDX-License-Identifier: Apache-2.0
// Copies to and from the host's memory: which calls block, and when pageable memory is read.
#include "call_elsewhere.hpp"
#include "graph_nodes.hpp"

namespace escrow::test {
namespace {

class CopiesThatBlock : public testing::Test {
 protected:
  static constexpr std::size_t bytes = sizeof(int);

  // Waits for the flag, sets the device's cell to 5 and copies it.
  [[nodiscard]] owned_exec exec_that_copies_to(int* to, pinned_flag const& flag) {
    owned_graph const graph = make_graph();
    cudaGraphNode_t const waited = add_kernel(graph, wait_flag_call(flag.get()));
    cudaGraphNode_t const set = add_fill(graph, fill_params(device.data(), 5, 4, 1), waited);
    add_copy(graph, to, device.data(), bytes, set);
    return instantiate(graph);
  }
  // All kernels and fills are loaded: the first launch of one may block by itself.
  void SetUp() override {
    pinned_flag raised;
    raised.raise();
    must(launch_wait_flag(stream, raised.get()));
    must(cudaMemsetAsync(device.data(), 0, bytes, stream));
    must(cudaStreamSynchronize(stream));
  }

  device_ints device;
  pinned_ints pinned;
  std::vector<int> pageable = std::vector<int>(1);
  owned_stream stream = make_stream();
};

TEST_F(CopiesThatBlock, ACallOrALaunchOfAGraphReturnsAfterACopyToPageableMemoryAlone) {
  for (bool const is_launch : {true, false}) {
    for (bool const is_pinned : {false, true}) {
      pinned_flag flag;
      int* const to = is_pinned ? pinned.data() : pageable.data();
      *to = 0;
      owned_exec const exec = exec_that_copies_to(to, flag);
      if (!is_launch) must(launch_wait_flag(stream, flag.get()));
      call_elsewhere const copy([&] {
        return is_launch ? cudaGraphLaunch(exec, stream)
                         : cudaMemcpyAsync(to, device.data(), bytes, cudaMemcpyDefault, stream);
      });
      if (!is_pinned) {
        EXPECT_TRUE(copy.stays_blocked());
        flag.raise();
      }
      EXPECT_TRUE(copy.succeeds_soon());
      EXPECT_TRUE(!is_pinned || pinned.load() == 0);
      flag.raise();
      must(cudaStreamSynchronize(stream));
      EXPECT_EQ(*to, 5);
    }
  }
}

void CUDART_CB write_4(void* to) {
  *static_cast<int*>(to) = 4;
}

// Of a copy from pageable memory, which a host function before it has written, and the host after
// the call.
class CopiesFromPageableMemory : public CopiesThatBlock {
 protected:
  static constexpr std::size_t staged_max = std::size_t{2} << 20;

  [[nodiscard]] std::function<cudaError_t()> call_that_copies(bool is_launch, std::size_t n) {
    source.assign(n, 3);
    cells = std::make_unique<device_ints>(n);
    std::size_t const all = n * sizeof(int);
    if (is_launch) {
      graph = make_graph();
      cudaGraphNode_t const waited = add_kernel(graph, wait_flag_call(flag.get()));
      cudaGraphNode_t const written = add_host(graph, &write_4, source.data(), waited);
      add_copy(graph, cells->data(), source.data(), all, written);
      exec = instantiate(graph);
      return [this] { return cudaGraphLaunch(exec, stream); };
    }
    must(launch_wait_flag(stream, flag.get()));
    must(cudaLaunchHostFunc(stream, &write_4, source.data()));
    return [this, all] {
      return cudaMemcpyAsync(cells->data(), source.data(), all, cudaMemcpyDefault, stream);
    };
  }

  std::vector<int> source;
  std::unique_ptr<device_ints> cells;
  owned_graph graph = make_graph();
  owned_exec exec;
  pinned_flag flag;  // the last: its destructor waits for what waits for it
};

TEST_F(CopiesFromPageableMemory, AreReadInTheCallAlsoByALaunchOfAGraph) {
  for (bool const is_launch : {true, false}) {
    for (std::size_t const n : {std::size_t{1}, staged_max / sizeof(int)}) {
      flag.lower();
      call_elsewhere const copy(call_that_copies(is_launch, n));
      EXPECT_TRUE(copy.succeeds_soon()) << "it does not wait for the kernel";
      source.back() = 5;
      flag.raise();
      must(cudaStreamSynchronize(stream));
      std::vector<int> const got = cells->read();
      EXPECT_EQ(got.front(), 3);
      EXPECT_EQ(got.back(), 3);
    }
  }
}

TEST_F(CopiesFromPageableMemory, OfMoreThan2MiBBlockTheCall) {
  for (bool const is_launch : {true, false}) {
    flag.lower();
    call_elsewhere const copy(call_that_copies(is_launch, 4 * staged_max / sizeof(int)));
    EXPECT_TRUE(copy.stays_blocked());
    flag.raise();
    EXPECT_TRUE(copy.succeeds_soon());
    source.back() = 5;
    EXPECT_EQ(cells->read().back(), 3);
  }
}

TEST_F(CopiesThatBlock, AreThoseWithinTheHostsMemory) {
  pinned_ints other;
  int source = 3;
  std::pair<int*, int const*> const ways[] = {{pageable.data(), &source},
                                              {pinned.data(), &source},
                                              {pageable.data(), other.data()},
                                              {pinned.data(), other.data()}};
  for (auto const& [to, from] : ways) {
    pinned_flag flag;
    must(launch_wait_flag(stream, flag.get()));
    call_elsewhere const copy([&, to = to, from = from] {
      return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
    });
    EXPECT_TRUE(copy.stays_blocked());
    flag.raise();
    EXPECT_TRUE(copy.succeeds_soon());
  }
}

TEST_F(CopiesFromPageableMemory, BehindACopyToItAreReadAfterThat) {
  for (bool const is_launch : {true, false}) {
    pageable.front() = 3;
    device_ints again;
    flag.raise();
    if (is_launch) {
      graph = make_graph();
      cudaGraphNode_t const set = add_fill(graph, fill_params(device.data(), 5, 4, 1));
      cudaGraphNode_t const got = add_copy(graph, pageable.data(), device.data(), bytes, set);
      add_copy(graph, again.data(), pageable.data(), bytes, got);
      exec = instantiate(graph);
      must(cudaGraphLaunch(exec, stream));
    } else {
      must(cudaMemsetAsync(device.data(), 0, bytes, stream));
      must(cudaMemcpyAsync(pageable.data(), device.data(), bytes, cudaMemcpyDefault, stream));
      must(cudaMemcpyAsync(again.data(), pageable.data(), bytes, cudaMemcpyDefault, stream));
    }
    EXPECT_EQ(again.read().front(), is_launch ? 5 : 0);
  }
}

}  // namespace
}  // namespace escrow::test
