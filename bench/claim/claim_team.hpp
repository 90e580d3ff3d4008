// Threads that claim and release on streams of their own.
#pragma once

#include <memory>

#include "claim_arms.hpp"
#include "handles.hpp"
#include "thread_team.hpp"

namespace escrow::bench {

// Threads that do pairs of some arms, all on the same streams. What the arms have ends before the
// streams.
class claim_team {
 public:
  claim_team(claim_load const& load, std::vector<claim_setup> arms)
      : load_(load),
        streams_(static_cast<std::size_t>(load.threads)),
        arms_(std::move(arms)),
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

  // All streams in turn. One step in a period migrates, in each period another one: as many leases
  // leave each stream as come to it.
  [[nodiscard]] std::vector<step> steps() const {
    auto const streams = static_cast<std::size_t>(load_.streams);
    auto const period = static_cast<std::size_t>(load_.migrating > 0 ? 100 / load_.migrating : 1);
    std::vector<step> result;
    for (std::size_t i = 0; i < period * streams; ++i) {
      std::size_t const on = i % streams;
      bool const migrates = load_.migrating > 0 && i % period == i / period % period;
      result.push_back({on, migrates ? (on + streams / 2) % streams : on});
    }
    return result;
  }

  // Called once on each thread.
  [[nodiscard]] thread_team::part next_part() {
    // Relaxed: only the count matters.
    auto& streams = streams_[parts_.fetch_add(1, std::memory_order_relaxed)];
    for (int i = 0; i < load_.streams; ++i) streams.push_back(test::make_stream());
    claim_streams const handles(streams.begin(), streams.end());
    std::vector<claim_pair> pairs;
    for (claim_setup const& each : arms_) pairs.push_back(each(handles));
    auto const timed = [=, this, steps = steps(),
                        next = std::vector<std::size_t>(arms_.size())]() mutable {
      claim_pair const& pair = pairs[arm_];
      std::size_t at = next[arm_];
      for (int i = 0; i < pairs_; ++i) {
        pair(steps[at].on, steps[at].last);
        if (++at == steps.size()) at = 0;
      }
      next[arm_] = at;
    };
    return {timed, [=] {
              for (cudaStream_t const each : handles) test::must(cudaStreamSynchronize(each));
            }};
  }

  // The seconds of the slowest thread.
  double row(std::size_t arm, int pairs) {
    arm_ = arm;
    pairs_ = pairs;
    return team_.round();
  }

  claim_load const load_;
  std::vector<std::vector<test::owned_stream>> streams_;  // of each thread, which makes them
  std::vector<claim_setup> const arms_;
  std::atomic<std::size_t> parts_{0};
  std::size_t arm_ = 0;  // this and the next are written between rounds
  int pairs_ = 0;
  thread_team team_;
};

}  // namespace escrow::bench
