#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Cross-compiles Escrow for aarch64 (Grace) with Debian's compiler, and runs the tests of what is lock-free (queues, lanes,
# reference sets, pools) on the simulated CUDA runtime under qemu-user. What is missing comes from apt, CUDA's headers from
# the folder that is named, or from where tools/cuda_versions.sh, build.sh or the toolkit have them:  tools/aarch64.sh [headers]
# Exits with 77 if the compiler or the emulator cannot be installed.
# qemu-user keeps this machine's order of memory accesses: the model checker tests the orders, this tests the rest.
set -euo pipefail
cd "$(dirname "$0")/.."

for cuda_headers in "${1:-build/cuda/13.0/include}" build/cuda-headers /usr/local/cuda/include; do
  if [ -e "$cuda_headers/cuda_runtime_api.h" ]; then break; fi
done
cuda_headers=$(realpath "$cuda_headers")
tests=(worker_test drain_test held_test claim_test)
build=$PWD/build/aarch64
if ! command -v aarch64-linux-gnu-g++ >/dev/null || ! command -v qemu-aarch64 >/dev/null || [ ! -d /usr/src/googletest ]; then
  packages=(g++-aarch64-linux-gnu qemu-user googletest)
  run=()
  if [ "$(id -u)" != 0 ]; then run=(sudo -n); fi
  if ! { "${run[@]}" apt-get update -qq && "${run[@]}" apt-get install -y -qq --no-install-recommends "${packages[@]}"; }; then
    echo "NOT CHECKED on aarch64: could not install its compiler. Please run: sudo apt-get install ${packages[*]}" >&2
    exit 77
  fi
fi

cross=(-G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64
  -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++
  "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;/usr/aarch64-linux-gnu")
cmake -S /usr/src/googletest -B "$build/googletest" "${cross[@]}" -DBUILD_GMOCK=OFF -DCMAKE_INSTALL_PREFIX="$build/prefix" \
  >/dev/null
cmake --build "$build/googletest" --target install >/dev/null

# Boost's headers alone: the rest of /usr/include is this machine's.
mkdir -p "$build/boost/include"
ln -sfn /usr/include/boost "$build/boost/include/boost"
cat >"$build/boost/BoostConfig.cmake" <<'end'
add_library(Boost::headers INTERFACE IMPORTED)
target_include_directories(Boost::headers INTERFACE ${CMAKE_CURRENT_LIST_DIR}/include)
end

cmake -S . -B "$build/escrow" "${cross[@]}" -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=20 -DESCROW_BUILD_BENCH=OFF \
  -DBoost_DIR="$build/boost" -DGTest_DIR="$build/prefix/lib/cmake/GTest" -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON \
  -DESCROW_CUDA_INCLUDE_DIR="$cuda_headers" >/dev/null
cmake --build "$build/escrow" --target "${tests[@]/%/_sim}"
# The first starts its own program again, which needs an emulator that the kernel knows. The second counts allocations, the
# same ones everywhere, and takes more time under the emulator than all others.
GTEST_FILTER=-WorkerContext.IsOfTheDeviceOfWhatItReclaims:SteadyState.ClaimsAndReleasesAllocateNothing \
  ctest --test-dir "$build/escrow" -j2 --output-on-failure -R "^($(IFS='|'; echo "${tests[*]/%/_sim}"))\$"
