#!/usr/bin/env bash
# Builds the fuzzer of random programs (preset fuzz) and runs it, where there is what it needs.
#
#   tests/deep/fuzz.sh RESULTS_DIR
#
# Its last lines (runs, coverage, or what failed) go to RESULTS_DIR/fuzz.txt, figures to random_fuzz.json, and
# an input that fails to a file beside them. Exit status 1 if one does. Without clang++-14 and its run time it
# says so, and that is no error.
# ESCROW_FUZZ_SECONDS says how long it runs (600), ESCROW_SEED repeats its choices.
set -uo pipefail

[[ $# -eq 1 ]] || { sed -n '4s/^#   //p' "$0" >&2; exit 2; }
mkdir -p "$1"
results=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
seconds=${ESCROW_FUZZ_SECONDS:-600}
report=$results/fuzz.txt

without() {
  echo "fuzzer: left out: $1" | tee "$report"
  exit 0
}

fail() {
  echo "fuzzer: $1" | tee -a "$report"
  exit 1
}

has_run_time() {
  echo 'extern "C" int LLVMFuzzerTestOneInput(unsigned char const*, unsigned long) { return 0; }' |
    clang++-14 -fsanitize=fuzzer,address,undefined -x c++ - -o /dev/null 2>/dev/null
}

command -v clang++-14 >/dev/null || without "clang++-14 is not there"
has_run_time || without "clang++-14 has no run time for it (package libclang-rt-14-dev)"
: > "$report"
cmake --preset fuzz >/dev/null && cmake --build --preset fuzz || fail "FAILED, not built"

log=$(mktemp)
trap 'rm -f "$log"' EXIT
export LSAN_OPTIONS=suppressions=$PWD/tests/support/lsan.supp:print_suppressions=0
status=0
build/fuzz/tests/random/random_fuzz -max_total_time="$seconds" -len_control=0 -timeout=60 \
  -seed="${ESCROW_SEED:-0}" -artifact_prefix="$results/fuzz-" > "$log" 2>&1 || status=$?

if [[ $status != 0 ]]; then
  tail -n 200 "$log" >> "$report"
  inputs=$(cd "$results" && ls fuzz-* 2>/dev/null)
  fail "FAILED with exit status $status, input: ${inputs:-none}"
fi
grep -E 'DONE|^Done' "$log" >> "$report"
runs=$(sed -n 's/^Done \([0-9]*\) runs.*/\1/p' "$log")
edges=$(sed -n 's/.*DONE *cov: \([0-9]*\).*/\1/p' "$log")
printf '{\n  "seconds": %d,\n  "runs": %d,\n  "edges covered": %d\n}\n' "$seconds" "$runs" "$edges" \
  > "$results/random_fuzz.json"
echo "fuzzer: $runs runs in $seconds s, $edges edges covered, no input fails" | tee -a "$report"
