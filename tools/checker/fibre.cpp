// SPDX-License-Identifier: Apache-2.0
// A context is made with ucontext and then switched with setjmp, which makes no system call.
#include "fibre.hpp"

#include <cxxabi.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstdlib>
#include <cstring>

namespace escrow::model {

fibre::fibre()
    : stack_(static_cast<std::byte*>(::mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
  if (stack_ == MAP_FAILED) std::abort();
}

fibre::~fibre() {
  if (stack_ != nullptr) ::munmap(stack_, stack_bytes);
}

void fibre::prepare(std::function<void()> const* body) noexcept {
  body_ = body;
  is_fresh_ = true;
  exceptions_ = {};
}

void fibre::resume_from(fibre& from) noexcept {
  void* const in_flight = abi::__cxa_get_globals();
  std::memcpy(static_cast<void*>(&from.exceptions_), in_flight, sizeof(exceptions_));
  std::memcpy(in_flight, &exceptions_, sizeof(exceptions_));
  if (_setjmp(from.state_) != 0) return;
  if (!is_fresh_) _longjmp(state_, 1);
  begin();
}

void fibre::begin() noexcept {
  is_fresh_ = false;
  if (was_entered_) _longjmp(origin_, 1);
  was_entered_ = true;
  ucontext_t fresh;
  if (::getcontext(&fresh) != 0) std::abort();
  fresh.uc_stack.ss_sp = stack_;
  fresh.uc_stack.ss_size = stack_bytes;
  fresh.uc_link = nullptr;
  // makecontext() passes ints, so the pointer goes in two halves.
  auto const self = reinterpret_cast<std::uintptr_t>(this);
  ::makecontext(&fresh, reinterpret_cast<void (*)()>(&fibre::enter), 2,
                static_cast<unsigned int>(self), static_cast<unsigned int>(self >> 32U));
  ::setcontext(&fresh);
  std::abort();
}

void fibre::enter(unsigned int low, unsigned int high) {
  auto* const self = reinterpret_cast<fibre*>(std::uintptr_t{low} | (std::uintptr_t{high} << 32U));
  static_cast<void>(_setjmp(self->origin_));  // another body begins here again
  (*self->body_)();
  std::abort();  // the body never returns
}

}  // namespace escrow::model
