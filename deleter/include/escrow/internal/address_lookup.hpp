// SPDX-License-Identifier: Apache-2.0
// What an address is in, of the memory that pools have and had: the pools' part answers audit().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

struct group_order;

struct known_address {
  //     unknown    Escrow never had it, or not lately
  //     slot       of a pool, not of an arena
  //     block      allocated by Escrow for somebody, e.g. a device_buffer
  //     arena      of a sharing group, where memory is mapped
  //     unmapped   the same, where none is
  //     freed      was one of these
  enum class kind : std::uint8_t { unknown, slot, block, arena, unmapped, freed };
  // Of a slot: nobody has it, a lease has, or a stream_allocator gave it out as memory. In an arena
  // a lease, or memory of an allocator, is there.
  enum class use : std::uint8_t { none, lease, allocation };

  kind what = kind::unknown;
  void const* slot = nullptr;  // as slot_reference::slot_address(); only compared
  use used_by = use::none;
  // Of a slot: counts its leases. Of an arena: the number of the group_scope whose lease is there;
  // 0: a graph's.
  std::uint64_t lease = 0;
  bool is_in_graphs = false;           // graphs hold the slot
  bool is_of_captures = false;         // the same, and it was claimed in the capture of each
  bool is_given_up = false;            // the same, and reference_set::is_given_up()
  std::uint64_t free_in = 0;           // the same: a later claim of that capture may get it
  group_order const* group = nullptr;  // of an arena; only compared
  std::size_t offset = 0;              // in it, or in the slot's memory
  // Of a block that a lease has, from where `offset` counts: the end of what the lease uses, and
  // that of the block. 0: not known.
  std::size_t used_end = 0;
  std::size_t end = 0;
  bool is_scratch = false;  // what a slot has means nothing as its lease begins
  std::size_t mapped = 0;   // of an arena: its bytes
  std::string of = {};      // the label of the pool, or of the group
};

// Thread safety: any thread; find() calls no CUDA function.
class address_lookup {
 public:
  // `with_freed`: else what is freed is unknown. Throws std::bad_alloc.
  [[nodiscard]] virtual known_address find(std::uintptr_t address, bool with_freed) = 0;
  // Of a freed one: whether it is in memory that somebody else has allocated since. Throws
  // cuda_error, std::bad_alloc. Source: cuPointerGetAttributes.
  [[nodiscard]] virtual bool is_others(std::uintptr_t address) = 0;

  // That of the process; null: Escrow never had memory. Stored with release, once.
  [[nodiscard]] static address_lookup* known() noexcept {
    return of_process().load(std::memory_order_acquire);
  }

 protected:
  ~address_lookup() = default;
  static void set(address_lookup& only) noexcept {
    of_process().store(&only, std::memory_order_release);
  }

 private:
  static std::atomic<address_lookup*>& of_process() noexcept {
    static std::atomic<address_lookup*> only{nullptr};
    return only;
  }
};

}  // namespace escrow::inline v0_2
