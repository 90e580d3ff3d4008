// SPDX-License-Identifier: Apache-2.0
// Memory pools of CUDA, and when their unused memory goes back to the device.
#include "device_store.hpp"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/never_destroyed.hpp"
#include "escrow/internal/retry_cleanup.hpp"
#include "memory_book.hpp"

namespace escrow::inline v0_2 {

namespace {

using clock = std::chrono::steady_clock;

constexpr auto kept_window = std::chrono::milliseconds(100);

thread_local memory_scope scope_now;

// Waits for all work of the current device, as cudaFree does for memory of no pool. In Relaxed mode
// that harms no capture, as cudaDeviceSynchronize would.
cudaError_t wait_for_device() noexcept {
  void* byte = nullptr;
  cudaError_t status = cudaMalloc(&byte, 1);
  if (succeeded(status)) return retry_cleanup([byte] { return cudaFree(byte); });
  if (status == cudaErrorMemoryAllocation) {  // cudaFreeHost waits, too
    status = cudaMallocHost(&byte, 1);
    if (status == cudaSuccess) return retry_cleanup([byte] { return cudaFreeHost(byte); });
  }
  return status;
}

}  // namespace

memory_scope memory_scope::now() noexcept {
  return scope_now;
}

memory_scope::set::set(memory_scope what) noexcept : outer_(std::exchange(scope_now, what)) {}

memory_scope::set::~set() {
  scope_now = outer_;
}

device_store& device_store::global() {
  static never_destroyed<device_store> only;
  [[maybe_unused]] static bool const settles = [] {
    deleter_core::set_at_rest([]() noexcept { return only->settle(kept_window); });
    return true;
  }();
  return *only;
}

std::shared_ptr<store_place> device_store::place_of(int device) {
  std::shared_ptr<store_place> known = known_place(device);
  if (known != nullptr && !known->is_lost()) return known;
  auto made = std::make_shared<store_place>(device);
  std::lock_guard const lock(mutex_);
  for (std::shared_ptr<store_place>& each : places_) {
    if (each->device() != device) continue;
    if (each == known) each = made;
    return each;  // another thread has made one
  }
  places_.push_back(made);
  return made;
}

std::unique_ptr<address_range> device_store::map(int device, std::size_t bytes) {
  if (!address_range::is_possible_on(device)) return nullptr;
  auto made = std::make_unique<address_range>(device, bytes);
  try {
    made->map(bytes);
  } catch (cuda_error const& failed) {
    if (failed.status() != cudaErrorMemoryAllocation || trim(device) == 0) throw;
    made->map(bytes);
  }
  return made;
}

cudaError_t device_store::allocate(void** address, std::size_t bytes, cudaMemPool_t from) noexcept {
  *address = nullptr;
  if (bytes == 0) return cudaSuccess;
  int device = 0;
  cudaError_t const status = cudaGetDevice(&device);
  if (status != cudaSuccess) return status;
  cudaError_t const result = on_device(device, [&] {
    block made{.in = place_of(device), .range = nullptr};
    store_place& its = *made.in;
    if (from == nullptr && scope_now.is_of_pool && bytes >= mapped_min && bytes % page == 0) {
      made.range = map(device, bytes);
    }
    bool const is_mapped = made.range != nullptr;
    if (from == nullptr && !is_mapped) made.bytes = bytes;
    std::size_t const counted = made.bytes;
    cudaError_t failure = cudaSuccess;
    if (is_mapped) {
      *address = made.range->begin();
    } else {
      failure = cudaMallocFromPoolAsync(address, bytes, from != nullptr ? from : its.pool(),
                                        its.stream());
      if (failure != cudaSuccess) return failure;
      failure = cudaStreamSynchronize(its.stream());
    }
    if (failure == cudaSuccess) {
      try {
        memory_book::global().add_block(*address, bytes);
        std::lock_guard const lock(mutex_);
        blocks_.insert_or_assign(*address, std::move(made));
      } catch (std::bad_alloc const&) {
        memory_book::global().remove_block(*address);
        failure = cudaErrorMemoryAllocation;
      }
    }
    if (failure == cudaSuccess) {
      if (counted != 0) static_cast<void>(its.count(counted, 0));
    } else if (!is_mapped) {
      retry_cleanup([&] { return cudaFreeAsync(*address, its.stream()); });
    }
    return failure;
  });
  if (result != cudaSuccess) *address = nullptr;
  return result;
}

cudaError_t device_store::free(void* address) noexcept {
  if (address == nullptr) return cudaSuccess;
  std::map<void*, block>::node_type freed;
  std::uint64_t last_late = 0;  // before this call waits
  {
    std::lock_guard const lock(mutex_);
    freed = blocks_.extract(address);
    last_late = late_count_;
  }
  if (freed.empty()) return cudaFree(address);  // of somebody else
  std::shared_ptr<store_place> const in = freed.mapped().in;
  std::size_t const bytes = freed.mapped().bytes;
  bool const waits = !scope_now.is_unused && !is_reclaiming() && !freed.mapped().is_known_unused;
  auto const free_now = [&, &its = *in] {
    cudaError_t failure = waits ? wait_for_device() : cudaSuccess;
    // After a sticky fault all calls fail, and still free.
    if (failure != cudaSuccess && !is_sticky(failure)) return failure;
    if (freed.mapped().range != nullptr) {
      freed.mapped().range.reset();
      return cudaSuccess;
    }
    failure = cudaFreeAsync(address, its.stream());
    // The memory counts as used until then (measured).
    if (failure == cudaSuccess) static_cast<void>(succeeded(cudaStreamSynchronize(its.stream())));
    return failure;
  };
  memory_book::global().remove_block(address);  // first: then the address may be given out again
  cudaError_t const status = clean_up_on_device(in->device(), free_now, !waits);
  if (status != cudaSuccess) {
    memory_book::global().restore_block(address);
    std::lock_guard const lock(mutex_);
    blocks_.insert(std::move(freed));
    return status;
  }
  if (in->count(0, bytes)) {
    // The worker gives it back in a while; without one, this thread does at once.
    deleter_core* const global = deleter_core::global_or_null();
    static_cast<void>(in->settle(global != nullptr ? kept_window : clock::duration::zero()));
    if (global != nullptr) global->wake();
  }
  if (waits) free_late(*in, last_late);
  return status;
}

void device_store::free_late(store_place const& in, std::uint64_t last) noexcept {
  while (void* const late = take_late(in, last)) static_cast<void>(succeeded(free(late)));
}

cudaError_t device_store::wait_for_uses(int device) noexcept {
  if (scope_now.is_unused || is_reclaiming()) return cudaSuccess;
  return clean_up_on_device(device, wait_for_device, false);
}

void device_store::wait_and_free_late(int device) {
  std::shared_ptr<store_place> const its = known_place(device);
  std::uint64_t last = 0;
  {
    std::lock_guard const lock(mutex_);
    for (auto const& [address, each] : blocks_) {
      if (each.in == its) last = std::max(last, each.late);
    }
  }
  if (last == 0) return;
  cudaError_t const waited = clean_up_on_device(device, wait_for_device, false);
  if (succeeded(waited) || is_sticky(waited)) free_late(*its, last);
}

bool device_store::free_later(void* address, cudaError_t why) noexcept {
  {
    std::lock_guard const lock(mutex_);
    auto const found = blocks_.find(address);
    if (found == blocks_.end()) return false;
    found->second.late = ++late_count_;
  }
  deleter_core* const told = deleter_core::global_or_null();
  if (why == cudaErrorNotPermitted && told != nullptr) {
    told->report(usage_error("device_block::~device_block",
                             "it ended in a CUDA callback, where no memory can be freed: it stays "
                             "until another block ends elsewhere, or trim_device_memory()",
                             "retire() its owner on the stream"));
  }
  return true;
}

void* device_store::take_late(store_place const& in, std::uint64_t last) noexcept {
  std::lock_guard const lock(mutex_);
  auto const found = std::ranges::find_if(blocks_, [&in, last](auto const& each) {
    block const& its = each.second;
    return its.late != 0 && its.late <= last && its.in.get() == &in;
  });
  if (found == blocks_.end()) return nullptr;
  found->second.late = 0;  // once: after a fault, what fails to be freed may be gone
  found->second.is_known_unused = true;
  return found->first;
}

bool device_store::settle(std::chrono::nanoseconds least) noexcept {
  bool is_more_to_come = false;
  std::vector<std::shared_ptr<store_place>> all;
  try {
    std::lock_guard const lock(mutex_);
    all = places_;
  } catch (std::bad_alloc const&) {
    return false;
  }
  for (auto const& each : all) {
    is_more_to_come |= each->settle(least);
  }
  return is_more_to_come;
}

std::shared_ptr<store_place> device_store::known_place(int device) {
  std::lock_guard const lock(mutex_);
  auto const found = std::ranges::find(places_, device, [](auto& each) { return each->device(); });
  return found == places_.end() ? nullptr : *found;
}

void device_store::add(int device, std::shared_ptr<group_memory> const& arena) {
  std::lock_guard const lock(mutex_);
  std::erase_if(arenas_, [](auto const& each) { return each.second.expired(); });
  arenas_.emplace_back(device, arena);
}

std::size_t device_store::trim(int device) {
  std::vector<std::shared_ptr<group_memory>> arenas;
  {
    std::lock_guard const lock(mutex_);
    arenas.reserve(arenas_.size());  // first: none ends under the lock, which would call the driver
    for (auto const& [its_device, each] : arenas_) {
      if (its_device != device) continue;
      if (auto known = each.lock()) arenas.push_back(std::move(known));
    }
  }
  std::size_t sum = 0;
  for (auto const& each : arenas) sum += each->trim();
  return sum + trim_store(device);
}

std::size_t device_store::trim_store(int device) {
  std::shared_ptr<store_place> const its = known_place(device);
  if (its == nullptr || its->is_lost()) return 0;
  device_scope const current(device);
  relaxed_capture_scope const relaxed;
  std::size_t const given_back = its->trim();
  std::lock_guard const lock(mutex_);
  auto const is_of_it = [&](auto const& each) { return each.second.in == its; };
  if (std::ranges::none_of(blocks_, is_of_it)) std::erase(places_, its);  // ends after the lock
  return given_back;
}

std::vector<device_use> device_store::uses() {
  std::vector<std::shared_ptr<store_place>> known;
  std::map<store_place const*, std::size_t> mapped;
  {
    std::lock_guard const lock(mutex_);
    known = places_;
    for (auto const& [address, its] : blocks_) {
      if (its.range != nullptr) mapped[its.in.get()] += its.range->mapped();
    }
  }
  std::vector<device_use> all;
  for (auto const& each : known) {
    if (!each->is_lost()) all.emplace_back(each->now()).mapped = mapped[each.get()];
  }
  return all;
}

}  // namespace escrow::inline v0_2
