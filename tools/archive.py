#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the archive of a release: archive.py [FOLDER]

FOLDER (build/archive) gets escrow-VERSION.tar.gz of the last commit: its files, and the reference as pages in docs/html. The
archive is made twice, in two places, and must be the same each time: sorted, with the commit's time, without an owner or a path
of the machine. Prints its SHA256. Needs git and Doxygen 1.9; other versions of these, of Python or of zlib may give other bytes.
"""
import gzip
import hashlib
import io
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def git(*arguments):
    return subprocess.run(["git", "-C", ROOT, *arguments], check=True, stdout=subprocess.PIPE).stdout


def version_of(root):
    numbers = re.findall(r"#define ESCROW_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", (root / "core/include/escrow/version.hpp").read_text())
    return ".".join(numbers)


def add_reference(root, version, work):
    """The pages of Doxygen in docs/html. Their links to files of the tree are relative."""
    text = (root / "docs/reference/Doxyfile.in").read_text()
    for name, value in {"PROJECT_VERSION": version, "Python3_EXECUTABLE": sys.executable, "PROJECT_SOURCE_DIR": root,
                        "PROJECT_BINARY_DIR": work}.items():
        text = text.replace(f"@{name}@", str(value))
    (work / "docs").mkdir()
    (work / "Doxyfile").write_text(text)
    subprocess.run(["doxygen", work / "Doxyfile"], cwd=root, check=True)
    shutil.copytree(work / "docs/html", root / "docs/html")
    for page in (root / "docs/html").rglob("*"):
        if page.is_file():
            page.write_bytes(page.read_bytes().replace(root.as_uri().encode(), b"../.."))
    for page in root.rglob("__pycache__"):
        shutil.rmtree(page)


def packed(root, seconds):
    """The folder as a .tar.gz, in which nothing depends on when, where or by whom it was made."""
    def plain(member):
        member.mtime, member.uid, member.gid, member.uname, member.gname = seconds, 0, 0, "", ""
        member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
        return member

    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in [root, *sorted(root.rglob("*"))]:
            archive.add(path, path.relative_to(root.parent), recursive=False, filter=plain)
    return gzip.compress(tar.getvalue(), mtime=0)


def made():
    """The archive's name, and its bytes."""
    seconds = int(git("log", "-1", "--format=%ct"))
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder).resolve()
        with tarfile.open(fileobj=io.BytesIO(git("archive", "--prefix=tree/", "HEAD"))) as tree:
            tree.extractall(work)
        version = version_of(work / "tree")
        root = (work / "tree").rename(work / f"escrow-{version}")
        add_reference(root, version, work)
        if any(folder.encode() in path.read_bytes() for path in root.rglob("*") if path.is_file()):
            sys.exit("The archive names the folder that it was made in.")
        return f"escrow-{version}.tar.gz", packed(root, seconds)


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/archive")
    name, first = made()
    if made() != (name, first):
        sys.exit(f"{name} differs from one that was made of the same commit.")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(first)
    print(f"{hashlib.sha256(first).hexdigest()}  {folder / name}")


if __name__ == "__main__":
    main()
