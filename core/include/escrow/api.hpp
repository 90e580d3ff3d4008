// Which names libescrow.so exports: those that a program, an adapter, or a template in a header
// refers to.
#pragma once

#include "escrow/version.hpp"

// The library is compiled with hidden visibility. ESCROW_API exports a class or a function;
// ESCROW_LOCAL hides a function, or a class that is nested in an exported one.
#define ESCROW_API [[gnu::visibility("default")]]
#ifndef ESCROW_LOCAL  // a tool that shows functions by name may define it as nothing
#define ESCROW_LOCAL [[gnu::visibility("hidden")]]
#endif
