// SPDX-License-Identifier: Apache-2.0
// The way of an execution as a list of choices.
#include "choices.hpp"

#include <array>
#include <cstdlib>

#include "clocks.hpp"

namespace escrow::model {

void choices::begin_all() noexcept {
  is_random_ = false;
  way_.clear();
  next_ = known_ = 0;
}

void choices::begin_random(std::uint64_t seed) noexcept {
  is_random_ = true;
  way_.clear();
  next_ = known_ = 0;
  random_state_ = mixed(seed, 0);
  // Some bugs need many switches, others long stretches without one.
  constexpr std::array<std::uint64_t, 5> odds{230, 128, 48, 16, 3};
  switch_odds_ = odds[random() % odds.size()];
}

std::uint64_t choices::random() noexcept {
  random_state_ += 0x9e3779b97f4a7c15U;
  return mixed(random_state_, 1);
}

std::size_t choices::take(std::size_t count, std::size_t wished) {
  if (next_ < way_.size()) {
    if (way_[next_].count != count) std::abort();  // an execution is a function of its choices
    return way_[next_++].taken;
  }
  way_.push_back({static_cast<std::uint32_t>(wished), static_cast<std::uint32_t>(count)});
  ++next_;
  return wished;
}

std::size_t choices::choose(std::size_t count) {
  if (count == 1) return 0;
  // At random: the first, which is the newest value, half of the time.
  bool const is_first = !is_random_ || random() % 2 == 0;
  return take(count, is_first ? 0 : static_cast<std::size_t>(random() % count));
}

std::size_t choices::choose_thread(std::size_t count, bool can_go_on) {
  if (count == 1) return 0;
  if (!is_random_) return take(count, 0);
  bool const is_switch = !can_go_on || random() % 256 < switch_odds_;
  return take(count, is_switch ? static_cast<std::size_t>(random() % count) : 0);
}

bool choices::next_way() noexcept {
  way_.resize(next_);  // an execution that was cut short has gone only so far
  while (!way_.empty() && way_.back().taken + 1 == way_.back().count) way_.pop_back();
  if (way_.empty()) return false;
  ++way_.back().taken;
  next_ = 0;
  known_ = way_.size();
  return true;
}

}  // namespace escrow::model
