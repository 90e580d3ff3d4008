// Every CUDA call of every operation fails once, with several errors: nothing is lost, destroyed
// early or twice, and everything works again.
#include <array>
#include <utility>

#include "build_graph.hpp"
#include "capturing.hpp"
#include "escrow/core/error.hpp"
#include "memory.hpp"
#include "retire_fault_fixture.hpp"

namespace escrow {
namespace {

using test::make_fate;
using test::probe;

class RetireFault : public test::retire_fault_test {};

TEST_F(RetireFault, AnEagerRetireLosesNothingAndIsNeverEarly) {
  for_each_call([this](std::uint64_t n, cudaError_t error) {
    test::pinned_flag flag;
    auto const fate = make_fate();
    bool is_deleters = false;
    bool reached = false;
    {
      probe owner(fate);
      test::must(test::launch_wait_flag(stream_, flag.get()));
      reached = retired(n, error, is_deleters, owner,
                        [this](probe&& it) { deleter_->retire(stream_, std::move(it)); });
      deleter_->poll();
      deleter_->poll();
      EXPECT_EQ(fate->times(), 0) << "destroyed while the kernel runs";
      flag.raise();
      test::must(cudaStreamSynchronize(stream_));
      EXPECT_TRUE(deleter_->drain_for(test::generous));
      EXPECT_EQ(fate->times(), is_deleters ? 1 : 0);
    }
    EXPECT_EQ(fate->times(), 1);
    return reached;
  });
}

TEST_F(RetireFault, ARetireInACaptureLosesNothing) {
  for_each_call([this](std::uint64_t n, cudaError_t error) {
    auto const fate = make_fate();
    bool is_deleters = false;
    bool reached = false;
    {
      probe owner(fate);
      test::capture capturing(stream_, cudaStreamCaptureModeGlobal);
      bool threw = true;
      reached = retired(n, error, is_deleters, owner, [&](probe&& it) {
        deleter_->retire(stream_, std::move(it));
        threw = false;
      });
      EXPECT_EQ(capturing.end(), cudaSuccess) << "a failed retire harmed the capture";
      deleter_->drain();
      if (!threw) {
        EXPECT_EQ(fate->times(), 0) << "destroyed although the graph is there";
      }
      capturing.graph().reset();
      deleter_->drain();
      EXPECT_EQ(fate->times(), is_deleters ? 1 : 0);
    }
    EXPECT_EQ(fate->times(), 1);
    return reached;
  });
}

TEST_F(RetireFault, RetiringWithoutAStreamLosesNothing) {
  for_each_call([this](std::uint64_t n, cudaError_t error) {
    std::array const fates{make_fate(), make_fate(), make_fate()};
    std::array<bool, 3> is_deleters{};
    bool reached = false;
    {
      std::array owners{probe(fates[0]), probe(fates[1]), probe(fates[2])};
      test::owned_graph graph = test::make_graph();
      test::owned_event const event = test::make_event();
      reached |= retired(n, error, is_deleters[0], owners[0],
                         [&](probe&& it) { deleter_->retire(std::move(it)); });
      reached |= retired(n, error, is_deleters[1], owners[1],
                         [&](probe&& it) { deleter_->retire_after(event.get(), std::move(it)); });
      reached |= retired(n, error, is_deleters[2], owners[2],
                         [&](probe&& it) { deleter_->retire(graph.get(), std::move(it)); });
      graph.reset();
      deleter_->drain();
      for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(fates[i]->times(), is_deleters[i] ? 1 : 0);
    }
    for (auto const& fate : fates) EXPECT_EQ(fate->times(), 1);
    return reached;
  });
}

TEST_F(RetireFault, AFailingPollDestroysNothingEarlyAndForgetsNothing) {
  for_each_call([this](std::uint64_t n, cudaError_t error) {
    test::pinned_flag flag;
    auto const done = make_fate();
    auto const running = make_fate();
    test::owned_stream const other = test::make_stream();
    test::must(test::launch_wait_flag(stream_, flag.get()));
    deleter_->retire(stream_, probe(running));
    deleter_->retire(other, probe(done));
    bool const reached = with_failure(n, error, [this] {
      try {
        deleter_->poll();
      } catch (cuda_error const&) {  // the calling thread could not be made ready for it
      }
    });
    EXPECT_EQ(running->times(), 0);
    EXPECT_TRUE(test::wait_until([&] {
      deleter_->poll();
      return done->was_destroyed();
    }));
    EXPECT_EQ(running->times(), 0);
    flag.raise();
    EXPECT_TRUE(deleter_->drain_for(test::generous));
    EXPECT_EQ(done->times() + running->times(), 2);
    return reached;
  });
}

TEST_F(RetireFault, AFailingDrainMayBeRepeated) {
  for_each_call([this](std::uint64_t n, cudaError_t error) {
    auto const fate = make_fate();
    deleter_->retire(stream_, probe(fate));
    test::must(cudaStreamSynchronize(stream_));
    bool const reached = with_failure(n, error, [this] {
      try {
        static_cast<void>(deleter_->drain_for(test::generous));
      } catch (cuda_error const&) {  // as for poll()
      }
    });
    EXPECT_TRUE(deleter_->drain_for(test::generous));
    EXPECT_EQ(fate->times(), 1);
    return reached;
  });
}

TEST_F(RetireFault, EventsDoNotPileUp) {
  auto const all_cases = [this] {
    for_each_call([this](std::uint64_t n, cudaError_t error) {
      auto const fate = make_fate();
      bool is_deleters = false;
      probe owner(fate);
      return retired(n, error, is_deleters, owner,
                     [this](probe&& it) { deleter_->retire(stream_, std::move(it)); });
    });
  };
  all_cases();
  std::size_t const before = sim::alive().events;
  all_cases();
  all_cases();
  EXPECT_LE(sim::alive().events, before + 1);
}

}  // namespace
}  // namespace escrow
