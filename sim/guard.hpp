// SPDX-License-Identifier: Apache-2.0
// Refuses to run beside a real CUDA runtime.
#pragma once

namespace escrow::sim::model {

// Aborts if a real libcudart is loaded as well: calls would go to either, and a test would prove
// nothing. Runs before main, and once more at the simulator's first use.
void refuse_a_real_runtime();

}  // namespace escrow::sim::model
