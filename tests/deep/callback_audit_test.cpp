// Destroy callbacks of everything that puts user objects on graphs, a million and more of them, on
// the thread that destroys the graph and on CUDA's own: no CUDA call, no allocation, no lock, and
// not one voluntary context switch.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <escrow/deleter.hpp>
#include <escrow/graph.hpp>
#include <escrow/nodes.hpp>
#include <escrow/pool.hpp>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "build_graph.hpp"
#include "callback_watch.hpp"
#include "capturing.hpp"
#include "deep.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "sanitizers.hpp"
#include "wait_until.hpp"

namespace escrow {

// Something that is pooled, and that a kernel takes for a cell.
struct pooled_cell {
  int* cell;
};
template <>
struct kernel_argument_traits<pooled_cell> {
  static int* device_value(pooled_cell const& from) { return from.cell; }
};

namespace test {
namespace {

/// What put its user objects on a graph.
enum class holding { owners, kept_arguments, pool_slots, shared_objects, bundles, shared_leases };

char const* name_of(holding kind) {
  static constexpr std::array names{"owners",         "kept_arguments", "pool_slots",
                                    "shared_objects", "bundles",        "shared_leases"};
  return names[static_cast<std::size_t>(kind)];
}

class CallbackAudit : public testing::TestWithParam<holding> {
 protected:
  static constexpr int objects_a_graph = 1000;
  static constexpr int slots_a_graph = 64;
  static constexpr int nodes_a_graph = 8;

  // Of what is built by hand, a graph has one user object for all.
  [[nodiscard]] static std::uint64_t wanted() {
    bool const is_one_a_graph = GetParam() >= holding::bundles;
    if (is_sanitized) return is_one_a_graph ? 50 : 2'000;
    return is_one_a_graph ? deep_size<std::uint64_t>(500, 100'000)
                          : deep_size<std::uint64_t>(20'000, 1'000'000);
  }

  [[nodiscard]] owned_graph made() {
    switch (GetParam()) {
      case holding::owners:
        return with_owners();
      case holding::bundles:
      case holding::shared_leases:
        return built();
      default:
        return captured();
    }
  }

  [[nodiscard]] owned_graph with_owners() {
    owned_graph graph = tiny_graph();
    for (int i = 0; i < objects_a_graph; ++i) deleter_.retire(graph.get(), std::make_unique<int>());
    return graph;
  }

  [[nodiscard]] owned_graph captured() {
    std::vector<lease<pooled_cell>> leases;
    capture capturing(captured_, cudaStreamCaptureModeThreadLocal);
    if (GetParam() == holding::pool_slots) {
      for (int i = 0; i < slots_a_graph; ++i) leases.push_back(pool_.claim(captured_.get()));
      must(launch_tiny(captured_));
      leases.clear();
    } else {
      for (int i = 0; i < slots_a_graph; ++i) hold_in_capture();
    }
    must(capturing.end());
    return std::move(capturing.graph());
  }
  void hold_in_capture() {
    if (GetParam() == holding::shared_objects) {
      auto const shared = make_stream_shared_by<int>(deleter_);
      must(launch_tiny(captured_));
      record_stream(shared, captured_.get());
    } else {
      launch(captured_.get(), add_, {.deleter = &deleter_}, shared_cell(), 1);
    }
  }

  [[nodiscard]] owned_graph built() {
    graph by_hand(deleter_);
    for (int i = 0; i < nodes_a_graph; ++i) {
      if (GetParam() == holding::bundles) {
        build(by_hand).add(kernel_node(add_, {}, shared_cell(), 1));
      } else {
        auto cell = pool_.claim(stream_.get());
        build(by_hand).add(kernel_node(add_, {}, cell, 1));
      }
    }
    return owned_graph(by_hand.detach());
  }

  [[nodiscard]] std::shared_ptr<int> shared_cell() {
    return {cells_.data(), [owned = std::make_unique<int>()](int*) {}};
  }

  [[nodiscard]] bool is_all_gone() {
    return wait_until(
        [this] { return deleter_.drain_for(generous) && deleter_.stats().in_graphs == 0; },
        std::chrono::seconds(60));
  }

  // What came of it, as figures under the test's own name.
  void report(char const* where, callback_deeds const& deeds) {
    figures found(std::string("callback_audit_") + name_of(GetParam()) + "_" + where);
    found.add("callbacks", deeds.callbacks);
    found.add("of them on other threads than the caller's", deeds.elsewhere);
    found.add("CUDA calls", deeds.cuda_calls);
    found.add("allocations", deeds.allocations);
    found.add("locks", deeds.locks);
    found.add("system calls", deeds.system_calls);
    found.add("voluntary context switches", deeds.switches);
    found.write();
    EXPECT_GE(deeds.callbacks, wanted());
    EXPECT_EQ(deeds.cuda_calls, 0U);
    EXPECT_EQ(deeds.allocations, 0U);
    EXPECT_EQ(deeds.locks, 0U);
    EXPECT_LE(deeds.system_calls, deeds.callbacks) << "one wake-up each at most";
    // A sanitizer's own locks may sleep.
    EXPECT_EQ(is_sanitized ? 0U : deeds.switches, 0U);
  }

  kernel const add_{kernel_address(kernel_id::add)};
  pinned_ints cells_;
  deleter deleter_;
  owned_stream stream_ = make_stream();
  owned_stream captured_ = make_stream();
  resource_pool<pooled_cell> pool_{{.slots_max = 4 * slots_a_graph,
                                    .host_wait_max = generous,
                                    .label = "cells",
                                    .deleter = &deleter_},
                                   [this] { return pooled_cell{cells_.data()}; }};
};

TEST_P(CallbackAudit, FindsNothingOnTheThreadThatDestroysTheGraph) {
  forget_deeds();
  while (deeds_in_callbacks().callbacks < wanted()) static_cast<void>(made());
  EXPECT_TRUE(is_all_gone());
  callback_deeds const deeds = deeds_in_callbacks();
  EXPECT_EQ(deeds.elsewhere, 0U);
  report("caller", deeds);
}

TEST_P(CallbackAudit, FindsNothingOnCudasOwnThreadForExecsThatAreDestroyedInFlight) {
  forget_deeds();
  for (int round = 1; deeds_in_callbacks().callbacks < wanted(); ++round) {
    must(launch_sleep(stream_, 50));
    owned_graph graph = made();
    owned_exec exec = instantiate(graph);
    must(cudaGraphLaunch(exec, stream_));
    graph.reset();
    exec.reset();
    if (round % 8 == 0) must(cudaStreamSynchronize(stream_));
  }
  EXPECT_TRUE(is_all_gone());
  callback_deeds const deeds = deeds_in_callbacks();
  EXPECT_GT(deeds.elsewhere, deeds.callbacks / 2) << "hardly any went on CUDA's thread";
  report("cuda", deeds);
}

// The audit's own test: it sees what owners' callbacks must not do.
TEST(WatchOfCallbacks, SeesOneThatAsksAboutAnEventAndSleeps) {
  forget_deeds();
  misbehave_in_callback([] {
    static_cast<void>(cudaEventQuery(nullptr));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  });
  static_cast<void>(cudaGetLastError());
  callback_deeds const deeds = deeds_in_callbacks();
  EXPECT_EQ(deeds.callbacks, 1U);
  EXPECT_GT(deeds.cuda_calls, 0U);
  EXPECT_GT(deeds.switches, 0U);
}

std::string name_of_case(testing::TestParamInfo<holding> const& info) {
  return name_of(info.param);
}

INSTANTIATE_TEST_SUITE_P(Of, CallbackAudit,
                         testing::Values(holding::owners, holding::kept_arguments,
                                         holding::pool_slots, holding::shared_objects,
                                         holding::bundles, holding::shared_leases),
                         name_of_case);

}  // namespace
}  // namespace test
}  // namespace escrow
