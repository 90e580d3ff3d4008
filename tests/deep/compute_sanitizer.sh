#!/usr/bin/env bash
# Runs the GPU tests under compute-sanitizer's memcheck, and says how many errors each has.
#
#   tests/deep/compute_sanitizer.sh BUILD_DIR RESULTS_DIR
#
# One line a program goes to standard output and to RESULTS_DIR/compute_sanitizer.txt, and all that the
# tool says to RESULTS_DIR/compute_sanitizer/. Exit status 1 if an error was found, or nothing was checked.
# A test that fails or takes too long under the tool, which changes all timing, is named, and is no error.
# ESCROW_SANITIZER_SECONDS bounds each program (120).
set -uo pipefail

[[ $# -eq 2 ]] || { sed -n '4s/^#   //p' "$0" >&2; exit 2; }
build=$1 results=$2
bound=${ESCROW_SANITIZER_SECONDS:-120}

# What is left out, and why.
left_out() {
  case $1 in
    sticky_fault_test) echo "makes an illegal access on purpose" ;;
    callback_law_test) echo "uses CUPTI, which one tool at a time can" ;;
    long_run) echo "judges memory and latency, and the tool takes both" ;;
  esac
}

# The tests of a program that are run: all but these.
tests_of() {
  case $1 in
    # The tool reads an exec's source graph in cudaGraphLaunch while another thread destroys that, and crashes.
    stress_test) echo "-GraphStress.*" ;;
    # They count allocations, and the tool makes some.
    claim_test) echo "-SteadyState.*" ;;
    # The tool changes the end of a process.
    process_end_test) echo "-*ProcessEnd.*" ;;
    *) echo "*" ;;
  esac
}

tool=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
mkdir -p "$results/compute_sanitizer"
report=$results/compute_sanitizer.txt
: > "$report"
say() { echo "$*" | tee -a "$report"; }
if [[ ! -x $tool ]]; then
  say "compute-sanitizer: is not there, nothing was checked"
  exit 1
fi
"$tool" --version | tail -n 1 | tee -a "$report"

export ESCROW_STRESS_SECONDS=1
unset ESCROW_DEEP
with_errors=0 checked=0 unchecked=0

# check NAME PROGRAM
check() {
  local name=$1 program=$2 log=$results/compute_sanitizer/$1.txt status=0 errors ended
  # API errors are what many tests provoke, and child processes end in ways of their own.
  timeout --kill-after=10 "$bound" "$tool" --tool memcheck --report-api-errors no \
    --target-processes application-only --error-exitcode 0 "$program" > "$log" 2>&1 || status=$?
  errors=$(sed -n 's/^=\{9\} ERROR SUMMARY: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
  case $status in
    0) ended="tests passed" ;;
    77) ended="skipped itself" ;;
    124 | 137) ended="ended after $bound s" ;;
    *) ended="exit status $status under the tool" ;;
  esac
  if [[ -z $errors ]]; then
    unchecked=$((unchecked + 1))
    say "$name: memcheck: no summary, $ended"
    return
  fi
  checked=$((checked + 1))
  ((errors == 0)) || with_errors=$((with_errors + 1))
  say "$name: memcheck: $errors errors, $ended"
}

while read -r program; do
  name=$(basename "$program" _gpu)
  reason=$(left_out "$name")
  if [[ -n $reason ]]; then
    say "$name: left out: $reason"
    continue
  fi
  GTEST_FILTER=$(tests_of "$name") check "$name" "$program"
done < <(find "$build/tests" -type f -executable -name '*_gpu' | sort)

say "compute-sanitizer: $checked programs checked, $with_errors with errors, $unchecked without a summary"
((with_errors == 0 && checked > 0))
