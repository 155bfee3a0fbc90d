# SPDX-License-Identifier: Apache-2.0
"""A C header as a page of Markdown: every section, enumeration, structure and function with its comment.

What it reads is the form of include/streamkl/streamkl.h: sections begin with a rule of dashes, a comment stands before
what it explains or behind it on the same line, and every declaration begins in the first column.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, List, Tuple

_COMMENT = r"/\*.*?\*/"
_SECTION = re.compile(r"/\* -{20,} (?P<title>.*?) --- \*/")
_ITEM = re.compile(
    rf"(?P<comment>^{_COMMENT}\n)"
    r"|^(?P<kind>enum|struct) (?P<name>\w+)\s*\{(?P<body>.*?)\n?\};[ \t]*$"
    r"|^(?P<inline>static inline [^{;]*?)\s*\{.*?^\}"
    rf"|^(?P<plain>(?:SKL_API|typedef) [^;]*;)[ \t]*(?P<behind>{_COMMENT})?",
    re.S | re.M,
)


@dataclass
class Item:
    name: str
    title: str
    code: str = ""
    comment: str = ""
    rows: List[Tuple[str, str, str]] = field(default_factory=list)  # name, type or number, meaning


def words(comment: str) -> str:
    """The text of a comment, without its marks; lines that are indented further stay so."""
    lines = [re.sub(r"^ *\* ?", "", line.rstrip()) for line in comment.strip()[2:-2].strip().splitlines()]
    return "\n".join(lines).strip()


def _flat(comment: str) -> str:
    return " ".join(words(comment).split())


def _members(body: str, enum: bool) -> List[Tuple[str, str, str]]:
    rows: List[List[str]] = []
    before, ended = "", False  # a comment for the next member; whether the last one ended on this line
    at = 0
    pattern = re.compile(rf"{_COMMENT}|\w+ = [^,/]*[\w)],?" if enum else rf"{_COMMENT}|[^;]+?;", re.S)
    while at < len(body):
        space = re.compile(r"\s*").match(body, at)
        at = space.end()
        if at >= len(body):
            break
        found = pattern.match(body, at)
        if not found:
            raise ValueError(f"cannot read the header at {body[at : at + 60]!r}")
        text = found.group()
        at = found.end()
        if text.startswith("/*"):
            if rows and "\n" not in space.group() and ended:
                rows[-1][2] = " ".join(filter(None, (rows[-1][2], _flat(text))))
            else:
                before = _flat(text)
            ended = False
            continue
        rows.append([*_declared(text.strip(" \n,;"), enum), before])
        before, ended = "", True
    return [(name, kind, meaning) for name, kind, meaning in rows]


def _declared(text: str, enum: bool) -> Tuple[str, str]:
    """Name and number of an enumerator, or names and type of members."""
    text = " ".join(text.split())
    if enum:
        name, _, number = text.partition(" = ")
        return name, number
    found = re.fullmatch(r"(?P<type>(?:const )?(?:struct )?\w+) (?P<names>.*)", text)
    stars = re.match(r"\**", found["names"])[0]
    return found["names"][len(stars) :], f"{found['type']} {stars}".rstrip()


def _function(code: str) -> str:
    return re.search(r"(\w+)\)?\(", code)[1]


def parse(header: str) -> Tuple[str, List[Tuple[str, List[Item]]]]:
    """The comment at the top, and the sections with their items."""
    top = words(re.search(_COMMENT, header, re.S).group())
    parts = _SECTION.split(header[: header.rindex("#ifdef __cplusplus")])
    sections = []
    for title, text in zip(parts[1::2], parts[2::2]):
        items, comment = [], ""
        for found in _ITEM.finditer(text):
            if found["comment"]:
                comment = words(found["comment"])
                continue
            if found["kind"]:
                what = f"{found['kind']} {found['name']}"
                rows = _members(found["body"], found["kind"] == "enum")
                items.append(Item(found["name"], what, "", comment, rows))
            else:
                code = found["inline"] or found["plain"]
                code = re.sub(r"^SKL_API |^static inline ", "", code).rstrip(" ;") + ";"
                code = re.sub(r"\n +", "\n    ", code)
                behind = words(found["behind"]) if found["behind"] else ""
                name = _function(code)
                items.append(Item(name, name, code, "\n\n".join(filter(None, (comment, behind)))))
            comment = ""
        sections.append((title.strip(), items))
    return top, sections


def _linked(text: str, homes: Dict[str, str]) -> str:
    """Names of the interface as links to where they stand, and what Markdown would take for its own marks as it is."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace("*", r"\*").replace("][", r"]\[")
    link = lambda m: f"[`{m[0]}`](#{homes[m[1]]})" if m[1] in homes else f"`{m[0]}`"  # noqa: E731
    return re.sub(r"\b((?:skl|SKL|STREAMKL|OMP)_\w+)(?:\(\))?", link, text)


def _prose(text: str, homes: Dict[str, str]) -> str:
    """Paragraphs, lists and indented formulas of a comment."""
    out: List[str] = []
    kind = "text"
    for line in text.splitlines():
        now = "code" if line.startswith("    ") and kind != "list" else "list" if re.match(r" *- ", line) else kind
        if not line.startswith(" ") and now != "list":
            now = "text"
        if now != kind or not line:
            out.append("")
        kind = now if line else "text"
        out.append(line if kind == "code" else _linked(re.sub(r"^ {2}(?=- )", "", line), homes))
    return "\n".join(out).strip()


def _cell(text: str, homes: Dict[str, str]) -> str:
    return _linked(text, homes).replace("|", r"\|")


def _shown(item: Item, homes: Dict[str, str]) -> List[str]:
    lines = [f"### `{item.title}` {{ #{item.name} }}", ""]
    if item.code:
        lines += ["```c", item.code, "```", ""]
    if item.comment:
        lines += [_prose(item.comment, homes), ""]
    if item.rows:
        enum = item.title.startswith("enum")
        lines += [f"| {'name | number' if enum else 'field | type'} | meaning |", "|---|---|---|"]
        for name, kind, meaning in item.rows:
            names = ", ".join(f"`{one.strip()}`" for one in name.split(","))
            lines.append(f"| {names} | {kind if enum else f'`{kind}`'} | {_cell(meaning, homes)} |")
        lines.append("")
    return lines


def page(header: str, title: str, introduction: str) -> str:
    top, sections = parse(header)
    homes = {}
    for _, items in sections:
        for item in items:
            homes[item.name] = item.name
            homes.update({row[0]: item.name for row in item.rows if item.title.startswith("enum")})
    intro = "\n".join(top.splitlines()[1:] if top.startswith("SPDX") else top.splitlines()).strip()
    lines = [f"# {title}", "", introduction, "", _prose(intro, homes), ""]
    for name, items in sections:
        lines += [f"## {name.capitalize()}", ""]
        for item in items:
            lines += _shown(item, homes)
    return "\n".join(lines) + "\n"
