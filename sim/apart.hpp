// SPDX-License-Identifier: Apache-2.0
// Memory of the device that the host cannot reach, as on a GPU. Tests ask for it by
// ESCROW_MEMORY=apart: by default their programs may look into it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace escrow::sim::model {

[[nodiscard]] bool is_memory_apart() noexcept;
// So many bytes behind an allocation of the device, and behind a claim of an arena if memory is
// apart, are nobody's.
constexpr std::size_t guard_bytes = 256;
// The same for an allocation: none under a sanitizer, which sees what is written there.
[[nodiscard]] std::size_t bytes_behind_memory() noexcept;
// AddressSanitizer or ThreadSanitizer.
[[nodiscard]] bool has_sanitizer() noexcept;
// New memory is filled if it is no larger.
constexpr std::size_t filled_max = std::size_t{64} << 20;

// Memory of the device, at an address as CUDA's; if it is apart, in pages of its own, and each byte
// is 0xff. Null if there is none. Any thread.
[[nodiscard]] void* new_device_memory(std::size_t bytes) noexcept;
// `bytes` as it was made with.
void delete_device_memory(void* address, std::size_t bytes) noexcept;

// Whole pages become memory of the device that work may use, or are that no more, which changes
// what may be done with them not at all.
void add_device_pages(void* address, std::size_t bytes);
void remove_device_pages(void* address) noexcept;

// All there is 0xff, and nobody has written it: whose it is, for a text. The device is at work.
void make_new(std::uintptr_t begin, std::size_t bytes, std::string const& of);

// Who reads or writes where no memory is, in the body of a kernel, gets a text, too. The first call
// counts; not under a sanitizer, nor if the program handles such faults itself.
void watch_kernels();

// While one lives, the device works, and can reach its memory.
class [[nodiscard]] device_at_work {
 public:
  device_at_work();
  device_at_work(device_at_work&&) = delete;
  ~device_at_work();
};

}  // namespace escrow::sim::model
