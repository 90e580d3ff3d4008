#!/usr/bin/env bash
# Runs the benches and sums up what they found.
#
#   bench/run.sh BUILD_DIR OUT_DIR sim|gpu [--quick] [--only relaunch|claim|retire|destructor|build|capture]
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
benches=(relaunch claim retire destructor build capture)
if [[ -n $only ]]; then
  [[ " ${benches[*]} " == *" $only "* ]] || usage
  benches=("$only")
fi

# All of it takes about 160 s on a GPU without the build bench, which may take 25 s, the capture bench
# (20 s, not yet measured), and cuda.core's arm of it, which takes less than 10 s. A program that hangs is ended, late: each has a time limit
# of its own, at which it writes what it has.
seconds_max=260
[[ $runtime == gpu ]] || seconds_max=3600
failed=()

# limited NAME COMMAND...: runs the command for what is left of the time, and notes if it fails.
limited() {
  local name=$1 status=0 left=$((seconds_max - SECONDS))
  shift
  ((left > 0)) || left=1
  timeout --kill-after=5 "$left" "$@" || status=$?
  ((status == 0)) || failed+=("$name: exit status $status")
}

mkdir -p "$out"
# Nothing of an earlier run may look like a result of this one.
for bench in "${benches[@]}"; do rm -f "$out/${bench}_bench.json"; done
touch "$out/commands.tsv"

"$here/../tests/support/describe_machine.sh" "$runtime" > "$out/machine.txt" || true

# note_command NAME COMMAND...: for summary.json.
note_command() {
  grep -v "^$1"$'\t' "$out/commands.tsv" > "$out/commands.new" || true
  printf '%s\t%s\n' "$1" "${*:2}" >> "$out/commands.new"
  mv "$out/commands.new" "$out/commands.tsv"
}

for bench in "${benches[@]}"; do
  program=${bench}_bench
  command=("$build/bench/${program}_$runtime" ${quick[@]+"${quick[@]}"}
    "--benchmark_out=$out/$program.json" --benchmark_out_format=json)
  echo "== ${command[*]}"
  began=$SECONDS
  limited "$program" "${command[@]}"
  echo "== $program took $((SECONDS - began)) s"
  note_command "$program" "${command[@]}"
  limited compact python3 -B "$here/compact.py" "$out/$program.json"
done

# cuda_core NAME SCRIPT SECONDS: Python's cuda.core has graphs that keep arguments alive too. Its
# failures are no failures of ours.
cuda_core() {
  local name=$1 file=$out/$1.json command=(python3 -B "$here/$2" "$out/$1.json")
  rm -f "$file"
  echo "== ${command[*]}"
  timeout --kill-after=5 "$3" "${command[@]}" || echo "the cuda.core arm ended with status $?"
  [[ -s $file ]] || echo '{"skipped": "the program did not get to its end"}' > "$file"
  note_command "$name" "${command[@]}"
}
if [[ $runtime == gpu && " ${benches[*]} " == *" relaunch "* ]]; then
  cuda_core cuda_core_bench relaunch/cuda_core_arm.py 30
fi
if [[ $runtime == gpu && " ${benches[*]} " == *" build "* ]]; then
  cuda_core cuda_core_build_bench build/cuda_core_build_arm.py 20
fi

echo
limited plot python3 -B "$here/plot.py" "$out"
if [[ -z $only ]]; then
  echo
  limited summary python3 -B "$here/summary.py" "$out"
fi
if [[ -z $only || $only == relaunch || $only == build ]]; then
  echo
  limited relaunch_table python3 -B "$here/relaunch_table.py" "$out"
fi
echo
echo "JSON and SVG: $out"
if [[ $runtime == sim ]]; then
  echo "These numbers come from the SIMULATED runtime: the programs work, and nothing about speed."
fi
if ((${#failed[@]} > 0)); then
  printf 'FAILED: %s\n' "${failed[@]}" >&2
  exit 1
fi
