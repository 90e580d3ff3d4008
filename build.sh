#!/usr/bin/env bash
# The commands of a fresh machine:
#   ./build.sh bench        builds, runs the relaunch benchmark and prints a table
#   ./build.sh test         builds and runs the whole suite
#   ./build.sh deep [sim]   builds and runs the long runs, about an hour; results in build/<preset>/deep-results
# All use the GPU where there is one, and the simulated CUDA runtime otherwise, or if `sim` says so.
set -euo pipefail
cd "$(dirname "$0")"

packages=(g++ cmake ninja-build python3 libboost-dev libgtest-dev libbenchmark-dev)

# What a package is for, so that a machine that has it from elsewhere needs no package.
is_there() {
  case $1 in
    g++) command -v g++ ;;
    cmake) command -v cmake ;;
    ninja-build) command -v ninja ;;
    python3) command -v python3 ;;
    libboost-dev) has_header boost/lockfree/stack.hpp ;;
    libgtest-dev) has_header gtest/gtest.h ;;
    libbenchmark-dev) has_header benchmark/benchmark.h ;;
  esac >/dev/null 2>&1
}

has_header() { echo "#include <$1>" | g++ -E -x c++ -std=c++20 - ; }

install_what_is_missing() {
  local missing=()
  for package in "${packages[@]}"; do is_there "$package" || missing+=("$package"); done
  if [ ${#missing[@]} -gt 0 ]; then
    local run=()
    if [ "$(id -u)" != 0 ]; then run=(sudo -n); fi
    echo "Installing: ${missing[*]}"
    if ! { "${run[@]}" apt-get update -qq && "${run[@]}" apt-get install -y -qq "${missing[@]}"; }; then
      echo "Could not install them. Please run: sudo apt-get install ${missing[*]}" >&2
      exit 1
    fi
  fi
  if ! has_cuda; then
    echo "CUDA Toolkit 12.8 or newer is missing: its headers are needed even without a GPU." >&2
    echo "Install it, or name its folder: CUDAToolkit_ROOT=/usr/local/cuda ./build.sh $command" >&2
    exit 1
  fi
}

has_cuda() {
  local root
  for root in "${CUDAToolkit_ROOT:-}" "${CUDA_PATH:-}" "${CUDA_HOME:-}" /usr/local/cuda \
      "$(dirname "$(dirname "$(command -v nvcc || echo /none/bin/nvcc)")")"; do
    [ -n "$root" ] && [ -e "$root/include/cuda_runtime_api.h" ] && return 0
  done
  return 1
}

find_nvcc() {
  if ! command -v nvcc >/dev/null && [ -x /usr/local/cuda/bin/nvcc ]; then
    export PATH=$PATH:/usr/local/cuda/bin
  fi
  command -v nvcc >/dev/null
}

has_gpu() { command -v nvidia-smi >/dev/null && nvidia-smi >/dev/null 2>&1; }

choose_preset() {
  preset=sim
  if ! has_gpu; then return; fi
  if find_nvcc; then
    preset=gpu
  else
    echo "There is a GPU but no nvcc: the simulated runtime is used."
  fi
}

run_workflow() { cmake --workflow --preset "$1"; }

bench() {
  cmake --preset "$preset" >/dev/null
  cmake --build --preset "$preset"
  bench/run.sh "build/$preset" "build/$preset/bench-results" "$preset" --only relaunch
}

run_tests() {
  run_workflow "$preset"
  if [ "$preset" = sim ]; then
    run_workflow asan
    run_workflow tsan
  fi
}

deep() {
  cmake --preset "$preset"
  cmake --build --preset "$preset"
  tests/deep/run.sh "build/$preset" "$preset"
}

command=${1:-}
case "$command ${2:-}" in
  "bench " | "test " | "deep " | "deep sim") ;;
  *)
    sed -n '2,6s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
install_what_is_missing
choose_preset
preset=${2:-$preset}
if [ "$preset" = gpu ]; then echo "On the GPU."; else echo "On the simulated CUDA runtime."; fi
case $command in
  bench) bench ;;
  test) run_tests ;;
  deep) deep ;;
esac
