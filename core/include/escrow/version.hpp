// The version of Escrow. CMake reads it from here.
#pragma once

#define ESCROW_VERSION_MAJOR 0
#define ESCROW_VERSION_MINOR 1
#define ESCROW_VERSION_PATCH 0
