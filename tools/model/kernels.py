# SPDX-License-Identifier: Apache-2.0
"""Reads kernels.toml, which explains its format, and the list of kernels in src/cuda. Standard library only: the tests
use it too."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import tomllib

from . import flow

TABLE = Path(__file__).with_name("kernels.toml")
LIST = Path(__file__).parents[2] / "src" / "cuda" / "kernels.def"
NUMBERS = ("depth", "products")
SHAPE = ("rows", "columns", "threads", "shared")  # the last four of a line in the list
HMMA_FLOPS = 2 * 16 * 8 * 16


class BadTable(Exception):
    """An entry that cannot be used; the message says which."""


@dataclass
class Kernel:
    """One kernel's entry, evaluated."""

    name: str
    threads: int
    shared: int  # dynamic bytes
    trips: list[int]
    nested: list[int]
    writes: int
    whole: bool
    each: list[int]
    counts: dict[str, tuple[int, int]]  # instruction -> least, most of a warp in one turn
    bar: dict[str, float] = field(default_factory=dict)  # by architecture: {"sm_80": 190}
    bar_name: str = ""
    model: bool = True

    def path(self, code: Sequence[flow.Flow]) -> list[int] | None:
        """Instruction numbers of one turn of the main loop."""
        copies = self.counts.get("LDGSTS", (None,))[0]
        return flow.main_loop(code, self.trips, copies, self.nested, self.writes, self.whole, self.each)

    def differences(self, counted: Callable[[str], int]) -> list[str]:
        """Sentences about the counts that are not as expected. A wrong number of HMMA says that this is another kernel
        than the entry describes, or a wrong guess of its path: then nothing else can be expected."""
        out: list[str] = []
        for name, (least, most) in self.counts.items():
            if not least <= counted(name) <= most:
                expected = str(least) if least == most else f"{least} to {most}"
                out.append(f"{counted(name)} {name} in a turn of the main loop, tile arithmetic says {expected}")
                if name == "HMMA":
                    break
        return out


def read_table(path: Path = TABLE) -> list[Kernel]:
    """The kernels of the list that fit an entry. Raises BadTable."""
    table = tomllib.loads(path.read_text())
    entries: dict[str, dict] = {}
    for entry in table.get("kernel", []):
        entries[entry.get("match", "")] = _completed(entry, entries)
    found = []
    for name, shape in read_list().items():
        entry = next((e for e in entries.values() if fnmatchcase(name, e.get("match", ""))), None)
        if entry:
            found.append(_kernel(name, shape, entry, table.get("bars", {})))
    return found


def read_list(path: Path = LIST) -> dict[str, dict[str, int]]:
    """Rows, columns, threads and shared memory of every kernel, by the name of its function."""
    lines = re.findall(r"^SKL_KERNEL\((.*)\)$", path.read_text(), re.M)
    fields = [line.split(", ") for line in lines]
    return {"skl_" + f[0]: dict(zip(SHAPE, map(int, f[-4:]))) for f in fields}


def read_units(path: Path = LIST) -> dict[str, str]:
    """The unit of every kernel: its source, type and width, as cmake/cuda.cmake names them."""
    lines = re.findall(r"^SKL_KERNEL\((.*)\)$", path.read_text(), re.M)
    fields = [line.split(", ") for line in lines]
    return {"skl_" + f[0]: "_".join([f[1], *(x for x in f[3:5] if x not in ("any", "0"))]) for f in fields}


def find(table: list[Kernel], name: str) -> Kernel | None:
    return next((k for k in table if k.name == name), None)


def _completed(entry: dict, above: dict[str, dict]) -> dict:
    """With what the entry that it is 'like' has, except its bar."""
    if "like" not in entry:
        return entry
    if entry["like"] not in above:
        raise BadTable(f"kernels.toml: {entry.get('match')} is like {entry['like']}, which is no entry above it")
    base = above[entry["like"]]
    counts = base.get("counts", {}) | entry.get("counts", {})
    return {k: v for k, v in base.items() if k != "bar"} | entry | {"counts": counts}


def _kernel(name: str, shape: dict[str, int], entry: dict, bars: dict) -> Kernel:
    missing = [n for n in ("match", *NUMBERS) if n not in entry]
    if missing:
        raise BadTable(f"kernels.toml: the entry {entry.get('match') or entry} has no {', '.join(missing)}")
    names = shape | {n: entry[n] for n in NUMBERS} | {"tiles": entry.get("tiles", 1), "warps": shape["threads"] // 32}
    trips = _list(entry.get("trips", 1), names, name)
    names["trips"] = trips[0]
    flops = 2 * names["rows"] * names["columns"] * names["depth"] * names["products"] * names["tiles"]
    wanted = {"HMMA": flops / HMMA_FLOPS / names["warps"]} | entry.get("counts", {})
    if entry.get("bar", "") not in {"", *bars}:
        raise BadTable(f"kernels.toml: {entry['match']} names a bar {entry['bar']!r} that [bars] does not have")
    return Kernel(
        name,
        shape["threads"],
        shape["shared"],
        trips,
        _list(entry.get("nested", 1), names, name),
        _whole(entry.get("writes", 0), names, name),
        entry.get("whole", False),
        _list(entry.get("each", []), names, name),
        {what: _range(count, names, name) for what, count in wanted.items() if count != "any"},
        bars.get(entry.get("bar"), {}),
        entry.get("bar", ""),
        entry.get("model", True),
    )


def _list(numbers: Any, names: dict, match: str) -> list[int]:
    return [_whole(n, names, match) for n in (numbers if isinstance(numbers, list) else [numbers])]


def _range(count: Any, names: dict, match: str) -> tuple[int, int]:
    least, most = count if isinstance(count, list) else (count, count)
    return _whole(least, names, match), _whole(most, names, match)


def _whole(text: Any, names: dict, match: str) -> int:
    """A number, or arithmetic that must give a whole one."""
    try:
        value = eval(text, {"__builtins__": {}, "max": max, "min": min}, names) if isinstance(text, str) else text
    except Exception as error:
        raise BadTable(f"kernels.toml: {match}: cannot compute {text!r}: {error}") from error
    if value != int(value):
        raise BadTable(f"kernels.toml: {match}: {text!r} is {value}, not a whole number")
    return int(value)
