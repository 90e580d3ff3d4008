// SPDX-License-Identifier: Apache-2.0
// Owners of memory, and where it comes from.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/deleter/kernel_argument.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// As cudaMalloc, for memory of the current device that device_free() frees beside running work. It
// is usable on every stream at once, and by each device that can, without
// cudaDeviceEnablePeerAccess; not by cudaIpcGetMemHandle. Memory for one device alone comes from
// memory_source::from() with a pool that no other device has access to. Any thread. Capture-safe.
// Source: cudaMallocFromPoolAsync.
[[nodiscard]] ESCROW_API cudaError_t device_malloc(void** address, std::size_t bytes) noexcept;

// As cudaFree, also of other memory. cudaFree waits for all work of the device, and keeps every
// thread of the process from launching meanwhile (measured). For what device_malloc() gave, this
// does neither in a destructor that Escrow runs; elsewhere it does, since the memory may be in use.
// Any thread. Capture-safe. Source: cudaFreeAsync.
ESCROW_API cudaError_t device_free(void* address) noexcept;

// Gives back to the device what of its memory is freed and kept for later claims, of all of Escrow.
// Else the worker gives back what was unused for a tenth of a second, but for an eighth of what is
// in use, at least 32 MiB; and CUDA takes it, slowly, when memory runs out. If blocks ended in CUDA
// callbacks, it waits for the device and frees them. Returns the bytes.
// Throws cuda_error. Any thread. Capture-safe.
ESCROW_API std::size_t trim_device_memory(int device,
                                          source_location where = source_location::current());

// Owns device memory by its pointer, as a member of a class whose objects are retired.
struct ESCROW_API device_deleter {
  void operator()(void* memory) const noexcept;  // device_free
};
template <class T>
using device_ptr = std::unique_ptr<T[], device_deleter>;

// Where blocks come from, and where they go back to. The pair may be any functions with the
// contracts of cudaMalloc and cudaFree. What `allocate` gives is usable on every stream at once.
// `free` need not wait: no work uses the block any more. Both are called with the block's device
// current and in Relaxed capture mode, possibly concurrently, and may not throw. Copies are kept
// until the last block is freed, by the worker.
struct ESCROW_API memory_source {
  std::function<cudaError_t(void** address, std::size_t bytes)> allocate;
  std::function<cudaError_t(void* address)> free;
  char const* name = "memory_source::allocate";  // what failed, in errors: a string literal
  // The host writes the blocks: a pool's claims then are those of scratch_pool::claim_for_host.
  // Not set: that is so if the first block is host memory, as cudaPointerGetAttributes says.
  std::optional<bool> is_host_written = {};
  // `free` neither waits for the device nor blocks launches. Else blocks are freed only by trim(),
  // close_for(), scratch_policy::idle_max and at a limit.
  bool is_cheap_to_free = false;
  // Captures of a pool in a sharing group claim from the group's arena instead.
  bool is_for_arenas = false;

  [[nodiscard]] static memory_source device();       // device_malloc, device_free
  [[nodiscard]] static memory_source cuda_malloc();  // cudaMalloc, cudaFree: for IPC, RDMA, tools
  // Pinned host memory, which kernels, copies and the host may use, for staging: the host writes a
  // block from its claim on, then enqueues a copy, then releases it. Source: cudaMallocHost.
  [[nodiscard]] static memory_source pinned_host();
  // Blocks are allocated on a stream of Escrow's, which is then synchronized: that may wait for
  // frees in `pool` by others. Freed memory goes back to `pool`, which keeps it up to its release
  // threshold. `pool` must be of the blocks' device and outlive them. Source:
  // cudaMallocFromPoolAsync, cudaFreeAsync.
  [[nodiscard]] static memory_source from(cudaMemPool_t pool,
                                          source_location where = source_location::current());
};

// Owns memory of the device that is current at construction, or of another source.
// Lifetime: the destructor waits for the whole device, as cudaFree does, since the block may be in
//   use; not in a pool, nor retired: see device_free. What ends in a CUDA callback is freed with
//   the next block that ends elsewhere, or by trim_device_memory(); deleter::global(), if there is
//   one, reports it.
// Capture: capture-safe. In a capture a graph keeps the address: retire or retain the block there.
// Errors: the constructor throws cuda_error; out of memory, it first frees what scratch pools have
//   idle on the device, and waits for what deleter::global() reclaims, for at most 0.1 s. The
//   destructor ignores the status.
class ESCROW_API device_block {
 public:
  // Allocates `bytes` bytes, not initialized.
  explicit device_block(std::size_t bytes, memory_source const& source = memory_source::device(),
                        source_location where = source_location::current())
      : device_block("device_block", bytes, source, where) {}
  device_block(device_block const&) = delete;  // that of a lease stays: pass on the lease
  device_block(device_block&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        memory_(std::move(other.memory_)) {}
  device_block& operator=(device_block&& other) noexcept {
    device_block taken(std::move(other));
    std::swap(data_, taken.data_);
    std::swap(bytes_, taken.bytes_);
    std::swap(memory_, taken.memory_);
    return *this;
  }
  ~device_block();

  // The address of the first byte; of device memory, aligned to 256 bytes.
  [[nodiscard]] void* data() const noexcept { return data_; }
  // The size in bytes, at least what was requested.
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }
  // False once moved from; true also of 0 bytes, which have no address.
  [[nodiscard]] explicit operator bool() const noexcept { return data_ != nullptr || memory_; }

 private:
  template <class T>
  friend class device_buffer;
  friend class scratch_pool;
  struct memory;
  struct leaked_share;

  // For a caller with that name, which errors have.
  device_block(char const* call, std::size_t bytes, memory_source const& source,
               source_location where);
  // Of memory that its arena has.
  device_block(void* in_arena, std::size_t bytes) noexcept : data_(in_arena), bytes_(bytes) {}

  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::shared_ptr<memory> memory_;  // null: an arena's
};

// A kernel receives the address; the block itself must be moved into the launch: of a pool's block
// pass the lease.
template <>
struct kernel_argument_traits<device_block> {
  static void* device_value(device_block const& block) noexcept { return block.data(); }
  static std::size_t bytes(device_block const& block) noexcept { return block.size(); }
};

namespace detail {
// The bytes of `count` elements. Throws usage_error, naming `call`, if they are more than
// std::size_t can tell.
template <class T>
[[nodiscard]] std::size_t bytes_of(char const* call, std::size_t count, source_location where) {
  static_assert(std::is_trivially_copyable_v<T>,
                "device memory is copied bytewise: take a type without constructors");
  if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) {
    detail::refuse_at(where, call, "`count` is " + detail::size_text(count),
                      "it counts elements, not bytes");
  }
  return count * sizeof(T);
}
}  // namespace detail

// Memory for `count` elements, not initialized, of the current device. Throws cuda_error;
// usage_error if `count` is too large. Capture-safe.
template <class T>
[[nodiscard]] device_ptr<T> make_device(std::size_t count,
                                        source_location where = source_location::current()) {
  void* memory = nullptr;
  check(device_malloc(&memory, detail::bytes_of<T>("make_device", count, where)), "make_device",
        where);
  return device_ptr<T>(static_cast<T*>(memory));
}

// A device_block of `count` elements, not initialized. A kernel receives a T*; a launch in a
// capture, and a node, share the memory with the graph. Example: examples/conditional.cpp.
template <class T>
class device_buffer {
  static_assert(std::is_trivially_copyable_v<T>,
                "device memory is copied bytewise: take a type without constructors");

 public:
  // Throws cuda_error; usage_error if `count` is too large.
  explicit device_buffer(std::size_t count, memory_source const& source = memory_source::device(),
                         source_location where = source_location::current())
      : block_("device_buffer", detail::bytes_of<T>("device_buffer", count, where), source, where) {
  }

  [[nodiscard]] T* data() const noexcept ESCROW_OF_THIS { return static_cast<T*>(block_.data()); }
  [[nodiscard]] std::size_t size() const noexcept { return block_.size() / sizeof(T); }  // elements
  [[nodiscard]] std::size_t bytes() const noexcept { return block_.size(); }
  // False once moved from.
  [[nodiscard]] explicit operator bool() const noexcept { return static_cast<bool>(block_); }
  // Internal: a share of the memory, which stays until this and all shares are gone.
  [[nodiscard]] std::shared_ptr<void const> share() const noexcept { return block_.memory_; }

 private:
  device_block block_;
};

// A kernel receives the address. What is moved in is kept until the launch is done; of another
// buffer a graph keeps a share, and no other launch anything, since its destructor waits.
template <class T>
struct kernel_argument_traits<device_buffer<T>> {
  static std::shared_ptr<void const> owner_in_graph(device_buffer<T> const& buffer) noexcept {
    return buffer.share();
  }
  static T* device_value(device_buffer<T> const& buffer) noexcept { return buffer.data(); }
  static std::size_t bytes(device_buffer<T> const& buffer) noexcept { return buffer.bytes(); }
};

}  // namespace escrow::inline v0_2
