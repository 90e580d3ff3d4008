# SPDX-License-Identifier: Apache-2.0
"""What is measured: each part has its own time, and what fails is noted, not the end."""
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

from programs import ESCROW, NO_VMM, ONE_GROUP, OWN, Program, ProgramError, run_once, tail

EAGER = {"GGML_CUDA_DISABLE_GRAPHS": "1"}
# Name, flash attention, environment, variants. An event between two kernels keeps programmatic launches from overlapping.
SPEEDS = {
    "graphs": (1, {}, (OWN, ESCROW, ONE_GROUP)),
    "graphs, no flash attention": (0, {}, (OWN, ESCROW)),
    "eager": (1, EAGER, (OWN, ESCROW)),
    "eager, no programmatic launches": (1, {**EAGER, "GGML_CUDA_PDL": "0"}, (OWN, ESCROW)),
    "eager, no flash attention": (0, EAGER, (OWN, ESCROW)),
}
ROUNDS_OF_A_PROCESS = 3
AGAIN = 20
CONTEXTS = [(count, variant) for count in (1, 8) for variant in (OWN, ESCROW, ONE_GROUP)]
# The last one may end by a fault: a full device makes that pool free what graphs use.
GROWTHS = [(0, OWN), (0, ESCROW), (0, ONE_GROUP), (256, OWN), (256, ESCROW), (256, ONE_GROUP), (256, NO_VMM)]
# Those that take scratch, and attention of the head sizes that are built.
POOL_OPERATIONS = ("MUL_MAT,SOFT_MAX,SOFT_MAX_BACK,ARGSORT,TOP_K,OUT_PROD,CUMSUM,MEAN,SUM,SOLVE_TRI,SSM_SCAN,"
                   "CROSS_ENTROPY_LOSS,MUL_MAT_HADAMARD")
OPERATIONS = {
    "pool": ["-j", "3", "-o", POOL_OPERATIONS],
    "attention": ["-j", "1", "-o", "FLASH_ATTN_EXT", "-p",
                  r"hsk=(64|128),hsv=(64|128),.*mask=1,.*type_K=f16,type_V=f16,permute=.0,1,2,3"],
    "experts": ["-j", "1", "-o", "MUL_MAT_ID", "-p", "m=512,n=(1|4|17|32),k=256"],
}


def measure_speed(name, build, model, rounds, deadline, seconds):
    """Rounds of each variant in turns; every other round goes backwards.

    A process keeps what luck it has with its memory: each serves a few rounds.
    """
    attention, environment, variants = SPEEDS[name]
    found, programs = {variant.name: [] for variant in variants}, {}
    end = deadline.spent() + seconds
    try:
        for i in range(rounds):
            if i > 0 and deadline.spent() > end:
                break
            in_turn = variants if i % 2 == 0 else variants[::-1]
            for variant in in_turn if i % ROUNDS_OF_A_PROCESS == 0 else ():
                if variant.name in programs:
                    programs.pop(variant.name).end()
                programs[variant.name] = Program(build, variant, ["speed", model, attention], deadline.left(40),
                                                 environment)
            for variant in in_turn:
                found[variant.name].append(programs[variant.name].ask(deadline.left(30)))
    except ProgramError as failed:
        found["failed"] = str(failed)
    finally:
        for program in programs.values():
            program.end()
    return found


def measure_contexts(attention, build, model, deadline):
    found = []
    for count, variant in CONTEXTS:
        row = {"contexts": count, "flash_attention": attention, "variant": variant.name}
        try:
            row |= run_once(build, variant, ["contexts", model, count, attention, 96], deadline.left(30))
        except ProgramError as failed:
            row["failed"] = str(failed)
        found.append(row)
    return found


def measure_growth(build, deadline):
    found = []
    for limit, variant in GROWTHS:
        row = {"limit_mib": limit, "variant": variant.name}
        try:
            row |= run_once(build, variant, ["growth", limit], deadline.left(25))
        except ProgramError as failed:
            row["failed"] = str(failed)
        found.append(row)
    return found


def measure_audits(build, model, deadline):
    """Each graph is audited when it is instantiated: as it is, and with a planted stale address, which must be refused."""
    found = []
    works = (("growing work", ["growth", 0]), ("decoder", ["contexts", model, 1, 1, 96]))
    for name, arguments, is_stale in [(*work, is_stale) for is_stale in (False, True) for work in works]:
        more = {"ESCROW_AUDIT": "1", **({"LAB_STALE": "1"} if is_stale else {})}
        row = {"work": name, "stale": is_stale}
        try:
            run_once(build, ESCROW, arguments, deadline.left(25), more)
        except ProgramError as failed:
            row["refused"] = str(failed)
        found.append(row)
    return found


def outcomes(text):
    """Of each case: ok, failed, or not supported. A case that ends the program has none."""
    found = {}
    for line in text.splitlines():
        case = re.match(r"\s*([A-Z0-9_]+\(.*\)): (.*)", re.sub(r"\x1b\[[0-9;]*m", "", line))
        if case:
            said = case[2].lower()
            found[case[1]] = "failed" if "fail" in said else "unsupported" if "not supported" in said else "ok"
    return found


def run_operations(build, name, variant, is_captured, seconds, arguments=None):
    path = build / f"operations.{name}.{variant.folder}.{'captured' if is_captured else 'eager'}"
    out, log = path.with_suffix(path.suffix + ".txt"), path.with_suffix(path.suffix + ".log")
    more = {"LD_PRELOAD": str(build / "bin/liblab-tests.so"), "LAB_TIMES": "3" if is_captured else "1"}
    command = [str(build / "bin/test-backend-ops"), "test", "-b", "CUDA0", *(arguments or OPERATIONS[name])]
    with out.open("w") as said, log.open("w") as errors:
        try:
            status = subprocess.run(command, stdout=said, stderr=errors, timeout=max(seconds, 1), check=False,
                                    env=variant.settings(build, more)).returncode
        except subprocess.TimeoutExpired:
            status = "out of time"
    begun = re.findall(r"^captures: (\d+)$", log.read_text(errors="replace"), re.MULTILINE)
    return {"outcomes": outcomes(out.read_text(errors="replace")), "status": status, "captures": sum(map(int, begun)),
            "log": tail(log)}


def compare_operations(own, escrow):
    """Counts of each, and the cases that differ."""
    both = own["outcomes"].keys() & escrow["outcomes"].keys()
    different = sorted(case for case in both if own["outcomes"][case] != escrow["outcomes"][case])
    ended = [its["status"] in (0, 1, "out of time") for its in (own, escrow)]  # 1: a case failed
    row = {"in_both": len(both), "different": len(different) + (ended[0] != ended[1]), "first_different": different[:3]}
    for who, its in (("own", own), ("escrow", escrow)):
        counts = {what: list(its["outcomes"].values()).count(what) for what in ("ok", "failed", "unsupported")}
        row[who] = {**counts, "status": its["status"], "captures": its["captures"]}
        if its["status"] != 0:
            row[who]["log"] = its["log"]
    return row


def measure_operations(build, deadline, seconds):
    """All at once: their time is mostly that of the CPU, which computes what the results are compared with."""
    runs = [(name, variant, is_captured) for is_captured in (False, True) for name in OPERATIONS
            for variant in (OWN, ESCROW)]
    limit = deadline.left(seconds)
    with ThreadPoolExecutor(len(runs)) as pool:
        done = list(pool.map(lambda run: run_operations(build, *run, limit), runs))
    by_run = dict(zip([(name, variant.name, is_captured) for name, variant, is_captured in runs], done))
    compared = {}
    for is_captured in (False, True):
        for name in OPERATIONS:
            row = compare_operations(by_run[name, OWN.name, is_captured], by_run[name, ESCROW.name, is_captured])
            if row["first_different"]:
                row["again"] = {case: failures_of(build, case, is_captured, deadline) for case in row["first_different"]}
                row["different"] -= sum(its[OWN.name] > 0 or its[ESCROW.name] == 0 for its in row["again"].values())
            compared[f"{name}, {'captured' if is_captured else 'eager'}"] = row
    return compared


def failures_of(build, case, is_captured, deadline):
    """Inputs are random, so that a case may fail once with any pool: so often each does of AGAIN times, alone."""
    operation, _, parameters = case.rstrip(")").partition("(")
    pattern = re.sub(r"[][().*+?^${}|\\]", ".", parameters)
    failed = {OWN.name: 0, ESCROW.name: 0}
    for _ in range(AGAIN):
        for variant in (OWN, ESCROW):
            done = run_operations(build, "again", variant, is_captured, deadline.left(10),
                                  ["-j", "1", "-o", operation, "-p", pattern])
            failed[variant.name] += "failed" in done["outcomes"].values()
    return failed


def measure(build, model, rounds, deadline, results, save):
    """All parts, the most important ones first."""
    def part(name, work):
        if deadline.left() < 10:
            print(f"== {name}: no time is left", flush=True)
            return
        begin = deadline.spent()
        results[name] = work()
        save()
        print(f"== {name}: {deadline.spent() - begin:.0f} s, {deadline.spent():.0f} s in all", flush=True)

    def speed(name):
        part(f"speed, {name}", lambda: measure_speed(name, build, model, rounds, deadline, 45))

    speed("graphs")
    part("contexts", lambda: measure_contexts(1, build, model, deadline))
    part("growth", lambda: measure_growth(build, deadline))
    part("audits", lambda: measure_audits(build, model, deadline))
    part("operations", lambda: measure_operations(build, deadline, 75))
    for name in list(SPEEDS)[1:-1]:
        speed(name)
    part("contexts, no flash attention", lambda: measure_contexts(0, build, model, deadline))
    speed(list(SPEEDS)[-1])
