// SPDX-License-Identifier: Apache-2.0
// Device addresses whose memory comes and goes.
#pragma once

#include <cstddef>
#include <vector>

#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// What: one range of addresses, with memory mapped from the beginning on. No address moves. Mapping
// and unmapping wait for no work and delay no launch
//   (measured).
// Thread safety: one thread at a time; any thread.
// Capture: capture-safe: the calls harm no capture, in any mode (measured).
// Errors: throw cuda_error, std::bad_alloc.
// Source: the driver's virtual memory management.
class ESCROW_LOCAL address_range {
 public:
  // Reserves so many bytes, or as many as the device has; maps nothing. With a context of the
  // device.
  explicit address_range(int device, std::size_t bytes = 0);
  address_range(address_range&&) = delete;
  ~address_range();  // no work may use it

  // Whether the device has this. Makes no context.
  [[nodiscard]] static bool is_possible_on(int device);

  [[nodiscard]] char* begin() const noexcept {
    return reinterpret_cast<char*>(begin_);  // NOLINT(performance-no-int-to-ptr): CUDA's address
  }
  [[nodiscard]] std::size_t reserved() const noexcept { return reserved_; }
  [[nodiscard]] std::size_t mapped() const noexcept {
    return pieces_.empty() ? 0 : pieces_.back().end;
  }
  // At least so many bytes; all devices that can use the memory may. On failure what is mapped
  // stays mapped.
  void map(std::size_t bytes);
  // What map() would map for so many, if it is less than now: the end of a piece.
  [[nodiscard]] std::size_t mapped_for(std::size_t bytes) const noexcept;
  // Unmaps what is behind, a piece at a time; what cannot be unmapped stays. Returns the bytes.
  std::size_t unmap_behind(std::size_t bytes) noexcept;

  // Parking: unmaps everything and gives it back; returns the bytes. Throws cuda_error: then
  // is_whole() tells whether all is mapped as before. Else it is not given back, and map_again()
  // may be tried.
  std::size_t unmap_all();
  [[nodiscard]] bool is_whole() const noexcept;
  // What the device lacks for it, mapped or not.
  [[nodiscard]] std::size_t held() const noexcept;
  // After unmap_all(): so many bytes in few pieces, or what it did not give back. Throws
  // cuda_error, std::bad_alloc, and then has mapped nothing more.
  void map_again(std::size_t bytes);

 private:
  struct piece {
    unsigned long long handle = 0;
    std::size_t begin = 0;
    std::size_t end = 0;
    bool is_mapped = true;
  };
  void make(piece& made);
  // On failure what is mapped now stays.
  template <class End>  // of a piece, of its begin
  void map_pieces_to(std::size_t bytes, End end_of_piece);
  // Nothing, or the driver's error, and what it is of: what is not mapped is.
  struct failure {
    int status = 0;
    char const* call = nullptr;
  };
  [[nodiscard]] failure map_pieces() noexcept;
  int unmap(piece const& mapped) const noexcept;  // the driver's answer
  [[nodiscard]] bool end_last() noexcept;

  int const device_;
  std::size_t step_ = 0;       // pieces are multiples of it
  std::size_t piece_max_ = 0;  // of what grows: what is behind the last use can be unmapped
  std::size_t reserved_ = 0;
  unsigned long long begin_ = 0;
  std::vector<piece> pieces_;
};

}  // namespace escrow::inline v0_2
