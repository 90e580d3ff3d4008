// SPDX-License-Identifier: Apache-2.0
// Sets the processor's trap flag.
#include "single_step.hpp"

#include <signal.h>  // with what <ucontext.h> of aarch64 leaves out
#include <ucontext.h>

#include <fstream>
#include <string>

namespace escrow::sim::model {

#if defined(__x86_64__)

namespace {

constexpr greg_t trap_flag = 0x100;

void (*call_behind)() noexcept = nullptr;  // set before the first step
struct sigaction others = {};              // the handler before
thread_local bool is_stepping = false;

greg_t& flags_of(void* context) noexcept {
  return static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL];
}

void on_trap(int /*signal*/, siginfo_t* /*told*/, void* context) {
  if (!is_stepping) {
    ::sigaction(SIGTRAP, &others, nullptr);  // a breakpoint of the program's
    ::raise(SIGTRAP);
    return;
  }
  is_stepping = false;
  flags_of(context) &= ~trap_flag;
  call_behind();
}

bool is_traced() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("TracerPid:")) return line.find_first_of("123456789") != std::string::npos;
  }
  return true;
}

}  // namespace

bool can_step() noexcept {
  static bool const can = [] {
    try {
      return !is_traced();
    } catch (...) {
      return false;
    }
  }();
  return can;
}

void step_over(void* context) noexcept {
  is_stepping = true;
  flags_of(context) |= trap_flag;
}

void watch_steps(void (*behind)() noexcept) noexcept {
  call_behind = behind;
  struct sigaction ours = {};
  ours.sa_sigaction = &on_trap;
  ours.sa_flags = SA_SIGINFO;
  ::sigaction(SIGTRAP, &ours, &others);
}

#else

bool can_step() noexcept {
  return false;
}

void step_over(void* /*context*/) noexcept {}

void watch_steps(void (* /*behind*/)() noexcept) noexcept {}

#endif

}  // namespace escrow::sim::model
