// How long a tick is.
#include "ticks.hpp"

#include "times.hpp"

namespace escrow::bench {

double ns_per_tick() {
  static double const measured = [] {
    constexpr double long_enough = 0.02;
    auto const begin = clock::now();
    std::uint64_t const first = ticks();
    while (seconds_since(begin) < long_enough) {
    }
    std::uint64_t const last = ticks();
    return seconds_since(begin) * 1e9 / static_cast<double>(last - first);
  }();
  return measured;
}

}  // namespace escrow::bench
