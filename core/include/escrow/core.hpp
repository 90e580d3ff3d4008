// SPDX-License-Identifier: Apache-2.0
// Umbrella header of core: errors, streams, events, captures, and the lock for graphs.
#pragma once

#include "escrow/core/capture.hpp"  // IWYU pragma: export
#include "escrow/core/error.hpp"    // IWYU pragma: export
#include "escrow/core/event.hpp"    // IWYU pragma: export
#include "escrow/core/stream.hpp"   // IWYU pragma: export
#include "escrow/version.hpp"       // IWYU pragma: export
