// SPDX-License-Identifier: Apache-2.0
// Where an execution can go one way or another: all ways in turn, or at random.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace escrow::model {

class choices {
 public:
  // Every way, depth first.
  void begin_all() noexcept;
  // At random, a function of `seed`.
  void begin_random(std::uint64_t seed) noexcept;
  // The same way once more.
  void begin_again() noexcept { next_ = 0; }

  // A number below `count`; 0 first.
  std::size_t choose(std::size_t count);
  // The same for who runs next, where 0 is to go on with the one that runs.
  std::size_t choose_thread(std::size_t count, bool can_go_on);
  [[nodiscard]] bool is_random() const noexcept { return is_random_; }
  // Whether the way until here was gone before.
  [[nodiscard]] bool is_known_way() const noexcept { return next_ < known_; }
  // Turns to the next way; false if there is none.
  bool next_way() noexcept;

 private:
  struct choice {
    std::uint32_t taken;
    std::uint32_t count;
  };
  std::size_t take(std::size_t count, std::size_t wished);
  std::uint64_t random() noexcept;

  std::vector<choice> way_;
  std::size_t next_ = 0;
  std::size_t known_ = 0;
  bool is_random_ = false;
  std::uint64_t random_state_ = 0;
  std::uint64_t switch_odds_ = 0;  // of 256, that another thread goes on
};

}  // namespace escrow::model
