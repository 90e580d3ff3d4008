// SPDX-License-Identifier: Apache-2.0
// Slots: the addresses that are handles.
#pragma once

#include <escrow/sim/control.hpp>

#include <cstdint>
#include <random>
#include <vector>

namespace escrow::sim::model {

// Whether the newest of one kind that was given up is given again: yes, or, stepped, by a choice of
// the run's seed, which depends on no other choice and no other kind: how many events a library
// makes depends on earlier runs, too. Never if options::reuses_handles is false. The state's mutex
// is held.
class reuse_choice {
 public:
  void begin_run(options const& how);
  [[nodiscard]] bool next();

 private:
  options how_;
  std::mt19937_64 random_;
};

// The slots of one kind of handle. The state's mutex is held, but for the last one's end.
class slots {
 public:
  slots() = default;
  slots(slots const&) = delete;
  slots& operator=(slots const&) = delete;
  ~slots() { forget(); }

  // The newest that was made and given up in this run, or a new one.
  [[nodiscard]] void* take();
  void give_up(void* address);
  // What was given up before is not given again in this run.
  void begin_run(options const& how);

 private:
  void forget();

  struct slot {
    std::uint64_t run;
  };

  std::uint64_t run_ = 0;
  reuse_choice choice_;
  std::vector<slot*> idle_;
  // Given up in this run and made before: where they are given again depends on more than the seed.
  std::vector<slot*> older_;
};

}  // namespace escrow::sim::model
