// Times and their medians.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

namespace escrow::bench {

using clock = std::chrono::steady_clock;

// Seconds from `begin` until now.
[[nodiscard]] inline double seconds_since(clock::time_point begin) {
  return std::chrono::duration<double>(clock::now() - begin).count();
}

// The value below which `share` of `values` lie; 0 if there are none. Reorders them.
template <class Value>
[[nodiscard]] Value quantile(std::vector<Value>& values, double share) {
  if (values.empty()) return Value{};
  auto const last = static_cast<double>(values.size() - 1);
  auto const at = values.begin() + static_cast<std::ptrdiff_t>(share * last + 0.5);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace escrow::bench
