// SPDX-License-Identifier: Apache-2.0
// The simulated CUDA runtime's control interface: what a test says to it, and asks of it.
#pragma once

#include <escrow/sim/control.hpp>
#include <escrow/sim/counts.hpp>
#include <escrow/sim/faults.hpp>
#include <escrow/sim/kernel.hpp>
#include <escrow/sim/library.hpp>
#include <escrow/sim/recording.hpp>
