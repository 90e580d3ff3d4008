// SPDX-License-Identifier: Apache-2.0
// Texts for who reads or writes what is closed, or where no memory is.
#pragma once

#include "device_pages.hpp"

namespace escrow::sim::model {

// The program has AddressSanitizer or ThreadSanitizer.
[[nodiscard]] bool has_sanitizer() noexcept;
[[nodiscard]] bool has_address_sanitizer() noexcept;

// From now on. Under its lock.
void watch_faults(device_pages& its);

// Who reads or writes where no memory is, in the body of a kernel, a host function, or what Escrow
// calls as it ends something, gets a text, too. The first call counts; not under a sanitizer, nor
// if the program handles such faults itself.
void watch_kernels();

}  // namespace escrow::sim::model

// The calling thread begins, or ends, to reclaim. Any thread.
extern "C" [[gnu::visibility("hidden")]] void escrow_simulated_reclaims(int begins) noexcept;
