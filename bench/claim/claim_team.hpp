// Threads that claim and release on streams of their own.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "claim_arm.hpp"
#include "handles.hpp"
#include "status.hpp"
#include "thread_team.hpp"

namespace escrow::bench {

struct claim_load {
  int threads = 1;
  int streams = 1;    // of each thread
  int migrating = 0;  // percent of the leases that are released on another stream; a divisor of 100
};

// Threads that do pairs of some arms, all on the same streams. What the arms have ends before the
// streams.
class claim_team {
 public:
  claim_team(claim_load const& load, std::vector<claim_setup> arms)
      : streams_(streams_of(load)),
        arms_(std::move(arms)),
        steps_(steps_of(load)),
        team_(load.threads, [this] { return next_part(); }) {
    constexpr int warm_up_rounds = 2;
    for (std::size_t each = 0; each < arms_.size(); ++each) {
      for (int i = 0; i < warm_up_rounds; ++i) static_cast<void>(row(each, load.streams));
    }
  }

  // Runs a round of an arm and returns the seconds of a pair. The arms before it have had the
  // caches: some pairs are done before the time begins.
  [[nodiscard]] double round(std::size_t arm, int pairs) {
    constexpr int before_max = 64;
    static_cast<void>(row(arm, std::min(pairs, before_max)));
    return row(arm, pairs) / pairs;
  }

 private:
  struct step {
    std::size_t on, last;
  };

  // What one thread has of each arm.
  struct own {
    claim_pair pair;
    std::size_t next = 0;  // of the steps
  };

  static std::vector<std::vector<test::owned_stream>> streams_of(claim_load const& load) {
    std::vector<std::vector<test::owned_stream>> result(static_cast<std::size_t>(load.threads));
    for (auto& of_thread : result) {
      for (int i = 0; i < load.streams; ++i) of_thread.push_back(test::make_stream());
    }
    return result;
  }

  // All streams in turn. One step in a period migrates, in each period another one: as many leases
  // leave each stream as come to it.
  static std::vector<step> steps_of(claim_load const& load) {
    auto const streams = static_cast<std::size_t>(load.streams);
    auto const period = static_cast<std::size_t>(load.migrating > 0 ? 100 / load.migrating : 1);
    std::vector<step> result;
    for (std::size_t i = 0; i < period * streams; ++i) {
      std::size_t const on = i % streams;
      bool const migrates = load.migrating > 0 && i % period == i / period % period;
      result.push_back({on, migrates ? (on + streams / 2) % streams : on});
    }
    return result;
  }

  // Called once on each thread.
  [[nodiscard]] thread_team::part next_part() {
    // Relaxed: only the count matters.
    auto const& streams = streams_[parts_.fetch_add(1, std::memory_order_relaxed)];
    claim_streams const handles(streams.begin(), streams.end());
    auto const mine = std::make_shared<std::vector<own>>();
    for (claim_setup const& each : arms_) mine->push_back({each(handles)});
    return {[=, this] {
              own& of_arm = (*mine)[arm_];
              std::size_t next = of_arm.next;
              for (int i = 0; i < pairs_; ++i) {
                of_arm.pair(steps_[next].on, steps_[next].last);
                if (++next == steps_.size()) next = 0;
              }
              of_arm.next = next;
            },
            [=] {
              for (cudaStream_t const each : handles) test::must(cudaStreamSynchronize(each));
            }};
  }

  // The seconds of the slowest thread.
  double row(std::size_t arm, int pairs) {
    arm_ = arm;
    pairs_ = pairs;
    return team_.round();
  }

  std::vector<std::vector<test::owned_stream>> const streams_;  // of each thread
  std::vector<claim_setup> const arms_;
  std::vector<step> const steps_;
  std::atomic<std::size_t> parts_{0};
  std::size_t arm_ = 0;  // this and the next are written between rounds
  int pairs_ = 0;
  thread_team team_;
};

}  // namespace escrow::bench
