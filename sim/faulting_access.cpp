// SPDX-License-Identifier: Apache-2.0
// Asks the processor, and looks at the instruction where that only says that it writes.
#include "faulting_access.hpp"

#include <signal.h>  // with what <ucontext.h> of aarch64 leaves out
#include <ucontext.h>

#include <cstdint>

namespace escrow::sim::model {

#if defined(__x86_64__)

namespace {

bool is_prefix(unsigned char byte) {
  switch (byte) {
    case 0x26:
    case 0x2e:
    case 0x36:
    case 0x3e:
    case 0x64:
    case 0x65:
    case 0x66:
    case 0x67:
    case 0xf2:
    case 0xf3:
      return true;
    default:
      return (byte & 0xf0U) == 0x40;  // REX
  }
}

// Behind the byte 0x0f: shld, shrd, bts, btr, btc, cmpxchg, xadd.
bool reads_and_writes_as_two_bytes(unsigned char second) {
  switch (second) {
    case 0xa4:
    case 0xa5:
    case 0xab:
    case 0xac:
    case 0xad:
    case 0xb0:
    case 0xb1:
    case 0xb3:
    case 0xba:
    case 0xbb:
    case 0xc0:
    case 0xc1:
    case 0xc7:
      return true;
    default:
      return false;
  }
}

// Of an instruction that writes memory. An atomic store is an exchange, and not taken for a read.
bool reads_too(unsigned char const* code) {
  while (is_prefix(*code)) ++code;
  constexpr unsigned char lock = 0xf0;
  if (*code == lock) return true;
  constexpr unsigned char of_two_bytes = 0x0f;
  if (*code == of_two_bytes) return reads_and_writes_as_two_bytes(code[1]);
  if (*code < 0x38) return (*code & 6U) == 0;  // add, or, adc, sbb, and, sub, xor
  switch (*code) {
    case 0x83: {  // the same with a byte; compilers clear memory by `and 0`, or set it by `or -1`
      unsigned const operation = (code[1] >> 3U) & 7U;
      return operation != 1 && operation != 4;
    }
    case 0x80:
    case 0x81:
    case 0xc0:  // shifts
    case 0xc1:
    case 0xd0:
    case 0xd1:
    case 0xd2:
    case 0xd3:
    case 0xf6:  // not, neg
    case 0xf7:
    case 0xfe:  // inc, dec
    case 0xff:
      return true;
    default:
      return false;
  }
}

}  // namespace

bool writes_memory(void const* context) noexcept {
  constexpr greg_t write = 2;
  return (static_cast<ucontext_t const*>(context)->uc_mcontext.gregs[REG_ERR] & write) != 0;
}

bool reads_memory(void const* context) noexcept {
  if (!writes_memory(context)) return true;
  auto const& machine = static_cast<ucontext_t const*>(context)->uc_mcontext;
  return reads_too(reinterpret_cast<unsigned char const*>(machine.gregs[REG_RIP]));
}

#elif defined(__aarch64__)

// The processor calls an atomic addition a read, as that would fault, too.
bool writes_memory(void const* context) noexcept {
  auto const& machine = static_cast<ucontext_t const*>(context)->uc_mcontext;
  constexpr std::uint64_t write = 1U << 6U;
  for (unsigned char const* at = machine.__reserved;;) {
    auto const* const part = reinterpret_cast<_aarch64_ctx const*>(at);
    if (part->magic == ESR_MAGIC)
      return (reinterpret_cast<esr_context const*>(at)->esr & write) != 0;
    if (part->magic == 0 || part->size == 0) return true;
    at += part->size;
  }
}

bool reads_memory(void const* context) noexcept {
  return !writes_memory(context);
}

#else

bool writes_memory(void const* /*context*/) noexcept {
  return true;
}

bool reads_memory(void const* /*context*/) noexcept {
  return false;
}

#endif

}  // namespace escrow::sim::model
