#!/usr/bin/env bash
# Runs the benches and sums up what they found.
#
#   bench/run.sh BUILD_DIR OUT_DIR sim|gpu [--quick] [--only relaunch|claim|resource|retire|destructor|build|capture|footprint]
#
# Into OUT_DIR go one JSON file a bench, commands.tsv, machine.txt, summary.json and the plots. What
# fails is left out and named at the end, with exit status 1; the rest is summed up all the same.
set -euo pipefail

usage() {
  sed -n 's/^#   //p' "$0" >&2
  exit 2
}

[[ $# -ge 3 ]] || usage
build=$1 out=$2 runtime=$3
shift 3
[[ $runtime == sim || $runtime == gpu ]] || usage
quick=() only=
while [[ $# -gt 0 ]]; do
  case $1 in
    --quick) quick=(--quick) ;;
    --only) only=${2:?--only needs a name} && shift ;;
    *) usage ;;
  esac
  shift
done

here=$(dirname "$0")
benches=(relaunch claim resource retire destructor build capture footprint)
if [[ -n $only ]]; then
  [[ " ${benches[*]} " == *" $only "* ]] || usage
  benches=("$only")
fi

# All but the resource bench takes about 240 s on a GPU. A program that hangs is ended, late: each has a time limit of
# its own, at which it writes what it has.
seconds_max=400
[[ $runtime == gpu ]] || seconds_max=3600
failed=()

mkdir -p "$out"
# Nothing of an earlier run may look like a result of this one.
for bench in "${benches[@]}"; do rm -f "$out/${bench}_bench.json"; done
touch "$out/commands.tsv"
"$here/../tests/support/describe_machine.sh" "$runtime" > "$out/machine.txt" || true

# run NAME COMMAND...: notes the command, and if it fails.
run() {
  local name=$1 began=$SECONDS status=0
  shift
  echo "== $*"
  "$@" || status=$?
  ((status == 0)) || failed+=("$name: exit status $status")
  echo "== $name took $((SECONDS - began)) s"
  grep -v "^$name"$'\t' "$out/commands.tsv" > "$out/commands.new" || true
  printf '%s\t%s\n' "$name" "$*" >> "$out/commands.new"
  mv "$out/commands.new" "$out/commands.tsv"
}

for bench in "${benches[@]}"; do
  if [[ $bench == resource && ! -x $build/bench/resource_bench_$runtime ]]; then
    echo "== there is no resource bench: its build did not find CCCL"
    continue
  fi
  left=$((seconds_max > SECONDS ? seconds_max - SECONDS : 1))
  run "${bench}_bench" "$here/run_program.sh" "$left" "$out/${bench}_bench.json" \
    "$build/bench/${bench}_bench_$runtime" ${quick[@]+"${quick[@]}"}
  # Python's cuda.core has graphs that keep arguments alive too. Its failures are no failures of ours.
  if [[ $runtime == gpu && ( $bench == relaunch || $bench == build ) ]]; then
    name=cuda_core_${bench}_bench
    name=${name/relaunch_/}
    rm -f "$out/$name.json"
    run "$name" timeout --kill-after=5 30 python3 -B "$here/cuda_core.py" "$bench" "$out/$name.json"
    [[ -s $out/$name.json ]] || echo '{"skipped": "the program did not get to its end"}' > "$out/$name.json"
  fi
done

echo
what=summary
[[ -z $only ]] || what=tables
python3 -B "$here/report.py" "$what" "$out" || failed+=("report: exit status $?")
if [[ $runtime == sim ]]; then
  echo "These numbers come from the SIMULATED runtime: the programs work, and nothing about speed."
fi
if ((${#failed[@]} > 0)); then
  printf 'FAILED: %s\n' "${failed[@]}" >&2
  exit 1
fi
