#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes which errors CUDA's manual names for each call, as rows of C++.

    documented_errors.py OUTPUT INCLUDE_FOLDER...

The manual's text stands in the comments of cuda_runtime_api.h: the list after \\return, and \\note_init_rt for "may also
return cudaErrorInitializationError, cudaErrorInsufficientDriver or cudaErrorNoDevice".
"""
import re
import sys
from pathlib import Path

# What the enumeration calls otherwise.
SPELLED = {"cudaErrorDeviceUnavailable": "cudaErrorDevicesUnavailable",
           "cudaErrorOutOfMemory": "cudaErrorMemoryAllocation"}

# Of the driver, whose manual in cuda.h has another form; the numbers of its errors are the runtime's.
OF_DRIVER = {
    "cuCtxGetDevice": ["cudaErrorInvalidValue", "cudaErrorDeviceUninitialized"],
    "cuCtxGetId": ["cudaErrorInvalidValue", "cudaErrorDeviceUninitialized"],
    "cuCtxPopCurrent": ["cudaErrorDeviceUninitialized"],
    "cuCtxPushCurrent": ["cudaErrorInvalidValue", "cudaErrorDeviceUninitialized"],
    "cuDeviceGetAttribute": ["cudaErrorInvalidValue", "cudaErrorInvalidDevice", "cudaErrorDeviceUninitialized"],
    "cuDevicePrimaryCtxRelease": ["cudaErrorInvalidDevice", "cudaErrorInvalidValue", "cudaErrorUnknown"],
    "cuDevicePrimaryCtxRetain": ["cudaErrorInvalidDevice", "cudaErrorInvalidValue", "cudaErrorMemoryAllocation",
                                 "cudaErrorUnknown"],
    "cuFuncGetName": ["cudaErrorInvalidValue"],
    "cuFuncGetParamInfo": ["cudaErrorInvalidValue"],
    "cuGraphKernelNodeGetAttribute": ["cudaErrorInvalidValue", "cudaErrorInvalidResourceHandle"],
    "cuGraphKernelNodeGetParams": ["cudaErrorInvalidValue", "cudaErrorDeviceUninitialized"],
    "cuMemAddressFree": ["cudaErrorInvalidValue", "cudaErrorNotPermitted", "cudaErrorNotSupported"],
    "cuMemAddressReserve": ["cudaErrorInvalidValue", "cudaErrorMemoryAllocation", "cudaErrorNotPermitted",
                            "cudaErrorNotSupported"],
    "cuMemCreate": ["cudaErrorInvalidValue", "cudaErrorMemoryAllocation", "cudaErrorInvalidDevice",
                    "cudaErrorNotPermitted", "cudaErrorNotSupported"],
    "cuMemGetAllocationGranularity": ["cudaErrorInvalidValue", "cudaErrorNotPermitted", "cudaErrorNotSupported"],
    "cuMemMap": ["cudaErrorInvalidValue", "cudaErrorMemoryAllocation", "cudaErrorInvalidDevice",
                 "cudaErrorNotPermitted", "cudaErrorNotSupported"],
    "cuMemRelease": ["cudaErrorInvalidValue", "cudaErrorNotPermitted", "cudaErrorNotSupported"],
    "cuMemSetAccess": ["cudaErrorInvalidValue", "cudaErrorInvalidDevice", "cudaErrorNotSupported"],
    "cuMemUnmap": ["cudaErrorInvalidValue", "cudaErrorNotPermitted", "cudaErrorNotSupported"],
    "cuPointerGetAttributes": ["cudaErrorDeviceUninitialized", "cudaErrorInvalidValue", "cudaErrorInvalidDevice"],
    "cuStreamGetCtx": ["cudaErrorInvalidValue", "cudaErrorInvalidResourceHandle"],
}


def errors_of(text):
    """The errors that one function's comment names, in its order."""
    named = re.search(r"\\return(.*?)(?:\\note|\\sa|\\param|\*/|\n \*\s*\n)", text, re.S)
    errors = re.findall(r"::(cudaError\w+)", named[1]) if named else []
    return dict.fromkeys(SPELLED.get(each, each) for each in errors)


def rows(header):
    # A comment, and the name of the function that is declared after it.
    found = re.findall(r"(/\*\*(?:(?!\*/).)*\*/)\s*(?:#if[^\n]*\n\s*)?extern[^;{]*?CUDARTAPI (\w+)\(", header, re.S)
    for comment, name in found:
        yield name, "true" if "\\note_init_rt" in comment else "false", errors_of(comment)


def main():
    folder = next(path for path in map(Path, sys.argv[2:]) if (path / "cuda_runtime_api.h").exists())
    there = set(re.findall(r"\bcudaError\w+", (folder / "driver_types.h").read_text()))  # the manual names others, too
    of_driver = [(name, "true", errors) for name, errors in OF_DRIVER.items()]
    with open(sys.argv[1], "w") as out:
        for name, initialises, errors in (*of_driver, *rows((folder / "cuda_runtime_api.h").read_text())):
            out.write(f'{{"{name}", {initialises}, {{{", ".join(e for e in errors if e in there)}}}}},\n')


main()
