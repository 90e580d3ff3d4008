// SPDX-License-Identifier: Apache-2.0
// Waiting for what was retired: drain, stop and poll. And deleters that are destroyed before what
// they owe.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string_view>

#include "world.hpp"

namespace escrow::test {
namespace {

constexpr auto short_time = std::chrono::milliseconds(50);

// Both ways to run a deleter: with its own worker, and polled by the caller.
class Drain : public world, public testing::WithParamInterface<bool> {
 protected:
  deleter its{deleter_options{.own_worker = GetParam()}};
};

INSTANTIATE_TEST_SUITE_P(Worker, Drain, testing::Values(true, false),
                         [](auto const& which) { return which.param ? "Own" : "Polled"; });

TEST_P(Drain, WaitsForAllThatWasRetiredBeforeInManyThreadsAtATime) {
  EXPECT_TRUE(its.drain_for(generous)) << "there is nothing to wait for";
  std::vector<fate_ptr> fates;
  for (int i = 0; i < 20; ++i) {
    cudaStream_t const stream = i % 2 == 0 ? one : two;
    must(launch_sleep(stream, 500));
    its.retire(stream, probe(fates.emplace_back(make_fate())));
    its.retire(probe(fates.emplace_back(make_fate())));
  }
  std::atomic<int> missing{0};
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        its.drain();
        for (auto const& fate : fates) missing.fetch_add(fate->times() == 1 ? 0 : 1);
      });
    }
  }
  EXPECT_EQ(missing, 0);
}

TEST_P(Drain, WaitsForWhatGraphsHaveReleasedAndNotForWhatTheyHold) {
  auto const released = make_fate();
  auto const held = make_fate();
  owned_graph graph = tiny_graph();
  its.retire(graph.get(), probe(held));
  its.retire(tiny_graph().get(), probe(released));
  EXPECT_TRUE(its.drain_for(generous));
  EXPECT_EQ(released->times(), 1);
  EXPECT_EQ(held->times(), 0);
  graph.reset();
  its.drain();
  EXPECT_EQ(held->times(), 1);
}

TEST_P(Drain, TimesOutWhileAKernelRunsAndSucceedsLater) {
  auto const fate = make_fate();
  hold_up(one);
  its.retire(one, probe(fate));
  auto const begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(its.drain_for(short_time));
  auto const waited = std::chrono::steady_clock::now() - begin;
  EXPECT_TRUE(waited >= short_time && waited < generous) << waited.count();
  EXPECT_FALSE(its.drain_for(std::chrono::nanoseconds(0)));
  EXPECT_FALSE(its.drain_for(std::chrono::nanoseconds(-1)));
  EXPECT_FALSE(its.drain_for(std::chrono::nanoseconds::min()));
  EXPECT_FALSE(fate->was_destroyed());
  flag.raise();
  EXPECT_TRUE(its.drain_for(generous));
  EXPECT_EQ(fate->times(), 1);
}

TEST_P(Drain, IsRefusedInAnOwnersDestructor) {
  auto const fate = make_fate([&] {
    std::vector<std::string> const text{"deleter::", "destructor", "another thread"};
    expect_error<usage_error>([&] { its.drain(); }, text);
    expect_error<usage_error>([&] { return its.stop_for(generous); }, text);
    EXPECT_EQ(its.poll(), 0U);
  });
  its.retire(probe(fate));
  its.drain();
  EXPECT_EQ(fate->times(), 1);
}

TEST_P(Drain, WaitsForWhatTheDestructorsOfOwnersRetire) {
  auto const inner = make_fate();
  auto const middle = make_fate([&] { its.retire(one, probe(inner)); });
  its.retire(probe(make_fate([&] { its.retire(probe(middle)); })));
  EXPECT_TRUE(its.drain_for(generous));
  EXPECT_EQ(middle->times(), 1);
  EXPECT_EQ(inner->times(), 1);
}

TEST_P(Drain, StopForReturnsFalseWhileAKernelRunsOrAGraphHoldsAnOwner) {
  auto const after_work = make_fate();
  auto const held = make_fate();
  owned_graph graph = tiny_graph();
  hold_up(one);
  its.retire(one, probe(after_work));
  its.retire(graph.get(), probe(held));
  EXPECT_FALSE(its.stop_for(short_time));
  EXPECT_FALSE(after_work->was_destroyed());
  EXPECT_THROW(its.retire(probe(make_fate())), usage_error);
  flag.raise();
  EXPECT_FALSE(its.stop_for(generous)) << "the graph holds one";
  EXPECT_EQ(after_work->times(), 1);
  graph.reset();
  EXPECT_TRUE(its.stop_for(generous));
  EXPECT_EQ(held->times(), 1);
  its.stop();  // once more is allowed
  its.drain();
}

class DrainInACallback : public world {};

TEST_F(DrainInACallback, WithoutALimitIsRefused) {
  std::string text;
  auto in_callback = [&] {
    text = message_of<usage_error>([&] { worker->drain(); });
    text += message_of<usage_error>([&] { worker->stop(); });
    static_cast<void>(worker->drain_for(std::chrono::milliseconds(0)));
  };
  auto const call = [](void* what) { (*static_cast<decltype(in_callback)*>(what))(); };
  must(cudaLaunchHostFunc(one, call, &in_callback));
  sync(one);
  for (std::string const part :
       {"deleter::drain: called in a CUDA callback", "deleter::stop: called"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

class DrainBesideRetire : public world {
 protected:
  fate_ptr later = make_fate();
};

TEST_F(DrainBesideRetire, ABoundedDrainDoesNotWaitForWhatIsRetiredAfterTheCall) {
  auto const earlier = make_fate();
  std::atomic<bool> is_draining{false};
  hold_up(one);
  // Another thread retires behind the busy stream while the drain is under way.
  worker->retire(probe(make_fate([&] {
    EXPECT_TRUE(wait_until([&] { return is_draining.load(); }));
    std::this_thread::sleep_for(short_time);
    std::thread([this] { retire(one, later); }).join();
  })));
  worker->retire(probe(earlier));
  is_draining.store(true);
  EXPECT_TRUE(drained());
  EXPECT_TRUE(earlier->was_destroyed());
  EXPECT_FALSE(later->was_destroyed()) << "its stream is busy";
}

#ifdef ESCROW_TEST_RUNTIME_SIM
// The error handler runs on the worker, before that has reclaimed anything.
TEST_F(DrainBesideRetire, ADrainWaitsForWhatTheErrorHandlerOfTheFirstPassRetired) {
  hold_up(one);
  bool has_retired = false;
  deleter reporting({.own_worker = false, .on_error = [&](std::exception const&) {
                       if (!std::exchange(has_retired, true)) reporting.retire(one, probe(later));
                     }});
  reporting.retire(one, probe(make_fate()));
  sim::fail_call_here("cudaEventQuery", cudaErrorUnknown, 1, 1);
  static_cast<void>(reporting.poll());
  sim::clear_faults();
  ASSERT_TRUE(has_retired);
  EXPECT_FALSE(reporting.drain_for(std::chrono::milliseconds(5)));
  flag.raise();
  EXPECT_TRUE(reporting.drain_for(generous));
  EXPECT_TRUE(later->was_destroyed());
}
#endif

// A deleter without a worker: a thread that polls reclaims.
class Poll : public world {
 protected:
  deleter polled{deleter_options{.own_worker = false}};
};

TEST_F(Poll, ReclaimsOnTheCallingThreadInRelaxedModeAndNothingElseDoes) {
  auto const fate = make_fate();
  polled.retire(probe(fate));
  EXPECT_TRUE(stays_false([&] { return fate->was_destroyed(); }));
  EXPECT_EQ(polled.poll(), 1U);
  EXPECT_EQ(fate->times(), 1);
  EXPECT_EQ(fate->thread, std::this_thread::get_id());
  EXPECT_EQ(fate->mode, cudaStreamCaptureModeRelaxed);
  EXPECT_EQ(polled.poll(), 0U);
}

TEST_F(DrainBesideRetire, ADrainThatWaitsForLongTellsForWhat) {
  std::atomic<int> times{0};
  std::string told;
  deleter waits({.on_error = [&](std::exception const& error) {
    told = error.what();
    ++times;
  }});
  hold_up(one);
  waits.retire(one, probe(make_fate()));
  std::jthread const goes_on([&] {
    EXPECT_TRUE(wait_until([&] { return times.load() != 0; }, std::chrono::seconds(60)));
    flag.raise();
  });
  waits.drain();
  EXPECT_EQ(times.load(), 1);
  EXPECT_NE(told.find("deleter::drain: it has waited for 10 s: deleter \"escrow\""),
            std::string::npos)
      << told;
}

TEST(NobodyPolls, IsToldOnce) {
  std::string told;
  int times = 0;
  deleter unpolled({.own_worker = false, .on_error = [&](std::exception const& error) {
                      told = error.what();
                      ++times;
                    }});
  auto const retire = [&](int count) {
    for (int i = 0; i < count; ++i) unpolled.retire(probe(make_fate()));
  };
  retire(63);
  EXPECT_EQ(times, 0);
  retire(1000);
  EXPECT_EQ(times, 1);
  EXPECT_NE(told.find("nothing has called poll() yet"), std::string::npos) << told;
  EXPECT_EQ(unpolled.poll(), 1063U);
  deleter polled({.own_worker = false, .on_error = [&](std::exception const&) { ++times; }});
  static_cast<void>(polled.poll());
  for (int i = 0; i < 1000; ++i) polled.retire(probe(make_fate()));
  EXPECT_TRUE(polled.drain_for(generous));
  EXPECT_EQ(times, 1);
}

TEST_F(Poll, PutsTheThreadsDeviceAndModeBack) {
  thread_mode_scope const mode(cudaStreamCaptureModeThreadLocal);
  int devices = 0;
  must(cudaGetDeviceCount(&devices));
  {
    device_scope const last(devices - 1);
    polled.retire(probe(make_fate()));
  }
  polled.retire(probe(make_fate([=] { static_cast<void>(cudaSetDevice(devices - 1)); })));
  EXPECT_EQ(polled.poll(), 2U);
  EXPECT_EQ(current_device(), 0);
  EXPECT_EQ(thread_mode(), cudaStreamCaptureModeThreadLocal);
}

TEST_F(Poll, HarmsNoCaptureOfItsOwnThread) {
  void* memory = nullptr;
  must(cudaMalloc(&memory, 64));
  test::capture open(one, cudaStreamCaptureModeGlobal);
  polled.retire(two, probe(make_fate([memory] { static_cast<void>(cudaFree(memory)); })));
  EXPECT_TRUE(polled.drain_for(generous));
  EXPECT_EQ(open.end(), cudaSuccess);
}

TEST_F(Poll, OnlyOneThreadReclaimsAtATime) {
  std::size_t of_other = 99;
  polled.retire(probe(make_fate([&] { std::thread([&] { of_other = polled.poll(); }).join(); })));
  polled.retire(probe(make_fate()));
  EXPECT_EQ(polled.poll(), 2U);
  EXPECT_EQ(of_other, 0U);
}

// It goes on by itself, as one with a worker does.
TEST_F(Poll, OfADestroyedDeleterIsNotNeeded) {
  auto const after_work = make_fate();
  auto const at_once = make_fate();
  std::optional<deleter> its(std::in_place, deleter_options{.own_worker = false});
  hold_up(one);
  its->retire(one, probe(after_work));
  EXPECT_EQ(its->poll(), 0U);
  its->retire(probe(at_once));
  its.reset();  // returns although the kernel runs
  EXPECT_TRUE(is_released(at_once));
  EXPECT_TRUE(stays_kept(after_work));
  flag.raise();
  EXPECT_TRUE(is_released(after_work));
}

// How often threads of this name went to sleep, or -1 if there is none.
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
bool is_at_rest(std::string const& name) {
  constexpr long few = 10;
  return wait_until([&] {
    long const before = switches_of(name);
    static_cast<void>(stays_false([] { return false; }));
    return before >= 0 && switches_of(name) - before < few;
  });
}
bool has_ended(std::string const& name) {
  return wait_until([&] { return switches_of(name) < 0; });
}

TEST(Rest, AWorkerSleepsWhileNothingIsPendingOrGraphsHoldAllAndEndsAfterItsDeleterAndThoseGraphs) {
  auto const fate = make_fate();
  owned_graph graph = tiny_graph();
  {
    deleter its(deleter_options{.thread_name = "rests"});
    its.retire(probe(make_fate()));
    its.drain();
    EXPECT_TRUE(is_at_rest("rests"));
    its.retire(graph.get(), probe(fate));
    EXPECT_TRUE(is_at_rest("rests"));
  }
  EXPECT_TRUE(is_at_rest("rests"));
  EXPECT_FALSE(fate->was_destroyed());
  graph.reset();
  EXPECT_TRUE(fate->wait());
  EXPECT_TRUE(has_ended("rests"));
}

#ifdef ESCROW_TEST_RUNTIME_SIM
TEST_P(Drain, InAForkedChildIsRefused) {
  its.retire(one.get(), std::make_unique<int>(1));
  pid_t const child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int told = 0;
    for (auto const& call : {std::function<void()>([&] { its.drain(); }),
                             {[&] { static_cast<void>(its.drain_for(generous)); }}}) {
      try {
        call();
      } catch (usage_error const& refused) {
        told += std::string_view(refused.what()).find("forked child") != std::string::npos ? 1 : 0;
      }
    }
    ::_exit(told);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 2);
}
#endif

}  // namespace
}  // namespace escrow::test
