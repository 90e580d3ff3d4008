// What graphs and execs keep alive, for reports.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace escrow {

// What: what a graph or an exec holds, in all and by label; a snapshot. Owners are those of
//   deleter::retire() and of nodes.
struct resource_usage {
  struct labelled {
    std::string label;  // the pool's; "owners" for all owners
    std::size_t count = 0;
    std::size_t bytes = 0;  // of those whose size is known
  };

  std::size_t slots = 0;
  std::size_t owners = 0;
  std::size_t bytes = 0;  // of the slots whose size is known
  std::vector<labelled> labels;
};

}  // namespace escrow
