#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Plants one bug at a time in a copy of the tree, and expects the test that the bug names to fail.
#   tools/planted.sh [NAME...]     the bugs of tests/planted/ whose names begin so (patterns, too), with or without
#                                  their part, e.g. pool/ or kept-; or all
#   tools/planted.sh --list        what there is, without running anything
# A bug is a file: plant.py beside them says what is in it. Exit status: 0 if each was found; 1 if one was not, if its
# text is not in the product any more, if it does not build, if there is no such test, or if a test fails without a bug.
set -uo pipefail
cd "$(dirname "$0")/.."

bugs=tests/planted
copy=$PWD/build/planted  # a work tree of its own, whose build folder stays warm
seconds_max=60           # for one test, unless it says `# seconds:`; a test that hangs has found its bug

header() { sed -n "s/^# $2: //p" "$bugs/$1.bug"; }  # bug, line. A bug is part/name

names() {
  local each wanted
  for each in "$bugs"/*/*.bug; do
    each=${each#"$bugs"/}
    each=${each%.bug}
    [ $# = 0 ] && echo "$each"
    for wanted in "$@"; do [[ $each == $wanted* || ${each#*/} == $wanted* ]] && echo "$each"; done
  done
}

list() {
  local each
  for each in $(names "$@"); do
    printf '%-52s %-12s %s\n' "$each" "$(header "$each" row)" "$(header "$each" bug)"
    printf '%-52s %-12s   %s\n' "" "" "$(header "$each" test)$(header "$each" none)"
  done
}

restore() { git -C "$copy" checkout -q -f .; }

# The tree as it is here, also what is not committed, but for files that git does not know. Only files that differ get
# a new time.
make_copy() {
  local commit
  commit=$(git stash create)
  commit=${commit:-$(git rev-parse HEAD)}
  git worktree prune
  if [ -e "$copy/.git" ]; then
    git -C "$copy" checkout -q -f --detach "$commit"
  else
    git worktree add -q --force --detach "$copy" "$commit"
  fi
}

configure() {
  local flags=()
  if command -v ccache >/dev/null; then
    export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros,include_file_mtime,include_file_ctime}
    flags=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_FLAGS=-fpch-preprocess)
  fi
  (cd "$copy" && cmake --preset sim -DESCROW_BUILD_BENCH=OFF -DCMAKE_UNITY_BUILD=OFF "${flags[@]}" &&
    ninja -C build/sim -t cleandead) >"$log" 2>&1  # of a test that was moved, one program is left
}

build() { (cd "$copy" && cmake --build --preset sim -j2 --target "$@") >"$log" 2>&1; }

# Prints what became of the test: passed, failed, or that it did not run.
run_test() {
  local name filter program status seconds
  seconds=$(header "$1" seconds)
  read -r name filter < <(header "$1" test)
  program=$(find "$copy/build/sim" -type f -name "$name")
  timeout -k 5 "${seconds:-$seconds_max}" "$program" --gtest_filter="$filter:*/$filter/*" >"$log" 2>&1
  status=$?
  if ! grep -q '^\[ RUN' "$log"; then
    echo "no such test"
  elif [ $status = 0 ]; then
    if grep -q '^\[  PASSED  \] [1-9]' "$log"; then echo passed; else echo "only skipped"; fi
  elif [ $status = 124 ]; then
    echo "hangs"
  elif [ $status -gt 128 ]; then
    echo "crashes"
  else
    echo "fails"
  fi
}

report() { printf '%-52s %-14s %5s s  %s\n' "$1" "$2" "$3" "$(header "$1" test)$(header "$1" none)"; }

# With each test once before any bug, so that a failure afterwards is the bug's.
run_without_bugs() {
  local each result
  build $(for each in "$@"; do header "$each" test | cut -d' ' -f1; done | sort -u) || { tail -30 "$log"; exit 1; }
  for each in "$@"; do
    result=$(run_test "$each")
    if [ "$result" != passed ]; then
      report "$each" "$result" 0
      echo "without a bug the test has to pass" && tail -5 "$log"
      failures=$((failures + 1))
    fi
  done
}

run_bug() {
  local start=$SECONDS result
  if ! python3 "$bugs/plant.py" "$bugs/$1.bug" "$copy" >"$log" 2>&1; then
    result="NOT PLANTED"
  elif ! build "$(header "$1" test | cut -d' ' -f1)"; then
    result="NOT BUILT"
  else
    result=$(run_test "$1")
  fi
  cp "$log" "$logs/${1//\//-}.log"
  restore
  case $result in fails | crashes | hangs) ;; *)
    result=${result/passed/NOT FOUND}
    failures=$((failures + 1))
    ;;
  esac
  report "$1" "$result" $((SECONDS - start))
}

main() {
  case ${1:-} in
    --list) shift && list "$@" && exit ;;
    -*) sed -n '/^#!\|^# SPDX/d; /^#/!q; s/^# \{0,1\}//p' "$0" && exit 2 ;;
  esac
  mkdir -p build
  exec 9>build/planted.lock
  flock -n 9 || { echo "another run has the copy" >&2; exit 1; }
  failures=0
  logs=$PWD/build/planted-logs
  mkdir -p "$logs"
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  local each chosen=() none=()
  for each in $(names "$@"); do
    if [ -n "$(header "$each" test)" ]; then chosen+=("$each"); else none+=("$each"); fi
  done
  [ ${#chosen[@]} -gt 0 ] || { echo "no such bug: $*" >&2; exit 1; }
  make_copy && configure || { tail -30 "$log"; exit 1; }
  restore
  run_without_bugs "${chosen[@]}"
  for each in "${chosen[@]}"; do run_bug "$each"; done
  for each in "${none[@]}"; do report "$each" "no bug" 0; done
  echo "${#chosen[@]} bugs planted, $failures failures, $SECONDS s"
  exit $((failures != 0))
}

main "$@"  # read to its end before it runs
