// Umbrella of graph: capture, build, own and launch CUDA graphs; launch kernels that keep what they
// use.
#pragma once

#include "escrow/graph/allocation.hpp"           // IWYU pragma: export
#include "escrow/graph/body_graph.hpp"           // IWYU pragma: export
#include "escrow/graph/capture.hpp"              // IWYU pragma: export
#include "escrow/graph/condition.hpp"            // IWYU pragma: export
#include "escrow/graph/conditional_node.hpp"     // IWYU pragma: export
#include "escrow/graph/graph.hpp"                // IWYU pragma: export
#include "escrow/graph/graph_exec.hpp"           // IWYU pragma: export
#include "escrow/graph/hoisted.hpp"              // IWYU pragma: export
#include "escrow/graph/insertion_point.hpp"      // IWYU pragma: export
#include "escrow/graph/instantiate_options.hpp"  // IWYU pragma: export
#include "escrow/graph/kept_arguments.hpp"       // IWYU pragma: export
#include "escrow/graph/kernel.hpp"               // IWYU pragma: export
#include "escrow/graph/launch.hpp"               // IWYU pragma: export
#include "escrow/graph/launch_config.hpp"        // IWYU pragma: export
#include "escrow/graph/launch_params.hpp"        // IWYU pragma: export
#include "escrow/graph/library.hpp"              // IWYU pragma: export
#include "escrow/graph/memset_config.hpp"        // IWYU pragma: export
#include "escrow/graph/node.hpp"                 // IWYU pragma: export
#include "escrow/graph/node_params.hpp"          // IWYU pragma: export
#include "escrow/graph/node_payload.hpp"         // IWYU pragma: export
