// SPDX-License-Identifier: Apache-2.0
// Memory of the device that the host cannot reach, as on a GPU. Tests ask for it by
// ESCROW_MEMORY=apart: by default their programs may look into it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "work.hpp"

namespace escrow::sim::model {

[[nodiscard]] bool is_memory_apart() noexcept;
// So many bytes behind an allocation of the device, and behind a claim of an arena if memory is
// apart, are nobody's.
constexpr std::size_t guard_bytes = 256;
// The same for an allocation: none under a sanitizer, which sees what is written there.
[[nodiscard]] std::size_t bytes_behind_memory() noexcept;
// New memory is filled if it is no larger.
constexpr std::size_t filled_max = std::size_t{64} << 20;

// Memory of the device, at an address as CUDA's; if it is apart, in pages of its own, and each byte
// is 0xff. Null if there is none. Any thread.
[[nodiscard]] void* new_device_memory(std::size_t bytes) noexcept;
// `bytes` as it was made with.
void delete_device_memory(void* address, std::size_t bytes) noexcept;

// Pinned memory, in pages of its own if memory is apart. Null if there is none. Any thread.
[[nodiscard]] void* new_pinned_memory(std::size_t bytes) noexcept;
void delete_pinned_memory(void* address, std::size_t bytes) noexcept;
// Of a copy from or to pinned memory, or a kernel that is known to use such: until it has ended,
// the host may not write, or not use, what that reads or writes.
void begin_pinned_use(work const& what);
void end_pinned_use(work const& what);
// The host may not use pinned memory that is free in its pool.
void set_idle(void const* memory, std::size_t bytes, bool is_idle);
// Nor may work that later calls than `since` enqueue use what the pool `of` has free.
void set_idle_for_work(void const* memory, std::uint64_t since, std::string const& of);
void end_idle_for_work(void const* memory) noexcept;
// An object of the pool `of` keeps what earlier leases have left there: whose kernel reads that
// first, instead of writing it, is told.
void set_left_for_work(void const* memory, std::uint64_t since, std::string const& of);
// Work that so-manieth a call has enqueued begins.
void close_idle(std::uint64_t call) noexcept;

// Whole pages become memory of the device that work may use, the first `used` bytes of them; or are
// that no more, which changes what may be done with them not at all.
void add_device_pages(void* address, std::size_t bytes, std::size_t used);
void remove_device_pages(void* address) noexcept;

// All memory there is 0xff, and nobody has written it: whose it is, for a text. The device is at
// work.
void make_new(std::uintptr_t begin, std::size_t bytes, std::string const& of);
// Whether nothing has been written in the page.
[[nodiscard]] bool is_new(void const* address) noexcept;
// The pages that a fill or a copy of one row writes count as written; else each is a fault.
void open_what_it_writes(work const& what) noexcept;

// While one lives, the device works, and can reach its memory.
class [[nodiscard]] device_at_work {
 public:
  device_at_work();
  device_at_work(device_at_work&&) = delete;
  ~device_at_work();
};

}  // namespace escrow::sim::model
