// SPDX-License-Identifier: Apache-2.0
// Threads that claim and release on streams of their own, in rounds of arms in turns.
#include <iterator>
#include <optional>

#include "claim_arms.hpp"
#include "handles.hpp"
#include "thread_team.hpp"

namespace escrow::bench {
namespace {

// Threads that do pairs of some arms, all on the same streams. What the arms have ends before the
// streams.
class claim_team {
 public:
  claim_team(claim_load const& load, std::vector<claim_arm> const& arms)
      : load_(load), arms_(arms), streams_(static_cast<std::size_t>(load.threads)) {
    for (claim_arm const& each : arms_) setups_.push_back(each.setup());
    team_.emplace(load.threads, [this](std::size_t thread) { return part_of(thread); });
    constexpr int warm_up_rounds = 2;
    for (std::size_t each = 0; each < arms_.size(); ++each) {
      for (int i = 0; i < warm_up_rounds; ++i) static_cast<void>(row(each, load.streams));
    }
  }

  // Runs a round of an arm and returns the microseconds of a pair. The arms before it have had the
  // caches: some pairs are done before the time begins.
  [[nodiscard]] double round_us(std::size_t arm, int pairs_max) {
    constexpr int before_max = 64;
    int const pairs = std::min(pairs_max, arms_[arm].times_max);
    static_cast<void>(row(arm, std::min(pairs, before_max)));
    return 1e6 * row(arm, pairs) / pairs;
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

  [[nodiscard]] thread_team::part part_of(std::size_t thread) {
    auto& streams = streams_[thread];
    for (int i = 0; i < load_.streams; ++i) streams.push_back(test::make_stream());
    claim_streams const handles(streams.begin(), streams.end());
    std::vector<claim_pair> pairs;
    for (claim_setup const& each : setups_) pairs.push_back(each(handles));
    return [=, this, steps = steps(), next = std::vector<std::size_t>(pairs.size())]() mutable {
      claim_pair const& pair = pairs[arm_];
      std::size_t at = next[arm_];
      for (int i = 0; i < pairs_; ++i) {
        pair(steps[at].on, steps[at].last);
        if (++at == steps.size()) at = 0;
      }
      next[arm_] = at;
    };
  }

  // The seconds of the slowest thread.
  double row(std::size_t arm, int pairs) {
    arm_ = arm;
    pairs_ = pairs;
    return team_->round();
  }

  claim_load const load_;
  std::vector<claim_arm> const arms_;
  std::vector<std::vector<test::owned_stream>> streams_;  // of each thread, which makes them
  std::vector<claim_setup> setups_;
  std::size_t arm_ = 0;  // this and the next are written between rounds
  int pairs_ = 0;        // a multiple of a thread's streams, so that all have as many
  std::optional<thread_team> team_;
};

constexpr int many = 256;  // pairs whose records all fit in CUDA's launch queue of 1,024

// The benchmark's rounds, each begun by another arm. Returns the microseconds of each arm's pairs.
std::vector<std::vector<double>> rounds_us(benchmark::State& state, settings const& how,
                                           std::vector<claim_arm> const& arms,
                                           claim_load const& load) {
  claim_team team(load, arms);
  std::vector<std::vector<double>> us(arms.size());
  repeat(state, [&, first = std::size_t{0}]() mutable {
    double all = 0;
    for (std::size_t i = 0; i < arms.size(); ++i) {
      std::size_t const at = (i + first) % arms.size();
      all += us[at].emplace_back(team.round_us(at, how.choose(many, 4)));
    }
    ++first;
    return all;
  });
  return us;
}

double median_ratio(std::vector<double> const& one, std::vector<double> const& other) {
  std::vector<double> of_rounds;
  std::ranges::transform(one, other, std::back_inserter(of_rounds), std::divides());
  return quantile(of_rounds, 0.5);
}

}  // namespace

std::vector<claim_arm> present_arms(std::vector<claim_arm> const& all) {
  std::vector<claim_arm> result;
  std::string skipped;
  for (claim_arm const& each : all) {
    std::string flaw = each.setup == nullptr ? "not built" : "";
    try {
      if (flaw.empty())
        static_cast<void>(claim_team({.streams = 2, .migrating = 100}, {each}).round_us(0, 4));
    } catch (std::exception const& error) {
      flaw = error.what();
    }
    if (flaw.empty()) result.push_back(each);
    if (!flaw.empty()) skipped += "; " + std::string(each.name) + ": " + flaw;
  }
  if (!skipped.empty()) benchmark::AddCustomContext("skipped_arms", skipped.substr(2));
  return result;
}

void add_rounds(std::string const& name, settings const& how, std::vector<claim_arm> const& arms,
                std::vector<std::string> const& bases, claim_load const& load) {
  auto const run = [=](benchmark::State& state) {
    auto const us = rounds_us(state, how, arms, load);
    for (std::size_t i = 0; i < us.size(); ++i) {
      std::string const arm = arms[i].name;
      state.counters[arm + "_us"] = quantile(us[i], 0.5);
      for (std::size_t base = 0; base < us.size(); ++base) {
        if (base == i || std::ranges::count(bases, arms[base].name) == 0) continue;
        state.counters[arm + "_of_" + arms[base].name] = median_ratio(us[i], us[base]);
      }
    }
  };
  add(name, {how.choose(15, 1), how.choose(5, 1)}, run);
}

void add_pair(std::string const& name, settings const& how, claim_arm const& base,
              claim_arm const& other, claim_load const& load) {
  add(name + "/on_threads:" + std::to_string(load.threads), {how.choose(200, 2)},
      [=](benchmark::State& state) {
        auto const us = rounds_us(state, how, {base, other}, load);
        state.counters["of_base"] = median_ratio(us[1], us[0]);
      });
}

}  // namespace escrow::bench
