#!/usr/bin/env bash
# Compares two builds: runs the same bench programs of both in turns, and prints each figure's
# medians, spread and ratio.
#
#   bench/compare.sh BUILD_A BUILD_B sim|gpu ROUNDS [--quick] [--filter REGEX] [--out FOLDER] BENCH...
#
# BENCH: relaunch, claim, resource, retire, destructor, build, capture. Every other round runs B first, so that
# what drifts does so for both. FOLDER, a temporary one if none is named, gets a JSON file a run.
set -euo pipefail

usage() {
  sed -n 's/^#   //p' "$0" >&2
  exit 2
}

[[ $# -ge 5 ]] || usage
declare -A build=([a]=$1 [b]=$2)
runtime=$3 rounds=$4
shift 4
[[ $runtime == sim || $runtime == gpu ]] || usage
[[ $rounds =~ ^[1-9][0-9]*$ ]] || usage
arguments=() out=
while [[ ${1-} == --* ]]; do
  case $1 in
    --quick) arguments+=(--quick) ;;
    --filter) arguments+=("--benchmark_filter=${2:?--filter needs an expression}") && shift ;;
    --out) out=${2:?--out needs a folder} && shift ;;
    *) usage ;;
  esac
  shift
done
[[ $# -ge 1 ]] || usage
for bench in "$@"; do
  for side in a b; do
    program=${build[$side]}/bench/${bench}_bench_$runtime
    [[ -x $program ]] || { echo "there is no $program: build it first" >&2 && exit 1; }
  done
done

if [[ -z $out ]]; then
  out=$(mktemp -d)
  trap 'rm -rf "$out"' EXIT
fi
mkdir -p "$out"
rm -f "$out"/[ab].*.json  # nothing of an earlier run may look like a result of this one

here=$(dirname "$0")
for ((round = 1; round <= rounds; ++round)); do
  sides=(a b)
  ((round % 2)) || sides=(b a)
  for bench in "$@"; do
    for side in "${sides[@]}"; do
      printf 'round %d of %d: %s of %s\n' "$round" "$rounds" "$bench" "${build[$side]}" >&2
      "$here/run_program.sh" 3600 "$out/$side.$bench.$round.json" \
        "${build[$side]}/bench/${bench}_bench_$runtime" ${arguments[@]+"${arguments[@]}"} \
        > "$out/log" 2>&1 || { cat "$out/log" >&2 && exit 1; }
    done
  done
done

echo "A: ${build[a]}"
echo "B: ${build[b]}"
python3 -B "$here/report.py" compare "$out"
