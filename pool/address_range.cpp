// SPDX-License-Identifier: Apache-2.0
// The driver's calls for ranges of addresses.
#include "address_range.hpp"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>

#include "escrow/core/error.hpp"
#include "escrow/internal/device.hpp"
#include "peers.hpp"

namespace escrow::inline v0_2 {

namespace {

// Throws cuda_error.
struct range_functions {
  CUresult(CUDAAPI* granularity)(std::size_t*, CUmemAllocationProp const*,
                                 CUmemAllocationGranularity_flags) =
      find_in_driver<decltype(granularity)>("cuMemGetAllocationGranularity", 10020);
  CUresult(CUDAAPI* reserve)(CUdeviceptr*, std::size_t, std::size_t, CUdeviceptr,
                             unsigned long long) =
      find_in_driver<decltype(reserve)>("cuMemAddressReserve", 10020);
  CUresult(CUDAAPI* free)(CUdeviceptr,
                          std::size_t) = find_in_driver<decltype(free)>("cuMemAddressFree", 10020);
  CUresult(CUDAAPI* create)(CUmemGenericAllocationHandle*, std::size_t, CUmemAllocationProp const*,
                            unsigned long long) = find_in_driver<decltype(create)>("cuMemCreate",
                                                                                   10020);
  CUresult(CUDAAPI* release)(CUmemGenericAllocationHandle) =
      find_in_driver<decltype(release)>("cuMemRelease", 10020);
  CUresult(CUDAAPI* map)(CUdeviceptr, std::size_t, std::size_t, CUmemGenericAllocationHandle,
                         unsigned long long) = find_in_driver<decltype(map)>("cuMemMap", 10020);
  CUresult(CUDAAPI* unmap)(CUdeviceptr, std::size_t) = find_in_driver<decltype(unmap)>("cuMemUnmap",
                                                                                       10020);
  CUresult(CUDAAPI* set_access)(CUdeviceptr, std::size_t, CUmemAccessDesc const*, std::size_t) =
      find_in_driver<decltype(set_access)>("cuMemSetAccess", 10020);
};

range_functions const& driver() {
  static range_functions const found;
  return found;
}

// Cleanup is tried three times. Returns the last answer.
template <class Call>
CUresult tried(Call call) noexcept {
  CUresult answer = CUDA_SUCCESS;
  for (int attempt = 0; attempt < 3; ++attempt) {
    answer = call();
    if (answer == CUDA_SUCCESS) break;
  }
  return answer;
}
CUmemAllocationProp properties_of(int device) {
  CUmemAllocationProp its{};
  its.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  its.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  return its;
}

// Of the device itself, and of all others that can use its memory.
std::vector<CUmemAccessDesc> users_of(int device) {
  std::vector<int> devices = peers_of(device);
  devices.push_back(device);
  std::vector<CUmemAccessDesc> users;
  for (int const each : devices) {
    users.push_back({.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = each},
                     .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  }
  return users;
}

std::size_t rounded_up(std::size_t bytes, std::size_t step) {
  return (bytes + step - 1) / step * step;
}

}  // namespace

bool address_range::is_possible_on(int device) {
  using attribute_function = CUresult(CUDAAPI*)(int*, CUdevice_attribute, CUdevice);
  static auto const attribute = find_in_driver<attribute_function>("cuDeviceGetAttribute", 2000);
  int has = 0;
  check_driver(attribute(&has, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device),
               "cuDeviceGetAttribute");
  return has != 0;
}

address_range::address_range(int device, std::size_t bytes) : device_(device) {
  CUmemAllocationProp const its = properties_of(device);
  check_driver(driver().granularity(&step_, &its, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
               "cuMemGetAllocationGranularity");
  if (bytes == 0) {
    piece_max_ = rounded_up(std::size_t{32} << 20U, step_);
    std::size_t left = 0;
    device_scope const current(device);
    check(cudaMemGetInfo(&left, &bytes), "cudaMemGetInfo");
  }
  reserved_ = rounded_up(bytes, step_);
  if (piece_max_ == 0) piece_max_ = reserved_;
  check_driver(driver().reserve(&begin_, reserved_, step_, 0, 0), "cuMemAddressReserve");
}

address_range::~address_range() {
  while (!pieces_.empty()) {
    // What stays mapped keeps its addresses.
    if (!end_last()) return;
  }
  tried([this] { return driver().free(begin_, reserved_); });
}

void address_range::map(std::size_t bytes) {
  if (bytes > reserved_) throw cuda_error(cudaErrorMemoryAllocation, "cuMemMap");
  map_pieces_to(bytes, [this](std::size_t begin) { return begin + piece_max_; });
}

template <class End>
void address_range::map_pieces_to(std::size_t bytes, End end_of_piece) {
  std::size_t const now = mapped();
  std::size_t const end = rounded_up(bytes, step_);
  for (std::size_t begin = now; begin < end; begin = pieces_.back().end) {
    pieces_.reserve(pieces_.size() + 1);
    piece made{.begin = begin, .end = std::min(end, end_of_piece(begin))};
    try {
      make(made);
    } catch (...) {
      static_cast<void>(unmap_behind(now));
      throw;
    }
    pieces_.push_back(made);
  }
}

void address_range::make(piece& made) {
  std::size_t const bytes = made.end - made.begin;
  CUdeviceptr const at = begin_ + made.begin;
  std::vector<CUmemAccessDesc> const users = users_of(device_);
  CUmemAllocationProp const its = properties_of(device_);
  check_driver(driver().create(&made.handle, bytes, &its, 0), "cuMemCreate");
  bool is_mapped = false;
  try {
    check_driver(driver().map(at, bytes, 0, made.handle, 0), "cuMemMap");
    is_mapped = true;
    check_driver(driver().set_access(at, bytes, users.data(), users.size()), "cuMemSetAccess");
  } catch (...) {
    if (is_mapped) tried([&] { return driver().unmap(at, bytes); });
    tried([&] { return driver().release(made.handle); });
    throw;
  }
}

std::size_t address_range::mapped_for(std::size_t bytes) const noexcept {
  if (bytes == 0) return 0;
  auto const found = std::ranges::find_if(pieces_, [&](auto& each) { return each.end >= bytes; });
  return found == pieces_.end() ? mapped() : found->end;
}

std::size_t address_range::unmap_behind(std::size_t bytes) noexcept {
  std::size_t const before = mapped();
  while (!pieces_.empty() && pieces_.back().begin >= bytes) {
    if (!end_last()) break;
  }
  return before - mapped();
}

bool address_range::end_last() noexcept {
  piece const& last = pieces_.back();
  if (last.is_mapped && unmap(last) != CUDA_SUCCESS) return false;
  // Not released, it stays taken until the process ends.
  tried([&] { return driver().release(last.handle); });
  pieces_.pop_back();
  return true;
}

int address_range::unmap(piece const& mapped) const noexcept {
  CUdeviceptr const at = begin_ + mapped.begin;
  return tried([&] { return driver().unmap(at, mapped.end - mapped.begin); });
}

std::size_t address_range::unmap_all() {
  // All memory is kept until everything is unmapped: it can be mapped again.
  for (piece& each : pieces_) {
    int const status = each.is_mapped ? unmap(each) : CUDA_SUCCESS;
    each.is_mapped = status != CUDA_SUCCESS;
    if (!each.is_mapped) continue;
    static_cast<void>(map_pieces());
    throw cuda_error(static_cast<cudaError_t>(status), "cuMemUnmap");
  }
  std::size_t given_back = 0;
  for (; !pieces_.empty(); pieces_.pop_back()) {
    piece const& last = pieces_.back();
    // Not released, it stays taken until the process ends.
    if (tried([&] { return driver().release(last.handle); }) == CUDA_SUCCESS) {
      given_back += last.end - last.begin;
    }
  }
  return given_back;
}

bool address_range::is_whole() const noexcept {
  return std::ranges::all_of(pieces_, &piece::is_mapped);
}

std::size_t address_range::held() const noexcept {
  std::size_t sum = 0;
  for (piece const& each : pieces_) sum += each.end - each.begin;
  return sum;
}

address_range::failure address_range::map_pieces() noexcept {
  std::vector<CUmemAccessDesc> users;
  try {
    users = users_of(device_);
  } catch (std::exception const&) {
    return {cudaErrorMemoryAllocation, "cuMemSetAccess"};
  }
  for (piece& each : pieces_) {
    if (each.is_mapped) continue;
    CUdeviceptr const at = begin_ + each.begin;
    std::size_t const bytes = each.end - each.begin;
    CUresult answer = tried([&] { return driver().map(at, bytes, 0, each.handle, 0); });
    if (answer != CUDA_SUCCESS) return {answer, "cuMemMap"};
    answer = tried([&] { return driver().set_access(at, bytes, users.data(), users.size()); });
    if (answer != CUDA_SUCCESS) {
      unmap(each);
      return {answer, "cuMemSetAccess"};
    }
    each.is_mapped = true;
  }
  return {};
}

void address_range::map_again(std::size_t bytes) {
  if (!pieces_.empty()) {
    failure const why = map_pieces();
    return check_driver(why.status, why.call);
  }
  // Each is as long as all before it: few calls, and what trim() cannot give back is at most half.
  map_pieces_to(bytes, [this](std::size_t begin) { return std::max(2 * begin, piece_max_); });
}

}  // namespace escrow::inline v0_2
