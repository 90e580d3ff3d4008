// Umbrella of core: errors, streams, events and capture queries over plain CUDA.
#pragma once

#include "escrow/core/after_fault.hpp"            // IWYU pragma: export
#include "escrow/core/capture_device.hpp"         // IWYU pragma: export
#include "escrow/core/capture_info.hpp"           // IWYU pragma: export
#include "escrow/core/cuda_error.hpp"             // IWYU pragma: export
#include "escrow/core/device_scope.hpp"           // IWYU pragma: export
#include "escrow/core/edge_data.hpp"              // IWYU pragma: export
#include "escrow/core/event.hpp"                  // IWYU pragma: export
#include "escrow/core/event_cache.hpp"            // IWYU pragma: export
#include "escrow/core/event_ref.hpp"              // IWYU pragma: export
#include "escrow/core/graph_identity.hpp"         // IWYU pragma: export
#include "escrow/core/graph_lifetime_lock.hpp"    // IWYU pragma: export
#include "escrow/core/ready_event.hpp"            // IWYU pragma: export
#include "escrow/core/relaxed_capture_scope.hpp"  // IWYU pragma: export
#include "escrow/core/retry_cleanup.hpp"          // IWYU pragma: export
#include "escrow/core/shared_event.hpp"           // IWYU pragma: export
#include "escrow/core/source_location.hpp"        // IWYU pragma: export
#include "escrow/core/spin_lock.hpp"              // IWYU pragma: export
#include "escrow/core/stream_ref.hpp"             // IWYU pragma: export
#include "escrow/core/usage_error.hpp"            // IWYU pragma: export
#include "escrow/version.hpp"                     // IWYU pragma: export
