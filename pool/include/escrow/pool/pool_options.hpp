// How a pool is set up.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "escrow/deleter/deleter.hpp"

namespace escrow {

// What: the options of a pool.
// Thread safety: a value.
// Memory ordering: none.
// Lifetime: copied by the pool. The deleter is used only while the pool is made; what the pool
//   needs of it outlives it.
// Capture: none.
// Errors: none.
struct pool_options {
  // The most resources that the pool makes. A graph holds those that it uses until it is gone.
  std::size_t slots_max = 64;
  // The device that the resources belong to; -1 means the device current when the pool is made.
  int device = -1;
  // How long claim() may block the host when all resources are out. Zero: it throws at once.
  std::chrono::nanoseconds host_wait_max{0};
  // The pool's name in errors and reports.
  std::string label = "pool";
  // Whose worker recycles and destroys; null means deleter::global().
  escrow::deleter* deleter = nullptr;
};

}  // namespace escrow
