// SPDX-License-Identifier: Apache-2.0
// Kernels, copies and fills: the work that takes time and runs with no lock held.
#include "work.hpp"

#include <array>
#include <cstdio>
#include <cstring>

namespace escrow::sim::model {
namespace {

bool do_work(kernel_work& k) {
  auto pointers = k.args.pointers();
  return k.code->run(pointers.data());
}

// Where a row of a copy begins.
unsigned char* row_of(cudaPitchedPtr const& memory, cudaPos const& position, std::size_t row,
                      std::size_t slice) {
  auto const rows = (position.z + slice) * memory.ysize + position.y + row;
  return static_cast<unsigned char*>(memory.ptr) + rows * memory.pitch + position.x;
}

bool do_work(copy_work& c) {
  auto const& p = c.shape;
  if (p.extent.width == 0) return true;
  for (std::size_t slice = 0; slice < p.extent.depth; ++slice) {
    for (std::size_t row = 0; row < p.extent.height; ++row) {
      std::memmove(row_of(p.dstPtr, p.dstPos, row, slice), row_of(p.srcPtr, p.srcPos, row, slice),
                   p.extent.width);
    }
  }
  return true;
}

bool do_work(fill_work& f) {
  auto const& p = f.shape;
  for (std::size_t row = 0; row < p.height; ++row) {
    auto* const line = static_cast<unsigned char*>(p.dst) + row * p.pitch;
    if (p.elementSize == 1) {  // in one call, since ThreadSanitizer looks at each
      std::memset(line, static_cast<int>(p.value), p.width);
      continue;
    }
    for (std::size_t column = 0; column < p.width; ++column) {
      // The low bytes come first, as on every machine CUDA runs on.
      std::memcpy(line + column * p.elementSize, &p.value, p.elementSize);
    }
  }
  return true;
}

template <class Other>
bool do_work(Other&) {
  return true;
}

std::size_t units(std::size_t bytes) {
  return (bytes + sizeof(std::max_align_t) - 1) / sizeof(std::max_align_t);
}

}  // namespace

kernel_args::kernel_args(std::vector<std::size_t> const& sizes, void** from) {
  std::size_t total = 0;
  for (auto const size : sizes) {
    offsets_.push_back(total);
    total += units(size);
  }
  storage_.resize(total);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] != 0) std::memcpy(&storage_[offsets_[i]], from[i], sizes[i]);
  }
}

std::vector<void*> kernel_args::pointers() {
  std::vector<void*> result;
  result.reserve(offsets_.size());
  for (auto const offset : offsets_) result.push_back(storage_.data() + offset);
  return result;
}

std::string name_of(kernel_code const& code, std::size_t argument) {
  return "kernel \"" + code.name + "\", argument " + std::to_string(argument);
}

std::string text_of(void const* address) {
  std::array<char, 32> text{};
  static_cast<void>(std::snprintf(text.data(), text.size(), "%p", address));
  return text.data();
}

void const* kernel_args::word(std::size_t index, std::size_t offset) const {
  void const* value = nullptr;
  auto const* const argument = reinterpret_cast<std::byte const*>(&storage_[offsets_[index]]);
  std::memcpy(&value, argument + offset, sizeof(value));
  return value;
}

void stage(copy_work& copy) {
  constexpr std::size_t staged_max = std::size_t{2} << 20;  // measured on an H200
  cudaMemcpy3DParms& p = copy.shape;
  std::size_t const bytes = p.extent.width * p.extent.height * p.extent.depth;
  if (bytes == 0 || bytes > staged_max) return;
  auto const read = std::make_shared<std::vector<unsigned char>>(bytes);
  copy_work to_host = copy;
  to_host.shape.dstPtr = {read->data(), p.extent.width, p.extent.width, p.extent.height};
  to_host.shape.dstPos = {};
  do_work(to_host);
  p.srcPtr = to_host.shape.dstPtr;
  p.srcPos = {};
  copy.staged = read;
}

bool perform(work& what) {
  return std::visit([](auto& w) { return do_work(w); }, what);
}

}  // namespace escrow::sim::model
