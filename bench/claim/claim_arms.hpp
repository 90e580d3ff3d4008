// The claim bench's arms.
#pragma once

#include <string_view>
#include <vector>

#include "bench.hpp"
#include "claim_arm.hpp"

namespace escrow::bench {

using claim_arm = arm<claim_setup()>;

inline constexpr int many = 256;  // pairs whose records all fit in CUDA's launch queue of 1,024
inline constexpr int some = 64;   // the same of arms that take much longer
inline constexpr int few = 4;

// Those that the bench compares. The setup of those that this program was built without is null.
[[nodiscard]] std::vector<claim_arm> const& claim_arms();

// What makes one of them, or of those that are only compared with another one.
[[nodiscard]] claim_setup (*setup_of(std::string_view name))();

}  // namespace escrow::bench
