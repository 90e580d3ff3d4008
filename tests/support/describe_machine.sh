#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Says on what machine results were made: system, processors, GPUs.
#
#   tests/support/describe_machine.sh sim|gpu
set -uo pipefail

[[ $# -eq 1 && ($1 == sim || $1 == gpu) ]] || { sed -n '4s/^#   //p' "$0" >&2; exit 2; }
uname -srm | sed 's/-[^ ]*//'  # without what a builder added to the kernel's version
sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | sort | uniq -c | sed 's/^ *//'
if [[ $1 == sim ]]; then
  echo "no GPU used: the runtime was simulated"
elif command -v nvidia-smi > /dev/null; then
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
fi
