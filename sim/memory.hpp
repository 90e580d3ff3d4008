// SPDX-License-Identifier: Apache-2.0
// Device and pinned host memory: plain host memory that AddressSanitizer watches.
#pragma once

#include "state.hpp"

namespace escrow::sim::model {

// What an address is in; also for addresses inside an allocation. Lock held.
memory_place place_of(void const* address);
// Where the allocation, or the range of addresses, begins that it is in; null: in none. Lock held.
void const* begin_around(void const* address);

// Whether so many bytes begin in an allocation and end beyond it. Lock held.
bool is_beyond(void const* address, std::size_t bytes);

// Null if there is none left, also after all pools have given back what they keep. Lock held.
void* allocate_memory(std::size_t bytes, int device, bool host);
// Counts memory as in use. False if there is none left, as above. Lock held.
bool take_room(std::size_t bytes, int device);
// As allocate_memory(), of a pool: of what it keeps first.
// What is freed on `stream` and not gone yet counts as
// left.
void* allocate_memory(std::size_t bytes, CUmemPoolHandle_st& pool, stream_state const& stream);
// The pool keeps at most so much beside what is used. Lock held.
void trim(CUmemPoolHandle_st& pool, std::size_t keep);
// An allocation ends. Lock held.
void uncount(state& s, allocation const& what);
// Frees at once. False if there is no such allocation. Lock held.
bool free_memory(void* address);

}  // namespace escrow::sim::model
