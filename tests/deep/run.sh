#!/usr/bin/env bash
# Runs what has a full size (escrow_test's DEEP), and on a GPU compute-sanitizer too.
#
#   tests/deep/run.sh BUILD_DIR sim|gpu
#
# Into BUILD_DIR/deep-results go run.txt (date, commit, machine, seed, what each took), one JSON file of
# figures a program, output.txt and tests.xml. Exit status 1 if anything failed.
# ESCROW_SEED repeats a run's choices; ESCROW_SECONDS and ESCROW_STRESS_SECONDS set how long those runs are
# that have a time instead of a size.
set -uo pipefail

[[ $# -eq 2 && ($2 == sim || $2 == gpu) ]] || { sed -n '4s/^#   //p' "$0" >&2; exit 2; }
build=$(cd "$1" && pwd) runtime=$2
here=$(cd "$(dirname "$0")" && pwd)
results=$build/deep-results

rm -rf "$results"
mkdir -p "$results"
export ESCROW_SEED=${ESCROW_SEED:-$(date +%s)}
export ESCROW_STRESS_SEED=$ESCROW_SEED
export ESCROW_STRESS_SECONDS=${ESCROW_STRESS_SECONDS:-60}

describe_machine() {
  uname -srm
  sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | sort | uniq -c | sed 's/^ *//'
  if [[ $runtime == gpu ]]; then
    nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
  else
    echo "no GPU used: the runtime was simulated"
  fi
}

{
  echo "command: tests/deep/run.sh $1 $2"
  echo "date: $(date -u +%Y-%m-%dT%H:%M:%SZ)"
  echo "commit: $(git -C "$here" describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)"
  echo "seed: $ESCROW_SEED"
  echo "seconds: ${ESCROW_SECONDS:-as the programs choose}, stress $ESCROW_STRESS_SECONDS"
  describe_machine
} | tee "$results/run.txt"

status=0
ctest --test-dir "$build" -C deep -R "^deep\..*_$runtime\$" --no-tests=error --output-on-failure \
  --output-log "$results/output.txt" --output-junit "$results/tests.xml" \
  --test-output-size-passed 4000000 --test-output-size-failed 4000000 || status=1
if [[ $runtime == gpu ]]; then
  "$here/compute_sanitizer.sh" "$build" "$results" || status=1
fi
{
  grep -E '^ *[0-9]+/[0-9]+ Test|tests passed|Total Test time' "$results/output.txt"
  echo "result: $([[ $status == 0 ]] && echo passed || echo FAILED)"
} >> "$results/run.txt"
echo "Results: $results"
exit $status
