// Rounds of arms in turns.
#include <iterator>
#include <map>

#include "claim_team.hpp"

namespace escrow::bench {
namespace {

int pairs_of(settings const& how) {
  return how.choose(many, 4);
}

// Why the arm does not work; empty if it does.
std::string flaw_of(claim_arm const& each) {
  if (each.setup == nullptr) return "not built";
  if (each.is_simulatable) return {};
  try {
    static_cast<void>(claim_team({.streams = 2, .migrating = 100}, {each.setup()}).round(0, few));
  } catch (std::exception const& error) {
    return error.what();
  }
  return {};
}

}  // namespace

std::vector<claim_arm> present_arms(std::vector<claim_arm> const& all, settings const& how) {
  std::vector<claim_arm> result;
  std::string skipped;
  for (claim_arm const& each : all) {
    if (!each.is_for(how)) continue;
    if (std::string const flaw = flaw_of(each); flaw.empty()) {
      result.push_back(each);
    } else {
      skipped += (skipped.empty() ? "" : "; ") + std::string(each.name) + ": " + flaw;
    }
  }
  if (!skipped.empty()) benchmark::AddCustomContext("skipped_arms", skipped);
  return result;
}

void add_rounds(std::string const& name, settings const& how, std::vector<claim_arm> const& present,
                std::span<arm_ratio const> ratios, claim_load const& load) {
  auto const run = [=](benchmark::State& state) {
    std::vector<claim_setup> setups;
    for (claim_arm const& each : present) setups.push_back(each.setup());
    claim_team team(load, std::move(setups));
    std::map<std::string_view, std::vector<double>> us;  // of each round
    repeat(state, [&, first = std::size_t{0}]() mutable {
      double all = 0;
      for (std::size_t i = 0; i < present.size(); ++i) {
        std::size_t const at = (i + first) % present.size();
        claim_arm const& its = present[at];
        all +=
            us[its.name].emplace_back(1e6 * team.round(at, std::min(pairs_of(how), its.times_max)));
      }
      ++first;
      return all;
    });
    for (auto const& [arm, its] : us) state.counters[std::string(arm) + "_us"] = quantile(its, 0.5);
    for (auto const& [one, other] : ratios) {
      if (!us.contains(one) || !us.contains(other)) continue;
      std::vector<double> of_rounds;
      std::ranges::transform(us[one], us[other], std::back_inserter(of_rounds), std::divides());
      state.counters[std::string(one) + "_of_" + std::string(other)] = quantile(of_rounds, 0.5);
    }
  };
  add(name, {how.choose(15, 1), how.choose(5, 1)}, run);
}

void add_pair(std::string const& name, settings const& how, claim_arm const& base,
              claim_arm const& other, claim_load const& load) {
  add(name + "/on_threads:" + std::to_string(load.threads), {how.choose(200, 2)},
      [=](benchmark::State& state) {
        claim_team team(load, {base.setup(), other.setup()});
        turns both;
        auto const us_of_arm = [&](std::size_t at) { return 1e6 * team.round(at, pairs_of(how)); };
        repeat(state, [&] {
          return both.add([&] { return us_of_arm(0); }, [&] { return us_of_arm(1); });
        });
        state.counters["of_base"] = both.share();
      });
}

}  // namespace escrow::bench
