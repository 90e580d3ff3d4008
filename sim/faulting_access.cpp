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

constexpr unsigned widest = 64;

// Which instruction it is: the byte behind its prefixes, and what these say.
struct instruction {
  unsigned char code = 0;
  bool is_wide = false;     // REX.W
  bool is_narrow = false;   // 0x66
  unsigned scalar = 0;      // bytes of a floating-point scalar, of 0xf3 or 0xf2
  unsigned vector = 0;      // bytes of a vector; 0: it has no code of two bytes
  bool is_encoded = false;  // by another prefix, whose maps are not told apart
};

instruction with_vex(unsigned char const* code) {
  constexpr unsigned char of_three_bytes = 0xc4;
  bool const has_three = *code == of_three_bytes;
  unsigned char const last = has_three ? code[2] : code[1];
  instruction its{.code = has_three ? code[3] : code[2], .vector = (last & 4U) != 0 ? 32U : 16U};
  its.is_wide = has_three && (last & 0x80U) != 0;
  unsigned const prefix = last & 3U;
  its.scalar = prefix == 2 ? 4 : prefix == 3 ? 8 : 0;
  its.is_encoded = has_three && (code[1] & 0x1fU) != 1;
  return its;
}

instruction instruction_at(unsigned char const* code) {
  instruction its;
  for (; is_prefix(*code) || *code == 0xf0; ++code) {
    if (*code == 0x66) its.is_narrow = true;
    if (*code == 0xf3) its.scalar = 4;
    if (*code == 0xf2) its.scalar = 8;
    if ((*code & 0xf8U) == 0x48) its.is_wide = true;
  }
  if (*code == 0xc4 || *code == 0xc5) return with_vex(code);
  if (*code == 0x62) return {.vector = widest, .is_encoded = true};
  if (*code == 0x0f) {
    its.vector = 16;
    its.is_encoded = code[1] == 0x38 || code[1] == 0x3a;
    ++code;
  }
  its.code = *code;
  return its;
}

unsigned bytes_of_integer(instruction const& its) {
  if ((its.code & 1U) == 0) return 1;
  return its.is_wide ? 8 : its.is_narrow ? 2 : 4;
}

unsigned bytes_written_by(instruction const& its) {
  if (its.vector == 0) return bytes_of_integer(its);
  if (its.is_encoded) return its.vector;
  switch (its.code) {
    case 0x11:
      return its.scalar != 0 ? its.scalar : its.vector;
    case 0x13:
    case 0x17:
    case 0xd6:
      return 8;
    case 0x7e:
    case 0xc3:
      return its.is_wide ? 8 : 4;
    case 0xb0:  // cmpxchg, xadd
    case 0xb1:
    case 0xc0:
    case 0xc1:
      return bytes_of_integer(its);
    default:
      return (its.code & 0xf0U) == 0x90 ? 1 : its.vector;  // setcc
  }
}

}  // namespace

unsigned written_bytes(void const* context) noexcept {
  auto const& machine = static_cast<ucontext_t const*>(context)->uc_mcontext;
  return bytes_written_by(
      instruction_at(reinterpret_cast<unsigned char const*>(machine.gregs[REG_RIP])));
}

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

unsigned written_bytes(void const* /*context*/) noexcept {
  return 64;
}

#else

bool writes_memory(void const* /*context*/) noexcept {
  return true;
}

bool reads_memory(void const* /*context*/) noexcept {
  return false;
}

unsigned written_bytes(void const* /*context*/) noexcept {
  return 64;
}

#endif

}  // namespace escrow::sim::model
