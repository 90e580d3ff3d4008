# SPDX-License-Identifier: Apache-2.0
"""llama.cpp's source: from PyPI's source archive of llama-cpp-python, or from an archive that lies there already.

Both the archive of PyPI and a small one that `write()` makes of it are accepted: what counts is the content of the files
that are needed, of which one hash is known.
"""
import hashlib
import io
import re
import subprocess
import sys
import tarfile
from pathlib import Path

PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"  # of PyPI's archive
CONTENT_SHA256 = "9000aaad4ac7c2cf8e4918e85e11b9fd37da5591be3f0e4a702a7b6f6431ccba"
# What is built, by its place in llama.cpp.
NEEDED = re.compile(
    r"(?:CMakeLists\.txt|LICENSE|(?:cmake|include|src)/.*|tests/test-backend-ops\.cpp"
    r"|ggml/(?:CMakeLists\.txt|(?:cmake|include)/.*)|ggml/src/(?:[^/]*|ggml-(?:cpu|cuda)/.*))")


class ArchiveError(Exception):
    """The archive cannot be had, or is another one."""


def download(folder):
    """PyPI's archive, whose hash is checked. Pip asks the package for its metadata, so it also gets what that needs."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{PACKAGE.replace('-', '_')}-{VERSION}.tar.gz"
    if not path.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", PACKAGE,
                   "--dest", str(folder), f"{PACKAGE}=={VERSION}"]
        if subprocess.run(command, check=False).returncode != 0 or not path.exists():
            raise ArchiveError(f"pip could not get {PACKAGE}=={VERSION}. Without a network, name its archive: --archive FILE")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != SHA256:
        raise ArchiveError(f"{path.name} has the sha256 {found}, not {SHA256}")
    return path


def read(path, expected=None):
    """The needed files, by their place in llama.cpp, whose content is checked."""
    files = {}
    try:
        with tarfile.open(path) as opened:
            for member in opened:
                name = re.sub(r"^(?:[^/]+/vendor/)?llama\.cpp/", "", member.name)
                if name != member.name and member.isfile() and NEEDED.fullmatch(name):
                    files[name] = opened.extractfile(member).read()
    except (OSError, tarfile.TarError) as failed:
        raise ArchiveError(f"{path} cannot be read: {failed}") from failed
    if content_hash(files) != (expected or CONTENT_SHA256):
        raise ArchiveError(f"{path} is not {PACKAGE} {VERSION}: its {len(files)} files have the hash {content_hash(files)}, "
                           f"not {expected or CONTENT_SHA256}")
    return files


def content_hash(files):
    """Of names and contents."""
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(f"{hashlib.sha256(files[name]).hexdigest()} {name}\n".encode())
    return total.hexdigest()


def unpack(files, folder):
    """Writes the files. What is not needed of llama.cpp's `vendor` is an empty project."""
    for name, content in {**files, "vendor/CMakeLists.txt": b""}.items():
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def write(files, path):
    """A small archive of the needed files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:xz") as made:
        for name in sorted(files):
            member = tarfile.TarInfo(f"llama.cpp/{name}")
            member.size = len(files[name])
            made.addfile(member, io.BytesIO(files[name]))
