// SPDX-License-Identifier: Apache-2.0
// What is released behind the end of a last launch, also where that is recorded late.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "escrow/internal/launch_end.hpp"
#include "escrow/internal/reference_set.hpp"

namespace escrow::inline v0_2 {

// Drops what is held after the last launch: see end_state. If the end is late and its stream is
// captured, it is kept until release_kept_for() that stream. Any thread; see
// launch_end::record_late().
void release_behind(deferred_releases held, std::shared_ptr<launch_end> const& end) noexcept;

// By a thread that launches on the stream.
void release_kept_for(cudaStream_t stream) noexcept;

}  // namespace escrow::inline v0_2
