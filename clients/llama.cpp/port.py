# SPDX-License-Identifier: Apache-2.0
"""The port: what changes in ggml-cuda's own files, by short anchors. Each must be found exactly once."""
import difflib
import re
from dataclasses import dataclass


class PortError(Exception):
    """The source is not the one that the edits were written for."""


@dataclass(frozen=True)
class Edit:
    """Replaces what `pattern` finds. Lines of `pattern` and `text` are whole lines, or parts of one line."""

    file: str
    why: str
    pattern: str
    text: str


# Needed by all objects: the pool's factory may use its context's streams. It changes nothing else.
SHARED = (
    Edit("common.cuh", "the pool's factory knows its context",
         r"\bstatic (?=std::unique_ptr<ggml_cuda_pool> new_pool_for_device\()", ""),
)
# These concern one object, ggml-cuda.cu, so one build has both variants.
PORT = (
    Edit("common.cuh", "Escrow's pool and execs",
         r"^(?=struct ggml_cuda_graph \{\n)", '#include "escrow_ggml.hpp"\n'),
    Edit("common.cuh", "the graph's type",
         r"\bcudaGraph_t (?=graph = nullptr;)", "escrow_captured * "),
    Edit("common.cuh", "the exec's type",
         r"\bcudaGraphExec_t (?=instance\b)", "escrow_exec * "),
    Edit("ggml-cuda.cu", "the pool",
         r"^#if .*\n    if \(.*\.vmm\) \{\n.*\n    \}\n#endif.*\n.*new ggml_cuda_pool_leg\(device\)\);\n",
         "    return std::make_unique<escrow_ggml_pool>(ggml_cuda_get_physical_device(device), "
         "this->stream(device, stream_no), pools[device][0].get());\n"),
    Edit("ggml-cuda.cu", "eager work shares the memory of the graphs",
         r"^    (ggml_cuda_graph_evaluate_and_capture\(.*\);)\n",
         r"    escrow_ggml_run(use_cuda_graph, cuda_ctx->pool(), [&] { \1 });" "\n"),
)
EDITS = SHARED + PORT


def apply(folder, edits):
    """Changes the files in `folder`, all or none."""
    texts = {}
    for edit in edits:
        path = folder / edit.file
        if path not in texts:
            if not path.is_file():
                raise PortError(f"{edit.file} is missing")
            texts[path] = path.read_text()
        texts[path], count = re.subn(edit.pattern, edit.text, texts[path], flags=re.MULTILINE)
        if count != 1:
            raise PortError(f"{edit.file}: the place for \"{edit.why}\" was found {count} times, not once: "
                            f"{edit.pattern}")
    for path, text in texts.items():
        path.write_text(text)


def changed_lines(before, after):
    """Lines added to, and removed from, the files that EDITS name."""
    added = removed = 0
    for file in sorted({edit.file for edit in EDITS}):
        old, new = ((folder / file).read_text().splitlines() for folder in (before, after))
        for line in difflib.unified_diff(old, new, n=0, lineterm=""):
            added += line.startswith("+") and not line.startswith("+++")
            removed += line.startswith("-") and not line.startswith("---")
    return added, removed
