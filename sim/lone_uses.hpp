// SPDX-License-Identifier: Apache-2.0
// What one thread at a time may use of a library under test.
#pragma once

// `call` uses it. Ends the process if another thread is in such a call: then nothing orders the
// two. Any thread.
extern "C" [[gnu::visibility("hidden")]] void escrow_simulated_use(void const* used,
                                                                   char const* call) noexcept;
