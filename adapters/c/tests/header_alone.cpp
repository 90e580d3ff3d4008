// SPDX-License-Identifier: Apache-2.0
// The headers by themselves, as C++.
#include <escrow/callers.h>

int header_alone_in_cpp() {
  return escrow_version();
}
