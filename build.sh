#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The commands of a fresh machine:
#   ./build.sh test [sim]    builds the library, and runs its own tests
#   ./build.sh suite [sim]   the same with all other tests: those that take long, of adapters, packages, tools and pages
#   ./build.sh sanitize      the suite under AddressSanitizer with UBSan, and what has several threads under
#                            ThreadSanitizer; simulated
#   ./build.sh bench [sim]   builds, runs the relaunch benchmark, prints four lines of verdict and tables
#   ./build.sh deep [sim]    builds and runs the long runs, about an hour; results in build/<preset>/deep-results
# They use the GPU where there is one with nvcc, and the simulated CUDA runtime otherwise, or if `sim` says so.
# What is missing comes from apt; without a CUDA Toolkit, CUDA's headers come from PyPI, into build/cuda-headers.
set -euo pipefail
cd "$(dirname "$0")"

packages=(g++ cmake ninja-build python3 libboost-dev libgtest-dev libbenchmark-dev)
cuda_headers=build/cuda-headers
cuda_wheels=("nvidia-cuda-runtime==13.0.*" "nvidia-cuda-crt==13.0.*")

# What a package is for, so that a machine that has it from elsewhere needs no package.
is_there() {
  case $1 in
    g++) command -v g++ ;;
    cmake) command -v cmake ;;
    ninja-build) command -v ninja ;;
    python3) command -v python3 ;;
    python3-pip) python3 -m pip --version ;;
    libboost-dev) is_accepted '#include <boost/lockfree/stack.hpp>' ;;
    libgtest-dev) is_accepted '#include <gtest/gtest.h>' ;;
    libbenchmark-dev) is_accepted '#include <benchmark/benchmark.h>' ;;
  esac >/dev/null 2>&1
}

# is_accepted LINES [options]: by g++'s preprocessor.
is_accepted() { printf '%b\n' "$1" | g++ -E -x c++ -std=c++20 "${@:2}" - >/dev/null 2>&1; }

install_missing() {
  local missing=()
  for package in "$@"; do is_there "$package" || missing+=("$package"); done
  [ ${#missing[@]} -gt 0 ] || return 0
  local run=()
  if [ "$(id -u)" != 0 ]; then run=(sudo -n); fi
  echo "Installing: ${missing[*]}"
  if ! { "${run[@]}" apt-get update -qq && "${run[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}"; }; then
    echo "Could not install them. Please run: sudo apt-get install ${missing[*]}" >&2
    exit 1
  fi
}

has_cuda_headers() {
  is_accepted '#include <cuda_runtime_api.h>\n#if CUDART_VERSION < 12080\n#error\n#endif' "$@"
}

# Whoever has a toolkit keeps it. CMake finds it by nvcc; for a folder without nvcc it is told where.
provide_cuda_headers() {
  local root nvcc
  nvcc=$(command -v nvcc || true)
  for root in "${CUDAToolkit_ROOT:-}" "${CUDA_PATH:-}" "${CUDA_HOME:-}" "${nvcc%/bin/nvcc}" /usr/local/cuda; do
    if [ -n "$root" ] && has_cuda_headers -I "$root/include"; then
      export CMAKE_INCLUDE_PATH=$root/include
      return
    fi
  done
  if has_cuda_headers || has_cuda_headers -I "$cuda_headers"; then return; fi
  download_cuda_headers
}

# A wheel is a zip. The folder gets its name when all is in it.
download_cuda_headers() {
  local new=$cuda_headers.new
  install_missing python3-pip
  echo "Downloading CUDA's headers: ${cuda_wheels[*]}"
  rm -rf "$new" "$cuda_headers"
  if ! python3 -m pip download --quiet --no-deps --dest "$new" "${cuda_wheels[@]}"; then
    echo "Could not download them. Please install the CUDA Toolkit 12.8 or newer, or name its folder:" >&2
    echo "CUDAToolkit_ROOT=/usr/local/cuda ./build.sh $command" >&2
    exit 1
  fi
  for wheel in "$new"/*.whl; do python3 -m zipfile -e "$wheel" "$new"; done
  mv "$new"/nvidia/cu13/include "$cuda_headers"
  rm -rf "$new"
}

find_nvcc() {
  if ! command -v nvcc >/dev/null && [ -x /usr/local/cuda/bin/nvcc ]; then
    export PATH=$PATH:/usr/local/cuda/bin
  fi
  command -v nvcc >/dev/null
}

has_gpu() { command -v nvidia-smi >/dev/null && nvidia-smi >/dev/null 2>&1; }

choose_preset() {
  preset=${1:-}
  if [ -z "$preset" ]; then
    preset=sim
    if has_gpu; then
      if find_nvcc; then preset=gpu; else echo "There is a GPU but no nvcc."; fi
    fi
  fi
  if [ "$preset" = gpu ]; then echo "On the GPU."; else echo "On the simulated CUDA runtime."; fi
}

run_workflow() { cmake --workflow --preset "$1"; }

bench() {
  cmake --preset "$preset" >/dev/null
  cmake --build --preset "$preset" --target "relaunch_bench_$preset"
  bench/run.py "build/$preset" "build/$preset/bench-results" "$preset" --only relaunch
}

deep() {
  cmake --preset "$preset" >/dev/null
  cmake --build --preset "$preset"
  tests/deep.sh "build/$preset" "$preset"
}

command=${1:-}
case "$command ${2:-}" in
  "test " | "test sim" | "suite " | "suite sim" | "sanitize " | "bench " | "bench sim" | "deep " | "deep sim") ;;
  *)
    sed -n '/^#!\|^# SPDX/d; /^#/!q; s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
install_missing "${packages[@]}"
provide_cuda_headers
if [ "$command" != sanitize ]; then choose_preset "${2:-}"; fi
case $command in
  test) run_workflow "${preset/sim/library}" ;;  # a GPU's machine has more cores
  suite) run_workflow "$preset" ;;
  sanitize)
    # Clang's AddressSanitizer takes half of g++'s time to compile, and its warnings are others. Its ThreadSanitizer has an
    # operator new that programs cannot replace.
    if command -v clang-14 >/dev/null && command -v clang++-14 >/dev/null; then
      CC=clang-14 CXX=clang++-14 run_workflow asan
    else
      run_workflow asan
    fi
    run_workflow tsan
    ;;
  bench) bench ;;
  deep) deep ;;
esac
