// What a deleter tells about itself: statistics, what it waits for, and errors.
#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "world.hpp"

namespace escrow::test {
namespace {

class Describe : public world {
 protected:
  [[nodiscard]] bool says(std::string const& part) const {
    return worker->describe().find(part) != std::string::npos;
  }
  [[nodiscard]] bool says_soon(std::string const& part) const {
    return wait_until([&] { return says(part); });
  }
};

TEST_F(Describe, TheStatisticsAreAJsonObjectOfAllMembers) {
  deleter_stats const stats{.reclaimed = 1, .pending = 2, .errors = 6};
  std::string const text = to_json(stats);
  EXPECT_EQ(text.find("{\"reclaimed\": 1, \"pending\": 2, "), 0U) << text;
  EXPECT_NE(text.find(", \"errors\": 6}"), std::string::npos) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), ':'), sizeof stats / sizeof stats.errors);
}

TEST_F(Describe, NamesPendingOwnersAndCountsTheirPeak) {
  hold_up(one);
  for (int i = 0; i < 3; ++i) worker->retire(one, std::make_unique<int>(i));
  EXPECT_TRUE(says_soon("\n  3 wait for an event"));
  EXPECT_TRUE(says("deleter \"escrow\": {\"reclaimed\": 0, \"pending\": 3, \"pending_peak\": 3"));
  flag.raise();
  worker->drain();
  EXPECT_FALSE(says("wait for"));
  EXPECT_EQ(worker->stats().pending, 0U);
  EXPECT_EQ(worker->stats().pending_peak, 3U);
}

TEST_F(Describe, NamesGraphsExecsAndTheLaunchesThatAreWaitedFor) {
  cargo taken = make_cargo();
  std::string const of_graph = "\n  graph ";
  std::string const of_exec = "\n  an exec, or a plain copy of a graph holds a reference set";
  std::optional<graph> source = captured_behind_flag(taken);
  EXPECT_TRUE(says(of_graph + std::to_string(source->id()) + " holds a reference set"));
  std::optional<graph_exec> exec(*source);
  source.reset();
  EXPECT_FALSE(says(of_graph));
  EXPECT_TRUE(says(of_exec));
  exec->launch(two);
  exec.reset();
  EXPECT_TRUE(says_soon("\n  1 reference sets of graphs wait for a last launch"));
  flag.raise();
  EXPECT_TRUE(is_released(taken));
  EXPECT_TRUE(wait_until([&] { return !says(of_exec); }));
}

TEST_F(Describe, SaysThatAPassIsRunningWhileADestructorBlocksIt) {
  block_worker();
  EXPECT_TRUE(says("a pass is running"));
  may_end.store(true);
  EXPECT_TRUE(wait_until([&] { return !says("a pass is running"); }));
}

class OnError : public world {
 protected:
  using counter = std::shared_ptr<std::atomic<int>>;
  [[nodiscard]] static counter make_counter() { return std::make_shared<std::atomic<int>>(0); }
  [[nodiscard]] static auto counting(counter const& in) {
    return [in](std::exception const&) { in->fetch_add(1); };
  }
  static void report_to(deleter& its) { its.core().report(std::runtime_error("an error")); }
};

TEST_F(OnError, CanBeReplacedAndTakenAway) {
  counter const first = make_counter();
  counter const second = make_counter();
  deleter its({.on_error = counting(first)});
  report_to(its);
  its.set_on_error(counting(second));
  report_to(its);
  its.set_on_error({});
  report_to(its);
  EXPECT_EQ(first->load(), 1);
  EXPECT_EQ(second->load(), 1);
  EXPECT_EQ(its.stats().errors, 3U);
  EXPECT_EQ(second.use_count(), 1) << "a handler that was replaced is kept";
}

TEST_F(OnError, OfTheProcessesOwnDeleterCanBeSet) {
  counter const count = make_counter();
  deleter::global().set_on_error(counting(count));
  report_to(deleter::global());
  deleter::global().set_on_error({});
  report_to(deleter::global());
  EXPECT_EQ(count->load(), 1);
}

TEST_F(OnError, IsReplacedWhileOtherThreadsReport) {
  constexpr int reports = 2'000;
  counter const count = make_counter();
  deleter its({.on_error = counting(count)});
  {
    std::jthread const reporting([&] {
      for (int i = 0; i < reports; ++i) report_to(its);
    });
    for (int i = 0; i < reports; ++i) its.set_on_error(counting(count));
  }
  EXPECT_EQ(count->load(), reports);
}

// No lock is held across code of the handler, also where it is destroyed.
TEST_F(OnError, MayReportAndReplaceItselfInACallAndAtItsEnd) {
  deleter its;
  struct reporter {
    explicit reporter(deleter& to) : its(to) {}
    ~reporter() { report_to(its); }
    deleter& its;
  };
  its.set_on_error([&its, last = std::make_shared<reporter>(its)](std::exception const&) {
    its.set_on_error({});
    report_to(its);
  });
  report_to(its);
  EXPECT_EQ(its.stats().errors, 3U);
}

}  // namespace
}  // namespace escrow::test
