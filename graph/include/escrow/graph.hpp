// Umbrella of graph: capture, own and launch CUDA graphs.
#pragma once

#include "escrow/graph/capture.hpp"              // IWYU pragma: export
#include "escrow/graph/graph.hpp"                // IWYU pragma: export
#include "escrow/graph/graph_exec.hpp"           // IWYU pragma: export
#include "escrow/graph/hoisted.hpp"              // IWYU pragma: export
#include "escrow/graph/instantiate_options.hpp"  // IWYU pragma: export
#include "escrow/graph/node_payload.hpp"         // IWYU pragma: export
