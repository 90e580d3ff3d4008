#!/usr/bin/env bash
# Runs what has a full size (escrow_test's DEEP); on the simulator the fuzzer too, on a GPU compute-sanitizer.
#
#   tests/deep/run.sh BUILD_DIR sim|gpu
#
# The files of BUILD_DIR/deep-results are what tests/results keeps of a run: run.txt (date, commit, machine,
# seed, what each took), output.txt, figures.json, and fuzz.txt or compute_sanitizer.txt. They name no path
# of the machine. Exit status 1 if anything failed.
# ESCROW_SEED repeats a run's choices; ESCROW_SECONDS, ESCROW_STRESS_SECONDS and ESCROW_FUZZ_SECONDS set how
# long those runs are that have a time instead of a size.
set -uo pipefail

[[ $# -eq 2 && ($2 == sim || $2 == gpu) ]] || { sed -n '4s/^#   //p' "$0" >&2; exit 2; }
build=$(cd "$1" && pwd) runtime=$2
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
results=$build/deep-results

rm -rf "$results"
mkdir -p "$results"
export ESCROW_SEED=${ESCROW_SEED:-$(date +%s)}
export ESCROW_STRESS_SEED=$ESCROW_SEED
export ESCROW_STRESS_SECONDS=${ESCROW_STRESS_SECONDS:-60}

# Standard input, in which the repository and the build folder have no path of the machine.
without_paths() { sed -u "s|$build|build/$(basename "$build")|g; s|$root/||g; s|$root|.|g"; }

# One object with each program's figures.
join_figures() {
  python3 - "$results" <<'PYTHON'
import json, pathlib, sys
results = pathlib.Path(sys.argv[1])
joined = {}
for path in sorted(results.glob("*.json")):
    joined[path.stem] = json.loads(path.read_text())
    path.unlink()
(results / "figures.json").write_text(json.dumps(joined, indent=1) + "\n")
PYTHON
}

# The tables of a program that runs in parts (random_test_0, random_test_1, ...), added up, in the place of the first.
add_up_parts() {
  python3 - "$results/output.txt" <<'PYTHON'
import pathlib, re, sys
path = pathlib.Path(sys.argv[1])
text = path.read_text()
PART = re.compile(r"( +Start +\d+: (\S+?)_\d+_(?:sim|gpu)\n)((?:.*\n)*?)(?=\[  PASSED)")

def added(lines):
    sums = [sum(map(int, each)) for each in zip(*(re.findall(r"\d+", line) for line in lines))]
    if lines[0].startswith("seeds "):
        return "seeds {} to {}".format(lines[0].split()[1], lines[-1].split()[3])
    if " pairs of kinds" in lines[0]:  # which are the same in each part
        sums[1] = max(int(re.findall(r"\d+", line)[1]) for line in lines)
    return re.sub(r"( *)\d+", lambda found: " " * bool(found[1]) + str(sums.pop(0)).rjust(len(found[0]) - bool(found[1])),
                  lines[0])

tables = {}
for _, name, table in PART.findall(text):
    tables.setdefault(name, []).append(table.splitlines())
for name, parts in tables.items():
    if len({re.sub(r" *\d+", "", "\n".join(part)) for part in parts}) != 1:
        continue  # one of them failed
    whole = [f"all {len(parts)} parts together:", *map(added, zip(*parts))]
    text = PART.sub(lambda found: found[0] if found[2] != name else
                    found[1] + "".join(line + "\n" for line in (whole.pop(0) for _ in range(len(whole)))), text)
path.write_text(text)
PYTHON
}

{
  echo "command: tests/deep/run.sh $build $runtime" | without_paths
  echo "date: $(date -u +%Y-%m-%dT%H:%M:%SZ)"
  echo "commit: $(git -C "$here" describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)"
  echo "seed: $ESCROW_SEED"
  echo "seconds: ${ESCROW_SECONDS:-as the programs choose}, stress $ESCROW_STRESS_SECONDS"
  "$root/tests/support/describe_machine.sh" "$runtime"
} | tee "$results/run.txt"

failed=()
if [[ $runtime == sim ]]; then
  "$here/fuzz.sh" "$results" | without_paths || failed+=("fuzzer")
fi
# All that the programs print goes to output.txt, the verdicts here as well.
ctest --test-dir "$build" -C deep -R "^deep\..*_$runtime\$" --no-tests=error --verbose \
  --output-log "$results/output.txt" --test-output-size-passed 4000000 --test-output-size-failed 4000000 |
  grep -E --line-buffered '^ *[0-9]+/[0-9]+ Test|% tests passed' || failed+=("tests")
if [[ $runtime == gpu ]]; then
  "$here/compute_sanitizer.sh" "$build" "$results" || failed+=("compute-sanitizer")
fi

join_figures || failed+=("figures")
# What the programs say, without what ctest and GoogleTest say around it.
sed -i -E '/^\[.*OUTPUT\]|^Internal ctest|^UpdateCTest|^Added [0-9]+ tests|^Checking test dep|^test [0-9]+$/d
  /^(Constructing a list|Done constructing|Updating test list|The following tests passed)|^ *$|^\tdeep\./d
  /^[0-9]+: (Test command|Working Directory|Environment variables|Test timeout|Running main|\[(==|--))/d
  /^[0-9]+: +[A-Z_]+=|^[0-9]+: *$/d; s/^[0-9]+: //' "$results/output.txt"
# Figures have a file, of a run that passed.
((${#failed[@]} > 0)) || sed -i -E '/^\w+_(sim|gpu): .* = /d' "$results/output.txt"
# Which test, if it printed something, or did not get to its end.
awk '/^\[ RUN /{if (run) print run; run = $0; next} /^\[ +OK \]/{run = ""; next} {if (run) print run; run = ""; print}' \
  "$results/output.txt" > "$results/output.new" && mv "$results/output.new" "$results/output.txt"
sed -i -E '/^ *[0-9]+\/[0-9]+ Test .*\.\.+ *$/{N; s/ *\n */ /}' "$results/output.txt"
add_up_parts || failed+=("tables")
for file in "$results"/*.txt; do
  without_paths < "$file" > "$file.new" && mv "$file.new" "$file"
done
{
  grep -E '^ *[0-9]+/[0-9]+ Test|% tests passed|Total Test time' "$results/output.txt"
  grep -hE '^(fuzzer|compute-sanitizer): ' "$results"/{fuzz,compute_sanitizer}.txt 2>/dev/null
  if ((${#failed[@]} == 0)); then echo "result: passed"; else echo "result: FAILED: ${failed[*]}"; fi
} >> "$results/run.txt"
echo "Results: $results" | without_paths
((${#failed[@]} == 0))
