#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What Doxygen reads in place of a public header or of a page: filter.py FILE

In a header, plain comments above declarations and behind them become Doxygen's. In a page, headings get names, and
links lead to these names, or into the source tree. Lines keep their numbers: a warning names the line of the file.
"""
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Words that Doxygen's pages do not show.
UNSHOWN = re.compile(r"::inline v\d+_\d+|\[\[nodiscard\]\] |\bESCROW_(?:API|LOCAL) ")
# The labels of public comments. Each begins a paragraph.
LABEL = re.compile(
    r"(What|Thread safety(?:, Capture)?|Memory ordering|Lifetime|Capture|Errors|Waits|Contexts|Example): "
)
FORWARD = re.compile(r"(?:template <.*>\s*)?(?:class|struct) \w+;")
# What is for Escrow's own parts is left out.
INTERNAL = re.compile(r"\s*// Internal: ")
# Without a comment these are left out: the comment of their class speaks of them, or there is nothing to say.
LEFT_OUT = re.compile(r"~\w+\(|= (?:delete|default);|\(\w+&&|operator(?:==|=)\(|\bfriend |static_assert")
OPENS_SCOPE = re.compile(
    r"\s*(?:template <[^{;]*>\s*)?(?:requires[^{;]*)?\b(?:namespace|class|struct|enum)\b[^()]*\{\s*$", re.DOTALL
)


def plain(text):
    """Text with nothing that Doxygen takes for a command, a link or HTML. Code in backticks stays as it is."""
    text = text.replace("e.g. ", "e.g.\u00a0")  # else the summary ends there
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part[:1] == "`" else re.sub(r"([\\@#<>&%])", r"\\\1", part) for part in parts)


def documentation(comment):
    """A comment's lines as Doxygen's: a label begins a paragraph, and so does a line that is indented after one that is
    not. What is indented by four or more is code."""
    result, is_labelled, indent = [], False, 0
    for line in (re.sub(r"\s*// ?", "", each, count=1) for each in comment if "NOLINT" not in each):
        before, indent = indent, len(line) - len(line.lstrip())
        label = LABEL.match(line)
        if indent >= 4 or not line:
            is_labelled = False
            result.append(line)
        elif label:
            is_labelled = True
            text = line[label.end() :]
            is_first = label[1] == "What"
            result.append(plain(text[0].upper() + text[1:]) if is_first else f"<p><b>{label[1]}:</b> {plain(text)}")
        else:
            begins = indent and not before and not is_labelled
            result.append(("<p>" if begins else "") + plain(line.strip()))
    return [f"/// {line}".rstrip() for line in result]


def without_comment(line):
    return re.sub(r"\s*//.*", "", line)


def comment_end(lines, at):
    while at < len(lines) and re.match(r"\s*//( |$)", lines[at]):
        at += 1
    return at


def declaration_end(lines, at):
    """Behind the declaration that begins there: where a namespace, class or enum opens, or where it ends."""
    depth, text = 0, ""
    while at < len(lines):
        code = re.sub(r'"(\\.|[^"\\])*"', "", without_comment(lines[at]))
        text, depth, at = text + code + "\n", depth + code.count("{") - code.count("}"), at + 1
        if depth == 1 and code.endswith("{") and OPENS_SCOPE.match(text):
            break
        if depth == 0 and code.endswith((";", "}")):
            break
    return at


def internal_end(lines, at):
    """Behind the declaration, a class included."""
    end = declaration_end(lines, at)
    if lines[end - 1].endswith("{"):
        end = lines.index(re.match(" *", lines[at])[0] + "};", end) + 1
    return end


def function_name(declared):
    match = re.search(r"([~\w]+)\(", re.sub(r"template <[^{;]*>\n|requires[^{;]*?\)\s", "", declared))
    return match and match[1]


def speaks_for_itself(declared):
    """Variables, and functions of one line with their body: they appear without a comment."""
    code = [line for line in declared if line and not line.lstrip().startswith("template")]
    return len(code) == 1 and (re.match(r"[^(]* = ", code[0]) or not re.search(r"\)(?: const)?(?: noexcept)?;$", code[0]))


def commented(declared, comment):
    return [f"/** {comment} */ {declared[0]}", *declared[1:]]


def header_lines(name, lines):
    if lines[0].startswith("// SPDX-"):
        yield ""
        lines = lines[1:]
    end = comment_end(lines, 0)
    first, *more = documentation(lines[:end])
    yield from ["/// @file", f"/// @anchor {label(name)} {first[4:]}", *more]
    at = end + 1  # behind `#pragma once`, in whose place @file is
    comment, name_above, is_commented, is_specialization = [], None, False, False
    while at < len(lines):
        code = without_comment(lines[at])
        private = re.match(r"( +)(?:private|protected):", code)
        end = comment_end(lines, at)
        if private:  # up to the end of the class
            while not lines[at].startswith(private[1][1:] + "}"):
                yield ""
                at += 1
        elif end > at and INTERNAL.match(lines[at]):
            end = internal_end(lines, end)
            yield from [""] * (end - at)
            comment, is_commented, at = [], False, end
        elif end > at:
            is_above = end < len(lines) and re.match(r"\s*[^\s#}]", lines[end])
            comment = documentation(lines[at:end]) if is_above else []
            yield from comment + [""] * (end - at - len(comment))
            is_commented, at = bool(comment), end
        elif not code or re.match(r"#|\s*}|\s*public:", code):
            yield code + ("  ///< &zwj;" if code.startswith("#define") else "")
            comment, is_commented, at = [], False, at + 1
            is_specialization = is_specialization and not code.startswith("}")
        else:
            end = declaration_end(lines, at)
            declared = [without_comment(each) for each in lines[at:end]]
            text = "\n".join(declared)
            name_here = function_name(text)
            trailing = lines[at][len(code) :].strip() if len(declared) == 1 else ""
            if FORWARD.match(text):
                yield from [""] * len(declared)
            elif trailing:
                yield f"{code}  ///< {plain(trailing[3:])}"
            elif is_commented or text.endswith("{"):
                yield from declared
            elif is_specialization or LEFT_OUT.search(text):
                yield from [""] * len(declared)
            elif comment and name_here == name_above:  # overloads share the comment of the first
                yield from commented(declared, " ".join(each[4:] for each in comment))
            elif speaks_for_itself(declared):
                yield from commented(declared, "&zwj;")
            else:
                yield from declared
            if text.endswith("{"):
                is_specialization = "kernel_argument_traits<" in text
            name_above, is_commented, at = name_here, False, end


def anchor(heading):
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def label(file, heading=""):
    """The name of a file, or of a heading, in Doxygen's one space of names."""
    name = "index" if file == "README.md" else re.sub(r"\W", "_", file)
    return f"{name}-{heading}" if heading else name


def target(page, link):
    """Where a page's link leads."""
    path, _, heading = link.partition("#")
    if re.match(r"https?:", link):
        return link
    file = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
    is_page = re.match(r"(README|CHANGELOG|(docs|sim)/.*)\.md$", file)
    is_header = re.search(r"/include/escrow/(?!detail/|internal/|api).*\.hpp$", file)
    return "@ref " + label(file, heading) if is_page or is_header else (ROOT / file).as_uri()


def unbroken_links(text):
    """Each link on one line: behind one that is not, Doxygen shows the rest of the page as it is."""
    def joined(match):
        end = "" if text[match.end() : match.end() + 1] == "\n" else "\n" + match[2]  # lines keep their numbers
        return f"{match[1]} {match[3]}{end}"

    return re.sub(r"(\[[^][]*)\n( *)([^][]*\]\([^)\s]+\))", joined, text)


def page_lines(page, lines):
    is_code = False
    for line in lines:
        is_code ^= line.startswith("```")
        heading = not is_code and re.match(r"(#+) (.*)", line)
        if heading:  # in which Doxygen shows code as HTML
            line = line.replace("`", "")
        if heading and heading[1] != "#":
            line += f" {{#{label(page, anchor(heading[2]))}}}"
        elif heading and page != "README.md":
            line += f" {{#{label(page)}}}"
        if not is_code:
            line = re.sub(r"\]\(([^)\s]+)\)", lambda match: f"]({target(page, match[1])})", line)
            line = re.sub(r"\[`([^`\]]+)`\](?=\(@ref )", r"[\1]", line)  # no code in the text of such a link
        yield line


def main():
    path = Path(sys.argv[1]).resolve()
    name, lines = str(path.relative_to(ROOT)), path.read_text().split("\n")
    if path.suffix == ".md":
        print("\n".join(page_lines(name, unbroken_links(path.read_text()).split("\n"))), end="")
    else:
        print(UNSHOWN.sub("", "\n".join(header_lines(name, lines))), end="")


if __name__ == "__main__":
    main()
