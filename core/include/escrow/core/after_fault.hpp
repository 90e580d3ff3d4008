// What is known of the GPU's work after a sticky fault.
//
// A sticky fault is the process's: from then on every call returns it, whichever device it is about
// (the CUDA runtime: "leaves the process in an inconsistent state"). The device that failed runs
// nothing any more. Others go on with all that they were given, and nothing tells when they are
// done; CUDA itself destroys the user objects of their execs meanwhile. (Measured on two H200s,
// CUDA 13.0.)
#pragma once

#include <cuda_runtime_api.h>

namespace escrow {

// Whether `status`, of any call, means that no device runs anything of this process any more: it is
// sticky, and the process uses no other device. Captures do not mind. Any thread.
[[nodiscard]] bool runs_nothing_after(cudaError_t status) noexcept;

// Asks CUDA whether the process has a sticky fault, and is true if another device may be at work
// all the same: what CUDA says is not in use any more may be. The current device is one that was
// used. Captures do not mind. Any thread.
[[nodiscard]] bool may_work_go_on_untold() noexcept;

}  // namespace escrow
