#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs what has a full size (escrow_test's DEEP); on the simulator also the fuzzer of random programs (preset fuzz), on a GPU
# also all tests under compute-sanitizer's memcheck.
#
#   tests/deep.sh BUILD_DIR sim|gpu [fuzzer|tests|sanitizer]     all of them, or one
#
# The files of BUILD_DIR/deep-results are what tests/results keeps of a run: run.txt (date, commit, machine, seed, what each
# took), output.txt, figures.json, and fuzz.txt or compute_sanitizer.txt. They name no path of the machine. An input that
# fails the fuzzer, and all that compute-sanitizer says, are beside them. Exit status 1 if anything failed.
# ESCROW_SEED repeats a run's choices; ESCROW_SECONDS, ESCROW_STRESS_SECONDS (60), ESCROW_FUZZ_SECONDS (600) and
# ESCROW_SANITIZER_SECONDS (120 a program) set how long those run that have a time instead of a size.
set -uo pipefail

[[ $# -ge 2 && $2 =~ ^(sim|gpu)$ && ${3:-tests} =~ ^(fuzzer|tests|sanitizer)$ ]] || { sed -n '5s/^#   //p' "$0" >&2; exit 2; }
cd "$(dirname "$0")/.."
build=$(cd "$1" && pwd) runtime=$2
if [[ $runtime == sim ]]; then stages=${3:-fuzzer tests}; else stages=${3:-tests sanitizer}; fi
results=$build/deep-results
fuzz_seconds=${ESCROW_FUZZ_SECONDS:-600} sanitizer_seconds=${ESCROW_SANITIZER_SECONDS:-120}
export ESCROW_SEED=${ESCROW_SEED:-$(date +%s)}
export ESCROW_STRESS_SEED=$ESCROW_SEED
export ESCROW_STRESS_SECONDS=${ESCROW_STRESS_SECONDS:-60}

# Standard input, in which the repository and the build folder have no path of the machine.
without_paths() { sed -u "s|$build|build/$(basename "$build")|g; s|$PWD/||g; s|$PWD|.|g"; }

has_fuzzer() {
  echo 'extern "C" int LLVMFuzzerTestOneInput(unsigned char const*, unsigned long) { return 0; }' |
    clang++-14 -fsanitize=fuzzer,address,undefined -x c++ - -o /dev/null 2>/dev/null
}

run_fuzzer() {
  local log=$results/fuzz.txt
  if ! has_fuzzer; then
    echo "fuzzer: left out: clang++-14 or its run time (libclang-rt-14-dev) is not there" | tee "$log"
    return 0
  fi
  if ! { cmake --preset fuzz >/dev/null && cmake --build --preset fuzz; }; then
    echo "fuzzer: FAILED, not built" | tee "$log"
    return 1
  fi
  if LSAN_OPTIONS=suppressions=$PWD/tests/support/lsan.supp:print_suppressions=0 \
    build/fuzz/tests/random/random_fuzz -max_total_time="$fuzz_seconds" -len_control=0 -timeout=60 \
    -seed="$ESCROW_SEED" -artifact_prefix="$results/fuzz-" >"$log" 2>&1; then
    sed -i -nE '/DONE|^Done/p' "$log"
    local runs edges
    runs=$(sed -n 's/^Done \([0-9]*\) runs.*/\1/p' "$log")
    edges=$(sed -n 's/.*DONE *cov: \([0-9]*\).*/\1/p' "$log")
    printf '{"seconds": %d, "runs": %d, "edges covered": %d}\n' "$fuzz_seconds" "$runs" "$edges" \
      >"$results/random_fuzz.json"
    echo "fuzzer: $runs runs in $fuzz_seconds s, $edges edges covered, no input fails" | tee -a "$log"
  else
    echo "fuzzer: FAILED, see fuzz.txt and fuzz-*" | tee -a "$log"
    return 1
  fi
}

# All that the programs print goes to output.txt, without what ctest and GoogleTest say around it; the verdicts here as well.
run_tests() {
  local log=$results/output.txt status=0
  ctest --test-dir "$build" -C deep -R "^deep\..*_$runtime\$" --no-tests=error --verbose \
    --output-log "$log" --test-output-size-passed 4000000 --test-output-size-failed 4000000 |
    grep -E --line-buffered '^ *[0-9]+/[0-9]+ Test|% tests passed' || status=1
  sed -i -nE '/^ *[0-9]+\/[0-9]+ Test/{:more; / sec *$/!{N; b more}; s/\n(\[[A-Z_]+\])? */ /g; p; d}
    /^ *Start +[0-9]|% tests passed|^Total Test time/p
    /^[0-9]+: (Test (command|timeout)|Working Directory|Environment variables| +[A-Z_]+=|Running main|\[(--|==| RUN| +OK|  PASSED)|$)/d
    s/^[0-9]+: //p' "$log"
  return $status
}

# Why compute-sanitizer does not run a program.
left_out() {
  case $1 in
    sticky_fault_test) echo "makes an illegal access on purpose" ;;
    callback_law_test) echo "uses CUPTI, which one tool at a time can" ;;
    long_run) echo "judges memory and latency, and the tool takes both" ;;
  esac
}

# The tests of a program that it runs.
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

# A program that fails or takes too long under the tool, which changes all timing, is named, and is no error.
run_sanitizer() {
  local tool program name log errors status checked=0 with_errors=0
  tool=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
  mkdir -p "$results/compute_sanitizer"
  "$tool" --version | tail -n 1
  while read -r program; do
    name=$(basename "$program" _gpu)
    if [[ -n $(left_out "$name") ]]; then
      echo "$name: left out: $(left_out "$name")"
      continue
    fi
    log=$results/compute_sanitizer/$name.txt status=0
    # API errors are what many tests provoke, and child processes end in ways of their own.
    ESCROW_STRESS_SECONDS=1 GTEST_FILTER=$(tests_of "$name") timeout --kill-after=10 "$sanitizer_seconds" \
      "$tool" --tool memcheck --report-api-errors no --target-processes application-only --error-exitcode 0 \
      "$program" >"$log" 2>&1 || status=$?
    errors=$(sed -n 's/^=\{9\} ERROR SUMMARY: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
    [[ -z $errors ]] || checked=$((checked + 1))
    ((${errors:-0} == 0)) || with_errors=$((with_errors + 1))
    echo "$name: memcheck: ${errors:-no summary, unknown} errors, exit status $status (124: ended after $sanitizer_seconds s)"
  done < <(find "$build/tests" -type f -executable -name '*_gpu' | sort)
  echo "compute-sanitizer: $checked programs checked, $with_errors with errors"
  ((with_errors == 0 && checked > 0))
}

rm -rf "$results"
mkdir -p "$results"
{
  echo "command: tests/deep.sh $build $runtime" | without_paths
  echo "date: $(date -u +%Y-%m-%dT%H:%M:%SZ)"
  echo "commit: $(git describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)"
  echo "seed: $ESCROW_SEED"
  echo "seconds: ${ESCROW_SECONDS:-as the programs choose}, stress $ESCROW_STRESS_SECONDS"
  tests/support/describe_machine.sh "$runtime"
} | tee "$results/run.txt"
failed=()
for stage in $stages; do
  case $stage in
    fuzzer) run_fuzzer | without_paths ;;
    tests) run_tests ;;
    sanitizer) run_sanitizer | tee "$results/compute_sanitizer.txt" ;;
  esac || failed+=("$stage")
done

python3 - "$results" <<'PYTHON'
import json, pathlib, sys
results = pathlib.Path(sys.argv[1])
joined = {path.stem: json.loads(path.read_text()) for path in sorted(results.glob("*.json"))}
for name in joined:
    (results / f"{name}.json").unlink()
(results / "figures.json").write_text(json.dumps(joined, indent=1) + "\n")
PYTHON
for file in "$results"/*.txt; do
  without_paths <"$file" >"$file.new" && mv "$file.new" "$file"
done
{
  grep -E '^ *[0-9]+/[0-9]+ Test|% tests passed|Total Test time' "$results/output.txt" 2>/dev/null
  grep -hE '^(fuzzer|compute-sanitizer): ' "$results"/{fuzz,compute_sanitizer}.txt 2>/dev/null
  if ((${#failed[@]} == 0)); then echo "result: passed"; else echo "result: FAILED: ${failed[*]}"; fi
} >>"$results/run.txt"
echo "Results: $results" | without_paths
((${#failed[@]} == 0))
