// SPDX-License-Identifier: Apache-2.0
// Every kind of lease ends in every place: its slot is not handed out before its work is done, and
// comes back once its graphs are gone and its pool was given its stream.

#include <array>
#include <string>
#include <tuple>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

enum class kind { eager, claimer, lasting_stream, told, capture, group, kept_by_graph, address };
constexpr std::array kind_names{"Eager",   "OfAClaimer", "OfALastingStream", "Told",
                                "Capture", "OfAGroup",   "KeptByAGraph",     "Address"};

enum class place {
  scope,
  release,
  release_elsewhere,
  other_thread,
  retired_on_its_stream,
  retired_on_another,
  retired_without_stream,
  retired_in_a_capture,
  host_function,
  other_capture,
  invalidated_capture,
  after_its_pool
};
constexpr std::array place_names{
    "InItsScope",         "ByRelease",        "ByReleaseElsewhere",     "OnAnotherThread",
    "RetiredOnItsStream", "RetiredOnAnother", "RetiredWithoutAStream",  "RetiredInACapture",
    "InAHostFunction",    "InAnotherCapture", "InAnInvalidatedCapture", "AfterItsPool"};

/// What ends with it: a lease, or memory by its address.
struct holder_of_lease {
  std::optional<block_lease> held;
  stream_allocator* memory = nullptr;
  void* address = nullptr;
  cudaStream_t stream = nullptr;

  holder_of_lease() = default;
  holder_of_lease(holder_of_lease&&) = delete;
  ~holder_of_lease() {
    if (address != nullptr) memory->deallocate_or_report(stream, address);
  }
};
using owner = std::unique_ptr<holder_of_lease>;

class LeaseEnds : public pool_world, public testing::WithParamInterface<std::tuple<kind, place>> {
 protected:
  [[nodiscard]] kind its_kind() const { return std::get<0>(GetParam()); }
  [[nodiscard]] place its_place() const { return std::get<1>(GetParam()); }
  [[nodiscard]] bool is_of_capture() const {
    return its_kind() == kind::capture || its_kind() == kind::group;
  }

  [[nodiscard]] owner claimed() {
    auto made = std::make_unique<holder_of_lease>();
    switch (its_kind()) {
      case kind::address:
        memory.emplace(options(2));
        made->memory = &*memory;
        made->stream = one;
        made->address = memory->allocate(one, 256);
        must(launch_wait_flag(one, flag.get()));
        return made;
      case kind::capture:
      case kind::group:
        graphs.push_back(captured([&](cudaStream_t on) { made->held = pool->claim(on); }));
        return made;
      case kind::claimer:
        local.emplace(pool->on(one));
        local->claim().release();
        made->held = local->claim();
        break;
      default:
        made->held = pool->claim(one);
    }
    if (its_kind() == kind::told) made->held->record_stream(two);
    keep_busy(*made->held, its_kind() == kind::told ? two : one, 4);
    if (its_kind() == kind::kept_by_graph) {
      graphs.push_back(graph());
      capture open{three, cudaStreamCaptureModeRelaxed};
      made->held->record_stream(three);
      must(open.end());
      plain = std::move(open.graph());
    }
    return made;
  }

  void in_host_function(owner its) {
    std::atomic<bool> is_over{false};
    auto call = [&its, &is_over] {
      its.reset();
      is_over.store(true);
    };
    std::function<void()> const end = call;
    must(cudaLaunchHostFunc(
        asking, [](void* given) { (*static_cast<std::function<void()>*>(given))(); },
        const_cast<std::function<void()>*>(&end)));
    EXPECT_TRUE(wait_until([&] { return is_over.load(); }));
    sync(asking);
  }

  void end(owner its) {
    std::optional<block_lease>& held = its->held;
    switch (its_place()) {
      case place::scope:
        return its.reset();
      case place::release:
        if (held) held->release();
        return its.reset();
      case place::release_elsewhere:
        order(one, asking);
        if (its_kind() == kind::told) order(two, asking);
        if (held) held->release(asking);
        its->stream = asking;
        return its.reset();
      case place::other_thread:
        std::jthread([&its] { its.reset(); }).join();
        return;
      case place::retired_on_its_stream:
        return worker->retire(one.get(), std::move(its));
      case place::retired_on_another:
        return worker->retire(asking.get(), std::move(its));
      case place::retired_without_stream:
        return worker->retire(std::move(its));
      case place::retired_in_a_capture: {
        capture open{asking, cudaStreamCaptureModeRelaxed};
        worker->retire(asking.get(), std::move(its));
        must(open.end());
        return open.graph().reset();
      }
      case place::host_function:
        return in_host_function(std::move(its));
      case place::other_capture: {
        capture open{one, cudaStreamCaptureModeRelaxed};
        its.reset();
        must(open.end());
        return open.graph().reset();
      }
      case place::invalidated_capture: {
        capture open{one, cudaStreamCaptureModeRelaxed};
        invalidate(one);
        its.reset();
        EXPECT_NE(open.end(), cudaSuccess);
        static_cast<void>(cudaGetLastError());
        return;
      }
      case place::after_its_pool:
        pool.reset();
        return its.reset();
    }
  }

  /// Another stream's work on what it gets does not run before the flag is raised, if it gets that.
  void expect_not_early(int number) {
    std::vector<block_lease> others;
    while (auto next = pool->try_claim(asking)) {
      bool const is_it = (*next)->number() == number;
      if (is_it) check(*next, asking, 4, mismatches);
      others.push_back(std::move(*next));
      if (!is_it) continue;
      EXPECT_TRUE(stays_busy(asking)) << "it is handed out before its work is done";
      break;
    }
    flag.raise();
    sync_all();
    sync(asking);
  }

  void TearDown() override {
    local.reset();
    memory.reset();
    pool.reset();
    world::TearDown();
  }

  sharing_group group{{.label = "ends"}};
  std::optional<block_pool> pool;
  std::optional<claimer<block>> local;
  std::optional<stream_allocator> memory;
  std::vector<graph> graphs;
  owned_graph plain;
};

TEST_P(LeaseEnds, AndItsSlotComesBackAfterItsWork) {
  pool_options chosen = options(4);
  chosen.streams_outlive_pool = its_kind() == kind::lasting_stream;
  if (its_kind() == kind::group) {
    chosen.group = group;
    errors_expected = true;  // it outlives its capture
  }
  pool.emplace(make_pool(chosen));
  owner its = claimed();
  int const number = its->held ? (*its->held)->number() : -1;
  bool const is_early_asked =
      its_place() != place::after_its_pool && !is_of_capture() && its_kind() != kind::address;
  end(std::move(its));
  if (is_early_asked) expect_not_early(number);
  flag.raise();
  sync_all();
  graphs.clear();
  plain.reset();
  EXPECT_TRUE(drained());
  if (its_place() == place::after_its_pool) return;  // the end of the test sees what is left
  for (cudaStream_t const each : {one.get(), two.get(), asking.get()}) {  // the next calls
    static_cast<void>(pool->try_claim(each));
    if (memory) memory->deallocate(each, memory->allocate(each, 256));
  }
  if (local) local->flush();
  EXPECT_TRUE(drained());
  EXPECT_EQ(pool->stats().deferred, 0U);
  EXPECT_EQ(pool->stats().leased, 0U);
  EXPECT_EQ(pool->stats().in_graphs, 0U);
  EXPECT_EQ(worker->stats().leaked, 0U);
  if (memory) {
    EXPECT_EQ(memory->pool().stats().bytes_in_use, 0U);
    EXPECT_EQ(memory->pool().stats().bytes_in_graphs, 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, LeaseEnds,
    testing::Combine(testing::Values(kind::eager, kind::claimer, kind::lasting_stream, kind::told,
                                     kind::capture, kind::group, kind::kept_by_graph,
                                     kind::address),
                     testing::Values(place::scope, place::release, place::release_elsewhere,
                                     place::other_thread, place::retired_on_its_stream,
                                     place::retired_on_another, place::retired_without_stream,
                                     place::retired_in_a_capture, place::host_function,
                                     place::other_capture, place::invalidated_capture,
                                     place::after_its_pool)),
    [](auto const& of) {
      return std::string(kind_names.at(static_cast<std::size_t>(std::get<0>(of.param)))) +
             place_names.at(static_cast<std::size_t>(std::get<1>(of.param)));
    });

}  // namespace
}  // namespace escrow::test
