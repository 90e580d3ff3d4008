// SPDX-License-Identifier: Apache-2.0
// Memory by advancing a mark; each block is behind a word with its size.
#include "heap.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

namespace escrow::model {

heap::heap()
    : begin_(static_cast<std::byte*>(::mmap(nullptr, part_bytes * parts, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
  if (begin_ == MAP_FAILED) std::abort();
}

heap::~heap() {
  ::munmap(begin_, part_bytes * parts);
}

void* heap::allocate(std::size_t part, std::size_t size, std::size_t alignment) noexcept {
  constexpr std::size_t header = sizeof(std::size_t);
  if (alignment < header) alignment = header;
  std::size_t const place =
      (used_[part] + header + alignment - 1) / alignment * alignment;  // parts are aligned to pages
  used_[part] = place + size;
  if (used_[part] > part_bytes) std::abort();
  std::byte* const block = begin_ + part * part_bytes + place;
  std::memcpy(block - header, &size, header);
  return block;
}

void heap::keep_setup() {
  std::byte const* const begin = begin_ + setup_part * part_bytes;
  kept_.assign(begin, begin + used_[setup_part]);
}

void heap::restore_setup() noexcept {
  used_ = {};
  used_[setup_part] = kept_.size();
  std::memcpy(begin_ + setup_part * part_bytes, kept_.data(), kept_.size());
}

std::size_t heap::size_of(void const* address) noexcept {
  std::size_t size = 0;
  std::memcpy(&size, static_cast<std::byte const*>(address) - sizeof(size), sizeof(size));
  return size;
}

}  // namespace escrow::model
