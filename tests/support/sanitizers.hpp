// Which sanitizer the tests are built with, said once for g++ and clang.
#pragma once

// g++ 12 says it with macros of its own, clang 14 with __has_feature.
#ifndef __has_feature
#define ESCROW_TEST_HAS(feature) 0
#else
#define ESCROW_TEST_HAS(feature) __has_feature(feature)
#endif

// Macros too, for functions that must not exist beside a sanitizer's own.
#if defined(__SANITIZE_THREAD__) || ESCROW_TEST_HAS(thread_sanitizer)
#define ESCROW_TEST_TSAN 1
#else
#define ESCROW_TEST_TSAN 0
#endif
#if defined(__SANITIZE_ADDRESS__) || ESCROW_TEST_HAS(address_sanitizer)
#define ESCROW_TEST_ASAN 1
#else
#define ESCROW_TEST_ASAN 0
#endif
#undef ESCROW_TEST_HAS

namespace escrow::test {

inline constexpr bool built_with_tsan = ESCROW_TEST_TSAN != 0;
inline constexpr bool built_with_asan = ESCROW_TEST_ASAN != 0;
/// With either: everything takes several times as long.
inline constexpr bool is_sanitized = built_with_tsan || built_with_asan;

}  // namespace escrow::test
