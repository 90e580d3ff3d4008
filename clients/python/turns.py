# SPDX-License-Identifier: Apache-2.0
"""Rounds of processes, one for each way in turn: what changes on the machine meanwhile meets all of them."""

import json
import subprocess
import sys
import time


def rounds_of(script, ways, count, seconds):
    """For each round and way what `script --one WAY` prints last, as JSON."""
    def run(way, number):
        begin = time.monotonic()
        done = subprocess.run([sys.executable, "-B", script, "--one", way], stdout=subprocess.PIPE, text=True,
                              timeout=seconds, check=True)
        print(f"round {number + 1} of {count}, {way}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
        return json.loads(done.stdout.splitlines()[-1])
    return [{way: run(way, number) for way in ways} for number in range(count)]
