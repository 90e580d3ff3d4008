// Deleters that end before what they owe, and workers that cost nothing while they rest.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
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

class Lifetime : public testing::TestWithParam<bool> {
 protected:
  test::pinned_flag flag_;
  test::owned_stream stream_ = test::make_stream();
  std::optional<deleter> deleter_{std::in_place, deleter_options{.own_worker = GetParam()}};
};

INSTANTIATE_TEST_SUITE_P(Worker, Lifetime, testing::Values(true, false),
                         [](auto const& which) { return which.param ? "Own" : "Polled"; });

TEST_P(Lifetime, ADeleterThatOwesNothingEnds) {
  deleter_.reset();
}

TEST_P(Lifetime, WorkPendingIsReclaimedAfterTheDeleterHasEnded) {
  std::vector<test::fate_ptr> fates;
  test::must(test::launch_wait_flag(stream_, flag_.get()));
  for (int i = 0; i < 10; ++i) deleter_->retire(stream_, probe(fates.emplace_back(make_fate())));
  deleter_.reset();  // returns although the kernel runs
  EXPECT_TRUE(test::stays_false([&] { return fates.front()->was_destroyed(); }));
  flag_.raise();
  for (auto const& fate : fates) EXPECT_TRUE(fate->wait());
  EXPECT_TRUE(test::stays_false([&] { return fates.back()->times() > 1; }));
}

TEST_P(Lifetime, WhatGraphsOweIsReclaimedAfterTheDeleterHasEnded) {
  auto const first = make_fate();
  auto const second = make_fate();
  test::owned_graph graph = test::tiny_graph();
  deleter_->retire(graph.get(), probe(first));
  test::owned_exec exec = test::instantiate(graph);
  deleter_->retire(graph.get(), probe(second));
  deleter_.reset();
  EXPECT_TRUE(test::stays_false([&] { return first->was_destroyed() || second->was_destroyed(); }));
  graph.reset();
  EXPECT_TRUE(second->wait());
  EXPECT_FALSE(first->was_destroyed());
  exec.reset();
  EXPECT_TRUE(first->wait());
  EXPECT_EQ(first->times() + second->times(), 2);
}

TEST_P(Lifetime, LaunchesInFlightOutliveTheDeleter) {
  auto const fate = make_fate();
  test::owned_graph graph = test::chain({test::wait_flag_call(flag_.get())});
  deleter_->retire(graph.get(), probe(fate));
  test::owned_exec exec = test::instantiate(graph);
  test::must(cudaGraphLaunch(exec, stream_));
  graph.reset();
  exec.reset();
  deleter_.reset();
  EXPECT_TRUE(test::stays_false([&] { return fate->was_destroyed(); }));
  flag_.raise();
  EXPECT_TRUE(fate->wait());
  EXPECT_EQ(fate->thread_name, "escrow");
}

TEST_P(Lifetime, AnOwnerDestroyedAfterTheDeleterIsDestroyedOnAWorkerInRelaxedMode) {
  auto const fate = make_fate();
  test::owned_graph graph = test::tiny_graph();
  deleter_->retire(graph.get(), probe(fate));
  deleter_.reset();
  graph.reset();
  ASSERT_TRUE(fate->wait());
  EXPECT_EQ(fate->mode, cudaStreamCaptureModeRelaxed);
  EXPECT_NE(fate->thread, std::this_thread::get_id());
}

TEST_P(Lifetime, WhatWasRetiredAtOnceIsReclaimedToo) {
  auto const fate = make_fate();
  deleter_->retire(probe(fate));
  deleter_.reset();
  EXPECT_TRUE(fate->wait());
  EXPECT_EQ(fate->times(), 1);
}

TEST_P(Lifetime, ADrainThatTimedOutLeavesNothingBehind) {
  auto const fate = make_fate();
  test::must(test::launch_wait_flag(stream_, flag_.get()));
  deleter_->retire(stream_, probe(fate));
  EXPECT_FALSE(deleter_->drain_for(std::chrono::milliseconds(1)));
  deleter_.reset();
  flag_.raise();
  EXPECT_TRUE(fate->wait());
}

TEST(Lifetimes, TheGlobalDeleterIsOneAndTheSame) {
  auto const fate = make_fate();
  EXPECT_EQ(&deleter::global(), &deleter::global());
  deleter::global().retire(probe(fate));
  EXPECT_TRUE(fate->wait());
}

// How often the kernel switched away from the threads of this name because they went to sleep, or
// -1 if there is none.
long switches_of(std::string const& name) {
  long result = -1;
  for (auto const& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string comm;
    std::getline(std::ifstream(task.path() / "comm"), comm);
    if (comm != name) continue;
    std::ifstream status(task.path() / "status");
    for (std::string word; status >> word;) {
      long count = 0;
      if (word == "voluntary_ctxt_switches:" && status >> count)
        result = std::max(result, 0L) + count;
    }
  }
  return result;
}

// A worker that looks every 400 us would wake 250 times in stays_false()'s time.
constexpr long few = 10;

bool is_at_rest(std::string const& name) {
  return test::wait_until([&] {
    long const before = switches_of(name);
    static_cast<void>(test::stays_false([] { return false; }));
    return before >= 0 && switches_of(name) - before < few;
  });
}

TEST(Rest, AWorkerWithNothingPendingSleeps) {
  deleter its(deleter_options{.thread_name = "rests"});
  its.retire(probe(make_fate()));
  its.drain();
  EXPECT_TRUE(is_at_rest("rests"));
}

TEST(Rest, AWorkerSleepsWhileOnlyGraphsOwe) {
  deleter its(deleter_options{.thread_name = "rests-too"});
  test::owned_graph const graph = test::tiny_graph();
  its.retire(graph.get(), probe(make_fate()));
  EXPECT_TRUE(is_at_rest("rests-too"));
}

TEST(Rest, AWorkerSleepsWhileOnlyGraphsOweAfterItsDeleterHasEndedAndThenEnds) {
  auto const fate = make_fate();
  test::owned_graph graph = test::tiny_graph();
  {
    deleter its(deleter_options{.thread_name = "left-alone"});
    its.retire(graph.get(), probe(fate));
  }
  EXPECT_TRUE(is_at_rest("left-alone"));
  graph.reset();
  EXPECT_TRUE(fate->wait());
  EXPECT_TRUE(test::wait_until([] { return switches_of("left-alone") < 0; }))
      << "the worker never ended";
}

struct foreign_node final : reclaimable {
  explicit foreign_node(deleter_core& hub)
      : reclaimable(hub, release_lane::recycle, -1, [](reclaimable&) noexcept {}) {}
};

TEST(Rest, AWorkerLeftAloneEndsWhenTheLastNodeIsDestroyedWithoutAPush) {
  std::optional<deleter> its(std::in_place, deleter_options{.thread_name = "last-node"});
  auto node = std::make_unique<foreign_node>(its->core());
  its.reset();
  EXPECT_TRUE(is_at_rest("last-node"));
  node.reset();
  EXPECT_TRUE(test::wait_until([] { return switches_of("last-node") < 0; }))
      << "the worker never ended";
}

}  // namespace
}  // namespace escrow
