// How much a bench program does, and the one function that each of them supplies.
#pragma once

namespace escrow::bench {

// What the command line and the runtime decide.
struct settings {
  bool is_simulated = true;  // numbers then say nothing about speed
  bool is_quick = false;     // --quick: see that everything runs; the numbers are of no use

  // The count for the runtime at hand: full on a GPU, less on the simulated runtime, least if
  // quick.
  [[nodiscard]] int choose(int gpu, int simulated, int quick) const {
    if (is_quick) return quick;
    return is_simulated ? simulated : gpu;
  }
};

// Registers the program's benchmarks. Each bench program defines it.
void register_all(settings const& how);

}  // namespace escrow::bench
