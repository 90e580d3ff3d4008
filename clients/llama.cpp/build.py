# SPDX-License-Identifier: Apache-2.0
"""Builds llama.cpp with both pools: the sources, the toolkit's parts, CMake and Ninja."""
import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import archive
import port

HERE = Path(__file__).parent
HEAD_SIZES = (64, 128)  # of flash attention, so that the build takes minutes


class BuildError(Exception):
    """The text says what could not be built."""


def prepare(files, work):
    """Makes work/source, which all variants share, and work/ported. Returns the lines added to and removed from ggml-cuda."""
    for name in ("source", "original", "ported"):
        shutil.rmtree(work / name, ignore_errors=True)
    archive.unpack(files, work / "source")
    shared, ported = work / "source/ggml/src/ggml-cuda", work / "ported/ggml-cuda"
    shutil.copytree(shared, work / "original")
    port.apply(shared, port.SHARED)
    shutil.copytree(shared, ported)
    port.apply(ported, port.PORT)
    leave_out_instances(shared / "template-instances")
    return port.changed_lines(work / "original", ported)


def leave_out_instances(folder):
    """Of flash attention, all head sizes but HEAD_SIZES."""
    kept = "|".join(map(str, HEAD_SIZES))
    for path in folder.glob("fattn-tile-instance-*.cu"):
        if not re.fullmatch(rf"fattn-tile-instance-dkq({kept})-dv\1", path.stem):
            path.unlink()
    for path in folder.glob("fattn-mma-f16-instance-*.cu"):
        path.write_text(re.sub(rf"^DECL_FATTN_MMA_F16_CASE\((?!(?:{kept}),).*\n", "", path.read_text(), flags=re.MULTILINE))


def gpu():
    """The compute capability of the first GPU, as (9, 0), and its driver's file; None if there is none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGet(ctypes.byref(device), 0) != 0:
        return None
    for value, attribute in ((major, 75), (minor, 76)):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, ..._MINOR
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
    maps = Path("/proc/self/maps").read_text()
    return (major.value, minor.value), re.search(r"\S*/libcuda\.so\S*", maps)[0]


def find_toolkit():
    """Puts a toolkit's nvcc into PATH, if it is not there."""
    roots = [os.environ.get(name) for name in ("CUDAToolkit_ROOT", "CUDA_PATH", "CUDA_HOME")] + ["/usr/local/cuda"]
    folders = [f"{root}/bin" for root in roots if root and Path(root, "bin/nvcc").exists()]
    if shutil.which("nvcc") is None and folders:
        os.environ["PATH"] = f"{folders[0]}:{os.environ.get('PATH', '')}"


def missing():
    """What this machine lacks, in words."""
    find_toolkit()
    lacks = [f"`{name}`, {what}" for name, what in (("nvcc", "of a CUDA Toolkit from 12.8 on"), ("cmake", "from 3.25 on"),
                                                    ("ninja", "any version"), ("g++", "from 12 on"))
             if shutil.which(name) is None]
    if gpu() is None:
        lacks.append("a GPU with its driver (libcuda.so.1)")
    return lacks


def toolkit_options(driver):
    """CMake options for what the toolkit's folder lacks: libraries from wheels have no plain name there."""
    toolkit = Path(shutil.which("nvcc")).resolve().parent.parent
    folders = [toolkit / name for name in ("lib64", "lib", "lib64/stubs", "lib/stubs")]
    folders += [*toolkit.glob("targets/*/lib"), *toolkit.glob("targets/*/lib/stubs")]
    wheels = importlib.util.find_spec("nvidia")
    elsewhere = [Path(each) for each in (wheels.submodule_search_locations if wheels else [])]
    elsewhere += [Path(each) for each in ("/usr/local", "/opt", "/usr/lib")]
    options = []
    for name in ("cudart", "cublas", "cublasLt"):
        if not any((folder / f"lib{name}.so").exists() for folder in folders):
            options.append(f"-DCUDA_{name}_LIBRARY={first_of(elsewhere, f'lib{name}.so*')}")
    if not any((folder / "libcuda.so").exists() for folder in folders):
        options.append(f"-DCUDA_cuda_driver_LIBRARY={driver}")
    if not any(path.exists() for path in (toolkit / "include/cublas_v2.h", *toolkit.glob("targets/*/include/cublas_v2.h"))):
        options.append(f"-DCMAKE_CUDA_FLAGS=-I{first_of(elsewhere, 'cublas_v2.h').parent}")
    return options


def first_of(folders, pattern):
    for folder in folders:
        for root, _, files in os.walk(folder):
            found = sorted(Path(root).glob(pattern)) if files else []
            if found:
                return found[0]
    raise BuildError(f"there is no {pattern}")


def build(work, jobs, seconds):
    """Configures and builds; the log is work/build.log."""
    capability, driver = gpu()
    made, log = work / "build", work / "build.log"
    steps = (
        ["cmake", "-G", "Ninja", "-S", str(HERE), "-B", str(made), f"-DLLAMA_WORK={work}",
         f"-DCMAKE_CUDA_ARCHITECTURES={capability[0]}{capability[1]}-real", *toolkit_options(driver)],
        ["ninja", "-C", str(made), "-j", str(jobs), "all_of_it"],
    )
    with log.open("w") as to:
        for step in steps:
            try:
                failed = subprocess.run(step, stdout=to, stderr=subprocess.STDOUT, timeout=seconds, check=False).returncode
            except subprocess.TimeoutExpired:
                failed = "out of time"
            if failed:
                lines = log.read_text(errors="replace").splitlines()
                first = next((i for i, line in enumerate(lines) if line.startswith("FAILED")), len(lines) - 30)
                text = "\n".join(lines[max(first, 0):][:30])
                raise BuildError(f"{step[0]}: {failed}\n{text}")
    return made
