// Memory by its address: which lease it belongs to, found without a lock.
#include "escrow/pool/stream_allocator.hpp"

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/own_stream.hpp"

namespace escrow::inline v0_1 {

namespace {

constexpr char const* allocate_name = "stream_allocator::allocate";
constexpr char const* deallocate_name = "stream_allocator::deallocate";

[[noreturn]] void refuse_address(char const* call) {
  throw usage_error(call, "`memory` is not allocated here, or was freed already",
                    "pass what allocate() returned, before it is freed");
}

}  // namespace

// A tree over addresses in steps of 256 bytes: each table is an array of the next ones, and those
// of level 0 have the values. What is made stays.
// Thread safety: any thread, except the destructor. The caller orders accesses to a value.
template <class Value, int level>
class address_map {
 public:
  address_map() = default;
  address_map(address_map&&) = delete;
  ~address_map() {
    for (auto& place : entries_) delete place.load(std::memory_order_relaxed);  // no other user
  }

  // Null if it was not made yet. `may_make`: makes it then; throws std::bad_alloc.
  [[nodiscard]] Value* find(void const* address, bool may_make = false) {
    auto& place = entries_[index_of(address)];
    // Acquire: pairs with the release below, after what the entry was made of.
    entry* found = place.load(std::memory_order_acquire);
    if (found == nullptr) {
      if (!may_make) return nullptr;
      auto made = std::make_unique<entry>();
      bool const is_first =
          place.compare_exchange_strong(found, made.get(), std::memory_order_acq_rel);
      if (is_first) found = made.release();
    }
    if constexpr (level == 0) {
      return found;
    } else {
      return found->find(address, may_make);
    }
  }

  template <class Call>
  void for_each(Call const& call) {
    for (auto& place : entries_) {
      entry* const found = place.load(std::memory_order_acquire);
      if (found == nullptr) continue;
      if constexpr (level == 0) {
        call(*found);
      } else {
        found->for_each(call);
      }
    }
  }

 private:
  using entry =
      typename std::conditional_t<level == 0, std::type_identity<Value>,
                                  std::type_identity<address_map<Value, level - 1>>>::type;
  static constexpr int step_bits = 8;
  static constexpr int bits = 10;  // of the address, for each level

  static std::size_t index_of(void const* address) noexcept {
    auto const number = reinterpret_cast<std::uintptr_t>(address);
    return (number >> (step_bits + bits * level)) % (std::size_t{1} << bits);
  }

  std::array<std::atomic<entry*>, std::size_t{1} << bits> entries_{};
};

struct ESCROW_LOCAL stream_allocator::state {
  struct allocation {
    std::optional<lease<device_block>> memory;
    // While it is allocated; else null. Others in the same step of the map are no allocations.
    // Release and acquire: whoever frees has what the allocating thread wrote to `memory`.
    std::atomic<void const*> address{nullptr};
  };

  state(pool_options const& options, scratch_policy const& policy)
      : pool(options, policy),
        device(options.device == -1 ? current_device() : options.device),
        core(options.deleter != nullptr ? options.deleter->core() : deleter::global().core()) {}
  ~state() {
    std::size_t leaked = 0;
    allocations.for_each([&](allocation& each) {
      if (!each.memory || slot_pool::leave_to_graph(each.memory->claimed_)) return;
      slot_pool::leak(each.memory->claimed_);
      ++leaked;
    });
    if (leaked == 0) return;
    try {
      core.report(usage_error("stream_allocator",
                              std::to_string(leaked) + " allocations were not freed",
                              "free them before the last copy ends"));
    } catch (std::bad_alloc const&) {  // no memory for the text: they are counted all the same
    }
  }

  void* allocate(stream_ref stream, std::size_t bytes, std::size_t alignment,
                 source_location where) {
    if (!std::has_single_bit(alignment)) {
      throw usage_error(allocate_name, "`alignment` is " + std::to_string(alignment),
                        "pass a power of two");
    }
    std::size_t const more = alignment > default_alignment ? alignment - 1 : 0;
    if (bytes > scratch_pool::bytes_max || more > scratch_pool::bytes_max - bytes) {
      throw usage_error(
          allocate_name,
          "`bytes` is " + std::to_string(bytes) + ", aligned to " + std::to_string(alignment),
          "allocate at most scratch_pool::bytes_max");
    }
    lease<device_block> memory = pool.claim(stream, bytes + more, where);
    auto const start = reinterpret_cast<std::uintptr_t>(memory->data());
    auto* const address = static_cast<std::byte*>(memory->data()) + (-start & more);
    allocation& its = *allocations.find(address, true);
    its.memory.emplace(std::move(memory));
    its.address.store(address, std::memory_order_release);
    return address;
  }

  // Takes the address out, and calls `end` with the lease. If that throws, the address is back.
  template <class End>
  void end_allocation(char const* call, void* address, End end) {
    allocation* const its = allocations.find(address);
    void const* expected = address;
    if (its == nullptr ||
        !its->address.compare_exchange_strong(expected, nullptr, std::memory_order_acquire,
                                              std::memory_order_relaxed)) {
      refuse_address(call);
    }
    // Once the lease has ended, its memory may be allocated again.
    lease<device_block> memory = std::move(*its->memory);
    its->memory.reset();
    try {
      end(memory);
    } catch (...) {
      if (!memory) return;  // freed, with a deferred record, and reported
      its->memory.emplace(std::move(memory));
      its->address.store(address, std::memory_order_release);
      throw;
    }
  }

  // Calls twice if need be, since the caller cannot: the failure may not repeat. Misuse does, and
  // by then its address may be another caller's.
  template <class Call>
  void or_report(Call const& call) const noexcept {
    for (bool const is_last : {false, true}) {
      try {
        return call();
      } catch (usage_error const& error) {
        return core.report(error);
      } catch (std::exception const& error) {
        if (is_last) core.report(error);
      }
    }
  }

  void record_stream(char const* call, stream_ref stream, void* address) {
    allocation* const its = allocations.find(address);
    if (its == nullptr || its->address.load(std::memory_order_acquire) != address) {
      refuse_address(call);
    }
    std::lock_guard const lock(record_mutex);
    its->memory->record_stream(stream);
  }

  // For allocations without a stream. Throws cuda_error.
  cudaStream_t stream() {
    std::lock_guard const lock(mutex);
    if (!own) {
      device_scope const current(device);
      own.emplace();
    }
    return own->get();
  }

  std::optional<own_stream> own;  // outlives `pool`: see pool_options::streams_outlive_pool
  scratch_pool pool;
  int const device;
  deleter_core& core;
  address_map<allocation, 4> allocations;
  std::mutex record_mutex;  // guards leases against two calls of record_stream()
  std::mutex mutex;         // guards the creation of the stream in `own`
};

std::shared_ptr<stream_allocator::state> stream_allocator::make_state(
    pool_options const& options, scratch_policy const& policy) {
  pool_options its = options;
  if (!its.slots_max) its.slots_max = std::numeric_limits<std::size_t>::max();
  return std::make_shared<state>(its, policy);
}

void* stream_allocator::allocate(stream_ref stream, std::size_t bytes, std::size_t alignment,
                                 source_location where) {
  return state_->allocate(stream, bytes, alignment, where);
}

void* stream_allocator::allocate(std::size_t bytes, std::size_t alignment, source_location where) {
  return detail::called_at(allocate_name, where, [&] {
    cudaStream_t const own = state_->stream();
    void* const memory = state_->allocate(own, bytes, alignment, where);
    try {
      relaxed_capture_scope const relaxed;
      check(cudaStreamSynchronize(own), "cudaStreamSynchronize");
    } catch (...) {
      deallocate(memory, where);
      throw;
    }
    return memory;
  });
}

void stream_allocator::deallocate(stream_ref stream, void* memory, source_location where) {
  if (memory == nullptr) return;
  detail::called_at(deallocate_name, where, [&] {
    state_->end_allocation(deallocate_name, memory, [&](auto& its) { its.release(stream); });
  });
}

void stream_allocator::deallocate(void* memory, source_location where) {
  if (memory == nullptr) return;
  detail::called_at(deallocate_name, where, [&] {
    cudaStream_t const own = state_->stream();
    state_->end_allocation(deallocate_name, memory,
                           [&](auto& its) { slot_pool::release(its.claimed_, own, true); });
  });
}

void stream_allocator::deallocate_or_report(stream_ref stream, void* memory,
                                            source_location where) noexcept {
  state_->or_report([&] { deallocate(stream, memory, where); });
}

void stream_allocator::deallocate_or_report(void* memory, source_location where) noexcept {
  state_->or_report([&] { deallocate(memory, where); });
}

void stream_allocator::record_stream(stream_ref stream, void* memory, source_location where) {
  constexpr char const* call = "stream_allocator::record_stream";
  detail::called_at(call, where, [&] { state_->record_stream(call, stream, memory); });
}

void stream_allocator::leave_to_graph(void* memory, source_location where) {
  constexpr char const* call = "stream_allocator::leave_to_graph";
  detail::called_at(call, where, [&] {
    state_->end_allocation(call, memory, [&](auto& its) {
      if (slot_pool::leave_to_graph(its.claimed_)) return;
      throw usage_error(call,
                        "`memory` was not allocated in a capture, or is used after it on a stream "
                        "given to record_stream()",
                        "deallocate it");
    });
  });
}

scratch_pool& stream_allocator::pool() const noexcept {
  return state_->pool;
}

int stream_allocator::device() const noexcept {
  return state_->device;
}

}  // namespace escrow::inline v0_1
