// Runs programs, and shrinks those that fail.
#pragma once

#include <functional>
#include <string>

#include "counts.hpp"
#include "program.hpp"
#include "world.hpp"

namespace escrow::test {

struct verdict {
  std::string failure;  // empty: none
  std::size_t at = 0;   // the operation after which it was seen; their number: the end
  run_counts counts;
  program exact;  // with the places that were meant
};

/// Runs it on the calling thread and, for the operations of other threads, on those.
[[nodiscard]] verdict run(program const& given, planted bug = planted::none);

/// Takes operations away as long as `fails` says that it fails.
[[nodiscard]] program shrink(program const& failing,
                             std::function<bool(program const&)> const& fails);

/// What a person needs: the failure, the seed, the command, and the shrunk program.
[[nodiscard]] std::string describe(program const& failing, verdict const& seen, planted bug);

}  // namespace escrow::test
