// SPDX-License-Identifier: Apache-2.0
// Which devices can use another one's memory.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "escrow/core/error.hpp"

namespace escrow::inline v0_2 {

// All others that can use the device's memory. Throws cuda_error, std::bad_alloc.
[[nodiscard]] inline std::vector<int> peers_of(int device) {
  int devices = 0;
  check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  std::vector<int> peers;
  for (int each = 0; each < devices; ++each) {
    int can = 0;
    if (each == device) continue;
    check(cudaDeviceCanAccessPeer(&can, each, device), "cudaDeviceCanAccessPeer");
    if (can != 0) peers.push_back(each);
  }
  return peers;
}

}  // namespace escrow::inline v0_2
