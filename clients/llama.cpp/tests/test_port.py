# SPDX-License-Identifier: Apache-2.0
"""What needs no GPU: archives and their hashes, the edits, and what a result's tables say."""
import os
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import archive  # noqa: E402
import build  # noqa: E402
import port  # noqa: E402
import report  # noqa: E402

# Made up: a file with the places that the edits look for.
COMMON = """// made up
struct ggml_cuda_graph {
    ~ggml_cuda_graph() { CUDA_CHECK(cudaGraphDestroy(graph)); }
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t instance = nullptr;
};
struct made_up {
    static std::unique_ptr<ggml_cuda_pool> new_pool_for_device(int device, int stream_no);
};
"""
SOURCE = """// made up
void make() {
#if HAS_VMM
    if (is(device).vmm) {
        return a;
    }
#endif
    return b(new ggml_cuda_pool_leg(device));
}
void run() {
    CUDA_CHECK(cudaGraphDestroy(graph->graph));
    ggml_cuda_graph_evaluate_and_capture(everything);
}
"""


class MadeUp(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)


class Archives(MadeUp):
    files = {"LICENSE": b"of nobody\n", "ggml/src/ggml-cuda/common.cuh": COMMON.encode()}

    def test_other_content_is_refused(self):
        archive.write(self.files, self.folder / "made_up.tar.xz")
        with self.assertRaisesRegex(archive.ArchiveError, "its 2 files have the hash"):
            archive.read(self.folder / "made_up.tar.xz")

    def test_the_small_archive_has_what_the_large_one_has(self):
        large, small = self.folder / "large.tar.gz", self.folder / "small.tar.xz"
        archive.unpack(self.files, self.folder / "llama.cpp")
        (self.folder / "llama.cpp/README.md").write_text("not needed\n")
        with tarfile.open(large, "w:gz") as made:
            made.add(self.folder / "llama.cpp", "package-1/vendor/llama.cpp")
        expected = archive.content_hash(self.files)
        archive.write(archive.read(large, expected), small)
        self.assertEqual(archive.read(small, expected), self.files)

    def test_what_is_no_archive_is_refused(self):
        (self.folder / "text").write_text("no archive\n")
        with self.assertRaisesRegex(archive.ArchiveError, "cannot be read"):
            archive.read(self.folder / "text")


class Edits(MadeUp):
    def write(self, common=COMMON, source=SOURCE):
        (self.folder / "common.cuh").write_text(common)
        (self.folder / "ggml-cuda.cu").write_text(source)

    def test_each_applies_once(self):
        self.write()
        port.apply(self.folder, port.EDITS)
        common, source = ((self.folder / name).read_text() for name in ("common.cuh", "ggml-cuda.cu"))
        self.assertIn('#include "escrow_ggml.hpp"\nstruct ggml_cuda_graph {', common)
        self.assertIn("escrow_exec * instance = nullptr;", common)
        self.assertNotIn("static std::unique_ptr", common)
        self.assertNotIn("vmm", source)
        self.assertIn("[&] { ggml_cuda_graph_evaluate_and_capture(everything); }", source)
        self.assertIn("escrow_captured * graph = nullptr;", common)

    def test_lines_are_counted(self):
        before = self.folder / "before"
        before.mkdir()
        for name, text in (("common.cuh", COMMON), ("ggml-cuda.cu", SOURCE)):
            (before / name).write_text(text)
        self.write()
        port.apply(self.folder, port.EDITS)
        self.assertEqual(port.changed_lines(before, self.folder), (6, 10))

    def test_a_missing_place_changes_nothing(self):
        self.write(source=SOURCE.replace("evaluate_and_capture", "evaluate"))
        with self.assertRaisesRegex(port.PortError, "eager work shares .* found 0 times, not once"):
            port.apply(self.folder, port.EDITS)
        self.assertEqual((self.folder / "common.cuh").read_text(), COMMON)

    def test_a_second_place_is_refused(self):
        self.write(common=COMMON + COMMON)
        with self.assertRaisesRegex(port.PortError, "found 2 times, not once"):
            port.apply(self.folder, port.EDITS)

    def test_a_missing_file_is_named(self):
        with self.assertRaisesRegex(port.PortError, "common.cuh is missing"):
            port.apply(self.folder, port.EDITS)


class Instances(MadeUp):
    def test_two_head_sizes_are_left(self):
        for name in ("tile-instance-dkq64-dv64", "tile-instance-dkq128-dv128", "tile-instance-dkq192-dv128"):
            (self.folder / f"fattn-{name}.cu").touch()
        mma = self.folder / "fattn-mma-f16-instance-ncols1_8-ncols2_1.cu"
        mma.write_text("".join(f"DECL_FATTN_MMA_F16_CASE({size}, {size}, 8, 1);\n" for size in (64, 96, 128, 640)))
        build.leave_out_instances(self.folder)
        self.assertEqual(len(list(self.folder.glob("fattn-tile-*"))), 2)
        self.assertEqual(mma.read_text().count("\n"), 2)


class Reports(unittest.TestCase):
    def rounds(self, decode, logits="a"):
        return [{"prefill": [100.0], "decode": [decode], "mixed": [100.0],
                 **{name: logits for name in report.LOGITS}}] * 4

    def verdicts(self, result):
        return {what: (value, is_met) for what, _, value, is_met in report.goals(result)}

    def test_without_figures_nothing_is_met(self):
        self.assertEqual(set(self.verdicts({}).values()), {(report.NOT_MEASURED, None)})
        self.assertFalse(report.are_met({}))
        self.assertIn(report.NOT_MEASURED, report.tables({}))

    def test_speeds_are_compared_with_its_own_pool(self):
        found = self.verdicts({"speed, graphs": {"own": self.rounds(100.0), "Escrow": self.rounds(97.0)}})
        self.assertEqual(found["tokens/s with graphs, decode"], ("0.970", False))
        self.assertEqual(found["tokens/s with graphs, mixed"], ("1.000", True))
        self.assertEqual(found["configurations with other logits"], ("0", True))

    def test_other_logits_are_seen(self):
        found = self.verdicts({"speed, graphs": {"own": self.rounds(1.0), "Escrow": self.rounds(1.0, "b")}})
        self.assertEqual(found["configurations with other logits"], ("1", False))

    def test_a_fault_counts(self):
        found = self.verdicts({"growth": [{"limit_mib": 256, "variant": "Escrow", "failed": "a fault"}]})
        self.assertEqual(found["faults, wrong results, recaptures with 256 MiB left"], ("1", False))


class WithoutGpu(unittest.TestCase):
    def test_says_what_it_needs(self):
        environment = {**os.environ, "PATH": "", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run([sys.executable, "-B", str(HERE.parent / "run.py")], capture_output=True, text=True,
                              env=environment, check=False)
        self.assertEqual(done.returncode, 77)
        self.assertRegex(done.stderr, "`ninja`.*a GPU with its driver")


if __name__ == "__main__":
    unittest.main()
