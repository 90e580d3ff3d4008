#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`pip install` into an empty folder, on the simulated runtime, and a program that imports what is there."""

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

PROGRAM = """
import sys
sys.modules["torch"] = None
import ctypes, importlib.metadata, pathlib
import escrow, escrow.torch
assert pathlib.Path(escrow.__file__).is_relative_to(sys.argv[1]), escrow.__file__
assert importlib.metadata.version("escrow-cuda") == escrow.__version__
runtime, stream = ctypes.CDLL(sys.argv[2]), ctypes.c_void_p()
assert runtime.cudaStreamCreateWithFlags(ctypes.byref(stream), 1) == 0
with escrow.ScratchPool(label="of a wheel").claim(stream.value, 1 << 20) as lease:
    assert lease.ptr % 256 == 0
    assert escrow.stats()["memory"]["bytes_in_use"] == 1 << 20
assert escrow.torch.stats(0)["deleter"]["leaked"] == 0  # one copy of the library
try:
    escrow.StreamAllocator().free(stream.value, 1)
except escrow.UsageError as error:
    assert str(error).startswith("StreamAllocator.free: "), error
print(escrow.__version__)
"""


def missing():
    """What the build needs and this Python has not."""
    return [
        name for name in ("nanobind", "scikit_build_core", "pip") if importlib.util.find_spec(name) is None
    ]


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False, **options)
    if done.returncode != 0:
        print(done.stdout, done.stderr, sep="\n")
        sys.exit(f"{command[0]} returned {done.returncode}")
    return done.stdout


def main():
    if missing():
        print(f"skipped: {', '.join(missing())} cannot be imported: install them by pip, or set PYTHONPATH")
        return 77
    source, folder = pathlib.Path(os.environ["ESCROW_SOURCE"]), pathlib.Path(os.environ["ESCROW_WHEEL_TEST"])
    library = pathlib.Path(os.environ["ESCROW_LIBRARY"])
    site = folder / "site"
    shutil.rmtree(site, ignore_errors=True)
    run(
        sys.executable,
        "-m",
        "pip",
        "install",
        str(source),
        "--target",
        str(site),
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--quiet",
        "-C",
        f"build-dir={folder}/build",
        "-C",
        f"cmake.define.ESCROW_WHEEL_SIMULATED={library.resolve()}",
    )
    names = {each.name for each in (site / "escrow").iterdir()}
    assert {"py.typed", "_escrow.pyi", "cupy.py", "numba.py", "cuda_core.py", "torch.py"} <= names, names
    installed = next((site / "escrow").glob("libescrow_simulated.so.*"))
    environment = {**os.environ, "PYTHONPATH": str(site)}
    environment.pop("ESCROW_TORCH_LIBRARY", None)
    print(run(sys.executable, "-c", PROGRAM, str(site), str(installed), cwd=folder, env=environment))
    return 0


if __name__ == "__main__":
    sys.exit(main())
