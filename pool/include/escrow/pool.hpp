// Umbrella of pool: claim a resource for a stream, and release it.
#pragma once

#include "escrow/pool/device_block.hpp"    // IWYU pragma: export
#include "escrow/pool/holder.hpp"          // IWYU pragma: export
#include "escrow/pool/lease.hpp"           // IWYU pragma: export
#include "escrow/pool/pool_exhausted.hpp"  // IWYU pragma: export
#include "escrow/pool/pool_options.hpp"    // IWYU pragma: export
#include "escrow/pool/pool_stats.hpp"      // IWYU pragma: export
#include "escrow/pool/resource_pool.hpp"   // IWYU pragma: export
#include "escrow/pool/scratch_pool.hpp"    // IWYU pragma: export
