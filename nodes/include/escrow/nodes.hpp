// SPDX-License-Identifier: Apache-2.0
// Umbrella of nodes: graphs built by hand, and kernels whose launches keep what they use.
#pragma once

#include "escrow/nodes/build.hpp"       // IWYU pragma: export
#include "escrow/nodes/launch.hpp"      // IWYU pragma: export
#include "escrow/nodes/node_kinds.hpp"  // IWYU pragma: export
