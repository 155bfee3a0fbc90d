# SPDX-License-Identifier: Apache-2.0
"""For the page of the Python interface: this package's docstrings as Markdown, and its options in the signatures.

In a docstring, lines of the form "name, name: what it means" with deeper lines below them become a list. A function
that takes **options of a table in streamkl/_options.py shows each of them with its default. Everything is read from the
sources, nothing is imported: the page needs neither torch nor the compiled library.
"""

from __future__ import annotations

import ast
import re
import textwrap
from typing import Iterator, List, Tuple

import griffe

_TABLE = re.compile(r"\b(\w+Options)\b")
_ARGUMENT = re.compile(r"^(?P<names>[A-Za-z_][^:.\n]{0,90}): (?P<text>.+)$")


def markdown(text: str) -> str:
    """Runs of 'names: meaning' lines as a list, other paragraphs as they are."""
    out: List[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        lines = paragraph.splitlines()
        if _ARGUMENT.match(lines[0]) and all(line.startswith("    ") or _ARGUMENT.match(line) for line in lines):
            lines = [_item(line) for line in lines]
        out.append("\n".join(lines))
    return "\n\n".join(out)


def _item(line: str) -> str:
    found = _ARGUMENT.match(line)
    return f"- **{found['names']}**: {found['text']}" if found else line


def _options(module: griffe.Module, table: str) -> Iterator[Tuple[str, str, str]]:
    """Name, type and default of every line of a table and of the tables it is made of."""
    kind = module[table]
    for base in kind.bases:
        if str(base) in module.classes:
            yield from _options(module, str(base))
    for member in kind.members.values():  # its own
        line = ast.parse(textwrap.dedent(member.source)).body[0]  # name: Annotated[type, Option(default, ..)]
        made = line.annotation.slice.elts
        yield member.name, ast.unparse(made[0]), ast.unparse(made[1].args[0])


class Docstrings(griffe.Extension):
    def on_package(self, *, pkg: griffe.Module, **_) -> None:
        for found in _walk(pkg):
            if found.docstring:
                found.docstring.value = markdown(found.docstring.value)
            if found.is_function:
                _expand(found, pkg["_options"])


def _walk(found) -> Iterator[griffe.Object]:
    yield found
    for member in found.members.values():
        if not member.is_alias:
            yield from _walk(member)


def _expand(function: griffe.Function, tables: griffe.Module) -> None:
    """The options one by one, as @show_options does it: not those that the function has itself, or that it names."""
    own = {given.name for given in function.parameters}
    own |= {name for made in function.decorators for name in re.findall(r"['\"](\w+)['\"]", str(made.value))}
    for given in list(function.parameters):
        table = _TABLE.search(str(given.annotation or ""))
        if given.kind is griffe.ParameterKind.var_keyword and table and table[1] in tables.members:
            del function.parameters[given.name]
            for name, kind, default in _options(tables, table[1]):
                if name in own:
                    continue
                kind = re.sub(r"Optional\[(.*)\]", r"\1 | None", kind)
                function.parameters.add(
                    griffe.Parameter(name, annotation=kind, kind=griffe.ParameterKind.keyword_only, default=default)
                )
