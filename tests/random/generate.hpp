// Programs from a seed, and from bytes.
#pragma once

#include <cstdint>
#include <span>

#include "program.hpp"

namespace escrow::test {

/// The program of a seed: some kinds of operations are left out, others are frequent, by the seed.
[[nodiscard]] program generate(std::uint64_t seed);

/// The program that bytes stand for: any bytes are one.
[[nodiscard]] program decode(std::span<std::uint8_t const> bytes);

}  // namespace escrow::test
