// SPDX-License-Identifier: Apache-2.0
// Faults: the n-th call fails, a named call fails, a device fails for good.
#pragma once

#include <driver_types.h>

#include <cstdint>
#include <string_view>

namespace escrow::sim {

// A call that is failed has no effect but its error, which is also the thread's last error. Never
// failed: cudaGetLastError, cudaPeekAtLastError, cudaGetErrorName, cudaGetErrorString. Any thread
// may call these. std::invalid_argument: `n` or `nth` is 0, `error` is cudaSuccess, or there is no
// function `api`.

// The n-th API call from now fails once, whichever thread makes it; 1 is the next. An error that
// loses the device (fail_device) fails more than one call: the device that is current for that call
// fails for good just before it. The call then answers as calls on a lost device do.
void fail_nth(std::uint64_t n, cudaError_t error);

// The same for the n-th call that the calling thread makes.
void fail_nth_here(std::uint64_t n, cudaError_t error);

// Calls of `api` ("cudaEventRecord") fail: the `nth` from now and those after it, `times` in all.
void fail_call(std::string_view api, cudaError_t error, std::uint64_t nth = 1,
               std::uint64_t times = 1);

// The same for the calls that the calling thread makes.
void fail_call_here(std::string_view api, cudaError_t error, std::uint64_t nth = 1,
                    std::uint64_t times = 1);

// The device fails for good, as after an illegal address: its pending work is dropped, and the
// process's calls return `sticky`, whichever device they are about. Other devices go on with what
// they were given.
void fail_device(int device, cudaError_t sticky);

// Whether the device failed for good, and runs nothing any more.
[[nodiscard]] bool has_failed(int device);

// How many of the failures that were ordered have not happened: after a test, 0, or the call that
// was to fail was not made (or is no call of CUDA's). calls() tells how often a call was made.
[[nodiscard]] std::uint64_t faults_pending();

// No fault is waiting any more, and the process and every device work again.
void clear_faults();

}  // namespace escrow::sim
