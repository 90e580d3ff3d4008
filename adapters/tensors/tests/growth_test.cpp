// SPDX-License-Identifier: Apache-2.0
// A library that caches its workspace and replaces it when it must grow, while graphs that use the
// old one live on: allocated through TVM-FFI as FlashInfer does.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <escrow/tensor_allocator.hpp>
#include <map>
#include <random>
#include <thread>

#include "deep.hpp"
#include "pool_world.hpp"

namespace escrow::test {
namespace {

namespace ffi = tvm::ffi;
using steady = std::chrono::steady_clock;

/// Memory by its address, with its size in bytes.
using ranges = std::map<char*, std::size_t>;

bool overlap(ranges const& some, char* begin, std::size_t bytes) {
  return std::ranges::any_of(some, [&](auto const& each) {
    return each.first < begin + bytes && begin < each.first + each.second;
  });
}

/// A tensor with room for so many integers.
ffi::Tensor alloc_tensor(std::size_t count) {
  std::int64_t const size = static_cast<std::int64_t>(count);
  return ffi::Tensor::FromEnvAlloc(&TVMFFIEnvTensorAlloc, ffi::ShapeView(&size, 1), {kDLInt, 32, 1},
                                   {kDLCUDA, 0});
}

struct place {
  explicit place(ffi::Tensor const& of)
      : begin(static_cast<char*>(of.data_ptr())),
        bytes(sizeof(int) * static_cast<std::size_t>(of.size(0))) {}
  char* begin;
  std::size_t bytes;
};

/// A graph that somebody replays, and all the memory that it uses.
struct live_graph {
  owned_graph graph;
  owned_exec plain;
  std::optional<graph_exec> exec;  // in place of `plain`
  ranges used;
  std::vector<void*> references;  // one for each that the library gave it, with the tensor's data
};

/// A destroyed graph whose launches may still run: they do until `end` is done.
struct ending_graph {
  owned_event end;
  ranges used;
};

/// Something else that uses the same memory: keeps a pattern in it.
struct tenant {
  ffi::Tensor memory;
  int pattern;
};

class Growth : public pool_world {
 protected:
  static constexpr std::size_t count_max = 8192;

  void SetUp() override { must(TVMFFIEnvSetStream(kDLCUDA, 0, one, nullptr) == 0, "stream set"); }
  void TearDown() override {
    while (!graphs.empty()) destroy();
    cached.reset();
    tenants.clear();
    must(TVMFFIEnvSetStream(kDLCUDA, 0, nullptr, nullptr) == 0, "stream set");
    sync_all();
    pool_world::TearDown();
  }

  [[nodiscard]] std::size_t random(std::size_t below) {
    return std::uniform_int_distribution<std::size_t>(0, below - 1)(generator);
  }

  /// Nobody may get what a graph uses that lives, or whose launches run.
  void expect_no_graphs_memory(place const& got) {
    relaxed_capture_scope const relaxed;  // also within a capture
    for (live_graph const& each : graphs) stale += overlap(each.used, got.begin, got.bytes) ? 1 : 0;
    while (!ending.empty() && cudaEventQuery(ending.front().end) == cudaSuccess) ending.pop_front();
    for (ending_graph const& each : ending)
      stale += overlap(each.used, got.begin, got.bytes) ? 1 : 0;
  }

  /// The library: uses its workspace on stream `one`, which may be captured, for `in`.
  void library_work(std::size_t count, int pattern, live_graph& in) {
    bool const is_captured = capture_of(one.get()).is_active();
    if (!cached || static_cast<std::size_t>(cached->size(0)) < count) {
      // The last reference is dropped in a capture: the graph may use what was there before.
      if (cached && is_captured && cached->use_count() == 1) note(place(*cached), in.used);
      cached.reset();
      cached = alloc_tensor(count);
      expect_no_graphs_memory(place(*cached));
      ++grown;
    }
    // A graph that did not allocate it needs a reference.
    if (is_captured && keeps) {
      deleter::global().retire(one, *cached);
      in.references.push_back(cached->data_ptr());
    }
    note(place(*cached), in.used);
    auto* const data = static_cast<int*>(cached->data_ptr());
    must(launch_fill(one, data, count, pattern));
    must(launch_check(one, data, count, pattern, mismatches.data()));
  }
  static void note(place const& what, ranges& in) { in[what.begin] = what.bytes; }

  void capture_one() {
    live_graph made;
    must(cudaStreamBeginCapture(one, cudaStreamCaptureModeGlobal));
    std::size_t const uses = 1 + random(3);
    for (std::size_t i = 0; i < uses; ++i) library_work(some_count(), ++last_pattern, made);
    must(cudaStreamEndCapture(one, made.graph.out()));
    if (random(2) == 0) {
      made.exec.emplace(made.graph.get());
    } else {
      made.plain = instantiate(made.graph);
    }
    graphs.push_back(std::move(made));
  }
  [[nodiscard]] std::size_t some_count() {
    if (cached && random(8) == 0)
      return std::min<std::size_t>(count_max, 2 * static_cast<std::size_t>(cached->size(0)));
    return 64 + random(256);
  }

  void replay() {
    live_graph& which = graphs[random(graphs.size())];
    if (which.exec) {
      which.exec->launch(one);
    } else {
      must(cudaGraphLaunch(which.plain, one));
    }
  }

  void destroy() {
    auto const which = graphs.begin() + static_cast<std::ptrdiff_t>(random(graphs.size()));
    bool const is_in_flight = random(2) == 0;
    if (!is_in_flight) sync(one);
    ending.push_back({make_event(), std::move(which->used)});
    must(cudaEventRecord(ending.back().end, one));
    graphs.erase(which);
    if (is_in_flight) sync(one);
    if (!keeps) return;
    auto const begin = steady::now();
    std::size_t const expected = expected_bytes();
    bool const is_back = is_returned(expected);
    EXPECT_TRUE(is_back) << busy_bytes() << " bytes are in use, expected " << expected;
    returns.push_back(std::chrono::duration<double, std::micro>(steady::now() - begin).count());
  }
  [[nodiscard]] bool is_returned(std::size_t expected) const {
    auto const end = steady::now() + generous;
    while (busy_bytes() != expected || !has_only_known_references()) {
      if (steady::now() > end) return false;
      static_cast<void>(alloc_tensor(1));  // the pool is given the stream
      std::this_thread::yield();
    }
    return true;
  }
  /// The worker has dropped those of destroyed graphs.
  [[nodiscard]] bool has_only_known_references() const {
    if (!cached) return true;
    std::ptrdiff_t known = 1;
    for (live_graph const& each : graphs) {
      known += std::ranges::count(each.references, cached->data_ptr());
    }
    return cached->use_count() == known;
  }
  [[nodiscard]] std::size_t busy_bytes() const {
    scratch_stats const now = all.memory(0).pool().stats();
    return now.bytes_in_use + now.bytes_in_graphs;
  }
  /// Of what the library, the tenants and the graphs use.
  [[nodiscard]] std::size_t expected_bytes() const {
    ranges used;
    for (live_graph const& each : graphs) used.insert(each.used.begin(), each.used.end());
    for (tenant const& each : tenants) note(place(each.memory), used);
    if (cached) note(place(*cached), used);
    std::size_t sum = 0;
    for (auto const& each : used) sum += scratch_pool::block_bytes(each.second);
    return sum;
  }

  void move_in() {
    must(TVMFFIEnvSetStream(kDLCUDA, 0, two, nullptr) == 0, "stream set");
    tenant made{alloc_tensor(some_count()), ++last_pattern};
    must(TVMFFIEnvSetStream(kDLCUDA, 0, one, nullptr) == 0, "stream set");
    expect_no_graphs_memory(place(made.memory));
    must(launch_fill(two, static_cast<int*>(made.memory.data_ptr()), 64, made.pattern));
    tenants.push_back(std::move(made));
  }
  void move_out() {
    auto const which = tenants.begin() + static_cast<std::ptrdiff_t>(random(tenants.size()));
    must(launch_check(two, static_cast<int*>(which->memory.data_ptr()), 64, which->pattern,
                      mismatches.data()));
    tenants.erase(which);
  }

  void step(bool launches) {
    live_graph ignored;
    switch (random(8)) {
      case 0:
        if (graphs.size() < 12) return capture_one();
        [[fallthrough]];
      case 1:
        if (!graphs.empty()) return destroy();
        return;
      case 2:
        if (tenants.size() < 12) return move_in();
        [[fallthrough]];
      case 3:
        if (!tenants.empty()) return move_out();
        return;
      case 4:
        if (random(8) == 0) cached.reset();  // as after a change of the model
        return library_work(some_count(), ++last_pattern, ignored);
      default:
        if (launches && !graphs.empty()) replay();
    }
  }

  use_for_tvm_ffi all{{.label = "workspaces"}};
  std::mt19937_64 generator{1};
  std::optional<ffi::Tensor> cached;
  std::vector<live_graph> graphs;
  std::deque<ending_graph> ending;
  std::vector<tenant> tenants;
  int last_pattern = 0;
  bool keeps = true;  // whether the library gives captures a reference
  std::uint64_t stale = 0;
  std::uint64_t grown = 0;
  std::vector<double> returns;  // in microseconds, from the end of the last launch
};

TEST_F(Growth, LeavesNoStaleAddressAndReturnsOldBuffers) {
  int const steps = deep_size(3000, 100'000);
  for (int i = 0; i < steps && !HasFailure(); ++i) step(true);
  sync_all();
  EXPECT_EQ(stale, 0U);
  EXPECT_EQ(mismatches.load(), 0);
  ASSERT_GT(returns.size(), 100U);
  std::ranges::sort(returns);
  figures found("tensor_growth");
  found.add("steps", steps);
  found.add("grow_growths", grown);
  found.add("grow_graphs_destroyed", returns.size());
  found.add("grow_stale_addresses", stale);
  found.add("grow_return_p50_us", returns[returns.size() / 2]);
  found.add("grow_return_us", returns[returns.size() * 99 / 100]);  // p99
  found.add("grow_return_max_us", returns.back());
  found.write();
}

TEST_F(Growth, ItsCheckSeesAGraphWithoutAReference) {
  keeps = false;
  for (int i = 0; i < 3000 && stale == 0; ++i) step(false);
  EXPECT_GT(stale, 0U);
}

}  // namespace
}  // namespace escrow::test
