// What CUDA itself leaves in the heap, which the long run's bound is not about.
#pragma once

namespace escrow::test {

/// Bytes of the host's heap that CUDA keeps for ever of each exec with a user object that was
/// launched: 208 on an H200 with CUDA 13.0. Measured with plain CUDA, so that nothing of Escrow's
/// can hide behind it. Call it while nobody else is at work.
[[nodiscard]] double bytes_left_by_a_plain_exec();

}  // namespace escrow::test
