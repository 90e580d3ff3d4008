// SPDX-License-Identifier: Apache-2.0
// Umbrella of deleter: destroy objects after the GPU work that uses them.
#pragma once

#include "escrow/deleter/deleter.hpp"          // IWYU pragma: export
#include "escrow/deleter/kernel_argument.hpp"  // IWYU pragma: export
#include "escrow/deleter/shared_object.hpp"    // IWYU pragma: export
#include "escrow/deleter/sharing_group.hpp"    // IWYU pragma: export
