// SPDX-License-Identifier: Apache-2.0
// The checker itself: the classic litmus tests, with outcomes that must occur and must not.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <string>

#include "checker.hpp"

namespace escrow::model {
namespace {

using order = std::memory_order;
constexpr order relaxed = order::relaxed;
constexpr order acquire = order::acquire;
constexpr order release = order::release;
constexpr order acq_rel = order::acq_rel;
constexpr order seq_cst = order::seq_cst;

struct shared {
  std::atomic<int> x{0};
  std::atomic<int> y{0};
  int data = 0;
  int r1 = -1, r2 = -1, r3 = -1, r4 = -1;
};

shared& make(world& all) {
  auto& made = all.make<shared>("shared");
  all.call(&made.x, sizeof(made.x), "x");
  all.call(&made.y, sizeof(made.y), "y");
  return made;
}

void note_two(world& all, shared& s) {
  all.at_end([&s] { note(std::to_string(s.r1) + std::to_string(s.r2)); });
}

using outcomes = std::set<std::string>;

report all_of(std::string const& name, program const& explored) {
  options const how{.name = name, .has_fences = true};
  report const result = explore(how, explored);
  print(how, result);
  EXPECT_TRUE(result.is_complete) << result.trace;
  return result;
}

program store_buffering(order stores, order loads) {
  return [=](world& all) {
    shared& s = make(all);
    all.thread("first", [&s, stores, loads] {
      s.x.store(1, stores);
      s.r1 = s.y.load(loads);
    });
    all.thread("second", [&s, stores, loads] {
      s.y.store(1, stores);
      s.r2 = s.x.load(loads);
    });
    note_two(all, s);
  };
}

TEST(Litmus, StoreBufferingLetsBothMissTheOtherUnlessSequentiallyConsistent) {
  EXPECT_EQ(all_of("SB relaxed", store_buffering(relaxed, relaxed)).outcomes,
            (outcomes{"00", "01", "10", "11"}));
  EXPECT_EQ(all_of("SB release, acquire", store_buffering(release, acquire)).outcomes,
            (outcomes{"00", "01", "10", "11"}));
  EXPECT_EQ(all_of("SB seq_cst", store_buffering(seq_cst, seq_cst)).outcomes,
            (outcomes{"01", "10", "11"}));
}

TEST(Litmus, StoreBufferingIsForbiddenBetweenSequentiallyConsistentFences) {
  auto const fenced = [](order with) {
    return [with](world& all) {
      shared& s = make(all);
      all.thread("first", [&s, with] {
        s.x.store(1, relaxed);
        std::atomic_thread_fence(with);
        s.r1 = s.y.load(relaxed);
      });
      all.thread("second", [&s, with] {
        s.y.store(1, relaxed);
        std::atomic_thread_fence(with);
        s.r2 = s.x.load(relaxed);
      });
      note_two(all, s);
    };
  };
  EXPECT_EQ(all_of("SB, fences", fenced(seq_cst)).outcomes, (outcomes{"01", "10", "11"}));
  EXPECT_EQ(all_of("SB, acq_rel fences", fenced(acq_rel)).outcomes,
            (outcomes{"00", "01", "10", "11"}));
}

program message_passing(order stored, order loaded) {
  return [=](world& all) {
    shared& s = make(all);
    all.thread("writer", [&s, stored] {
      s.x.store(1, relaxed);
      s.y.store(1, stored);
    });
    all.thread("reader", [&s, loaded] {
      s.r1 = s.y.load(loaded);
      s.r2 = s.x.load(relaxed);
    });
    note_two(all, s);
  };
}

TEST(Litmus, MessagePassingNeedsReleaseAndAcquire) {
  outcomes const ordered{"00", "01", "11"};
  outcomes const weak{"00", "01", "10", "11"};
  EXPECT_EQ(all_of("MP release, acquire", message_passing(release, acquire)).outcomes, ordered);
  EXPECT_EQ(all_of("MP relaxed, acquire", message_passing(relaxed, acquire)).outcomes, weak);
  EXPECT_EQ(all_of("MP release, relaxed", message_passing(release, relaxed)).outcomes, weak);
}

TEST(Litmus, MessagePassingWorksThroughFences) {
  report const found = all_of("MP, fences", [](world& all) {
    shared& s = make(all);
    all.thread("writer", [&s] {
      s.x.store(1, relaxed);
      std::atomic_thread_fence(release);
      s.y.store(1, relaxed);
    });
    all.thread("reader", [&s] {
      s.r1 = s.y.load(relaxed);
      std::atomic_thread_fence(acquire);
      s.r2 = s.x.load(relaxed);
    });
    note_two(all, s);
  });
  EXPECT_EQ(found.outcomes, (outcomes{"00", "01", "11"}));
}

// Load buffering is what the checker cannot show: a load sees only what was stored before.
TEST(Litmus, LoadBufferingIsNotModelled) {
  report const found = all_of("LB", [](world& all) {
    shared& s = make(all);
    all.thread("first", [&s] {
      s.r1 = s.x.load(relaxed);
      s.y.store(1, relaxed);
    });
    all.thread("second", [&s] {
      s.r2 = s.y.load(relaxed);
      s.x.store(1, relaxed);
    });
    note_two(all, s);
  });
  EXPECT_EQ(found.outcomes, (outcomes{"00", "01", "10"})) << "11 is allowed by the standard";
}

report independent_reads(std::string const& name, order stores, order loads) {
  return all_of(name, [=](world& all) {
    shared& s = make(all);
    all.thread("writer of x", [&s, stores] { s.x.store(1, stores); });
    all.thread("writer of y", [&s, stores] { s.y.store(1, stores); });
    all.thread("reader", [&s, loads] {
      s.r1 = s.x.load(loads);
      s.r2 = s.y.load(loads);
    });
    all.thread("other reader", [&s, loads] {
      s.r3 = s.y.load(loads);
      s.r4 = s.x.load(loads);
    });
    all.at_end([&s] {
      note(std::to_string(s.r1) + std::to_string(s.r2) + std::to_string(s.r3) +
           std::to_string(s.r4));
    });
  });
}

TEST(Litmus, IndependentReadersMayDisagreeUnlessSequentiallyConsistent) {
  report const weak = independent_reads("IRIW release, acquire", release, acquire);
  EXPECT_EQ(weak.outcomes.size(), 16U);
  EXPECT_TRUE(weak.outcomes.contains("1010"));
  report const strong = independent_reads("IRIW seq_cst", seq_cst, seq_cst);
  EXPECT_EQ(strong.outcomes.size(), 15U);
  EXPECT_FALSE(strong.outcomes.contains("1010"));
}

TEST(Litmus, ReadsOfOneObjectNeverGoBack) {
  report const found = all_of("CoRR", [](world& all) {
    shared& s = make(all);
    all.thread("writer", [&s] {
      s.x.store(1, relaxed);
      s.x.store(2, relaxed);
    });
    all.thread("reader", [&s] {
      s.r1 = s.x.load(relaxed);
      s.r2 = s.x.load(relaxed);
    });
    note_two(all, s);
  });
  EXPECT_EQ(found.outcomes, (outcomes{"00", "01", "02", "11", "12", "22"}));
}

TEST(Litmus, AReadOfWhatHappenedBeforeNeverGoesBack) {
  // CoWR through another thread: who acquires must see what the releaser had read.
  report const found = all_of("CoRR through a message", [](world& all) {
    shared& s = make(all);
    all.thread("writer", [&s] { s.x.store(1, relaxed); });
    all.thread("first reader", [&s] {
      s.r1 = s.x.load(relaxed);
      s.y.store(1, release);
    });
    all.thread("second reader", [&s] {
      if (s.y.load(acquire) == 1) s.r2 = s.x.load(relaxed);
    });
    note_two(all, s);
  });
  EXPECT_EQ(found.outcomes, (outcomes{"0-1", "00", "01", "1-1", "11"}));
}

program release_sequence(bool by_store) {
  return [=](world& all) {
    shared& s = make(all);
    all.thread("writer", [&s] {
      s.x.store(1, relaxed);
      s.y.store(1, release);
    });
    all.thread("between", [&s, by_store] {
      if (by_store) {
        if (s.y.load(relaxed) == 1) s.y.store(2, relaxed);
      } else {
        int expected = 1;
        static_cast<void>(s.y.compare_exchange_strong(expected, 2, relaxed));
      }
    });
    all.thread("reader", [&s] {
      s.r1 = s.y.load(acquire);
      s.r2 = s.x.load(relaxed);
    });
    note_two(all, s);
  };
}

TEST(Litmus, AReleaseSequenceGoesThroughReadModifyWritesOnly) {
  EXPECT_FALSE(all_of("release sequence", release_sequence(false)).outcomes.contains("20"));
  EXPECT_TRUE(all_of("none through a store", release_sequence(true)).outcomes.contains("20"));
}

// Two threads write both objects: of the outcomes in which each object ends with the other's
// first value, those need a store that comes early in the modification order.
TEST(Litmus, TwoPlusTwoWritesEndWithALastStore) {
  report const found = all_of("2+2W", [](world& all) {
    shared& s = make(all);
    all.thread("first", [&s] {
      s.x.store(1, relaxed);
      s.y.store(2, relaxed);
    });
    all.thread("second", [&s] {
      s.y.store(1, relaxed);
      s.x.store(2, relaxed);
    });
    all.at_end(
        [&s] { note(std::to_string(s.x.load(relaxed)) + std::to_string(s.y.load(relaxed))); });
  });
  EXPECT_EQ(found.outcomes, (outcomes{"12", "21", "22"})) << "11 is allowed by the standard";
}

TEST(Litmus, ReadModifyWritesLoseNothing) {
  report const found = all_of("fetch_add by three", [](world& all) {
    shared& s = make(all);
    for (char const* const name : {"one", "two", "three"}) {
      all.thread(name, [&s] { s.x.fetch_add(1, relaxed); });
    }
    all.at_end([&s] { require(s.x.load(relaxed) == 3, "an increment is lost"); });
  });
  EXPECT_EQ(found.error, "");
}

report of_plain_data(order stored, order loaded) {
  return explore({.name = "data"}, [=](world& all) {
    shared& s = make(all);
    all.thread("writer", [&s, stored] {
      s.data = 1;
      s.x.store(1, stored);
    });
    all.thread("reader", [&s, loaded] {
      if (s.x.load(loaded) == 1) require(s.data == 1, "old data");
    });
  });
}

TEST(Checker, FindsTheDataRaceThatAWeakOrderLeaves) {
  EXPECT_EQ(of_plain_data(release, acquire).error, "");
  EXPECT_EQ(of_plain_data(relaxed, acquire).error, "a data race: a plain read");
  report const failed = of_plain_data(release, relaxed);
  EXPECT_EQ(failed.error, "a data race: a plain read");
  EXPECT_NE(failed.trace.find("store             x"), std::string::npos) << failed.trace;
}

TEST(Checker, FindsTheUseOfWhatIsGone) {
  auto const with = [](order dropped) {
    return explore({.name = "gone"}, [dropped](world& all) {
      auto& count = all.make<std::atomic<int>>("count", 2);
      int*& data = all.make<int*>("data", new int(0));
      for (char const* const name : {"one", "other"}) {
        all.thread(name, [&count, &data, dropped] {
          static_cast<void>(*static_cast<int volatile*>(data));
          if (count.fetch_sub(1, dropped) == 1) delete data;
        });
      }
    });
  };
  EXPECT_EQ(with(acq_rel).error, "");
  EXPECT_NE(with(release).error, "");
  EXPECT_NE(with(acquire).error, "");
}

// Boost's free lists come from posix_memalign() since 1.81, and their nodes are plain memory.
TEST(Checker, PutsBackAndWatchesWhatTheCLibraryAllocates) {
  using allocation = int* (*)();
  allocation const from_malloc = [] { return static_cast<int*>(std::malloc(sizeof(int))); };
  allocation const from_aligned_alloc = [] {
    return static_cast<int*>(std::aligned_alloc(64, 64));
  };
  allocation const from_posix_memalign = [] {
    void* block = nullptr;
    return ::posix_memalign(&block, 64, sizeof(int)) == 0 ? static_cast<int*>(block) : nullptr;
  };
  auto const with = [](order dropped, allocation allocate) {
    return explore({.name = "C memory"}, [dropped, allocate](world& all) {
      auto& count = all.make<std::atomic<int>>("count", 2);
      int*& data = all.make<int*>("data", allocate());
      *data = 0;
      for (char const* const name : {"one", "other"}) {
        all.thread(name, [&count, &data, dropped] {
          static_cast<void>(*static_cast<int volatile*>(data));
          if (count.fetch_sub(1, dropped) != 1) return;
          require(++*data == 1, "memory is as another execution left it");
          std::free(data);
        });
      }
    });
  };
  for (allocation const each : {from_malloc, from_aligned_alloc, from_posix_memalign}) {
    report const fine = with(acq_rel, each);
    EXPECT_EQ(fine.error, "") << fine.trace;
    EXPECT_GT(fine.executions, 1U);
    EXPECT_NE(with(relaxed, each).error, "");
  }
}

TEST(Checker, FindsADeadlock) {
  struct locks {
    std::mutex first, second;
  };
  report const found = explore({.name = "deadlock"}, [](world& all) {
    auto& both = all.make<locks>("locks");
    all.thread("one", [&both] {
      std::lock_guard const outer(both.first);
      std::lock_guard const inner(both.second);
    });
    all.thread("other", [&both] {
      std::lock_guard const outer(both.second);
      std::lock_guard const inner(both.first);
    });
  });
  EXPECT_NE(found.error.find("nobody can go on"), std::string::npos) << found.error;
}

TEST(Checker, FindsALoopThatNobodyEnds) {
  report const found = explore({.name = "loop"}, [](world& all) {
    shared& s = make(all);
    all.thread("waits", [&s] {
      while (s.x.load(acquire) != 2) {
      }
    });
    all.thread("sets another value", [&s] { s.x.store(1, release); });
  });
  EXPECT_NE(found.error.find("nobody can go on"), std::string::npos) << found.error;
}

TEST(Checker, RepeatsAFailureFromItsSeed) {
  auto const explored = message_passing(relaxed, relaxed);
  auto const fails = [&explored](world& all) {
    explored(all);
    shared& s = make(all);
    all.thread("third", [&s] {
      s.x.store(1, relaxed);
      s.x.store(2, relaxed);
      s.data = 1;
    });
    all.thread("fourth", [&s] {
      if (s.x.load(relaxed) == 2) s.data = 2;
    });
  };
  report const first = explore({.name = "first", .random = 1000, .seed = 7}, fails);
  ASSERT_NE(first.error, "");
  report const again = explore({.name = "again", .random = 1, .seed = first.seed}, fails);
  EXPECT_EQ(again.error, first.error);
  EXPECT_EQ(again.trace, first.trace);
}

}  // namespace
}  // namespace escrow::model
