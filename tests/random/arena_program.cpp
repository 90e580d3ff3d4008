// SPDX-License-Identifier: Apache-2.0
// How programs with an arena are drawn, written and shrunk.
#include "arena_program.hpp"

#include <random>

namespace escrow::test {

namespace {

// How often each is drawn, in the order of the acts.
constexpr std::array<unsigned, arena_act_count> weights{14, 4, 2, 4, 5, 3, 12, 4, 16, 2, 2, 2,
                                                        3,  6, 2, 6, 3, 8, 2,  6, 2,  8, 12};

}  // namespace

std::string_view name_of(arena_act what) {
#define ESCROW_NAME(name) #name,
  static constexpr std::array<std::string_view, arena_act_count> names{
      ESCROW_ARENA_ACTS(ESCROW_NAME)};
#undef ESCROW_NAME
  return names[static_cast<std::size_t>(what)];
}

arena_program draw_arena_program(std::uint64_t seed) {
  std::mt19937_64 random(seed * 0x9e3779b97f4a7c15U);
  auto const below = [&](std::uint64_t end) { return random() % end; };
  unsigned sum = 0;
  for (unsigned const each : weights) sum += each;
  arena_program drawn{.seed = seed, .steps = {}};
  bool const any_fail = seed % 4 == 0;
  std::uint64_t const count = 8 + below(60);
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t at = below(sum);
    std::size_t act = 0;
    for (; at >= weights[act]; ++act) at -= weights[act];
    drawn.steps.push_back({.what = static_cast<arena_act>(act),
                           .seed = random(),
                           .failing_call = any_fail && below(6) == 0 ? 1 + below(40) : 0});
  }
  return drawn;
}

std::string to_text(arena_program const& drawn) {
  std::string text = "seed " + std::to_string(drawn.seed) + "\n";
  for (arena_step const& each : drawn.steps) {
    text += std::string(name_of(each.what)) + " " + std::to_string(each.seed);
    if (each.failing_call != 0) text += " fails " + std::to_string(each.failing_call);
    text += "\n";
  }
  return text;
}

arena_program shrink(arena_program failing,
                     std::function<bool(arena_program const&)> const& fails) {
  for (std::size_t size = failing.steps.size() / 2; size != 0; size /= 2) {
    for (std::size_t at = 0; at + size <= failing.steps.size();) {
      arena_program less = failing;
      auto const begin = less.steps.begin() + static_cast<std::ptrdiff_t>(at);
      less.steps.erase(begin, begin + static_cast<std::ptrdiff_t>(size));
      if (fails(less)) {
        failing = std::move(less);
      } else {
        at += size;
      }
    }
  }
  return failing;
}

}  // namespace escrow::test
