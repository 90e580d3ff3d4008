// SPDX-License-Identifier: Apache-2.0
// Umbrella of pool: claim a resource for a stream, and release it.
#pragma once

#include "escrow/pool/memory_report.hpp"     // IWYU pragma: export
#include "escrow/pool/resource_pool.hpp"     // IWYU pragma: export
#include "escrow/pool/scratch_pool.hpp"      // IWYU pragma: export
#include "escrow/pool/stream_allocator.hpp"  // IWYU pragma: export
