// The measures of the relaunch bench besides launching in a row.
#pragma once

#include "settings.hpp"

namespace escrow::bench {

// Registers run_ahead/...: launches in flight before the host blocks.
void register_run_ahead(settings const& how);
// Registers threads12/...: twelve threads that launch their own execs.
void register_threads(settings const& how);
// Registers objects64/...: instantiate, update and destroy with 64 objects held.
void register_objects(settings const& how);
// Registers interference/...: launches while another thread creates and destroys graphs.
void register_interference(settings const& how);

// How often each benchmark of the program is repeated.
[[nodiscard]] inline int repetitions(settings const& how) {
  return how.choose(9, 3, 1);
}

}  // namespace escrow::bench
