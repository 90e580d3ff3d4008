#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Style as a test: which part may include which, lengths, first lines, banned words, and what pages name."""
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()

# Which parts each part may include. Tests, benches and examples may include all.
MAY_INCLUDE = {
    "core": {"core"},
    "deleter": {"core", "deleter"},
    "pool": {"core", "deleter", "pool"},
    "graph": {"core", "deleter", "graph"},
    "nodes": {"core", "deleter", "graph", "nodes"},
    "sim": {"sim"},
}
# The files of each part in an order in which they can be read: each includes only what stands before it. A header and
# its .cpp are one name.
READING_ORDER = {
    "core": "version environment never_destroyed shared_count used_alone made_once spin_lock json profiler error last_error retry_cleanup stream enqueue own_stream cuda12 capture device driver graph_lifetime_lock event"
    " ready_event shared_event graph_query",
    "deleter": "use_clock reclaimable retired_object deleter_options address_lookup sharing_group launch_end launch_order parked_group group_lease kept_sets held_memory hoist_note group_scope reachable_allocator release_queue wakeup deleter_accounts"
    " pending_events reference_set graph_registry graph_exposure memory_of_graphs recycle_lane object_store deleter_core hold set_reclaim deleter group_leases group_stats worker pass shared_object kernel_argument",
    "pool": "address_number peers memory_book address_range store_place device_store graph_walk released_walk slot_pool slot arena arena_layout lease claimer resource_pool search device_memory free_lists size_class scratch_pool kept_bound claimer_streams capture_reuse stream_use deferred_slots pool_sizes pool_list slot_pool_state claim_search claim kept_memory at_limit refuse uses lease_end release deferred"
    " uncovered watched_leases captured arena_claims arena_scopes arena_parking lifecycle describe memory_report memory_report_text stream_allocator",
    "graph": "audited_call graph_tree kernel_attributes why_invalid graph_core kept_leases shared_claims graph_shape graph_survey late_release holding group_run group_park graph node_words audit refuse_audited dead_stack hoist graph_exec exec_state exec_changes"
    " exec_set stream_launcher",
    "nodes": "bound_arguments launch node_kind any_kind node_kinds node_notes build node read_node",
    "sim": "control recording kernel library recapture cuda12_names guard slots handles recycled work pages faulting_access single_step work_pages pinned_pages device_pages order used callers objects edges state thread"
    " graphs conditionals memory_faults apart graph_memory counts freed memory address_ranges libraries operands overruns accesses unordered ops races claims lone_uses runner_shared faults runner_free runner_stepped runner reset"
    " call driver_call driver_kernels kernels nodes families ends recaptures captures streams launch execs"
    " api api_errors api_device api_streams api_events api_memory api_pools api_ranges api_copies api_libraries api_functions api_launch api_capture"
    " api_graphs api_nodes api_node_params api_edges api_dot api_users api_execs api_exec_nodes api_driver_kernels api_driver",
}
LINE_MAX, FILE_MAX, FUNCTION_MAX, README_MAX, CLASS_WORDS_MAX = 100, 401, 70, 110, 200
BANNED = {
    r"\bTODO\b|\bFIXME\b|\bXXX\b": "finish it, or leave it out",
    r"\bacquire\(\)": "acquire is a memory order; say claim",
    r"memory_order_consume": "use acquire",
}


def names():
    """The files of the repository; where git is missing or does not know, all that are there."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=False
    ).stdout if shutil.which("git") else ""
    return listed.splitlines() or [str(p.relative_to(ROOT)) for p in ROOT.rglob("*")]


def sources():
    parts = (*MAY_INCLUDE, "adapters", "tests", "bench", "examples", "tools", "clients")
    for name in names():
        path = ROOT / name
        if name.split("/")[0] in parts and path.suffix in {".hpp", ".cpp", ".cu", ".h", ".c"} and path.exists():
            yield name, path.read_text().split("\n")


# Which part has a header of escrow/detail/, which what users include needs, or of escrow/internal/, which is not installed.
DETAIL = {p.name: part for part in MAY_INCLUDE for folder in ("detail", "internal")
          for p in (ROOT / part / "include/escrow" / folder).glob("*.hpp")}


def included_part(line):
    detail = re.match(r'#include [<"]escrow/(?:detail|internal)/(\w+\.hpp)', line)
    if detail:
        return DETAIL.get(detail[1])
    match = re.match(r'#include [<"]escrow/(\w+)[./]', line)
    if not match:
        return None
    return "core" if match[1] == "version" else match[1]


def check_includes(name, lines):
    allowed = MAY_INCLUDE.get(name.split("/")[0])
    for number, line in enumerate(lines, 1):
        part = included_part(line)
        if allowed and part in MAY_INCLUDE and part not in allowed:
            yield f"{name}:{number}: {name.split('/')[0]} may not include {part}"


def included_file(part, line):
    """The name in READING_ORDER of a file of `part` that the line includes."""
    match = re.match(r'#include [<"](?:escrow/(\w+)/)?(\w+)\.hpp[>"]', line)
    if not match:
        return None
    folder, name = match[1], match[2]
    if folder in ("detail", "internal"):
        return name if DETAIL.get(name + ".hpp") == part else None
    if folder is None:
        return name if (ROOT / part / (name + ".hpp")).exists() else None
    return name if folder == part else None


def check_reading_order(all_sources):
    """Includes inside a part run one way."""
    seen = set()
    for name, lines in all_sources:
        part, path = name.split("/")[0], Path(name)
        if part not in READING_ORDER or name == f"{part}/include/escrow/{part}.hpp":
            continue
        order = READING_ORDER[part].split()
        if path.stem not in order:
            yield f"{name}: READING_ORDER of {part} does not name it"
            continue
        seen.add((part, path.stem))
        for number, line in enumerate(lines, 1):
            other = included_file(part, line)
            if other is None or other == path.stem:
                continue
            if other in order[order.index(path.stem) :]:
                yield f"{name}:{number}: includes {other}, which stands behind it in READING_ORDER"
    yield from (f"tidy: there is no {stem} in {part}" for part, order in READING_ORDER.items()
                for stem in order.split() if (part, stem) not in seen)


def check_exports(name, lines):
    """What users include promises nothing of detail/, and needs nothing of internal/."""
    is_umbrella = name.split("/")[0] in MAY_INCLUDE and name.endswith(f"/include/escrow/{name.split('/')[0]}.hpp")
    for number, line in enumerate(lines, 1):
        if "escrow/detail/" in line and line.startswith("#include") and (is_umbrella or "IWYU pragma: export" in line):
            yield f"{name}:{number}: exports a header of detail/"
        if "escrow/internal/" in line and re.search(r"/include/escrow/(?!internal/)", name):
            yield f"{name}:{number}: includes a header that is not installed"


def check_atomics(name, lines):
    if name.split("/")[0] not in {*MAY_INCLUDE, "adapters"} or "/tests/" in name:
        return
    for number, line in enumerate(lines, 1):
        if re.search(r"\.(load|store|exchange|fetch_\w+|compare_exchange_\w+)\(", line):
            call = " ".join(lines[number - 1 : number + 2])
            if "memory_order" not in call:
                yield f"{name}:{number}: an atomic operation without a named order"


def check_lengths(name, lines):
    if len(lines) > FILE_MAX:
        yield f"{name}: {len(lines)} lines, at most {FILE_MAX}"
    for number, line in enumerate(lines, 1):
        if len(line) > LINE_MAX:
            yield f"{name}:{number}: {len(line)} columns, at most {LINE_MAX}"
    start = None
    for number, line in enumerate(lines, 1):
        if start is None and re.match(r"^(  )?(?!class |struct )[^\s#/}].*\) .*\{$|^(  )?[^\s#/}].*\) \{$", line):
            start, indent = number, len(line) - len(line.lstrip())
        elif start and line.startswith(" " * indent + "}"):
            if number - start > FUNCTION_MAX:
                yield f"{name}:{start}: a function of {number - start} lines, at most {FUNCTION_MAX}"
            start = None


# A comment, and the class whose definition follows, perhaps with template parameters and constraints between.
COMMENTED_CLASS = re.compile(
    r"((?:^ *//(?: .*)?\n)+)"
    r"(?:^ *(?:template|requires)\b[^;{]*?\n)?"
    r"^ *(?:class|struct)\b(?: (?:\[\[\w+\]\]|ESCROW_\w+|alignas\(\w+\)))* (\w+)(?:<[^;{]*>)?(?: final)?\s*(?::[^;{]*)?\{",
    re.MULTILINE,
)


def check_class_comments(name, lines):
    """A public class's comment is short: what concerns one function is said there, explanations are on pages."""
    if not re.search(r"/include/escrow/(?!detail/|internal/).*\.hpp$", name):
        return
    text = "\n".join(lines)
    for found in COMMENTED_CLASS.finditer(text):
        words = len(re.sub(r"^ *//", "", found[1], flags=re.MULTILINE).split())
        if words > CLASS_WORDS_MAX:
            number = text.count("\n", 0, found.start()) + 1
            yield f"{name}:{number}: class {found[2]}: {words} words, at most {CLASS_WORDS_MAX}"


LICENSE = "SPDX-License-Identifier: Apache-2.0"


def check_license():
    """Each source file has the line of its licence: the first, or the one behind `#!`."""
    for name in names():
        slashes = re.search(r"\.(?:hpp|cpp|cu|h|c)$", name)
        hashes = re.search(r"\.(?:py|pyi|sh|cmake|cmake\.in)$|(?:^|/)CMakeLists\.txt$|^\.ci/run$", name)
        if not (slashes or hashes) or name.startswith("build") and "/" in name or not (ROOT / name).is_file():
            continue
        lines = (ROOT / name).read_text().split("\n", 2)
        if lines[lines[0].startswith("#!")] != f"{'//' if slashes else '#'} {LICENSE}":
            yield f"{name}: its first line must be {LICENSE}"


def check_words(name, lines):
    if not lines[1].startswith("//"):
        yield f"{name}:2: the line behind the licence's must say what the file is for"
    if name.endswith(".hpp") and any(line.startswith("using namespace") for line in lines):
        yield f"{name}: a header must not open a namespace for who includes it"
    for number, line in enumerate(lines, 1):
        for pattern, advice in BANNED.items():
            if re.search(pattern, line):
                yield f"{name}:{number}: '{pattern}': {advice}"
        if name.split("/")[0] in MAY_INCLUDE and re.match(r"\s*///", line):
            yield f"{name}:{number}: write // in place of ///"


def check_version():
    """What names the version names that of version.hpp. The changelog and results also name others."""
    text = (ROOT / "core/include/escrow/version.hpp").read_text()
    version = re.findall(r"#define ESCROW_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", text)
    dotted = ".".join(version)
    spelling = re.compile(r"\bescrow::(?:inline )?v(\d+)_(\d+)|find_package\(escrow (\d+)\.(\d+)|libescrow\w*\.so\.(\d+)\.(\d+)")
    for name in names():
        path = ROOT / name
        is_read = re.search(r"\.(?:hpp|cpp|cu|h|c|py|md|cmake|txt|in)$", name) and not re.match(r"build|(?:bench|tests)/results/", name)
        if is_read and path.is_file() and name != "CHANGELOG.md":
            for found in spelling.findall(path.read_text()):
                if [number for number in found if number] != version[:2]:
                    yield f"{name}: names version {'.'.join(filter(None, found))}, not {dotted}"
    if f"\n## {dotted} - " not in (ROOT / "CHANGELOG.md").read_text():
        yield f"CHANGELOG.md: has no section {dotted}"
    if f'"version": "{dotted}"' not in (ROOT / "packaging/vcpkg/escrow/vcpkg.json").read_text():
        yield f"packaging/vcpkg/escrow/vcpkg.json: its version is not {dotted}"


def check_named_tests(all_sources):
    """A test or a test program that a page, a script or a planted bug names is there."""
    programs = {Path(name).stem for name, _ in all_sources}
    tests = set()
    for _, lines in all_sources:
        found = re.findall(r"\bTEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", "\n".join(lines))
        tests |= {f"{suite}.{test}" for suite, test in found} | {f"{suite}.*" for suite, _ in found}
    for page in pages():
        for named in re.findall(r"`([A-Z]\w*\.(?:[A-Z]\w*|\*))`", page.read_text()):
            if named not in tests:
                yield f"{page.relative_to(ROOT)}: there is no test {named}"
    for path in [ROOT / "tests/deep.sh", *(ROOT / "tools").glob("*.sh"), *(ROOT / "tests/planted").rglob("*.bug")]:
        text = path.read_text()
        named = set(re.findall(r"^# test: \S+ (?:\*/)?(\w+\.[\w*]+)", text, re.MULTILINE)) - tests
        lists = re.findall(r"tests=\((.*?)\)|^# test: (\S+)|^ +(\w+_test)\) echo", text, re.MULTILINE)
        named |= {name.removesuffix("_sim") for each in lists for name in " ".join(each).split()} - programs
        for name in sorted(named):
            yield f"{path.relative_to(ROOT)}: there is no test {name}"


def pages():
    """All pages but those of builds."""
    found = (ROOT / name for name in names() if name.endswith(".md") and not name.startswith("build/"))
    return [page for page in found if page.exists()]


# Pages for users state what is promised; proof/lifetimes.md names the tests, under the headings of the first two.
CONTRACTS = ("docs/lifetimes.md", "docs/nodes.md", "docs/glossary.md", "docs/guides", "README.md")
PROMISE_TESTS = "docs/proof/lifetimes.md"


def check_contracts():
    """Contracts are apart from the names of their tests, and each group of tests has its contract."""
    for page in pages():
        name = str(page.relative_to(ROOT))
        if not any(name == each or name.startswith(each + "/") for each in CONTRACTS):
            continue
        for named in re.findall(r"`([A-Z]\w*\.(?:[A-Z]\w*\*?|\*))`", page.read_text()):
            yield f"{name}: names the test {named}: that belongs into {PROMISE_TESTS}"
    by_hand = {f"graphs-built-by-hand-{each}" for each in headings(ROOT / "docs/nodes.md")}
    promised = headings(ROOT / "docs/lifetimes.md") | by_hand
    for heading in sorted(headings(ROOT / PROMISE_TESTS) - promised - {"tests-of-lifetimes"}):
        yield f"{PROMISE_TESTS}: no contract has the heading #{heading}"


def headings(page):
    """The anchors of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def check_links():
    """What a page links to is there, also the heading."""
    for page in pages():
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if re.match(r"https?:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (anchor and anchor not in headings(target)):
                yield f"{page.relative_to(ROOT)}: {link} leads nowhere"


def check_named_files():
    """A file that a page names by its path is there. Two pages also name what was there before."""
    parts = "|".join((*MAY_INCLUDE, "tests", "bench", "examples", "docs"))
    for page in pages():
        for named in re.findall(rf"`((?:{parts})/[\w/]+\.\w+)`", page.read_text()):
            if page.name not in ("CHANGELOG.md", "renames.md") and not (ROOT / named).exists():
                yield f"{page.relative_to(ROOT)}: there is no {named}"


def check_readme():
    length = len((ROOT / "README.md").read_text().splitlines())
    if length > README_MAX:
        yield f"README.md: {length} lines, at most {README_MAX}"


# Pages that show an example's parts, which stand there between two comments `// [name]`.
SHOWN = {"README.md": "examples/scratch.cpp", "docs/guides/story.md": "examples/story.cpp"}


def check_shown_examples():
    """What a page shows of an example is what is compiled and run."""
    for page, example in SHOWN.items():
        parts = re.findall(r"^// \[(\w+)\]\n(.*?)^// \[\1\]$", (ROOT / example).read_text(), re.DOTALL | re.MULTILINE)
        if not parts:
            yield f"{example}: has no part that {page} shows"
        for name, code in parts:
            if f"```cpp\n{code}```" not in (ROOT / page).read_text():
                yield f"{page}: does not show [{name}] of {example}"


def check_sizes():
    """The lines that the contributing page tells are those of its folders, to within a tenth."""
    page = (ROOT / "docs/contributing.md").read_text()
    rows = re.findall(r"^\| ((?:`[\w/]+` ?)+) \| ([\d,]+) \|", page, re.MULTILINE)
    if not rows:
        yield "docs/contributing.md: has no table of sizes"
    for folders, told in rows:
        under = tuple(f"{each}/" for each in re.findall(r"`([\w/]+)`", folders))
        files = [ROOT / name for name in names() if name.startswith(under) and re.search(r"\.(hpp|cpp|cu|h|c|py)$", name)]
        lines = sum(path.read_text().count("\n") for path in files if path.exists())
        if abs(lines - int(told.replace(",", ""))) > lines / 10:
            yield f"docs/contributing.md: {folders} has {lines} lines, not {told}"


def check_figures():
    """Each figure is as its script draws it."""
    for script in sorted((ROOT / "docs/figures").glob("*.py")):
        drawn = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
        if drawn.returncode != 0:
            yield f"{script.relative_to(ROOT)}: {(drawn.stdout or drawn.stderr).strip()}"


def main():
    checks = (check_includes, check_exports, check_atomics, check_lengths, check_class_comments, check_words)
    all_sources = list(sources())
    problems = [problem for each in all_sources for check in checks for problem in check(*each)]
    problems += check_version()
    problems += check_reading_order(all_sources)
    problems += check_named_tests(all_sources)
    problems += [*check_links(), *check_contracts(), *check_named_files(), *check_readme(), *check_shown_examples()]
    problems += [*check_sizes(), *check_figures()]
    problems += check_license()
    for problem in problems:
        print(problem)
    print(f"{len(all_sources)} files, {len(problems)} problems")
    return 1 if problems or not all_sources else 0


if __name__ == "__main__":
    sys.exit(main())
