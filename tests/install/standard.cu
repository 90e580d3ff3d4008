// SPDX-License-Identifier: Apache-2.0
// What a .cu file of a consumer gets from the target that it links: the headers' folder, and their
// standard.
#include <escrow/version.hpp>

static_assert(__cplusplus >= 202002L);
