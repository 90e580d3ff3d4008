// SPDX-License-Identifier: Apache-2.0
// What an operation or a graph node does: one small type for each kind of work.
#pragma once

#include <cuda_runtime_api.h>
#include <escrow/sim/kernel.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace escrow::sim::model {

using detail::argument_kind;

// A kernel that was registered or loaded: its body and the sizes of its arguments.
struct kernel_code {
  void const* address = nullptr;
  kernel run = nullptr;
  std::vector<std::size_t> arg_sizes;
  std::string name;
  // Of the arguments, as far as it is known.
  std::vector<argument_kind> arg_kinds = {};
  // Loaded with a library, not linked into the program.
  bool of_library = false;
  // Its library is gone. Guarded by the state's mutex.
  bool unloaded = false;

  [[nodiscard]] argument_kind kind_of(std::size_t argument) const {
    return argument < arg_kinds.size() ? arg_kinds[argument] : argument_kind::unknown;
  }
};

// For messages.
std::string name_of(kernel_code const& code, std::size_t argument);
std::string text_of(void const* address);

// Copies of a launch's arguments, each at the alignment any type is content with.
class kernel_args {
 public:
  kernel_args() = default;
  kernel_args(std::vector<std::size_t> const& sizes, void** from);

  // Pointers to the copies; they stay good until this object is copied over or gone.
  std::vector<void*> pointers();
  // The pointer that may be at such an offset of an argument.
  [[nodiscard]] void const* word(std::size_t index, std::size_t offset) const;

 private:
  std::vector<std::max_align_t> storage_;
  std::vector<std::size_t> offsets_;
};

// Behind the memory of a kernel's argument; of what that is, for a text.
struct guarded_bytes {
  std::byte* begin = nullptr;
  std::size_t bytes = 0;
  std::size_t argument = 0;
  std::string of;
  std::uintptr_t end = 0;  // what they are behind
  bool are_new = false;    // nothing had been written there as the kernel began
};

//                  of a fill or a copy, whose bytes are known    of a kernel's pointer
//     to read      reads                                         may_read: it points to const
//     to write     writes                                        may_write
// In stream order, its memory begins or ends: allocates, frees.
enum class access_kind : std::uint8_t { reads, writes, may_read, may_write, allocates, frees };

// What memory work uses, as far as its parameters tell.
struct access {
  std::uintptr_t begin = 0;
  std::size_t bytes = 1;  // from there on; of a pointer only that it is there
  std::size_t width = 0;  // of each row; 0: all bytes are used
  std::size_t pitch = 0;  // from the begin of a row to that of the next
  access_kind kind = access_kind::reads;
  kernel_code const* code = nullptr;
  std::size_t argument = 0;
  // It is in memory of a device, or, of a fill or copy, in pinned memory. Kernels look at flags of
  // the host's, and addresses of pageable memory, as the stack's, soon have another meaning.
  bool may_race = true;
};

// Pinned memory that a kernel uses: a lease that its launch was given.
struct pinned_use {
  std::uintptr_t begin = 0;
  std::size_t bytes = 0;
  bool writes = false;
};

struct empty_work {};

struct kernel_work {
  kernel_code const* code = nullptr;
  // Whose code it runs.
  int device = 0;
  kernel_args args;
  std::vector<guarded_bytes> guards = {};
  std::vector<pinned_use> pinned = {};
  cudaKernelNodeParams shape{};
  // What cudaGraphKernelNodeGetParams hands out.
  std::vector<void*> pointers;
  // Those of the launch, by id.
  std::map<int, cudaLaunchAttributeValue> attributes;
};

struct host_work {
  cudaHostFn_t run = nullptr;
  void* argument = nullptr;
};

// What kind of memory an address is in, and whose.
struct memory_place {
  cudaMemoryType type = cudaMemoryTypeUnregistered;
  int device = cudaInvalidDeviceId;

  bool operator==(memory_place const&) const = default;
};

struct copy_work {
  cudaMemcpy3DParms shape{};
  // Where the operands are: those in device memory stay on that device.
  memory_place to;
  memory_place from;
  // What it copies, if that was read in the call that enqueued it. Null: nothing was.
  std::shared_ptr<std::vector<unsigned char> const> staged = nullptr;
};

struct fill_work {
  cudaMemsetParams shape{};
  memory_place to;
};

// Frees device memory in stream order.
struct free_work {
  void* address = nullptr;
};

struct graph_block;

// Lets a graph's memory appear.
struct alloc_work {
  std::shared_ptr<graph_block> block;
};

// Lets it vanish, in a graph or in stream order.
struct graph_free_work {
  std::shared_ptr<graph_block> block;
};

struct event_state;
struct graph_state;

struct record_work {
  std::shared_ptr<event_state> event;
};

struct wait_work {
  std::shared_ptr<event_state> event;
};

struct child_work {
  std::shared_ptr<graph_state> graph;
};

struct conditional_work {
  cudaGraphConditionalHandle handle = 0;
  cudaGraphConditionalNodeType type = cudaGraphCondTypeIf;
  std::vector<std::shared_ptr<graph_state>> bodies;
  // CUDA hands out a pointer to this array; it lives as long as the node.
  std::vector<cudaGraph_t> handles;
};

using work =
    std::variant<empty_work, kernel_work, host_work, copy_work, fill_work, free_work, alloc_work,
                 graph_free_work, record_work, wait_work, child_work, conditional_work>;

[[nodiscard]] inline bool is_pageable(memory_place const& place) noexcept {
  return place.type == cudaMemoryTypeUnregistered;
}
// Reads what it copies now, if that is at most 2 MiB.
void stage(copy_work& copy);

// Does the work of a kernel, a copy or a fill; no lock held. False: not done yet, call again.
bool perform(work& what);

}  // namespace escrow::sim::model
