// Kinds of nodes whose parameters can be changed: each runs in one of two ways, and tells in which.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <escrow/core.hpp>
#include <escrow/detail/device.hpp>
#include <escrow/detail/graph_query.hpp>
#include <escrow/detail/ready_event.hpp>
#include <escrow/detail/retry_cleanup.hpp>
#include <escrow/nodes.hpp>

#include "build_fixture.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"

namespace escrow::test {

/// What the nodes work on. They run in way 1 or 2.
struct changes_world {
  pinned_ints sources{3};
  pinned_ints target;
  device_ints device{1};
  shared_event events[3] = {shared_event::make(), shared_event::make(), shared_event::make()};
  kernel const copy{kernel_address(kernel_id::copy)};

  changes_world() {
    for (int i = 0; i < 3; ++i) sources.store(static_cast<std::size_t>(i), i);
  }
  [[nodiscard]] int* source(int way) const { return sources.data() + way; }
  /// As a kernel takes it.
  [[nodiscard]] int const* read(int way) const { return source(way); }
};

/// Runs an exec whose node writes to the target which way it runs.
template <class Run>
void expect_written(changes_world& it, Run run, int way) {
  it.target.store(0, 0);
  run();
  EXPECT_EQ(it.target.load(), way);
}

struct of_launch {
  static node add(changes_world& it, graph_builder_ref const& at, int way) {
    return at.add(kernel_node(it.copy, {}, it.target.data(), it.read(way), std::size_t{1}));
  }
  static void set(changes_world& it, node const& changed, int way) {
    changed.set(kernel_node(it.copy, {}, it.target.data(), it.read(way), std::size_t{1}));
  }
  static void set(changes_world& it, graph_exec& exec, node const& changed, int way) {
    escrow::set(exec, changed,
                kernel_node(it.copy, {}, it.target.data(), it.read(way), std::size_t{1}));
  }
  static constexpr auto expect = [](changes_world& it, auto run, int way) {
    expect_written(it, run, way);
  };
};

/// A kernel whose parameters are known converts its arguments.
struct of_function {
  static auto known() { return function_of<int*, int const*, std::size_t>(kernel_id::copy); }
  static node add(changes_world& it, graph_builder_ref const& at, int way) {
    return at.add(kernel_node(known(), {}, it.target.data(), it.source(way), 1U));
  }
  static void set(changes_world& it, node const& changed, int way) {
    changed.set(kernel_node(known(), {}, it.target.data(), it.source(way), 1U));
  }
  static void set(changes_world& it, graph_exec& exec, node const& changed, int way) {
    escrow::set(exec, changed, kernel_node(known(), {}, it.target.data(), it.source(way), 1U));
  }
  static constexpr auto expect = of_launch::expect;
};

struct of_memset {
  static memset_config config(int way) {
    return {.value = static_cast<unsigned>(way), .element_bytes = 4, .width = 1};
  }
  static node add(changes_world& it, graph_builder_ref const& at, int way) {
    return at.add(memset_node(it.device.data(), config(way)));
  }
  static void set(changes_world& it, node const& changed, int way) {
    changed.set(memset_node(it.device.data(), config(way)));
  }
  static void set(changes_world& it, graph_exec& exec, node const& changed, int way) {
    escrow::set(exec, changed, memset_node(it.device.data(), config(way)));
  }
  static constexpr auto expect = [](changes_world& it, auto run, int way) {
    run();
    EXPECT_EQ(it.device.read()[0], way);
  };
};

struct of_memcpy {
  static node add(changes_world& it, graph_builder_ref const& at, int way) {
    return at.add(memcpy_node(it.target.data(), it.source(way), sizeof(int)));
  }
  static void set(changes_world& it, node const& changed, int way) {
    changed.set(memcpy_node(it.target.data(), it.source(way), sizeof(int)));
  }
  static void set(changes_world& it, graph_exec& exec, node const& changed, int way) {
    escrow::set(exec, changed, memcpy_node(it.target.data(), it.source(way), sizeof(int)));
  }
  static constexpr auto expect = of_launch::expect;
};

struct of_callable {
  static auto writing(changes_world& it, int way) {
    return [&it, way] { it.target.store(0, way); };
  }
  static node add(changes_world& it, graph_builder_ref const& at, int way) {
    return at.add(host_node(writing(it, way)));
  }
  static void set(changes_world& it, node const& changed, int way) {
    changed.set(host_node(writing(it, way)));
  }
  static void set(changes_world& it, graph_exec& exec, node const& changed, int way) {
    escrow::set(exec, changed, host_node(writing(it, way)));
  }
  static constexpr auto expect = of_launch::expect;
};

struct of_c_function {
  struct data {
    changes_world* it;
    int way;
  };
  static void CUDART_CB write(void* given) {
    auto const* const what = static_cast<data const*>(given);
    what->it->target.store(0, what->way);
  }
  static node add(changes_world& it, graph_builder_ref const& at, int way) {
    data const given{&it, way};
    return at.add(host_node(&write, &given, sizeof(given)));
  }
  static void set(changes_world& it, node const& changed, int way) {
    data const given{&it, way};
    changed.set(host_node(&write, &given, sizeof(given)));
  }
  static void set(changes_world& it, graph_exec& exec, node const& changed, int way) {
    data const given{&it, way};
    escrow::set(exec, changed, host_node(&write, &given, sizeof(given)));
  }
  static constexpr auto expect = of_launch::expect;
};

/// Makes all events wait for a flag, and says which of them are there again after `run`.
struct of_record {
  static node add(changes_world& it, graph_builder_ref const& at, int way) {
    return at.add(record_node(it.events[way]));
  }
  static void set(changes_world& it, node const& changed, int way) {
    changed.set(record_node(it.events[way]));
  }
  static void set(changes_world& it, graph_exec& exec, node const& changed, int way) {
    escrow::set(exec, changed, record_node(it.events[way]));
  }
  static constexpr auto expect = [](changes_world& it, auto run, int way) {
    pinned_flag flag;
    owned_stream const held_up = make_stream();
    must(launch_wait_flag(held_up, flag.get()));
    for (auto const& each : it.events) must(cudaEventRecord(each.get(), held_up));
    run();
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(cudaEventQuery(it.events[i].get()), i == way ? cudaSuccess : cudaErrorNotReady)
          << i;
      static_cast<void>(cudaGetLastError());
    }
    flag.raise();
    must(cudaStreamSynchronize(held_up));
  };
};

struct of_borrowed_event {
  static node add(changes_world& it, graph_builder_ref const& at, int way) {
    return at.add(record_node(it.events[way].ref()));
  }
  static void set(changes_world& it, node const& changed, int way) {
    changed.set(record_node(it.events[way].ref()));
  }
  static void set(changes_world& it, graph_exec& exec, node const& changed, int way) {
    escrow::set(exec, changed, record_node(it.events[way].ref()));
  }
  static constexpr auto expect = of_record::expect;
};

}  // namespace escrow::test
