// Rounds of arms in turns.
#include <algorithm>
#include <cstddef>
#include <exception>
#include <string>

#include "claim_arms.hpp"
#include "timing.hpp"

namespace escrow::bench {

void run_arms(benchmark::State& state, std::vector<claim_arm> const& present,
              std::span<arm_ratio const> ratios, claim_load const& load, int pairs) {
  std::vector<claim_setup> setups;
  setups.reserve(present.size());
  for (claim_arm const& each : present) setups.push_back(each.setup());
  claim_team team(load, std::move(setups));
  std::vector<std::vector<double>> us(present.size());
  for (std::size_t round = 0; auto _ : state) {
    require_time();
    double seconds = 0;
    for (std::size_t i = 0; i < present.size(); ++i) {
      std::size_t const at = (i + round) % present.size();
      double const one = team.round(at, std::min(pairs, present[at].times_max));
      us[at].push_back(one * 1e6);
      seconds += one;
    }
    state.SetIterationTime(seconds);
    ++round;
  }
  auto const us_of_arm = [&](std::string_view name) -> std::vector<double> const* {
    auto const found = std::find_if(present.begin(), present.end(),
                                    [=](claim_arm const& each) { return each.name == name; });
    return found == present.end() ? nullptr
                                  : &us[static_cast<std::size_t>(found - present.begin())];
  };
  for (claim_arm const& each : present) {
    state.counters[std::string(each.name) + "_us"] = quantile(*us_of_arm(each.name), 0.5);
  }
  for (auto const& [one, other] : ratios) {
    auto const* const over = us_of_arm(one);
    auto const* const under = us_of_arm(other);
    if (over == nullptr || under == nullptr) continue;
    std::vector<double> of_rounds;
    for (std::size_t i = 0; i < over->size(); ++i) of_rounds.push_back((*over)[i] / (*under)[i]);
    state.counters[std::string(one) + "_of_" + std::string(other)] = quantile(of_rounds, 0.5);
  }
}

void run_in_turns(benchmark::State& state, claim_setup base, claim_setup other,
                  claim_load const& load, int pairs) {
  claim_team team(load, {std::move(base), std::move(other)});
  turns both;
  for (auto _ : state) {
    state.SetIterationTime(
        both.add([&] { return team.round(0, pairs); }, [&] { return team.round(1, pairs); }));
  }
  state.counters["of_base"] = both.share();
}

std::vector<claim_arm> present_arms(std::vector<claim_arm> const& all, settings const& how) {
  std::vector<claim_arm> result;
  std::string skipped;
  for (claim_arm const& each : all) {
    if (!each.is_for(how)) continue;
    std::string reason;
    if (each.setup == nullptr) {
      reason = "not built";
    } else if (!each.is_simulatable) {
      try {
        static_cast<void>(
            claim_team({.streams = 2, .migrating = 100}, {each.setup()}).round(0, few));
      } catch (std::exception const& error) {
        reason = error.what();
      }
    }
    if (reason.empty()) {
      result.push_back(each);
    } else {
      skipped += (skipped.empty() ? "" : "; ") + std::string(each.name) + ": " + reason;
    }
  }
  if (!skipped.empty()) benchmark::AddCustomContext("skipped_arms", skipped);
  return result;
}

}  // namespace escrow::bench
