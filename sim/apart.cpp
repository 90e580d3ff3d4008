// SPDX-License-Identifier: Apache-2.0
// Memory whose pages are closed while the device does nothing, or until work writes them.
#include "apart.hpp"

#include "device_pages.hpp"
#include "memory_faults.hpp"
#include "pages.hpp"
#include "state.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <string_view>

namespace escrow::sim::model {
namespace {

constexpr std::size_t slack_max = std::size_t{1} << 16;  // in bytes, behind an allocation

std::size_t whole_pages(std::size_t bytes) {
  return (bytes + guard_bytes + page_bytes() - 1) / page_bytes() * page_bytes();
}

// Who takes elements for bytes writes four or eight times as much: not over what is the
// simulator's, so that it can tell.
std::size_t with_slack(std::size_t bytes) {
  return bytes + std::clamp(8 * std::min(bytes, slack_max), guard_bytes, slack_max);
}

// A closed page is behind that: who writes on and on gets a fault there.
std::size_t fenced_bytes(std::size_t bytes) {
  return (with_slack(bytes) + page_bytes() - 1) / page_bytes() * page_bytes() + page_bytes();
}

// Memory that begins where other ends could be meant as that one's end: AddressSanitizer leaves a
// gap by itself, and tells who writes there.
std::size_t gap_bytes() noexcept {
  return has_address_sanitizer() ? 0 : guard_bytes;
}

// Null if there are too many.
void* new_fenced_memory(std::size_t bytes) noexcept {
  constexpr std::size_t count_max = 8192;  // Linux maps 65,530 ranges for a process
  device_pages& its = memory_pages();
  std::lock_guard const lock(its.mutex);
  if (its.fenced.size() >= count_max) return nullptr;
  std::size_t const all = fenced_bytes(bytes);
  void* const found =
      ::mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return nullptr;
  auto const begin = reinterpret_cast<std::uintptr_t>(found);
  protect(begin, all - page_bytes(), PROT_READ | PROT_WRITE);
  if (bytes <= slack_max) std::memset(found, 0xff, bytes);  // no number that a program expects
  its.fenced.insert(begin);
  return found;
}

}  // namespace

bool is_memory_apart() noexcept {
  static bool const is_it = [] {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): once, beside nothing of the simulator's that sets it.
    char const* const said = std::getenv("ESCROW_MEMORY");
    return said != nullptr && said == std::string_view("apart");
  }();
  return is_it;
}

std::size_t bytes_behind_memory() noexcept {
  return is_memory_apart() || !has_sanitizer() ? guard_bytes : 0;
}

void* new_device_memory(std::size_t bytes) noexcept {
  if (!is_memory_apart()) {
    if (has_sanitizer()) return ::operator new(bytes + gap_bytes(), as_cuda_aligns, std::nothrow);
    if (void* const fenced = new_fenced_memory(bytes)) return fenced;
    return ::operator new(with_slack(bytes), as_cuda_aligns, std::nothrow);
  }
  void* const found = ::mmap(nullptr, whole_pages(bytes), PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return nullptr;
  add_device_pages(found, whole_pages(bytes), bytes);
  return found;
}

void delete_device_memory(void* address, std::size_t bytes) noexcept {
  if (!is_memory_apart()) {
    device_pages& its = memory_pages();
    std::unique_lock lock(its.mutex);
    bool const is_fenced = its.fenced.erase(reinterpret_cast<std::uintptr_t>(address)) != 0;
    lock.unlock();
    if (!is_fenced) return ::operator delete(address, as_cuda_aligns);
    ::munmap(address, fenced_bytes(bytes));
    return;
  }
  remove_device_pages(address);
  ::munmap(address, whole_pages(bytes));
}

void* new_pinned_memory(std::size_t bytes) noexcept {
  if (!is_memory_apart()) return ::operator new(bytes, as_cuda_aligns, std::nothrow);
  std::size_t const whole = whole_pages(bytes);
  void* const found =
      ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (found == MAP_FAILED) return nullptr;
  device_pages& its = memory_pages();
  std::lock_guard const lock(its.mutex);
  if (!its.is_watched) watch_faults(its);
  its.pinned.add(reinterpret_cast<std::uintptr_t>(found), whole);
  return found;
}

void delete_pinned_memory(void* address, std::size_t bytes) noexcept {
  if (!is_memory_apart()) return ::operator delete(address, as_cuda_aligns);
  device_pages& its = memory_pages();
  {
    std::lock_guard const lock(its.mutex);
    its.pinned.remove(reinterpret_cast<std::uintptr_t>(address));
  }
  ::munmap(address, whole_pages(bytes));
}

namespace {

using note_of_use = void (pinned_pages::*)(pinned_pages::pending const& its);

void note_pinned_use(work const& what, note_of_use note) {
  if (!is_memory_apart()) return;
  device_pages& its = memory_pages();
  std::unique_lock lock(its.mutex, std::defer_lock);
  if (auto const* const kernel = std::get_if<kernel_work>(&what)) {
    if (kernel->pinned.empty()) return;
    lock.lock();
    for (pinned_use const& each : kernel->pinned)
      (its.pinned.*note)({each.begin, each.begin + each.bytes, each.writes, true});
  }
  auto const* const copy = std::get_if<copy_work>(&what);
  if (copy == nullptr) return;
  cudaMemcpy3DParms const& shape = copy->shape;
  if (shape.extent.height != 1 || shape.extent.depth != 1) return;
  lock.lock();
  auto const note_if = [&](memory_place const& place, cudaPitchedPtr const& at, cudaPos const& from,
                           bool writes) {
    if (place.type != cudaMemoryTypeHost || at.ptr == nullptr) return;
    auto const begin = reinterpret_cast<std::uintptr_t>(at.ptr) + from.x;
    (its.pinned.*note)({begin, begin + shape.extent.width, writes, false});
  };
  note_if(copy->from, shape.srcPtr, shape.srcPos, false);
  note_if(copy->to, shape.dstPtr, shape.dstPos, true);
}

}  // namespace

void begin_pinned_use(work const& what) {
  note_pinned_use(what, &pinned_pages::begin);
}

void end_pinned_use(work const& what) {
  note_pinned_use(what, &pinned_pages::end);
}

void set_idle(void const* memory, std::size_t bytes, bool is_idle) {
  device_pages& its = memory_pages();
  std::lock_guard const lock(its.mutex);
  its.pinned.set_idle(reinterpret_cast<std::uintptr_t>(memory), bytes, is_idle);
}

void set_idle_for_work(void const* memory, std::uint64_t since, std::string const& of) {
  device_pages& its = memory_pages();
  std::lock_guard const lock(its.mutex);
  its.of_work.set_idle(reinterpret_cast<std::uintptr_t>(memory), since, of);
}

void set_left_for_work(void const* memory, std::uint64_t since, std::string const& of) {
  device_pages& its = memory_pages();
  std::lock_guard const lock(its.mutex);
  its.of_work.set_left(reinterpret_cast<std::uintptr_t>(memory), since, of);
}

void end_idle_for_work(void const* memory) noexcept {
  device_pages& its = memory_pages();
  std::lock_guard const lock(its.mutex);
  its.of_work.end_idle(reinterpret_cast<std::uintptr_t>(memory), its.at_work != 0);
}

void close_idle(std::uint64_t call) noexcept {
  if (!is_memory_apart()) return;
  device_pages& its = memory_pages();
  std::lock_guard const lock(its.mutex);
  its.of_work.close_idle(call);
}

void add_device_pages(void* address, std::size_t bytes, std::size_t used) {
  if (!is_memory_apart()) return;
  device_pages& its = memory_pages();
  auto const begin = reinterpret_cast<std::uintptr_t>(address);
  std::lock_guard const lock(its.mutex);
  if (!its.is_watched) watch_faults(its);
  bool const is_new = its.of_work.add(begin, bytes, used);
  protect(begin, bytes, its.at_work != 0 ? PROT_READ | PROT_WRITE : PROT_NONE);
  // No number, and no count, that a program expects.
  if (is_new && bytes <= filled_max) its.of_work.make_new(begin, bytes, {});
}

void remove_device_pages(void* address) noexcept {
  if (!is_memory_apart()) return;
  device_pages& its = memory_pages();
  std::lock_guard const lock(its.mutex);
  its.of_work.remove(reinterpret_cast<std::uintptr_t>(address));
}

void make_new(std::uintptr_t begin, std::size_t bytes, std::string const& of) {
  device_pages& its = memory_pages();
  std::lock_guard const lock(its.mutex);
  its.of_work.make_new(begin, bytes, of);
}

bool is_new(void const* address) noexcept {
  if (!is_memory_apart()) return false;
  device_pages& its = memory_pages();
  std::lock_guard const lock(its.mutex);
  return its.of_work.name_at(reinterpret_cast<std::uintptr_t>(address)) != nullptr;
}

void open_what_it_writes(work const& what) noexcept {
  if (!is_memory_apart()) return;
  device_pages& its = memory_pages();
  std::lock_guard const lock(its.mutex);
  if (auto const* const fill = std::get_if<fill_work>(&what)) {
    cudaMemsetParams const& shape = fill->shape;
    if (shape.height != 1) return;
    write_for_now(its, reinterpret_cast<std::uintptr_t>(shape.dst),
                  shape.width * shape.elementSize);
  }
  if (auto const* const copy = std::get_if<copy_work>(&what)) {
    cudaMemcpy3DParms const& shape = copy->shape;
    if (shape.extent.height != 1 || shape.extent.depth != 1) return;
    write_for_now(its, reinterpret_cast<std::uintptr_t>(shape.dstPtr.ptr) + shape.dstPos.x,
                  shape.extent.width);
  }
}

device_at_work::device_at_work() {
  if (!is_memory_apart()) return;
  device_pages& its = memory_pages();
  std::lock_guard const lock(its.mutex);
  if (its.at_work++ == 0) its.of_work.set_rights(true);
}

device_at_work::~device_at_work() {
  if (!is_memory_apart()) return;
  device_pages& its = memory_pages();
  std::lock_guard const lock(its.mutex);
  if (--its.at_work == 0) its.of_work.set_rights(false);
}

}  // namespace escrow::sim::model
