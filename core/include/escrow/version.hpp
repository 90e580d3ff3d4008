// The version of Escrow, which CMake reads from here, and the language that it needs. Every header
// includes it before any code.
#pragma once

#if __cplusplus < 202002L
#error "Escrow needs C++20: compile with -std=c++20"
#include "the_error_above"  // there is no such file: this ends the compilation after one error
#endif

#define ESCROW_VERSION_MAJOR 0
#define ESCROW_VERSION_MINOR 1
#define ESCROW_VERSION_PATCH 0
