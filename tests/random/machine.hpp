// The simulated machine, as a program finds it.
#pragma once

#include <cstdint>

namespace escrow::test {

/// The machine is not reset between programs, because the library keeps a stream and events of it.
/// Nothing of that differs from program to program: there is such a stream for each device and
/// thread, and no event.
void begin_machine(std::uint64_t seed);

}  // namespace escrow::test
