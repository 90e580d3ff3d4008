// SPDX-License-Identifier: Apache-2.0
// Umbrella of graph: capture, own and launch CUDA graphs.
#pragma once

#include "escrow/graph/audit.hpp"       // IWYU pragma: export
#include "escrow/graph/exec_set.hpp"    // IWYU pragma: export
#include "escrow/graph/graph.hpp"       // IWYU pragma: export
#include "escrow/graph/graph_exec.hpp"  // IWYU pragma: export
#include "escrow/graph/hoist.hpp"       // IWYU pragma: export
