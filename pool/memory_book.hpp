// SPDX-License-Identifier: Apache-2.0
// Which memory is at an address: for audits of graphs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "escrow/internal/address_lookup.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// A slot and the number of the lease that has it; or an arena, with the number of a group_scope, or
// 0 for a launch. The simulated runtime declares the same members.
struct simulated_lease {
  void const* slot = nullptr;  // null: none has
  std::uint64_t number = 0;
  std::uintptr_t used_end = 0;  // the lease uses nothing from there on; 0: not known
  std::uintptr_t end = 0;       // of its memory
  std::uint64_t last = 0;       // of a slot of captures: the number of its last lease
  // What has any contents until work of the lease, scope or launch writes it; 0: not known.
  std::uintptr_t new_begin = 0;
  std::uintptr_t new_end = 0;
};

// What the simulated runtime asks, which declares the same members.
struct simulated_question {
  enum class use : std::uint8_t { on_stream, in_capture, in_launch };
  void const* address = nullptr;
  use by = use::on_stream;
  std::uint64_t capture = 0;  // in_capture: its id
  char* text = nullptr;       // room for an answer of so many bytes
  std::size_t bytes = 0;
};

// What has a range of addresses: a slot, or an arena.
class range_owner {
 public:
  // What it is, for an address at `offset` from the begin. Any thread, under the book's lock.
  virtual void tell(known_address& its, std::size_t offset) const noexcept = 0;
  // Of a block that is an object's: whether the object still has it. While its lease changes that,
  // the answer may be either.
  [[nodiscard]] virtual bool has(std::uintptr_t /*block*/) const noexcept { return true; }
  // Of an arena: whether that capture has claimed there, and may again.
  [[nodiscard]] virtual bool is_of(std::uint64_t /*capture*/,
                                   std::size_t /*offset*/) const noexcept {
    return false;
  }

 protected:
  ~range_owner() = default;
};

// The blocks that the calling thread allocates in its lifetime, but for those of a later one.
class made_blocks {
 public:
  made_blocks() noexcept : outer_(std::exchange(current(), this)) {}
  made_blocks(made_blocks&&) = delete;
  ~made_blocks() { current() = outer_; }
  [[nodiscard]] static made_blocks* now() noexcept { return current(); }

  struct block {
    void const* begin;
    std::size_t bytes = 0;  // of a device_block, which has them beside its address
  };
  // Of a device_block, which has allocated it.
  static void note_device_block(void const* begin, std::size_t bytes) noexcept {
    if (current() == nullptr) return;
    for (block& each : current()->all) {
      if (each.begin == begin) each.bytes = bytes;
    }
  }

  std::vector<block> all = {};

 private:
  [[nodiscard]] static made_blocks*& current() noexcept;

  made_blocks* const outer_;
};

// What: the ranges of addresses of all slots but those of arenas, of all blocks that Escrow
//   allocates, and of all arenas; and the last few hundred that ended.
// Thread safety: any thread. One lock, held across no CUDA call; under it only capture_reuse's, or
//   the layout's of an arena, is taken.
// Lifetime: the process's. A range is removed before its memory is freed, since the next owner may
//   add it at once.
// Errors: what adds throws std::bad_alloc; what removes allocates nothing.
class memory_book final : public address_lookup {
  struct range {
    std::string label = {};
    range_owner const* owner = nullptr;
    std::uintptr_t end = 0;
  };
  using ranges = std::map<std::uintptr_t, range>;  // by the begin; they do not overlap

 public:
  using place = ranges::node_type;

  [[nodiscard]] static memory_book& global();

  // `label`: what it is of, for texts, also when it has ended. The owner removes the range.
  // make_place() is for one that is added when nothing may fail any more.
  [[nodiscard]] static place make_place(range_owner const& its, std::string label);
  void add_slot(place made, void const* begin, std::size_t bytes) noexcept;
  void remove_slot(void const* begin) noexcept { end(slots_, begin); }
  void add_arena(range_owner const& its, void const* begin, std::size_t bytes, std::string label) {
    add(arenas_, begin, bytes, {.label = std::move(label), .owner = &its});
  }
  void remove_arena(void const* begin) noexcept { end(arenas_, begin); }
  void add_block(void const* begin, std::size_t bytes) {
    add(blocks_, begin, bytes, {});
    if (made_blocks* const made = made_blocks::now()) made->all.push_back({begin});
  }
  // A block that the object of a slot has is used as the slot is.
  void own_block(void const* begin, range_owner const& its, std::string const& label);
  void disown_block(void const* begin, range_owner const& its) noexcept;
  void remove_block(void const* begin) noexcept { end(blocks_, begin); }
  void restore_block(void const* begin) noexcept;  // it was not freed after all

  // A pool of CUDA that Escrow has made.
  void add_pool(cudaMemPool_t made);
  void remove_pool(cudaMemPool_t doomed) noexcept;

  [[nodiscard]] known_address find(std::uintptr_t address, bool with_freed) override;
  [[nodiscard]] bool is_others(std::uintptr_t address) override;

 private:
  static constexpr std::size_t ended_max = 256;

  // Whether it is in a slot that nobody has, or where an arena is unmapped, or, unless a launched
  // graph uses it, has no lease; of a capture, whether a later claim of it may get the memory. Then
  // writes whose that is, and what to do. For the simulated runtime.
  // `its_question`: a simulated_question; `its_lease`: a simulated_lease.
  [[nodiscard]] static bool is_idle(void const* its_question, void* its_lease) noexcept;
  void add(ranges& to, void const* begin, std::size_t bytes, range made);
  void end(ranges& in, void const* begin) noexcept;
  [[nodiscard]] ranges::value_type const* owned_around(std::uintptr_t address) const;
  static void forget(ranges& ended, std::uintptr_t begin, std::uintptr_t end) noexcept;
  [[nodiscard]] static ranges::const_iterator around(ranges const& all, std::uintptr_t address);

  std::mutex mutex_;  // guards all below
  ranges slots_;
  ranges blocks_;
  ranges arenas_;
  ranges ended_;  // at most ended_max; then they become the older ones
  ranges older_;
  std::set<cudaMemPool_t> pools_;
};

}  // namespace escrow::inline v0_2
