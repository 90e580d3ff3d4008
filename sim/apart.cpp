// SPDX-License-Identifier: Apache-2.0
// Pages that are closed while the device does nothing. Who uses them then gets a text.
#include "apart.hpp"

#include "state.hpp"

#include <execinfo.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <string_view>

namespace escrow::sim::model {
namespace {

constexpr std::size_t page = 4096;  // a multiple of it is mapped; a machine's may be larger

struct device_pages {
  std::mutex mutex;  // guards all below; nothing that is called under it takes a lock
  std::map<std::uintptr_t, std::size_t> all = {};
  std::size_t at_work = 0;
  bool is_watched = false;
  struct sigaction others = {};  // the handler before
};

// Never destroyed: the device may work until the process ends.
device_pages& pages() {
  static auto* const its = new device_pages;
  return *its;
}

void protect(std::uintptr_t address, std::size_t bytes, bool is_open) {
  ::mprotect(reinterpret_cast<void*>(address), bytes, is_open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void protect_all(device_pages const& its, bool is_open) {
  for (auto const& [address, bytes] : its.all) protect(address, bytes, is_open);
}

void on_fault(int /*signal*/, siginfo_t* told, void* /*context*/) {
  device_pages& its = pages();
  auto const address = reinterpret_cast<std::uintptr_t>(told->si_addr);
  std::unique_lock lock(its.mutex);  // not this thread's: nothing under it uses such memory
  auto const after = its.all.upper_bound(address);
  bool const is_known =
      after != its.all.begin() && address - std::prev(after)->first < std::prev(after)->second;
  if (!is_known) {
    ::sigaction(SIGSEGV, &its.others, nullptr);  // it comes again, there
    return;
  }
  lock.unlock();
  // In a signal handler nothing may allocate, as give_up() does.
  std::array<char, 256> text{};
  int const count = std::snprintf(
      text.data(), text.size(),
      "escrow::sim: the host reads or writes memory of the device at %p, which no host can on most "
      "GPUs: copy by cudaMemcpyAsync, or use pinned memory (ESCROW_MEMORY=apart)\n",
      told->si_addr);
  static_cast<void>(!::write(STDERR_FILENO, text.data(), static_cast<std::size_t>(count)));
  std::array<void*, 32> frames{};
  ::backtrace_symbols_fd(frames.data(), ::backtrace(frames.data(), frames.size()), STDERR_FILENO);
  std::abort();
}

void watch_faults(device_pages& its) {
  void* frame = nullptr;
  ::backtrace(&frame, 1);  // the first call loads a library
  struct sigaction ours = {};
  ours.sa_sigaction = &on_fault;
  ours.sa_flags = SA_SIGINFO;
  its.is_watched = ::sigaction(SIGSEGV, &ours, &its.others) == 0;
}

std::size_t whole_pages(std::size_t bytes) {
  return (bytes + guard_bytes + page - 1) / page * page;
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

void* new_device_memory(std::size_t bytes) noexcept {
  if (!is_memory_apart()) return ::operator new(bytes, as_cuda_aligns, std::nothrow);
  void* const found = ::mmap(nullptr, whole_pages(bytes), PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return nullptr;
  add_device_pages(found, whole_pages(bytes));
  return found;
}

void delete_device_memory(void* address, std::size_t bytes) noexcept {
  if (!is_memory_apart()) return ::operator delete(address, as_cuda_aligns);
  remove_device_pages(address);
  ::munmap(address, whole_pages(bytes));
}

void add_device_pages(void* address, std::size_t bytes) {
  if (!is_memory_apart()) return;
  device_pages& its = pages();
  auto const begin = reinterpret_cast<std::uintptr_t>(address);
  std::lock_guard const lock(its.mutex);
  if (!its.is_watched) watch_faults(its);
  bool const is_new = its.all.emplace(begin, bytes).second;
  if (is_new && bytes <= filled_max) {
    protect(begin, bytes, true);
    std::memset(address, 0xff, bytes);  // no number, and no count, that a program expects
  }
  protect(begin, bytes, its.at_work != 0);
}

void remove_device_pages(void* address) noexcept {
  if (!is_memory_apart()) return;
  device_pages& its = pages();
  std::lock_guard const lock(its.mutex);
  its.all.erase(reinterpret_cast<std::uintptr_t>(address));
}

device_at_work::device_at_work() {
  if (!is_memory_apart()) return;
  device_pages& its = pages();
  std::lock_guard const lock(its.mutex);
  if (its.at_work++ == 0) protect_all(its, true);
}

device_at_work::~device_at_work() {
  if (!is_memory_apart()) return;
  device_pages& its = pages();
  std::lock_guard const lock(its.mutex);
  if (--its.at_work == 0) protect_all(its, false);
}

}  // namespace escrow::sim::model
