#!/usr/bin/env python3
"""Writes documented_errors.inc: which errors CUDA's manual names for each call that the library makes.

    python3 tests/faults/documented_errors.py /usr/local/cuda/include/cuda_runtime_api.h

The manual's text stands in the header's comments: the list after \\return, and \\note_init_rt for "may also return
cudaErrorInitializationError, cudaErrorInsufficientDriver or cudaErrorNoDevice".
"""
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# What the enumeration calls otherwise.
SPELLED = {"cudaErrorDeviceUnavailable": "cudaErrorDevicesUnavailable",
           "cudaErrorOutOfMemory": "cudaErrorMemoryAllocation"}
# What hooks of the operations call.
OF_HOOKS = {"cudaLaunchKernel"}
# They tell of errors, and return none of their own.
TELLING = {"cudaGetLastError", "cudaPeekAtLastError", "cudaGetErrorName", "cudaGetErrorString"}

# Of the driver, whose manual in cuda.h has another form; the numbers of its errors are the runtime's.
OF_DRIVER = {
    "cuCtxGetDevice": ["cudaErrorInvalidValue", "cudaErrorDeviceUninitialized"],
    "cuCtxPopCurrent": ["cudaErrorDeviceUninitialized"],
    "cuCtxPushCurrent": ["cudaErrorInvalidValue", "cudaErrorDeviceUninitialized"],
    "cuGraphKernelNodeGetAttribute": ["cudaErrorInvalidValue", "cudaErrorInvalidResourceHandle"],
    "cuGraphKernelNodeGetParams": ["cudaErrorInvalidValue", "cudaErrorDeviceUninitialized"],
    "cuStreamGetCtx": ["cudaErrorInvalidValue", "cudaErrorInvalidResourceHandle"],
}


def calls_of_the_library():
    called = set(OF_HOOKS)
    for part in ("core", "deleter", "pool", "graph", "nodes"):
        for path in (*(ROOT / part).rglob("*.cpp"), *(ROOT / part).rglob("*.hpp")):
            code = re.sub(r"//.*", "", path.read_text())
            called |= set(re.findall(r"\b(cuda[A-Z]\w+)\(", code))
            called |= set(re.findall(r"&\s*(cuda[A-Z]\w+)\b", code))
    return called


def errors_of(text):
    """The errors that one function's comment names, in its order."""
    named = re.search(r"\\return(.*?)(?:\\note|\\sa|\\param|\*/|\n \*\s*\n)", text, re.S)
    errors = re.findall(r"::(cudaError\w+)", named[1]) if named else []
    return list(dict.fromkeys(SPELLED.get(each, each) for each in errors))


def rows(header):
    wanted = calls_of_the_library()
    # A comment, and the name of the function that is declared after it.
    found = re.findall(r"(/\*\*(?:(?!\*/).)*\*/)\s*(?:#if[^\n]*\n\s*)?extern[^;{]*?CUDARTAPI (\w+)\(", header, re.S)
    for comment, name in sorted(found, key=lambda each: each[1]):
        if name in wanted and name not in TELLING:
            yield name, "true" if "\\note_init_rt" in comment else "false", errors_of(comment)


def main():
    header = Path(sys.argv[1]).read_text()
    version = re.search(r"#define CUDART_VERSION\s+(\d+)", header)[1]
    lines = [f"// Which errors the manual of CUDA {int(version) // 1000}.{int(version) % 1000 // 10} names for each call."
             " Written by documented_errors.py."]
    of_driver = [(name, "true", errors) for name, errors in OF_DRIVER.items()]
    for name, initialises, errors in (*of_driver, *rows(header)):
        lines.append(f'{{"{name}", {initialises}, {{{", ".join(errors)}}}}},')
    (HERE / "documented_errors.inc").write_text("\n".join(lines) + "\n")


main()
