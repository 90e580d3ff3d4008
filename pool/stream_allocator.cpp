// SPDX-License-Identifier: Apache-2.0
// Memory by its address: which lease it belongs to.
#include "escrow/pool/stream_allocator.hpp"

#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "address_number.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/own_stream.hpp"
#include "escrow/internal/spin_lock.hpp"
#include "search.hpp"
#include "slot.hpp"

namespace escrow::inline v0_2 {

namespace {

constexpr char const* allocate_name = "stream_allocator::allocate";
constexpr char const* deallocate_name = "stream_allocator::deallocate";

std::string allocated_at(source_location where) {
  if (where.line() == 0) return ": track_leases tells the line";
  return detail::line_text(", allocated at ", where);
}

}  // namespace

struct ESCROW_LOCAL stream_allocator::state {
  // Memory that is allocated, or that a call frees now: the lease is empty then. `turn` tells
  // whether the address was given out again meanwhile.
  struct allocation {
    claimed_slot memory;
    std::uint64_t turn = 0;
    bool is_recording = false;  // a record_stream() of it goes on
  };
  // Those of addresses. Cache-line aligned: no false sharing between threads.
  struct alignas(64) shard {
    using map = std::unordered_map<void const*, allocation>;

    // The place of an address that is given out. Throws std::bad_alloc.
    allocation& place_of(void const* address) {
      if (unused.empty()) {
        unused.reserve(unused_max);  // forget() allocates nothing
        return allocated[address];
      }
      auto const known = allocated.find(address);
      if (known != allocated.end()) return known->second;
      map::node_type place = std::move(unused.back());
      unused.pop_back();
      place.key() = address;
      return allocated.insert(std::move(place)).position->second;
    }
    // Its memory was freed; keeps a few places, so that nothing is allocated in steady state.
    map::node_type forget(void const* address, std::uint64_t turn) noexcept {
      auto const known = allocated.find(address);
      if (known == allocated.end() || known->second.memory.what != nullptr ||
          known->second.turn != turn) {
        return {};
      }
      map::node_type place = allocated.extract(known);
      place.mapped() = {};
      if (unused.size() < unused.capacity()) unused.push_back(std::move(place));
      return place;  // freed by the caller, without the lock
    }

    static constexpr std::size_t unused_max = 16;

    spin_lock mutex;  // guards the rest; held for long only if more is allocated than ever before
    map allocated;
    std::vector<map::node_type> unused;
    std::uint64_t turns = 0;  // addresses given out
  };

  state(pool_options const& options, scratch_policy const& policy, source_location where)
      : pool(options, policy, where),
        label(options.label),
        device(options.device == -1 ? current_device() : options.device),
        wait_max(options.capture_wait_max),
        core(options.deleter != nullptr ? options.deleter->core() : deleter::global().core()) {}
  ~state() {
    { std::lock_guard const lock(mutex); }  // a program's ThreadSanitizer sees it
    std::size_t leaked = 0;
    source_location where{};  // of one of them
    for (shard& each : shards) {
      for (auto& [address, its] : each.allocated) {
        claimed_slot& memory = its.memory;
        if (memory.what == nullptr || slot_pool::leave_to_graph(memory)) continue;
        if (memory.what->note_.where.line() != 0) where = memory.what->note_.where;
        slot_pool::leak(memory);
        ++leaked;
      }
    }
    if (leaked == 0) return;
    try {
      core.report(usage_error("stream_allocator",
                              std::to_string(leaked) +
                                  (leaked == 1 ? " allocation of \"" : " allocations of \"") +
                                  label + (leaked == 1 ? "\" was not freed" : "\" were not freed") +
                                  allocated_at(where),
                              "free them before the last copy ends"));
    } catch (std::bad_alloc const&) {  // no memory for the text: they are counted all the same
    }
  }

  // A prime number of shards: of blocks of one size, which are often neighbours, each has another.
  shard& shard_of(void const* address) noexcept {
    return shards[address_number(address) / default_alignment % shards.size()];
  }

  void* allocate(char const* call, claim_kind kind, stream_ref stream, std::size_t bytes,
                 std::size_t alignment, source_location where) {
    return detail::called_at(call, where, [&]() -> void* {
      if (!std::has_single_bit(alignment)) {
        throw usage_error(call, "`alignment` is " + std::to_string(alignment),
                          "pass a power of two");
      }
      std::size_t const more = alignment > default_alignment ? alignment - 1 : 0;
      if (bytes > scratch_pool::bytes_max || more > scratch_pool::bytes_max - bytes) {
        throw usage_error(
            call,
            "`bytes` is " + detail::size_text(bytes) + ", aligned to " + std::to_string(alignment),
            "allocate at most scratch_pool::bytes_max");
      }
      lease<device_block> memory =
          pool.claim_as(call, kind, stream, bytes + more, where, bytes + more);
      auto const start = reinterpret_cast<std::uintptr_t>(memory->data());
      auto* const address = static_cast<std::byte*>(memory->data()) + (-start & more);
      shard& its = shard_of(address);
      std::lock_guard const lock(its.mutex);
      allocation& place = its.place_of(address);
      place.memory = std::exchange(memory.claimed_, {});
      // It is used by its address, which tells nothing: no work covers its end in a retired owner.
      place.memory.resource->accessed.store(std::numeric_limits<std::uint64_t>::max(),
                                            std::memory_order_relaxed);  // see note_access()
      place.memory.what->booked_.use.store(known_address::use::allocation,
                                           std::memory_order_relaxed);
      place.turn = ++its.turns;
      return address;
    });
  }

  // The lease of the address, which has it no longer if `is_taken`.
  allocation allocation_of(char const* call, void const* address, bool is_taken) {
    allocation found;
    {
      shard& its = shard_of(address);
      std::lock_guard const lock(its.mutex);
      auto const at = its.allocated.find(address);
      if (at != its.allocated.end()) {
        found = at->second;
        if (is_taken) at->second.memory = {};
      }
    }
    if (found.memory.what != nullptr) return found;
    throw usage_error(call, "`memory` is not allocated here, or was freed already",
                      "pass what allocate() returned, before it is freed");
  }

  // Takes the address out, and calls `end` with the lease. If that throws, the address is back.
  template <class End>
  void end_allocation(char const* call, source_location where, void* address, End end) {
    detail::called_at(call, where, [&] {
      allocation const its_last = allocation_of(call, address, true);
      claimed_slot taken = its_last.memory;
      shard& its = shard_of(address);
      try {
        end(taken);
      } catch (...) {
        if (taken.what != nullptr) {  // else freed, with a deferred record, and reported
          std::lock_guard const lock(its.mutex);
          its.allocated.find(address)->second.memory = taken;  // nobody else forgets it meanwhile
          throw;
        }
      }
      shard::map::node_type freed;
      std::lock_guard const lock(its.mutex);
      freed = its.forget(address, its_last.turn);
    });
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

  // For a record_stream() of the address, whose lease one call at a time may use: it goes on from
  // now on, or no more. Whether one went on before.
  bool set_recording(void const* address, std::uint64_t turn, bool is_recording) noexcept {
    shard& its = shard_of(address);
    std::lock_guard const lock(its.mutex);
    auto const at = its.allocated.find(address);
    bool const is_there = at != its.allocated.end() && at->second.turn == turn;
    return is_there && std::exchange(at->second.is_recording, is_recording);
  }

  void record_stream(char const* call, stream_ref stream, void* address) {
    allocation const its = allocation_of(call, address, false);
    std::optional<host_wait> for_another;  // no lock is held across CUDA's calls
    while (set_recording(address, its.turn, true)) {
      if (!for_another) for_another.emplace();
      if (for_another->go_on(wait_max)) continue;
      throw usage_error(call,
                        "another thread's record_stream() of `memory` has not returned, after "
                        "pool_options::capture_wait_max",
                        "look what CUDA waits for there");
    }
    struct recording {
      state& in;
      void const* address;
      std::uint64_t turn;
      ~recording() { in.set_recording(address, turn, false); }
    } const until_then{*this, address, its.turn};
    slot_pool::record_stream(its.memory, stream, call);
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
  std::string const label;
  int const device;
  std::chrono::nanoseconds const wait_max;
  deleter_core& core;
  std::array<shard, 61> shards;
  std::mutex mutex;  // guards the creation of the stream in `own`
};

std::shared_ptr<stream_allocator::state> stream_allocator::make_state(pool_options const& options,
                                                                      scratch_policy const& policy,
                                                                      source_location where) {
  pool_options its = options;
  if (!its.slots_max) its.slots_max = std::numeric_limits<std::size_t>::max();
  return detail::called_at("stream_allocator", where,
                           [&] { return std::make_shared<state>(its, policy, where); });
}

void* stream_allocator::allocate(stream_ref stream, std::size_t bytes, std::size_t alignment,
                                 source_location where) {
  return state_->allocate(allocate_name, claim_kind::in_order, stream, bytes, alignment, where);
}

void* stream_allocator::allocate_for_host(stream_ref stream, std::size_t bytes,
                                          std::size_t alignment, source_location where) {
  return state_->allocate("stream_allocator::allocate_for_host", claim_kind::for_host, stream,
                          bytes, alignment, where);
}

void* stream_allocator::allocate_kept(stream_ref stream, std::size_t bytes, std::size_t alignment,
                                      source_location where) {
  return state_->allocate("stream_allocator::allocate_kept", claim_kind::kept, stream, bytes,
                          alignment, where);
}

void* stream_allocator::allocate(std::size_t bytes, std::size_t alignment, source_location where) {
  return detail::called_at(allocate_name, where, [&] {
    return state_->allocate(allocate_name, claim_kind::for_host, state_->stream(), bytes, alignment,
                            where);
  });
}

void stream_allocator::deallocate(stream_ref stream, void* memory, source_location where) {
  if (memory == nullptr) return;
  state_->end_allocation(deallocate_name, where, memory,
                         [&](auto& its) { slot_pool::release(its, stream, deallocate_name); });
}

void stream_allocator::deallocate(void* memory, source_location where) {
  if (memory == nullptr) return;
  state_->end_allocation(deallocate_name, where, memory,
                         [&](auto& its) { slot_pool::release_done(its); });
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
  state_->end_allocation(call, where, memory, [&](auto& its) {
    if (slot_pool::leave_to_graph(its)) return;
    throw usage_error(call,
                      "`memory` was not allocated in a capture, or is used after it on a stream "
                      "given to record_stream()",
                      "deallocate it");
  });
}

bool stream_allocator::is_allocated(void const* memory) const noexcept {
  state::shard& its = state_->shard_of(memory);
  std::lock_guard const lock(its.mutex);
  auto const known = its.allocated.find(memory);
  return known != its.allocated.end() && known->second.memory.what != nullptr;
}

scratch_pool& stream_allocator::pool() const noexcept {
  return state_->pool;
}

int stream_allocator::device() const noexcept {
  return state_->device;
}

}  // namespace escrow::inline v0_2
