// Counts what happens inside destroy callbacks: allocations, locks, system calls, CUDA calls, and
// how often a callback gave its processor away.
//
// The linker's --wrap hands this program's every cudaUserObjectCreate, pthread_mutex_lock and
// syscall to the functions here, and malloc is the program's own, so that nothing in the library
// needs to know.
#pragma once

#include <cstdint>

namespace escrow::test {

/// What was done inside destroy callbacks since the last reset.
struct callback_deeds {
  std::uint64_t callbacks = 0;
  std::uint64_t elsewhere = 0;     ///< of them, on threads that did not call forget_deeds()
  std::uint64_t allocations = 0;   ///< malloc and its like, operator new included
  std::uint64_t locks = 0;         ///< pthread_mutex_lock
  std::uint64_t system_calls = 0;  ///< through syscall(), which futex wake-ups go through
  std::uint64_t cuda_calls = 0;    ///< runtime and driver
  std::uint64_t switches = 0;      ///< voluntary context switches: the thread slept or blocked
};

[[nodiscard]] callback_deeds deeds_in_callbacks();
void forget_deeds();

/// Does one of each on purpose, as if inside a callback: the watch's own test.
void misbehave_in_callback(void (*deed)());

}  // namespace escrow::test
