// SPDX-License-Identifier: Apache-2.0
// Which accesses to a stream's leased resources came before a record of the stream.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// What: a number for each stream, which grows before each record that may cover leases: that of a
//   retirement, and that of a graph which keeps a lease. A lease notes the number at its claim and
//   at each access. What was noted before a record's number was enqueued before that record.
// Thread safety: any thread. Relaxed: whoever hands a lease over orders the accesses of both
//   threads, and the numbers of one stream are those of one atomic object.
class ESCROW_API use_clock {
 public:
  // Of the stream with that id; several streams share a number.
  [[nodiscard]] static std::uint64_t now(std::uint64_t stream) noexcept {
    return numbers_[stream % count].now.load(std::memory_order_relaxed);  // see the class
  }
  // The number of a record that follows, of the stream with that id.
  [[nodiscard]] static std::uint64_t advance(std::uint64_t stream) noexcept {
    // Relaxed: see the class.
    return numbers_[stream % count].now.fetch_add(1, std::memory_order_relaxed) + 1;
  }

 private:
  static constexpr std::size_t count = 64;
  struct alignas(64) number {  // a cache line: each thread has its own stream
    std::atomic<std::uint64_t> now{1};
  };
  static std::array<number, count> numbers_;
};

}  // namespace escrow::inline v0_2
