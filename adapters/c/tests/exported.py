#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the shared library of the C API exports the functions of its headers, and nothing else.

exported.py NM LIBRARY HEADERS
"""
import re
import subprocess
import sys
from pathlib import Path

nm, library, headers = sys.argv[1:]
lines = subprocess.run([nm, "-D", "--defined-only", "--format=posix", library], capture_output=True, text=True,
                       check=True).stdout.splitlines()
exported = {line.split()[0] for line in lines}
text = "".join(each.read_text() for each in sorted(Path(headers).glob("*.h")))
declared = set(re.findall(r"^[\w* ]*\b(escrow_\w+)\(", text, re.MULTILINE))
problems = [f"{name} is exported, and is not in the header" for name in sorted(exported - declared)]
problems += [f"{name} is in the header, and is not exported" for name in sorted(declared - exported)]
with_lines = set(re.findall(r"^#define (escrow_\w+)\(", text, re.MULTILINE))
called = set(re.findall(r"^(?:escrow_status|void) (escrow_\w+)\(", text, re.MULTILINE))
without_line = {"escrow_set_caller", "escrow_graphs_lock", "escrow_graphs_unlock"}  # they cannot fail
problems += [f"{name} is no macro in callers.h" for name in sorted(called - with_lines - without_line)]
print("\n".join(problems))
print(f"{Path(library).name}: {len(exported)} exported names, {len(problems)} problems")
sys.exit(1 if problems or len(exported) < 30 else 0)
