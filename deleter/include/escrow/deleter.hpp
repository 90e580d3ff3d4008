// Umbrella of deleter: destroy objects after the GPU work that uses them.
#pragma once

#include "escrow/deleter/bundle_hold.hpp"             // IWYU pragma: export
#include "escrow/deleter/deleter.hpp"                 // IWYU pragma: export
#include "escrow/deleter/deleter_options.hpp"         // IWYU pragma: export
#include "escrow/deleter/deleter_stats.hpp"           // IWYU pragma: export
#include "escrow/deleter/graph_bundle.hpp"            // IWYU pragma: export
#include "escrow/deleter/graph_reference.hpp"         // IWYU pragma: export
#include "escrow/deleter/graph_registry.hpp"          // IWYU pragma: export
#include "escrow/deleter/kernel_argument_traits.hpp"  // IWYU pragma: export
#include "escrow/deleter/launch_order.hpp"            // IWYU pragma: export
#include "escrow/deleter/release_hub.hpp"             // IWYU pragma: export
#include "escrow/deleter/release_node.hpp"            // IWYU pragma: export
#include "escrow/deleter/resource_usage.hpp"          // IWYU pragma: export
#include "escrow/deleter/retain.hpp"                  // IWYU pragma: export
#include "escrow/deleter/retired_owner.hpp"           // IWYU pragma: export
#include "escrow/deleter/slot_share.hpp"              // IWYU pragma: export
#include "escrow/deleter/stream_shared.hpp"           // IWYU pragma: export
#include "escrow/deleter/stream_uses.hpp"             // IWYU pragma: export
#include "escrow/deleter/user_object.hpp"             // IWYU pragma: export
