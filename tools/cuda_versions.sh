#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles Escrow, its umbrella headers and the simulator with the headers of every CUDA version that Escrow supports, and
# links Escrow with that version's cudart; then builds each header alone and three tests with the oldest, and runs them:
#   tools/cuda_versions.sh           every version
#   tools/cuda_versions.sh --ends    the oldest, and the newest of each major version; no header alone
# Headers and libraries come from PyPI, into build/cuda/<version>.
set -euo pipefail
cd "$(dirname "$0")/.."

versions=(12.8 12.9 13.0 13.1 13.2 13.3 13.4 13.5)  # the oldest first; add the next one here

# A wheel is a zip. The folder gets its name when all is in it.
download() {
  local version=$1 folder=build/cuda/$1 wheels
  case $version in
    12.*) wheels=("nvidia-cuda-runtime-cu12==$version.*") ;;
    *) wheels=("nvidia-cuda-runtime==$version.*" "nvidia-cuda-crt==$version.*") ;;
  esac
  [ ! -d "$folder" ] || return 0
  rm -rf "$folder.new"
  if ! python3 -m pip download --quiet --no-deps --dest "$folder.new" "${wheels[@]}"; then
    echo "Could not download CUDA $version's headers from PyPI: ${wheels[*]}" >&2
    return 1
  fi
  for wheel in "$folder.new"/*.whl; do python3 -m zipfile -e "$wheel" "$folder.new"; done
  mv "$folder.new"/nvidia/*/ "$folder"
  rm -rf "$folder.new"
}

# One translation unit for each part, as fast as they can be compiled.
compile() {
  local version=$1 folder=build/cuda/$1 objects=() part
  local flags=(-std=c++20 -O0 -fPIC -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -I. -isystem "$folder/include")
  for part in core deleter pool graph nodes sim; do flags+=("-I$part" "-I$part/include"); done
  for part in core deleter pool graph nodes sim; do
    printf '#include "%s"\n' "$part"/include/escrow/*.hpp "$part"/*.cpp >"$folder/$part.cpp"
    if [ "$part" = sim ]; then break; fi
    "${CXX:-g++}" "${flags[@]}" -c "$folder/$part.cpp" -o "$folder/$part.o"
    objects+=("$folder/$part.o")
  done
  "${CXX:-g++}" "${flags[@]}" -fsyntax-only "$folder/sim.cpp"
  "${CXX:-g++}" -shared -Wl,--no-undefined -o "$folder/escrow.so" "${objects[@]}" "$folder"/lib/libcudart.so.*
  echo "CUDA $version: compiled and linked"
}

test_with() {
  local build=build/cuda/$1/build
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release "-DCMAKE_CXX_FLAGS_RELEASE=-O0 -DNDEBUG" -DESCROW_BUILD_BENCH=OFF \
    -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=20 \
    -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON -DESCROW_CUDA_INCLUDE_DIR="$PWD/build/cuda/$1/include" >/dev/null
  local tests=(claim_test_sim exec_lifetime_test_sim build_kinds_test_sim)
  cmake --build "$build" --target $headers_alone "${tests[@]}"
  ctest --test-dir "$build" -j2 --output-on-failure -R "^($(IFS='|'; echo "${tests[*]}"))\$"
}

if [ "${1:-}" = --one ]; then
  compile "$2"
  exit
fi
headers_alone=headers_stand_alone
if [ "${1:-}" = --ends ]; then
  headers_alone=
  ends=("${versions[0]}")
  for i in "${!versions[@]}"; do
    next=${versions[i + 1]:-none.}
    if [ "${next%.*}" != "${versions[i]%.*}" ]; then ends+=("${versions[i]}"); fi
  done
  versions=("${ends[@]}")
fi
for version in "${versions[@]}"; do download "$version"; done
printf '%s\n' "${versions[@]}" | xargs -P "$(nproc)" -I{} "$0" --one {}
test_with "${versions[0]}"
