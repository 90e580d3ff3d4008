#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks all public functions and classes: public_functions.py CHECK [arguments...]

operations                   each function has an operation in tests/faults whose calls are made to fail, `runs("type::name")`,
                             or a reason why not
exported NM LIBRARY PARTS... a shared Escrow exports all that the headers mark with ESCROW_API, and nothing else but the
                             simulated runtime's; PARTS are the archives of its parts
reference DOXYGEN DOXYFILE   the reference is built without a warning and has each of them

The public headers are those of core, deleter, pool, graph and nodes, without what is marked `// Internal:`.
"""
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
KEYWORDS = {"if", "for", "while", "switch", "return", "requires", "decltype", "noexcept", "static_assert", "sizeof",
            "alignas", "explicit", "catch", "constexpr", "operator"}
# Public functions that no operation is a test of, and why. `type::*` stands for all of a type's functions that have none.
EXCEPTED = {
    # They call no CUDA function and allocate nothing.
    "any_kind::*": "a value; add() and the like run its draft",
    "conditional_node::*": "gives a body that is there",
    "graph_lifetime_lock::*": "a lock",
    "event::*": "hands a handle over",
    "event_ref::*": "a value",
    "capture_options::*": "a value",
    "graph_ref::*": "a value",
    "graph::id": "gives a number",
    "body_graph::body_graph": "a value",
    "body_graph::~body_graph": "a value",
    "graph_builder_ref::graph_builder_ref": "a value",
    "graph_builder_ref::~graph_builder_ref": "a value",
    "graph_builder_ref::node_of": "a value",
    "graph_exec::copies": "gives a number",
    "graph_exec::get": "gives a handle",
    "graph_exec::is_bare": "gives a bool",
    "hoisted::*": "moves; the end of one calls release_after(), see release_at_end(), or no CUDA function",
    "is_sticky": "a table",
    "kernel::*": "a value",
    "lease::*": "gives a reference",
    "buffer_lease::*": "a lease with a count",
    "deleter::retire_as": "retire() under another name",
    "deleter::stats": "gives counts",
    "device_block::operator bool": "gives a bool",
    "device_buffer::data": "gives an address",
    "device_buffer::operator bool": "gives a bool",
    "device_buffer::size": "gives a number",
    "library::get": "gives a handle",
    "kernel_argument_traits::*": "customisations; launches and nodes with owners and leases run them",
    "memory_source::device": "functions to be called",
    "resource_pool::describe": "a text",
    "resource_pool::device": "gives a number",
    "resource_pool::holders": "gives a list",
    "resource_pool::stats": "gives counts",
    "scratch_pool::block_bytes": "computes a number",
    "scratch_pool::bytes": "gives a number",
    "scratch_pool::describe": "a text",
    "scratch_pool::holders": "gives a list",
    "scratch_pool::stats": "gives counts",
    "scratch_pools::scratch_pools": "asks for the number of devices, as every pool does",
    "sharing_group::*": "counts, and texts of counts; calls no CUDA function",
    "source_location::*": "a value",
    "stream_allocator::device": "gives a number",
    "stream_allocator::is_allocated": "gives a bool",
    "stream_allocator::pool": "gives a reference",
    "stream_ref::*": "a value",
    "succeeded": "clears the last error, which cannot fail",
    # The rest.
    "check": "throws what it is given; every operation runs it",
    "cuda_error::*": "a value that is thrown; out of memory, another exception is",
    "deleter::global": "makes one deleter for the process, once; as the operation 'deleter with a thread, made'",
    "stream_allocator::deallocate_or_report": "deallocate, and a report of what it throws",
    "stream_allocator::record_stream": "lease::record_stream, with the lease found by its address",
    "group_busy::*": "a value that is thrown",
    "pool_exhausted::*": "a value that is thrown",
    "usage_error::*": "a value that is thrown",
}


def without_comments(text, keep_marks=False):
    if not keep_marks:
        text = re.sub(r"// Internal: ", "internal //", text)
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"^\s*#[^\n]*", "", text, flags=re.M)
    if not keep_marks:
        text = re.sub(r"\bESCROW_(?:API|LOCAL)\b", "", text)
    return re.sub(r'"(?:\\.|[^"\\])*"', '""', text)


def statements(text):
    """The declarations of one scope, each as (head, body), body None if it ends with a semicolon."""
    head, at = "", 0
    while at < len(text):
        char = text[at]
        if char == ";":
            yield head.strip(), None
            head = ""
        elif char == "{":
            depth, end = 1, at + 1
            while depth:
                depth += {"{": 1, "}": -1}.get(text[end], 0)
                end += 1
            body, at = text[at + 1 : end - 1], end - 1
            following = re.match(r"\s*[,{]", text[end:])
            if following or re.search(r"[=(,]\s*$|\breturn\s*$", head) or is_open(head):
                head += "{}"  # an initialiser
            else:
                yield head.strip(), body
                head = ""
        else:
            head += char
        at += 1


def is_open(head):
    return head.count("(") > head.count(")")


def without_templates(head):
    """The head without template parameters and constraints in front."""
    while True:
        head = head.strip()
        if head.startswith("template"):
            at = head.index("<")
            depth = 0
            for end in range(at, len(head)):
                depth += {"<": 1, ">": -1}.get(head[end], 0)
                if depth == 0:
                    break
            head = head[end + 1 :]
        else:
            return head


def function_name(head):
    head = re.sub(r"\[\[.*?\]\]", "", without_templates(head))
    if re.search(r"\bstd::function<|^[^(]*\w(?:<T>)?::\w+\(", head):
        return None  # a member that is a function object, or a definition outside of its class
    head = re.sub(r"^\s*requires[^;]*?(?=\b(?:void|auto|class|struct|std::shared_ptr<T>)\b)", "", head, flags=re.S)
    conversion = re.search(r"\boperator\b\s*([^\s(]+)\s*\(", head)
    if conversion:
        return "operator " + conversion[1]
    for found in re.finditer(r"(~?\w+)\s*\(", head):
        if found[1] not in KEYWORDS:
            return found[1]
    return None


def is_trivial(head, body):
    """Deleted or defaulted, or an accessor: one line that returns what is there and calls nothing."""
    if re.search(r"=\s*(default|delete)\s*$|\bfriend\b|^using\b|^typedef\b", head):
        return True
    return body is not None and re.fullmatch(r"\s*return\s+[\w.:\->]+(\(\))?(\s*[!=]=\s*[\w:.]+)?;\s*", body) is not None


def functions_of(scope_name, text, is_public=True):
    """Names of public functions, as Type::function or function."""
    for raw, body in statements(text):
        head = raw
        while True:
            label = re.match(r"\s*(public|private|protected)\s*:", head)
            if not label:
                break
            is_public, head = label[1] == "public", head[label.end() :]
        if head.strip().startswith("internal"):
            continue
        bare = re.sub(r"\[\[.*?\]\]|alignas\(\w+\)", "", without_templates(head)).strip()
        bare = re.sub(r"^requires.*?(?=\b(?:class|struct)\b)", "", bare, flags=re.S)
        nested = re.match(r"(class|struct)\s+(\w+)", bare)
        if bare.startswith("namespace"):
            if body is not None and not re.search(r"\bdetail\b", bare):
                yield from functions_of("", body)
        elif nested:
            if is_public and body is not None and not (scope_name and nested[2].endswith("_now")):
                yield from functions_of(nested[2], body, nested[1] == "struct")
        elif is_public and not bare.startswith(("enum", "union", "concept", "extern")) and not is_trivial(bare, body):
            name = function_name(head)
            if name and "=" not in bare.split("(")[0]:
                yield f"{scope_name}::{name}" if scope_name else name


def public_functions(folder=None):
    """Of each part; `folder` "detail" or "internal": what operations may run, too."""
    found = set()
    for part in ("core", "deleter", "pool", "graph", "nodes"):
        for header in sorted((ROOT / part / "include/escrow" / (folder or part)).glob("*.hpp")):
            found |= set(functions_of("", without_comments(header.read_text())))
    return found


def operations():
    there = public_functions()
    run = set()
    for source in (ROOT / "tests/faults").glob("*.?pp"):
        for named in re.findall(r"\bruns\(([^()]*)\)", source.read_text()):
            run |= {name for text in re.findall(r'"([^"]+)"', named) for name in text.split()}
    reasoned = {name for name in there - run if name in EXCEPTED or name.split("::")[0] + "::*" in EXCEPTED}
    used = reasoned | {name.split("::")[0] + "::*" for name in reasoned}
    unknown = run - there - public_functions("detail") - public_functions("internal")
    problems = [f"{name}: no operation runs it, and no reason why not is above" for name in sorted(there - run - reasoned)]
    problems += [f"{name}: there is no such public function" for name in sorted(unknown)]
    problems += [f"{name}: EXCEPTED names what is not there, or has an operation" for name in sorted(set(EXCEPTED) - used)]
    return problems, there


def symbols(nm, *options):
    """The types and names of the symbols that are defined, as the linker has them."""
    lines = subprocess.run([nm, "-p", "--defined-only", "--format=posix", *options], capture_output=True, text=True,
                           check=True).stdout.splitlines()
    return [(fields[1], fields[0]) for fields in map(str.split, lines) if len(fields) > 2]


def demangled(names):
    text = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return dict(zip(names, text.splitlines()))


def scopes(name):
    """The names of a function or class in escrow::, from outside in; nothing for what is not Escrow's."""
    match = re.match(r"(?:typeinfo (?:name )?for |vtable for )?escrow::(?:v\d+_\d+::)?(?:detail::)?([\w:~]+)", name)
    return match[1].split("::") if match else []


def exported(nm, library, *parts):
    headers = "\n".join(without_comments(path.read_text(), keep_marks=True)
                        for path in sorted(ROOT.glob("*/include/escrow/**/*.hpp")))
    marked = set(re.findall(r"\b(?:class|struct) (?:\[\[nodiscard\]\] )?ESCROW_API (\w+)", headers))
    marked |= set(re.findall(r"ESCROW_API [^;{(]*?(\w+)\(", headers))
    marked |= {"retired_object"}  # one member is marked: its templates stay with who calls them
    # Classes whose members can be seen: private nested ones are only declared in public headers.
    defined = set(re.findall(r"\b(?:class|struct)\b(?: \[\[\w+\]\]| ESCROW_\w+| alignas\(\w+\))* (\w+)[^;{()]*\{", headers))
    is_simulated = "simulated" in Path(library).name
    there = {name for _, name in symbols(nm, "-D", library)}
    of_parts = {name for kind, name in symbols(nm, *parts) if kind == "T"}
    text = demangled(sorted(there | of_parts))

    def is_public(name, of):
        path = scopes(text[name])
        return bool(path) and path[0] in of and all(outer in defined for outer in path[:-1])

    def may_be_there(name):
        return is_public(name, marked) or is_simulated and (
            name.startswith("cuda") or scopes(text[name])[:1] == ["sim"])

    promised = {name.split("::")[0] for name in public_functions()}
    problems = [f"{text[name]} is exported, and is not public" for name in sorted(there) if not may_be_there(name)]
    problems += [f"{text[name]} is public, and is not exported" for name in sorted(of_parts - there)
                 if is_public(name, promised)]
    return problems, there


# What a class's comment speaks of may be left out: constructors, the destructor, assignment, members of specializations.
SPECIAL = re.compile(r"(\w+)::(~?\1|operator =)|kernel_argument_traits::.*")
HIDDEN = re.compile(r"\bv\d+_\d+\b|ESCROW_(API|LOCAL)|namespace escrow::detail|Internal:|\[\[nodiscard")


def shown(tag_file):
    """Every class, and every function as Type::function or function."""
    for compound in ElementTree.parse(tag_file).getroot():
        scope = re.sub(r"<.*|.*::", "", compound.findtext("name", ""))
        if compound.get("kind") in ("class", "struct"):
            yield scope
        for member in compound.findall("member"):
            name = re.sub(r"^operator(?=\w)", "operator ", member.findtext("name", ""))
            yield f"{scope}::{name}" if compound.get("kind") in ("class", "struct") else name


def reference(doxygen, doxyfile):
    pages = Path(re.search(r"^OUTPUT_DIRECTORY = (.*)", Path(doxyfile).read_text(), re.MULTILINE)[1])
    shutil.rmtree(pages / "html", ignore_errors=True)  # or pages of what is left out now would stay
    subprocess.run([doxygen, doxyfile], cwd=ROOT, check=True)
    there = set(shown(pages / "tags.xml"))
    expected = {re.sub(r"operator\s*(?=\W)", "operator", name) for name in public_functions() if not SPECIAL.fullmatch(name)}
    expected |= {name.split("::")[0] for name in public_functions() if "::" in name}
    problems = [f"{name} is not in the reference" for name in sorted(expected - there)]
    problems += [f"{page.name}: shows {HIDDEN.search(page.read_text())[0]}" for page in sorted(pages.glob("html/*escrow*.html"))
                 if HIDDEN.search(page.read_text())]
    problems += [f"{page.name}: shows markup as text" for page in sorted(pages.glob("html/*.html")) if "&lt;tt&gt;" in page.read_text()]
    return problems, expected


def main():
    checks = {each.__name__: each for each in (operations, exported, reference)}
    problems, checked = checks[sys.argv[1]](*sys.argv[2:])
    print("\n".join([*problems, f"{len(checked)} functions and classes, {len(problems)} problems"]))
    return 1 if problems or len(checked) < 100 else 0


if __name__ == "__main__":
    sys.exit(main())
