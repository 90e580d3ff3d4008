// What the tests of two devices share: a pool, a stream and a way to work on each.
#pragma once

#include <array>
#include <escrow/graph.hpp>
#include <escrow/nodes.hpp>
#include <optional>
#include <string>

#include "../pool/capture_fixture.hpp"
#include "escrow/detail/device.hpp"

namespace escrow::test {

class AcrossDevices : public captured_pool_test {
 protected:
  static constexpr std::array devices{0, 1};

  void SetUp() override {
    int count = 0;
    must(cudaGetDeviceCount(&count));
    if (count < 2) GTEST_SKIP() << "needs two devices";
    for (int const device : devices) {
      device_scope const there(device);
      streams[at(device)] = make_stream();
      pools[at(device)].emplace(options_of(device), [this] { return block{counts}; });
    }
  }
  void TearDown() override {
    must(cudaSetDevice(0));
    for (int const device : devices) {
      if (!pools[at(device)]) continue;  // skipped
      device_scope const there(1 - device);
      pools[at(device)].reset();
    }
    captured_pool_test::TearDown();
  }

  [[nodiscard]] static std::size_t at(int device) { return static_cast<std::size_t>(device); }
  [[nodiscard]] pool_options options_of(int device, std::size_t slots_max = 4) {
    pool_options result = options(slots_max);
    result.device = device;
    result.label = "blocks of " + std::to_string(device);
    return result;
  }
  [[nodiscard]] block_pool& pool_of(int device) { return *pools[at(device)]; }
  [[nodiscard]] cudaStream_t stream_of(int device) { return streams[at(device)]; }

  // Makes `after` wait for `before`, which is of `device`, as an event has to be.
  void order_from(int device, cudaStream_t before, cudaStream_t after) {
    device_scope const there(device);
    order(before, after);
  }
  // Kernels are launched with their stream's device current, as CUDA demands.
  void work(int device, block_lease& held, int value) {
    device_scope const there(device);
    fill(held, stream_of(device), value);
    check(held, stream_of(device), value, mismatches);
  }
  void sync_both() {
    for (int const device : devices) sync(stream_of(device));
  }
  // One capture, begun on device 0, that claims and works on both and ends joined.
  [[nodiscard]] graph captured_on_both() {
    return escrow::capture(stream_of(0), [this](stream_ref) {
      block_lease here = pool_of(0).claim(stream_of(0));
      work(0, here, 1);
      order_from(0, stream_of(0), stream_of(1));
      block_lease there = pool_of(1).claim(stream_of(1));
      work(1, there, 2);
      work(0, here, 3);
      there.release();
      order_from(1, stream_of(1), stream_of(0));
    });
  }
  [[nodiscard]] bool nothing_is_in_graphs() {
    return wait_until([this] {
      return pool_of(0).stats().in_graphs == 0 && pool_of(1).stats().in_graphs == 0 && drained();
    });
  }
  [[nodiscard]] static int device_of_memory(void const* address) {
    cudaPointerAttributes found{};
    must(cudaPointerGetAttributes(&found, address));
    return found.device;
  }

  kernel const fills{kernel_address(kernel_id::fill)};
  kernel const adds{kernel_address(kernel_id::add)};
  pinned_flag flag;
  std::array<owned_stream, 2> streams;
  std::array<std::optional<block_pool>, 2> pools;
};

}  // namespace escrow::test
