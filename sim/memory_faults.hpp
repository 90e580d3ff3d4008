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

// While one lives, the calling thread runs a kernel's body, if it is one. What two use at once of
// small memory counts as written: one could write while a page is open to the other's instruction.
class [[nodiscard]] running_body {
 public:
  explicit running_body(bool is_one);
  running_body(running_body&&) = delete;
  ~running_body();

 private:
  bool const is_one_;
};

// The calling thread's work, which is no kernel, writes all of that. Under its lock.
void write_for_now(device_pages& its, std::uintptr_t begin, std::size_t bytes) noexcept;
// What the calling thread's work has opened for itself outside of a kernel's body is closed again.
void close_lifted() noexcept;

// Who reads or writes where no memory is, in the body of a kernel, a host function, or what Escrow
// calls as it ends something, gets a text, too. The first call counts; not under a sanitizer, nor
// if the program handles such faults itself.
void watch_kernels();

}  // namespace escrow::sim::model

// The calling thread begins, or ends, to reclaim. Any thread.
extern "C" [[gnu::visibility("hidden")]] void escrow_simulated_reclaims(int begins) noexcept;
