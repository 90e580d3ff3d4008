#!/usr/bin/env bash
# Runs one bench program and leaves what it measured as one FILE.
#
#   bench/run_program.sh SECONDS_MAX FILE PROGRAM [--quick] [--benchmark_filter=REGEX]
#
# Of the capture bench, a graph's whole life and instantiations run first, in a process of their own:
# in one that has made graphs of thousands of nodes, plain CUDA takes longer for both, which hides
# what Escrow adds. What a user's process looks like is the fresh one.
set -euo pipefail

seconds_max=$1 file=$2 program=$3
shift 3
parts=("")
if [[ $program == */capture_bench_* && "$*" != *--benchmark_filter=* ]]; then
  parts=(--benchmark_filter='capture/(whole|instantiate)/' --benchmark_filter='-capture/(whole|instantiate)/')
fi

status=0 files=()
for part in "${parts[@]}"; do
  files+=("$file.${#files[@]}")
  rm -f "${files[-1]}"
  ((SECONDS < seconds_max)) || SECONDS=$((seconds_max - 1))
  timeout --kill-after=5 $((seconds_max - SECONDS)) "$program" "$@" ${part:+"$part"} \
    "--benchmark_out=${files[-1]}" --benchmark_out_format=json || status=$?
done
python3 -B "$(dirname "$0")/report.py" join "$file" "${files[@]}"
rm -f "${files[@]}"
exit $status
