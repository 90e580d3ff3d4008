// SPDX-License-Identifier: Apache-2.0
// All of Escrow but the adapters and the simulated runtime's controls.
#pragma once

#include "escrow/core.hpp"     // IWYU pragma: export
#include "escrow/deleter.hpp"  // IWYU pragma: export
#include "escrow/graph.hpp"    // IWYU pragma: export
#include "escrow/nodes.hpp"    // IWYU pragma: export
#include "escrow/pool.hpp"     // IWYU pragma: export
