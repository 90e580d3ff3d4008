// SPDX-License-Identifier: Apache-2.0
// What instrumented code calls: the interface of ThreadSanitizer's run time, which this is in the
// place of.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine.hpp"
#include "operations.hpp"
#include "trace.hpp"

namespace escrow::model {

namespace {

// Boost's free list reads the link of a node that another thread may have taken and be writing to,
// and uses what it read only if a compare-exchange then finds that nobody has. Such a read is no
// race, as long as that exchange fails.
bool is_speculative(void const* caller) {
  static auto& known = *new std::unordered_map<void const*, bool>;
  auto const found = known.find(caller);
  if (found != known.end()) return found->second;
  std::string const& function = function_at(caller);
  bool const is_link = function.find("tagged_ptr::extract_ptr") != std::string::npos;
  return known.emplace(caller, is_link).first->second;
}

void plain(void const* where, std::size_t size, access_kind kind, void const* caller) {
  if (!is_in_model()) return;
  in_checker const mine;
  if (kind == access_kind::read && is_speculative(caller)) kind = access_kind::speculative;
  engine::the().plain(reinterpret_cast<std::uintptr_t>(where), size, kind, caller);
}

void enter(void const* return_address) {
  in_checker const mine;
  engine::the().self().calls.push_back(return_address);
}

void leave() {
  auto& calls = engine::the().self().calls;
  if (!calls.empty()) calls.pop_back();
}

std::memory_order order_of(int given) {
  return static_cast<std::memory_order>(given & 0x7);
}

template <class T>
target at(T volatile* where, void* caller) {
  return {reinterpret_cast<std::uintptr_t>(where), sizeof(T), caller};
}

template <class T>
T load(T volatile* where, int order, void* caller) {
  if (!is_in_model()) return *where;
  in_checker const mine;
  return static_cast<T>(atomic_load(at(where, caller), order_of(order)));
}

template <class T>
void store(T volatile* where, T value, int order, void* caller) {
  if (!is_in_model()) {
    *where = value;
    return;
  }
  in_checker const mine;
  atomic_store(at(where, caller), value, order_of(order));
}

template <class T, class Change>
T modify(T volatile* where, char const* operation, int order, void* caller, Change change) {
  if (!is_in_model()) {
    T const before = *where;
    *where = change(before);
    return before;
  }
  in_checker const mine;
  auto const widened = [&change](std::uint64_t value) -> std::uint64_t {
    return change(static_cast<T>(value));
  };
  return static_cast<T>(atomic_modify(at(where, caller), operation, order_of(order), widened));
}

template <class T>
bool compare_exchange(T volatile* where, T* expected, T desired, int success, int failure,
                      void* caller) {
  if (!is_in_model()) {
    T const before = *where;
    if (before == *expected) {
      *where = desired;
      return true;
    }
    *expected = before;
    return false;
  }
  in_checker const mine;
  std::uint64_t was = *expected;
  bool const done = atomic_compare_exchange(at(where, caller), was, desired, order_of(success),
                                            order_of(failure));
  *expected = static_cast<T>(was);
  return done;
}

}  // namespace

}  // namespace escrow::model

using escrow::model::access_kind;
namespace model = escrow::model;

#define CALLER __builtin_return_address(0)

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void* return_address) {
  if (model::is_in_model()) model::enter(return_address);
}
void __tsan_func_exit() {
  if (model::is_in_model()) model::leave();
}
void __tsan_vptr_read(void** where) {
  model::plain(where, sizeof(void*), access_kind::read, CALLER);
}
void __tsan_vptr_update(void** where, void* value) {
  if (*where != value) model::plain(where, sizeof(void*), access_kind::write, CALLER);
}
void __tsan_read_range(void* where, std::size_t size) {
  model::plain(where, size, access_kind::read, CALLER);
}
void __tsan_write_range(void* where, std::size_t size) {
  model::plain(where, size, access_kind::write, CALLER);
}
void* __tsan_memcpy(void* to, void const* from, std::size_t size) {
  model::plain(from, size, access_kind::read, CALLER);
  model::plain(to, size, access_kind::write, CALLER);
  return std::memcpy(to, from, size);
}
void* __tsan_memmove(void* to, void const* from, std::size_t size) {
  model::plain(from, size, access_kind::read, CALLER);
  model::plain(to, size, access_kind::write, CALLER);
  return std::memmove(to, from, size);
}
void* __tsan_memset(void* to, int value, std::size_t size) {
  model::plain(to, size, access_kind::write, CALLER);
  return std::memset(to, value, size);
}

// One function for each size, as the compilers call them.
#define PLAIN(size)                                        \
  void __tsan_read##size(void* where) {                    \
    model::plain(where, size, access_kind::read, CALLER);  \
  }                                                        \
  void __tsan_write##size(void* where) {                   \
    model::plain(where, size, access_kind::write, CALLER); \
  }                                                        \
  void __tsan_unaligned_read##size(void* where) {          \
    model::plain(where, size, access_kind::read, CALLER);  \
  }                                                        \
  void __tsan_unaligned_write##size(void* where) {         \
    model::plain(where, size, access_kind::write, CALLER); \
  }
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)

#define MODIFY(bits, name, said, expression)                                               \
  std::uint##bits##_t __tsan_atomic##bits##_##name(std::uint##bits##_t volatile* where,    \
                                                   std::uint##bits##_t value, int order) { \
    return model::modify(where, said, order, CALLER, [value](std::uint##bits##_t before) { \
      static_cast<void>(before);                                                           \
      return static_cast<std::uint##bits##_t>(expression);                                 \
    });                                                                                    \
  }

#define ATOMIC(bits)                                                                               \
  std::uint##bits##_t __tsan_atomic##bits##_load(std::uint##bits##_t const volatile* where,        \
                                                 int order) {                                      \
    return model::load(const_cast<std::uint##bits##_t volatile*>(where), order, CALLER);           \
  }                                                                                                \
  void __tsan_atomic##bits##_store(std::uint##bits##_t volatile* where, std::uint##bits##_t value, \
                                   int order) {                                                    \
    model::store(where, value, order, CALLER);                                                     \
  }                                                                                                \
  MODIFY(bits, exchange, "exchange", value)                                                        \
  MODIFY(bits, fetch_add, "fetch_add", before + value)                                             \
  MODIFY(bits, fetch_sub, "fetch_sub", before - value)                                             \
  MODIFY(bits, fetch_and, "fetch_and", before& value)                                              \
  MODIFY(bits, fetch_or, "fetch_or", before | value)                                               \
  MODIFY(bits, fetch_xor, "fetch_xor", before ^ value)                                             \
  int __tsan_atomic##bits##_compare_exchange_strong(                                               \
      std::uint##bits##_t volatile* where, std::uint##bits##_t* expected,                          \
      std::uint##bits##_t desired, int success, int failure) {                                     \
    return model::compare_exchange(where, expected, desired, success, failure, CALLER) ? 1 : 0;    \
  }                                                                                                \
  int __tsan_atomic##bits##_compare_exchange_weak(                                                 \
      std::uint##bits##_t volatile* where, std::uint##bits##_t* expected,                          \
      std::uint##bits##_t desired, int success, int failure) {                                     \
    return model::compare_exchange(where, expected, desired, success, failure, CALLER) ? 1 : 0;    \
  }                                                                                                \
  std::uint##bits##_t __tsan_atomic##bits##_compare_exchange_val(                                  \
      std::uint##bits##_t volatile* where, std::uint##bits##_t expected,                           \
      std::uint##bits##_t desired, int success, int failure) {                                     \
    model::compare_exchange(where, &expected, desired, success, failure, CALLER);                  \
    return expected;                                                                               \
  }
ATOMIC(8)
ATOMIC(16)
ATOMIC(32)
ATOMIC(64)

void __tsan_atomic_thread_fence(int order) {
  if (!model::is_in_model()) return;
  model::in_checker const mine;
  model::atomic_fence(model::order_of(order));
}
void __tsan_atomic_signal_fence(int /*order*/) {}

}  // extern "C"
