// Runs programs, and shrinks those that fail.
#pragma once

#include <functional>
#include <string>

#include "program.hpp"

namespace escrow::test {

struct verdict {
  std::string failure;  // empty: none
  std::size_t at = 0;   // the operation after which it was seen; their number: the end
  run_counts counts;
  program exact;  // with the places that were meant
};

/// Runs it on the calling thread and, for the operations of other threads, on those. Calls `before`
/// with each operation before it is done, if it is not empty.
[[nodiscard]] verdict run(program const& given, planted bug = planted::none,
                          std::function<void(operation const&)> const& before = {});

/// The same in a child process, so that a crash is a failure, too. Only in a process in which
/// nothing ran before: threads do not come along.
[[nodiscard]] verdict run_in_child(program const& given);

/// From now on a crash says which program it was, and how to repeat it.
void announce_crashes();

/// Takes operations away as long as `fails` says that it fails.
[[nodiscard]] program shrink(program const& failing,
                             std::function<bool(program const&)> const& fails);

/// What a person needs: the failure, the seed, the command, and the shrunk program.
[[nodiscard]] std::string describe(program const& failing, verdict const& seen,
                                   std::function<verdict(program const&)> const& runner);

}  // namespace escrow::test
