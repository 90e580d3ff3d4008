// SPDX-License-Identifier: Apache-2.0
// The handlers of faults of memory.
#include "memory_faults.hpp"

#include "faulting_access.hpp"
#include "pages.hpp"
#include "single_step.hpp"
#include "thread.hpp"

#include <execinfo.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <variant>

extern "C" {
// There in a program with AddressSanitizer or ThreadSanitizer.
[[gnu::weak]] void __asan_poison_memory_region(void const volatile* address, std::size_t bytes);
[[gnu::weak]] void __tsan_acquire(void* address);
}

namespace escrow::sim::model {
namespace {

// Allocates nothing, unlike give_up(): this is for a signal handler.
template <class... Values>
void say(char const* text, Values... values) {
  std::array<char, 640> line{};
  int const count = std::snprintf(line.data(), line.size(), text, values...);
  std::size_t const shown = std::min(line.size() - 1, static_cast<std::size_t>(count));
  static_cast<void>(!::write(STDERR_FILENO, line.data(), shown));
}

// In a fault that is known to come from no function that allocates.
[[noreturn]] void end_process() {
  print_callers();
  std::abort();
}

// Allocates nothing.
void print_frames() {
  std::array<void*, 32> frames{};
  ::backtrace_symbols_fd(frames.data(), ::backtrace(frames.data(), frames.size()), STDERR_FILENO);
}

void on_kernels_fault(int signal, siginfo_t* told, void* /*context*/) {
  op const* const running = this_thread_unchecked().kernel;
  if (running != nullptr && std::holds_alternative<kernel_work>(running->what)) {
    say("escrow::sim: kernel \"%s\" reads or writes at %p, where no memory is: it goes far behind "
        "what it was given, or was given no address; claim<T>(stream, count) counts elements, and "
        "claim(stream, bytes) bytes; or the group that has it is parked, which waits for launches "
        "by "
        "graph_exec alone\n",
        std::get<kernel_work>(running->what).code->name.c_str(), told->si_addr);
    print_callers();
  } else if (this_thread_unchecked().reclaims != 0) {
    say("escrow::sim: a destructor, or a pool's `destroy` or `recycle`, reads or writes at %p, "
        "where no memory is: what it captures, or points to, has to outlive the pool, or the "
        "owner\n",
        told->si_addr);
    print_frames();
  } else if (this_thread_unchecked().in_callback != 0) {
    say("escrow::sim: a host function of a stream or graph reads or writes at %p, where no memory "
        "is: its argument has to outlive the work; let a graph keep it by retain()\n",
        told->si_addr);
    print_frames();
  }
  ::signal(signal, SIG_DFL);  // it comes again, and ends the process
}

// Who copies all of what is written in part means that part; and who copies what nobody has
// claimed may know nothing of what is there.
bool reads_unwritten(work_pages const& its, copy_work const& copy, char const* of) {
  cudaMemcpy3DParms const& shape = copy.shape;
  auto const begin = reinterpret_cast<std::uintptr_t>(shape.srcPtr.ptr) + shape.srcPos.x;
  bool const has_rows = shape.extent.height != 1 || shape.extent.depth != 1;
  return *of != '\0' && its.are_unwritten(begin, has_rows ? 1 : shape.extent.width);
}

void tell_of_left(kernel_work const& kernel, std::uintptr_t address, char const* of) {
  static bool is_told = false;  // under the lock
  if (std::exchange(is_told, true)) return;
  say("escrow::sim: kernel \"%s\" reads what an earlier lease of \"%s\" has left at %p: the pool "
      "has no `recycle`, and nothing has written there since the claim; give it one that clears "
      "this, or an empty one if it is to stay (ESCROW_MEMORY=apart; told once)\n",
      kernel.code->name.c_str(), of, reinterpret_cast<void*>(address));
}

// What is free in its pool is so for work that was enqueued after its lease had ended. Ends the
// process, or opens it.
void use_idle(device_pages& its, std::uintptr_t address, bool reads) {
  auto const idle = its.of_work.idle_at(address);
  if (!idle) return;
  op const* const running = this_thread_unchecked().kernel;
  bool const is_later = running != nullptr && running->call > idle->since;
  auto const* const kernel = is_later ? std::get_if<kernel_work>(&running->what) : nullptr;
  if (idle->is_left) {
    if (kernel != nullptr && reads) tell_of_left(*kernel, address, idle->of);
  } else if (is_later) {
    say("escrow::sim: %s%s%s %s memory of \"%s\" at %p that is free there: its lease has ended "
        "before the call that enqueued this, and a pointer in memory leads there; end the lease "
        "behind the last work that uses it, or give that work no such pointer "
        "(ESCROW_MEMORY=apart)\n",
        kernel != nullptr ? "kernel \"" : "work",
        kernel != nullptr ? kernel->code->name.c_str() : "", kernel != nullptr ? "\"" : "",
        reads ? "reads" : "writes", idle->of, reinterpret_cast<void*>(address));
    end_process();
  }
  its.of_work.end_idle(address, true);
}

// Pages that the calling thread has open: for one instruction of a kernel's body, or else for the
// work that it does. What another kernel that runs meanwhile writes there nobody sees: then they
// count as written.
struct lifted_pages {
  std::array<std::uintptr_t, 16> all{};
  std::size_t count = 0;
  std::uint64_t bodies_begun = 0;

  // False: the page stays open.
  bool add(device_pages& its, std::uintptr_t address) noexcept {
    if (count == 0) bodies_begun = its.bodies_begun;
    if (count == all.size() || !its.of_work.lift(address)) return false;
    all[count++] = address;
    return true;
  }
  void close(device_pages& its) noexcept {
    for (std::size_t i = 0; i < count; ++i) {
      if (bodies_begun == its.bodies_begun) {
        its.of_work.close_again(all[i]);
      } else {
        its.of_work.open(all[i], 1);
      }
    }
    count = 0;
  }
};
thread_local lifted_pages lifted;
thread_local bool is_in_body = false;

void lift(device_pages& its, std::uintptr_t address) noexcept {
  std::size_t const others = its.bodies - (is_in_body ? 1 : 0);
  if (others != 0 || !lifted.add(its, address)) its.of_work.open(address, 1);
}

// The page is closed: what it has that is written may be read, and all of it may be written.
void use_closed(device_pages& its, std::uintptr_t address, void* context) {
  bool const writes = writes_memory(context);
  bool const is_kernels = std::holds_alternative<kernel_work>(this_thread_unchecked().kernel->what);
  if (!is_kernels && writes) return its.of_work.open(address, 1);  // rows
  if (is_in_body && writes) its.of_work.write(address, written_bytes(context));
  if (!its.of_work.is_in_closed(address)) return;
  lift(its, address);
  if (is_in_body && lifted.count != 0) step_over(context);
}

// At work the device's memory is open, but for what is unwritten: work may write that. Returns
// false for the host, whose work is none.
bool is_for_work(device_pages& its, std::uintptr_t address, void* context) {
  bool const reads = reads_memory(context);
  use_idle(its, address, reads);
  if (!its.of_work.is_in_closed(address)) return true;  // another thread has opened it
  op const* const running = this_thread_unchecked().kernel;
  if (running == nullptr) return false;
  char const* const of = its.of_work.name_at(address);
  auto const* const kernel = std::get_if<kernel_work>(&running->what);
  auto const* const copy = std::get_if<copy_work>(&running->what);
  bool const is_copied = of != nullptr && copy != nullptr && running->is_of_leases &&
                         reads_unwritten(its.of_work, *copy, of);
  if (of != nullptr && reads && (is_in_body || is_copied)) {
    bool const is_claimed = *of != '\0';
    say("escrow::sim: %s%s%s reads %s%s%s at %p that nothing has written since %s: it has any "
        "contents then; write it first%s (ESCROW_MEMORY=apart)\n",
        kernel != nullptr ? "kernel \"" : "a copy",
        kernel != nullptr ? kernel->code->name.c_str() : "", kernel != nullptr ? "\"" : "",
        is_claimed ? "scratch of \"" : "memory", of, is_claimed ? "\"" : "",
        reinterpret_cast<void*>(address),
        is_claimed ? "its claim, or since the launch began" : "it was allocated",
        is_claimed ? ", and keep what is to stay in memory that stays claimed"
                   : "; what is captured writes it when its graph is launched");
    end_process();
  }
  use_closed(its, address, context);
  return true;
}

// Kernels, copies and host functions may use what work behind or before them does.
void use_pinned(device_pages& its, std::uintptr_t address, bool is_write) {
  auto const& me = this_thread_unchecked();
  bool const is_hosts = me.kernel == nullptr && me.in_callback == 0;
  auto const* const pending = its.pinned.pending_at(address);
  if (is_hosts && pending != nullptr && (pending->writes || is_write)) {
    bool const is_result = pending->writes;
    say("escrow::sim: the host %s pinned memory at %p that %s, enqueued before, has yet to %s: "
        "wait for an event behind it%s%s (ESCROW_MEMORY=apart)\n",
        is_result ? "uses" : "writes", reinterpret_cast<void*>(address),
        pending->is_kernels ? "a kernel" : "a copy", is_result ? "write" : "read",
        is_result
            ? ""
            : ", or claim_for_host() anew for each eager one (of a resource_pool: host_ordered)",
        !pending->is_kernels ? ""
        : is_result ? "; a kernel that only reads it takes a pointer to const; for a flag, "
                      "sim::let_work_share(true)"
                    : "; for a flag, sim::let_work_share(true)");
    end_process();
  }
  if (is_hosts && its.pinned.is_idle(address)) {
    say("escrow::sim: the host uses pinned memory at %p that is free in its pool: its lease has "
        "ended, and the next one gets it; keep the lease as long as the host uses what it has "
        "(ESCROW_MEMORY=apart)\n",
        reinterpret_cast<void*>(address));
    end_process();
  }
  pinned_pages::open(address);
}

void on_fault(int signal, siginfo_t* told, void* context) {
  device_pages& its = memory_pages();
  auto const address = reinterpret_cast<std::uintptr_t>(told->si_addr);
  std::unique_lock lock(its.mutex);  // not this thread's: nothing under it uses such memory
  if (its.pinned.has(address)) return use_pinned(its, address, writes_memory(context));
  bool const is_known = its.of_work.has(address);
  bool const goes_on = is_known && its.at_work != 0 && is_for_work(its, address, context);
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
  end_process();
}

void close_behind_step() noexcept {
  device_pages& its = memory_pages();
  std::lock_guard const lock(its.mutex);
  lifted.close(its);
}

}  // namespace

running_body::running_body(bool is_one) : is_one_(is_one) {
  if (!is_one_) return;
  is_in_body = true;
  device_pages& its = memory_pages();
  std::lock_guard const lock(its.mutex);
  ++its.bodies;
  ++its.bodies_begun;
}

running_body::~running_body() {
  if (!is_one_) return;
  is_in_body = false;
  device_pages& its = memory_pages();
  std::lock_guard const lock(its.mutex);
  --its.bodies;
}

void write_for_now(device_pages& its, std::uintptr_t begin, std::size_t bytes) noexcept {
  its.of_work.write(begin, bytes);
  std::uintptr_t const end = begin + bytes;
  for (std::uintptr_t at = begin; at < end; at = (at / page_bytes() + 1) * page_bytes()) {
    if (its.of_work.is_in_closed(at)) lift(its, at);
  }
}

void close_lifted() noexcept {
  if (lifted.count == 0) return;
  device_pages& its = memory_pages();
  std::lock_guard const lock(its.mutex);
  lifted.close(its);
}

void watch_faults(device_pages& its) {
  void* frame = nullptr;
  ::backtrace(&frame, 1);  // the first call loads a library
  struct sigaction ours = {};
  ours.sa_sigaction = &on_fault;
  ours.sa_flags = SA_SIGINFO;
  its.is_watched = ::sigaction(SIGSEGV, &ours, &its.others) == 0;
  if (can_step()) watch_steps(&close_behind_step);
}

bool has_address_sanitizer() noexcept {
  return &__asan_poison_memory_region != nullptr;
}

bool has_sanitizer() noexcept {
  return has_address_sanitizer() || &__tsan_acquire != nullptr;
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

}  // namespace escrow::sim::model

void escrow_simulated_reclaims(int begins) noexcept {
  using namespace escrow::sim::model;
  watch_kernels();
  this_thread_unchecked().reclaims += begins != 0 ? 1 : -1;
}
