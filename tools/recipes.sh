#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds Escrow by the recipes of packaging/, and a program with each package, on the simulated CUDA runtime:
#   tools/recipes.sh    Conan's package and its test; vcpkg's port, by the command vcpkg where it is, else by port.cmake
# Conan comes from PyPI into build/recipes. It asks no remote: Boost is the machine's. CMAKE_INCLUDE_PATH may name the folder of
# CUDA's headers; build/cuda-headers, where build.sh puts them, is found. Exit status 77: Conan cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD/build/recipes
export CMAKE_INCLUDE_PATH=${CMAKE_INCLUDE_PATH:+$CMAKE_INCLUDE_PATH:}$PWD/build/cuda-headers
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-2}
mkdir -p "$root"

port() {
  if command -v vcpkg >/dev/null; then
    vcpkg install escrow --overlay-ports=packaging/vcpkg --x-install-root="$root/vcpkg"
  else
    echo "There is no vcpkg: its port is run by packaging/vcpkg/port.cmake"
    cmake -DROOT="$root/port" -P packaging/vcpkg/port.cmake
  fi
}

conan_package() {
  if ! python3 -m pip install --quiet --target "$root/conan" --upgrade "conan>=2.4,<3"; then
    echo "PyPI cannot be reached: NOT CHECKED with Conan"
    return 77
  fi
  export CONAN_HOME=$root/conan-home PYTHONPATH=$root/conan
  local conan=$root/conan/bin/conan boost
  boost=$(printf '#include <boost/version.hpp>\nBOOST_LIB_VERSION' | g++ -E -P -x c++ - | tail -1 | tr -d '"' | tr _ .)
  "$conan" profile detect --force >/dev/null
  {
    cat "$CONAN_HOME/profiles/default"
    printf '[platform_requires]\nboost/%s.0\n' "$boost"
  } >"$root/profile"
  # Nothing is written beside the sources.
  "$conan" create . -pr:a "$root/profile" -s compiler.cppstd=20 --no-remote --test-folder=packaging/consumer \
    -c "tools.build:jobs=$CMAKE_BUILD_PARALLEL_LEVEL" -c 'tools.cmake.cmake_layout:test_folder=$TMP' \
    -c tools.cmake.cmaketoolchain:generator=Ninja -c tools.cmake.cmaketoolchain:user_presets= \
    -c 'tools.cmake.cmaketoolchain:extra_variables={"CMAKE_UNITY_BUILD": "ON", "CMAKE_CXX_FLAGS_RELEASE": "-O0 -DNDEBUG"}'
}

# Each has few files at a time to compile.
port >"$root/port.log" 2>&1 &
port_job=$!
conan_package &
conan_job=$!
if ! wait $port_job; then
  cat "$root/port.log"
  exit 1
fi
tail -3 "$root/port.log"
wait $conan_job
