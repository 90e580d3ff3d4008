# SPDX-License-Identifier: Apache-2.0
"""Runs the programs of a build with one variant of ggml-cuda: to their end, or line by line, so that several take turns."""
import json
import os
import select
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Variant:
    """Which ggml-cuda, and its environment."""

    name: str
    folder: str = "bin"
    environment: dict = field(default_factory=dict)

    def settings(self, build, more):
        # The driver of some machines is found by this variable alone.
        before = os.environ.get("LD_LIBRARY_PATH")
        paths = [str(build / self.folder), str(build / "bin"), *([before] if before else [])]
        return {**os.environ, "GGML_NO_BACKTRACE": "1", **self.environment, **more, "LD_LIBRARY_PATH": ":".join(paths)}


OWN = Variant("own")
NO_VMM = Variant("own, no VMM", "own-no-vmm")
ESCROW = Variant("Escrow", "escrow")
ONE_GROUP = Variant("Escrow, one group", "escrow", {"ESCROW_GGML_GROUP": "process"})


class ProgramError(Exception):
    """A program failed; the text has its last words."""


class Deadline:
    """When all must be done, on the clock that never goes back."""

    def __init__(self, seconds):
        self.begin = time.monotonic()
        self.end = self.begin + seconds

    def spent(self):
        return time.monotonic() - self.begin

    def left(self, most=float("inf")):
        return max(0.0, min(self.end - time.monotonic(), most))


class Program:
    """The lab, which answers a line of standard input with a line of JSON."""

    def __init__(self, build, variant, arguments, seconds, more=None):
        self.log = build / f"{arguments[0]}.{variant.name.replace(', ', '-').replace(' ', '-')}.log"
        cores = os.sched_getaffinity(0)
        with self.log.open("w") as errors:
            try:
                os.sched_setaffinity(0, sorted(cores)[:4])  # all on the same ones: they take turns
                self.process = subprocess.Popen(
                    [str(build / "bin/lab"), *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                    stderr=errors, text=True, env=variant.settings(build, more or {}))
            finally:
                os.sched_setaffinity(0, cores)
        try:
            self.check(variant, self.answer(seconds))
        except ProgramError:
            self.end()
            raise

    @staticmethod
    def check(variant, said):
        """A mistake in the paths would compare a library with itself."""
        if Path(said["library"]).parent.name != variant.folder:
            raise ProgramError(f"{variant.name}: {said['library']} was loaded")

    def ask(self, seconds):
        try:
            self.process.stdin.write("round\n")
            self.process.stdin.flush()
        except OSError as failed:
            raise ProgramError(self.last_words()) from failed
        return self.answer(seconds)

    def answer(self, seconds):
        ready, _, _ = select.select([self.process.stdout], [], [], max(seconds, 0.1))
        text = self.process.stdout.readline() if ready else ""
        if not text.endswith("\n"):
            raise ProgramError("no answer in time" if not ready else self.last_words())
        said = json.loads(text)
        if "failed" in said:
            raise ProgramError(said["failed"])
        return said

    def last_words(self):
        return f"exit status {self.process.wait(10)}: {tail(self.log)}"

    def end(self):
        try:
            self.process.stdin.close()
            self.process.wait(5)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()


def tail(log):
    lines = log.read_text(errors="replace").strip().splitlines()
    return " | ".join(line.strip() for line in lines[-4:])[-400:]


def run_once(build, variant, arguments, seconds, more=None):
    """The one line of a program that ends by itself."""
    log = build / f"{arguments[0]}.log"
    with log.open("w") as errors:
        try:
            done = subprocess.run([str(build / "bin/lab"), *map(str, arguments)], stdout=subprocess.PIPE, stderr=errors,
                                  text=True, timeout=max(seconds, 1), check=False, env=variant.settings(build, more or {}))
        except subprocess.TimeoutExpired as late:
            raise ProgramError("out of time") from late
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        raise ProgramError(f"exit status {done.returncode}: {' '.join(lines)} {tail(log)}")
    said = json.loads(lines[-1])
    Program.check(variant, said)
    return said
