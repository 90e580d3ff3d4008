// Cases that need a process of their own: a sticky fault, a device reset, the end of the process.
#pragma once

#include <functional>
#include <string>

namespace escrow::test {

/// Registers `body` as the case that a child process runs when asked for `name`; make one at
/// namespace scope. The child leaves through main with the body's result, so that the process ends
/// as any program does.
struct child_case {
  using body = std::function<int()>;
  child_case(std::string const& name, body run);
};

/// What a child process left behind.
struct child_result {
  bool exited =
      false;        ///< false: killed by a signal, or by us since it did not end within the bound
  int status = -1;  ///< the exit status where it exited
  std::string output;  ///< all it wrote to its standard output and standard error
};

/// Runs this very program again for the case `name`, before it has touched CUDA. Waits 60 s at
/// most.
[[nodiscard]] child_result run_child(std::string const& name);

/// For main: runs the case that the command line asks for and sets `status`; false if it asks for
/// none.
[[nodiscard]] bool run_as_child(int argc, char** argv, int& status);

}  // namespace escrow::test
