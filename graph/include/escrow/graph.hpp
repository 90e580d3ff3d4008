// Umbrella of graph: capture, own and launch CUDA graphs; launch kernels that keep what they use.
#pragma once

#include "escrow/graph/capture.hpp"              // IWYU pragma: export
#include "escrow/graph/graph.hpp"                // IWYU pragma: export
#include "escrow/graph/graph_exec.hpp"           // IWYU pragma: export
#include "escrow/graph/hoisted.hpp"              // IWYU pragma: export
#include "escrow/graph/instantiate_options.hpp"  // IWYU pragma: export
#include "escrow/graph/kept_arguments.hpp"       // IWYU pragma: export
#include "escrow/graph/kernel.hpp"               // IWYU pragma: export
#include "escrow/graph/launch.hpp"               // IWYU pragma: export
#include "escrow/graph/launch_config.hpp"        // IWYU pragma: export
#include "escrow/graph/library.hpp"              // IWYU pragma: export
