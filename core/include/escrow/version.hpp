// SPDX-License-Identifier: Apache-2.0
// What each header includes before any code: the version of Escrow, which CMake reads from here,
// the language that it needs, and which names libescrow.so exports.
#pragma once

#if __cplusplus < 202002L
#error "Escrow needs C++20: compile with -std=c++20"
#include "the_error_above"  // there is no such file: this ends the compilation after one error
#endif

#define ESCROW_VERSION_MAJOR 0
#define ESCROW_VERSION_MINOR 2
#define ESCROW_VERSION_PATCH 0

// The library is compiled with hidden visibility. ESCROW_API exports a class or a function that a
// program, an adapter, or a template in a header, refers to; ESCROW_LOCAL hides a function, or a
// class that is nested in an exported one.
#define ESCROW_API [[gnu::visibility("default")]]
// What is returned owns something.
#define ESCROW_KEEP \
  [[nodiscard("keep what is returned: it ends at once else, and gives up what it has")]]
// What is returned must not outlive the object: clang warns where it does.
#ifdef __clang__
#define ESCROW_OF_THIS [[clang::lifetimebound]]
#else
#define ESCROW_OF_THIS
#endif
#ifndef ESCROW_LOCAL  // a tool that shows functions by name may define it as nothing
#define ESCROW_LOCAL [[gnu::visibility("hidden")]]
#endif
