// SPDX-License-Identifier: Apache-2.0
// Random programs with the arena of a sharing group: what they are made of, and how one is run.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace escrow::test {

#define ESCROW_ARENA_ACTS(X) \
  X(capture)                 \
  X(capture_two)             \
  X(leave_capture)           \
  X(clone)                   \
  X(parent)                  \
  X(branch)                  \
  X(instantiate)             \
  X(update)                  \
  X(launch)                  \
  X(launch_many)             \
  X(destroy_exec)            \
  X(destroy_graph)           \
  X(hoist)                   \
  X(launch_hoisted)          \
  X(release_hoisted)         \
  X(run_eagerly)             \
  X(claim_eagerly)           \
  X(read_output)             \
  X(end_output)              \
  X(park)                    \
  X(trim)                    \
  X(poll)                    \
  X(step)

#define ESCROW_ENUMERATOR(name) name,
enum class arena_act : std::uint8_t { ESCROW_ARENA_ACTS(ESCROW_ENUMERATOR) count };
#undef ESCROW_ENUMERATOR
inline constexpr std::size_t arena_act_count = static_cast<std::size_t>(arena_act::count);
[[nodiscard]] std::string_view name_of(arena_act what);

/// One step of a program. What it does in detail its own numbers decide, so that others may be
/// taken away.
struct arena_step {
  arena_act what = arena_act::step;
  std::uint64_t seed = 0;
  std::uint64_t failing_call = 0;  // the CUDA call of it that fails; 0: none
};

struct arena_program {
  std::uint64_t seed = 1;  // of the machine's choices
  std::vector<arena_step> steps;
};

/// The program of a seed.
[[nodiscard]] arena_program draw_arena_program(std::uint64_t seed);
/// A step a line.
[[nodiscard]] std::string to_text(arena_program const& drawn);

/// A fault of the test's own, to show that it is found.
enum class arena_fault : std::uint8_t {
  none,
  branch_is_not_ordered,  // a stream uses a claim of another one, and the claim is not told
  output_is_scratch,      // what is to stay after its capture is claimed as what need not
};

/// How often steps were done, and refused with a usage_error.
struct arena_counts {
  std::array<std::uint64_t, arena_act_count> done{};
  std::array<std::uint64_t, arena_act_count> refused{};
  std::uint64_t failed = 0;
  std::uint64_t checks = 0;           // kernels that compared memory with what it should be
  std::uint64_t parked_launches = 0;  // that were refused for that
};

/// Runs it on the stepped simulator. Each claim has a value of its own in its memory, which is
/// compared before the claim ends, in any order that streams and graphs allow. Returns what was
/// wrong; empty: nothing.
[[nodiscard]] std::string run_arena_program(arena_program const& drawn, arena_counts& counts,
                                            arena_fault planted = arena_fault::none);

/// Takes steps away as long as `fails` says that it fails.
[[nodiscard]] arena_program shrink(arena_program failing,
                                   std::function<bool(arena_program const&)> const& fails);

}  // namespace escrow::test
