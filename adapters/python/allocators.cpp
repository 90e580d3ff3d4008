// SPDX-License-Identifier: Apache-2.0
// Scratch memory for Python by its address.
#include "escrow/pool/stream_allocator.hpp"
#include "memory.hpp"

namespace escrow::python {

namespace {

struct python_allocator {
  // Shared, so that trim() can hold it while Python drops it.
  ends_without_gil<std::shared_ptr<stream_allocator>> held;
  int device;

  [[nodiscard]] stream_allocator& allocator(char const* call) { return *held.need(call); }
  [[nodiscard]] scratch_pool& need(char const* call) { return allocator(call).pool(); }
};

using allocate_function = void* (stream_allocator::*)(stream_ref, std::size_t, std::size_t,
                                                      source_location);

template <class Class>
void define_allocate(Class& defined, char const* name, char const* call, allocate_function how,
                     char const* text) {
  defined.def(
      name,
      [call, how](python_allocator& from, nb::handle stream, std::size_t size,
                  std::size_t alignment) {
        cudaStream_t const on = stream_of(stream);
        void* const memory =
            waiting(call, [&] { return (from.allocator(call).*how)(on, size, alignment, {}); });
        return reinterpret_cast<std::uintptr_t>(memory);
      },
      "stream"_a.none(), "size"_a, "alignment"_a = stream_allocator::default_alignment, text);
}

// NOLINTBEGIN(performance-no-int-to-ptr): Python has addresses as numbers
}  // namespace

void add_allocators(nb::module_& to) {
  nb::class_<python_allocator> allocator(
      to, "StreamAllocator", nb::is_weak_referenceable(),
      "A ScratchPool for interfaces that give memory back by its address, an int. Any thread.");
  define_init(
      allocator, "StreamAllocator",
      [](python_allocator* place, memory_options const& options) {
        auto made = std::make_shared<stream_allocator>(options.pool, options.policy);
        registry().add(std::shared_ptr<scratch_pool>(made, &made->pool()));
        int const device = made->device();
        new (place) python_allocator{ends_without_gil(std::move(made)), device};
      },
      "Options as those of ScratchPool; slots_max: no limit.");
  define_allocate(allocator, "allocate", "StreamAllocator.allocate", &stream_allocator::allocate,
                  "The address of at least `size` bytes, not initialized, for work on `stream`; "
                  "never 0. `alignment` is a\npower of two. Errors as ScratchPool.claim().");
  define_allocate(allocator, "allocate_for_host", "StreamAllocator.allocate_for_host",
                  &stream_allocator::allocate_for_host,
                  "The same for memory that the host uses at once. May block the host.");
  define_allocate(allocator, "allocate_kept", "StreamAllocator.allocate_kept",
                  &stream_allocator::allocate_kept, "The same, as ScratchPool.claim_kept().");
  allocator.def(
      "free",
      [](python_allocator& its, nb::handle stream, std::uintptr_t ptr) {
        constexpr char const* call = "StreamAllocator.free";
        cudaStream_t const on = stream_of(stream);
        quickly(call, [&] { its.allocator(call).deallocate(on, reinterpret_cast<void*>(ptr)); });
      },
      "stream"_a.none(), "ptr"_a,
      "Frees after the work on `stream` so far, which comes after all uses; 0 does nothing. "
      "UsageError for an\naddress that is not allocated.");
  allocator.def(
      "record_stream",
      [](python_allocator& its, nb::handle stream, std::uintptr_t ptr) {
        constexpr char const* call = "StreamAllocator.record_stream";
        cudaStream_t const on = stream_of(stream);
        quickly(call, [&] { its.allocator(call).record_stream(on, reinterpret_cast<void*>(ptr)); });
      },
      "stream"_a.none(), "ptr"_a, "As Lease.record_stream().");
  allocator.def(
      "is_allocated",
      [](python_allocator& its, std::uintptr_t ptr) {
        constexpr char const* call = "StreamAllocator.is_allocated";
        return quickly(
            call, [&] { return its.allocator(call).is_allocated(reinterpret_cast<void*>(ptr)); });
      },
      "ptr"_a, "Whether the address is allocated here now.");
  define_pool_calls(allocator, "StreamAllocator");
}
// NOLINTEND(performance-no-int-to-ptr)

}  // namespace escrow::python
