// Pairs that say which arm they are of, and the files of their stacks.
#include "claim_stacks.hpp"

#include <array>
#include <chrono>
#include <fstream>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "claim_arms.hpp"
#include "claim_team.hpp"
#include "stack_sampler.hpp"
#include "timing.hpp"

namespace escrow::bench {

// A pair of an arm. fold_stacks.py looks for its name, which -g1 would shorten in an unnamed
// namespace.
struct sampled_pair {
  int work;
  std::shared_ptr<stack_sampler::member> thread;
  claim_pair inner;

  [[gnu::noinline]] void operator()(std::size_t on, std::size_t last) const {
    sampled_work = work;
    inner(on, last);
    sampled_work = 0;
  }
};

namespace {

constexpr std::array<std::string_view, 2> sampled_arms{"escrow", "local"};

claim_setup sampled(stack_sampler& sampler, int work, claim_setup const& arm) {
  return [&sampler, work, arm](claim_streams const& mine) -> claim_pair {
    // A thread joins once; it is interrupted for all arms.
    auto thread = work == 1 ? std::make_shared<stack_sampler::member>(sampler) : nullptr;
    return sampled_pair{work, std::move(thread), arm(mine)};
  };
}

}  // namespace

void run_stacks(benchmark::State& state, std::string const& folder, int seconds) {
  using namespace std::chrono_literals;
  constexpr std::size_t samples_max = 60'000;
  stack_sampler sampler(200us, samples_max);
  std::array<std::vector<double>, sampled_arms.size()> ns;
  for (auto _ : state) {
    std::vector<claim_setup> setups;
    for (std::string_view const arm : sampled_arms) {
      setups.push_back(sampled(sampler, static_cast<int>(setups.size()) + 1, setup_of(arm)()));
    }
    claim_team team({.threads = 8}, std::move(setups));
    auto const begin = clock::now();
    while (seconds_since(begin) < seconds) {
      for (std::size_t arm = 0; arm < ns.size(); ++arm) {
        ns.at(arm).push_back(team.round(arm, many) * 1e9);
      }
    }
    state.SetIterationTime(seconds_since(begin));
  }
  cudaDeviceProp properties{};
  test::must(cudaGetDeviceProperties(&properties, 0));
  for (std::size_t arm = 0; arm < ns.size(); ++arm) {
    std::string const name(sampled_arms.at(arm));
    double const median = quantile(ns.at(arm), 0.5);
    state.counters[name + "_us"] = median / 1e3;
    std::ofstream file(folder + "/claim_" + name + ".stacks");
    file << "# " << median << " ns a pair, " << properties.name << '\n';
    sampler.write(file, static_cast<int>(arm) + 1);
    file.close();
    test::must(!file.fail(), "the stacks are written");
  }
}

}  // namespace escrow::bench
