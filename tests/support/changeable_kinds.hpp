// The kinds of nodes whose parameters can be changed: each runs in way 1 or 2, and shows in which.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <escrow/nodes.hpp>
#include <memory>
#include <thread>

#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "wait_until.hpp"

namespace escrow::test {

/// What the nodes work on.
struct changes_world {
  pinned_ints sources{3};
  pinned_ints target;
  device_ints device{1};
  std::array<std::shared_ptr<event const>, 3> events{
      std::make_shared<event>(), std::make_shared<event>(), std::make_shared<event>()};
  kernel const copy{kernel_address(kernel_id::copy)};

  changes_world() {
    for (int i = 0; i < 3; ++i) sources.store(static_cast<std::size_t>(i), i);
  }
  [[nodiscard]] int* source(int way) const { return sources.data() + way; }
  [[nodiscard]] event const& event_of(int way) const {
    return *events.at(static_cast<std::size_t>(way));
  }
};

/// A `Kind` has make(world, way), which gives a node's kind.
template <class Kind>
struct changeable {
  static node add(changes_world& it, graph_builder_ref const& at, int way) {
    return at.add(Kind::make(it, way));
  }
  static void set(changes_world& it, node const& changed, int way) {
    changed.set(Kind::make(it, way));
  }
  static void set(changes_world& it, graph_exec& exec, node const& changed, int way) {
    escrow::set(exec, changed, Kind::make(it, way));
  }
  /// Expects that `run`, which runs an exec that has the node, runs it in this way: most kinds
  /// write the way to the target.
  template <class Run>
  static void expect(changes_world& it, Run run, int way) {
    it.target.store(0, 0);
    run();
    EXPECT_EQ(it.target.load(), way);
  }
};

struct of_launch : changeable<of_launch> {
  static auto make(changes_world& it, int way) {
    int const* const source = it.source(way);
    return kernel_node(it.copy, {}, it.target.data(), source, std::size_t{1});
  }
};

/// A kernel whose parameters are known converts its arguments.
struct of_function : changeable<of_function> {
  static auto make(changes_world& it, int way) {
    return kernel_node(function_of<int*, int const*, std::size_t>(kernel_id::copy), {},
                       it.target.data(), it.source(way), 1U);
  }
};

struct of_memset : changeable<of_memset> {
  static auto make(changes_world& it, int way) {
    auto const value = static_cast<unsigned>(way);
    return memset_node(it.device.data(), {.value = value, .element_bytes = 4, .width = 1});
  }
  template <class Run>
  static void expect(changes_world& it, Run run, int way) {
    run();
    EXPECT_EQ(it.device.read()[0], way);
  }
};

struct of_memcpy : changeable<of_memcpy> {
  static auto make(changes_world& it, int way) {
    return memcpy_node(it.target.data(), it.source(way), sizeof(int));
  }
};

struct of_callable : changeable<of_callable> {
  static auto make(changes_world& it, int way) {
    return host_node([&it, way] { it.target.store(0, way); });
  }
};

struct of_record : changeable<of_record> {
  static auto make(changes_world& it, int way) {
    return record_node(it.events.at(static_cast<std::size_t>(way)));
  }
  /// All events wait for a flag; the one that the node records again is then done.
  template <class Run>
  static void expect(changes_world& it, Run run, int way) {
    pinned_flag flag;
    owned_stream const blocked = make_stream();
    must(launch_wait_flag(blocked, flag.get()));
    for (auto const& each : it.events) must(cudaEventRecord(each->get(), blocked));
    run();
    for (int i = 0; i < 3; ++i) EXPECT_EQ(it.event_of(i).ref().is_done(), i == way) << i;
    flag.raise();
    must(cudaStreamSynchronize(blocked));
  }
};

struct of_borrowed_event : changeable<of_borrowed_event> {
  static auto make(changes_world& it, int way) { return record_node(it.event_of(way).ref()); }
  template <class Run>
  static void expect(changes_world& it, Run run, int way) {
    of_record::expect(it, run, way);
  }
};

struct of_wait : changeable<of_wait> {
  static auto make(changes_world& it, int way) {
    return wait_node(it.events.at(static_cast<std::size_t>(way)));
  }
  /// The run waits for the event that the node waits for.
  template <class Run>
  static void expect(changes_world& it, Run run, int way) {
    pinned_flag flag;
    owned_stream const blocked = make_stream();
    must(launch_wait_flag(blocked, flag.get()));
    it.event_of(way).ref().record(blocked.get());
    std::atomic<bool> has_run{false};
    std::thread running([&] {
      run();
      has_run.store(true);
    });
    EXPECT_TRUE(stays_false([&] { return has_run.load(); }));
    flag.raise();
    running.join();
  }
};

}  // namespace escrow::test
