// SPDX-License-Identifier: Apache-2.0
// Pages that are closed while the device does nothing. Who uses them then gets a text.
#include "apart.hpp"

#include "state.hpp"
#include "thread.hpp"
#include "unwritten.hpp"

#include <execinfo.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
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

extern "C" {
// There in a program with AddressSanitizer or ThreadSanitizer.
[[gnu::weak]] void __asan_poison_memory_region(void const volatile* address, std::size_t bytes);
[[gnu::weak]] void __tsan_acquire(void* address);
}

namespace escrow::sim::model {
namespace {

constexpr std::size_t slack_max = std::size_t{1} << 16;  // in bytes, behind an allocation
constexpr std::size_t page = 4096;  // a multiple of it is mapped; a machine's may be larger

struct device_pages {
  std::mutex mutex;  // guards all below; nothing that is called under it takes a lock
  std::map<std::uintptr_t, std::size_t> all = {};
  unwritten_pages unwritten = {};
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
  if (is_open) its.unwritten.close();
}

// In a signal handler nothing may allocate, as give_up() does.
template <class... Values>
void say(char const* text, Values... values) {
  std::array<char, 384> line{};
  int const count = std::snprintf(line.data(), line.size(), text, values...);
  std::size_t const shown = std::min(line.size() - 1, static_cast<std::size_t>(count));
  static_cast<void>(!::write(STDERR_FILENO, line.data(), shown));
  std::array<void*, 32> frames{};
  ::backtrace_symbols_fd(frames.data(), ::backtrace(frames.data(), frames.size()), STDERR_FILENO);
}

void on_kernels_fault(int signal, siginfo_t* told, void* /*context*/) {
  op const* const running = this_thread_unchecked().kernel;
  if (running != nullptr && std::holds_alternative<kernel_work>(running->what)) {
    say("escrow::sim: kernel \"%s\" reads or writes at %p, where no memory is: it goes far behind "
        "what it was given, or was given no address; claim<T>(stream, count) counts elements, and "
        "claim(stream, bytes) bytes\n",
        std::get<kernel_work>(running->what).code->name.c_str(), told->si_addr);
  }
  ::signal(signal, SIG_DFL);  // it comes again, and ends the process
}

// At work the device's memory is open, but for what is unwritten: work may write that. Returns
// false for the host, whose work is none.
bool is_for_work(device_pages& its, std::uintptr_t address, bool is_write) {
  char const* const of = its.unwritten.name_at(address);
  if (of == nullptr) return true;  // another thread has opened it
  op const* const running = this_thread_unchecked().kernel;
  if (running == nullptr) return false;
  auto const* const kernel = std::get_if<kernel_work>(&running->what);
  auto const* const copy = std::get_if<copy_work>(&running->what);
  auto const at = [](void const* of_copy) { return reinterpret_cast<std::uintptr_t>(of_copy); };
  // Who copies all of what is written in part means that part.
  bool const is_read = kernel != nullptr ? !is_write
                                         : copy != nullptr && !is_write &&
                                               its.unwritten.name_at(at(copy->shape.srcPtr.ptr));
  if (is_read) {
    say("escrow::sim: %s%s%s reads scratch of \"%s\" at %p that nothing has written since its "
        "claim: it has any contents then; write it first, and keep what is to stay in memory that "
        "stays claimed (ESCROW_MEMORY=apart)\n",
        kernel != nullptr ? "kernel \"" : "a copy",
        kernel != nullptr ? kernel->code->name.c_str() : "", kernel != nullptr ? "\"" : "", of,
        reinterpret_cast<void*>(address));
    std::abort();
  }
  its.unwritten.open(address);
  return true;
}

void on_fault(int signal, siginfo_t* told, void* context) {
  device_pages& its = pages();
  auto const address = reinterpret_cast<std::uintptr_t>(told->si_addr);
  std::unique_lock lock(its.mutex);  // not this thread's: nothing under it uses such memory
  auto const after = its.all.upper_bound(address);
  bool const is_known =
      after != its.all.begin() && address - std::prev(after)->first < std::prev(after)->second;
  bool const goes_on =
      is_known && its.at_work != 0 && is_for_work(its, address, was_write(context));
  lock.unlock();
  if (goes_on) return;
  if (!is_known) {
    bool const is_nobodys = its.others.sa_handler == SIG_DFL;
    if (is_nobodys) return on_kernels_fault(signal, told, context);
    ::sigaction(SIGSEGV, &its.others, nullptr);  // it comes again, there
    return;
  }
  say("escrow::sim: the host reads or writes memory of the device at %p, which no host can on most "
      "GPUs: copy by cudaMemcpyAsync, or use pinned memory (ESCROW_MEMORY=apart)\n",
      told->si_addr);
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

bool has_sanitizer() noexcept {
  return &__asan_poison_memory_region != nullptr || &__tsan_acquire != nullptr;
}

std::size_t bytes_behind_memory() noexcept {
  return is_memory_apart() || !has_sanitizer() ? guard_bytes : 0;
}

void watch_kernels() {
  static bool const is_watched = [] {
    struct sigaction others = {};
    ::sigaction(SIGSEGV, nullptr, &others);
    if (has_sanitizer() || others.sa_handler != SIG_DFL) return false;
    void* frame = nullptr;
    ::backtrace(&frame, 1);  // the first call loads a library
    struct sigaction ours = {};
    ours.sa_sigaction = &on_kernels_fault;
    ours.sa_flags = SA_SIGINFO;
    for (int const signal : {SIGSEGV, SIGBUS}) ::sigaction(signal, &ours, nullptr);
    return true;
  }();
  static_cast<void>(is_watched);
}

void* new_device_memory(std::size_t bytes) noexcept {
  if (!is_memory_apart()) {
    // Who takes elements for bytes writes four or eight times as much: not over what is the
    // simulator's, so that it can tell.
    std::size_t const behind = std::clamp(8 * std::min(bytes, slack_max), guard_bytes, slack_max);
    return ::operator new(bytes + (has_sanitizer() ? 0 : behind), as_cuda_aligns, std::nothrow);
  }
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
  auto const found = its.all.find(reinterpret_cast<std::uintptr_t>(address));
  if (found == its.all.end()) return;
  its.unwritten.remove(found->first, found->second);
  its.all.erase(found);
}

void make_new(std::uintptr_t begin, std::size_t bytes, std::string const& of) {
  device_pages& its = pages();
  std::lock_guard const lock(its.mutex);
  its.unwritten.remove(begin, bytes);
  std::memset(reinterpret_cast<void*>(begin), 0xff, bytes);
  its.unwritten.add(begin, bytes, of);
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
