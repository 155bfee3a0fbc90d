# SPDX-License-Identifier: Apache-2.0
"""Results of the benchmark as one SVG: time and peak extra memory against length, panels for each kind of case.

Written by hand, not by a plotting library, so that it is small, has words instead of glyphs, and follows the reader's
choice of light or dark. It brings its own ground: it reads on any page. A way that did not fit into memory ends in a
dashed line that leaves the panel, with what it would have needed.
"""

from __future__ import annotations

import math
import re
from html import escape
from typing import Callable, List, NamedTuple, Sequence, Tuple

from .measure import Result

WIDTH, HEIGHT = 1000, 600
LEFT, RIGHT, TOP, BOTTOM, GAP = 76, 128, 92, 74, 46  # around the panels, and between those above each other
COLUMN = WIDTH // 2
PANEL = COLUMN - LEFT - RIGHT, (HEIGHT - TOP - BOTTOM - GAP) // 2
LABEL = 15  # distance of two names at the ends of lines
NAMED = {"streamkl": 0, "eager": 1, "compile": 2, "Liger": 3, "three flash calls": 4, "chunked loop": 5, "TRL": 6}
SHOWN = {"eager": "eager torch", "compile": "torch.compile"}
LIGHT = ["#d9480f", "#5c6b7a", "#7048b6", "#2b8a3e", "#1971c2", "#946200", "#a61e4d"]
DARK = ["#ff8a4c", "#a3b1bf", "#b99af5", "#69db7c", "#74c0fc", "#ffd43b", "#f783ac"]

Point = Tuple[float, float]


def _style() -> str:
    def scheme(ground: str, edge: str, text: str, grid: str, colours: Sequence[str]) -> str:
        rules = [f".ground{{fill:{ground};stroke:{edge}}}", f"text{{fill:{text}}}", f".grid{{stroke:{grid}}}"]
        rules += [f".w{i}{{stroke:{c}}} text.w{i},.dot.w{i}{{fill:{c};stroke:none}}" for i, c in enumerate(colours)]
        return "".join(rules)

    base = (
        "text{font:13px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif}"
        ".title{font-size:16px;font-weight:600}.small{font-size:11.5px}.end{text-anchor:end}.mid{text-anchor:middle}"
        ".line{fill:none;stroke-width:1.8}.line.w0{stroke-width:3.4}.gone{stroke-dasharray:3 4}"
        ".grid{stroke-width:1;fill:none}text.w0{font-weight:700}"
    )
    light = scheme("#ffffff", "#d0d7de", "#1f2328", "#e4e8ec", LIGHT)
    dark = scheme("#0d1117", "#30363d", "#e6edf3", "#262c34", DARK)
    return f"<style>{base}{light}@media(prefers-color-scheme:dark){{{dark}}}</style>"


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 0.9995 else f"{1e3 * value:.3g} ms"


def _mebibytes(value: float) -> str:
    return f"{value / 1024:.3g} GiB" if value >= 1000 else f"{value:.3g} MiB"


class Quantity(NamedTuple):
    title: str
    read: Callable[[Result], float]
    show: Callable[[float], str]
    ticks: Sequence[float]


QUANTITIES = (
    Quantity("loss and gradient, time", lambda r: r.both or 0.0, _seconds, [10.0**k for k in range(-6, 6)]),
    Quantity(
        "peak extra memory", lambda r: max(r.memory or 0, 2**20) / 2**20, _mebibytes, [1, 10, 100, 1024, 10240, 102400]
    ),
)


class Axis:
    """A logarithmic one, from data to pixels."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high, self.start, self.end = low, max(high, low * 1.0001), start, end

    def __call__(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)


def apart(wanted: Sequence[float], distance: float, low: float, high: float) -> List[float]:
    """Places near the wanted ones, in their order, no two closer than the distance; within low and high if they fit."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = [0.0] * len(wanted)
    floor = low
    for i in order:
        placed[i] = floor = max(wanted[i], floor)
        floor += distance
    ceiling = high
    for i in reversed(order):
        placed[i] = min(placed[i], ceiling)
        ceiling = placed[i] - distance
    return placed


def _needs(missing: str) -> str:
    """What was missing, in few words."""
    found = re.search(r"needs? ([\d.]+) GiB", missing)
    if found:
        return f"{float(found[1]):.0f} GiB"
    found = re.search(r"take about (\d+) s", missing)
    return f"{found[1]} s" if found else missing.split(":")[0].split("(")[0].strip()


def _text(words: str, x: float, y: float, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


class Panel:
    """One quantity of one kind of case: lines, their names at their ends, axes."""

    def __init__(self, results: Sequence[Result], quantity: Quantity, x0: float, y0: float) -> None:
        self.results, self.quantity, self.x0, self.y0 = results, quantity, x0, y0
        self.lengths = sorted({r.case.length for r in results})
        values = [quantity.read(r) for r in results if not r.missing and quantity.read(r)]
        low, high = min(values, default=1), max(values, default=10)
        self.x = Axis(self.lengths[0], self.lengths[-1], x0 + 8, x0 + PANEL[0] - 8)
        self.y = Axis(low / 1.6, max(high * 1.6, low * 20), y0 + PANEL[1], y0)

    def draw(self, name_lengths: bool) -> List[str]:
        (w, h), x0, y0 = PANEL, self.x0, self.y0
        out = [_text(self.quantity.title, x0, y0 - 9, "small"), f'<path class="grid" d="M{x0} {y0 + h}h{w}"/>']
        for value in self.quantity.ticks:
            if self.y.low <= value <= self.y.high:
                out.append(f'<path class="grid" d="M{x0} {self.y(value):.1f}h{w}"/>')
                out.append(_text(self.quantity.show(value), x0 - 7, self.y(value) + 4, "small end"))
        for length in self.lengths if name_lengths else []:
            out.append(_text(str(length), self.x(length), y0 + h + 18, "small mid"))
        return out + self._ways()

    def _ways(self) -> List[str]:
        drawn, names, ends, notes = [], [], [], []
        for way in sorted(
            dict.fromkeys(r.way for r in self.results), key="streamkl".__eq__
        ):  # ours on top of the others
            mine = sorted((r for r in self.results if r.way == way), key=lambda r: r.case.length)
            there = [r for r in mine if not r.missing and self.quantity.read(r)]
            if not there:
                continue
            gone = next((r for r in mine if r.missing and r.case.length > there[-1].case.length), None)
            places = [(self.x(r.case.length), self.y(self.quantity.read(r))) for r in there]
            drawn += self._line(way, there, places)
            if gone:
                at = self.x(gone.case.length)
                drawn.append(_path(f"line gone w{_number(way)}", [places[-1], (at, self.y0)]))
                above = sum(x == at for x in notes)
                drawn.append(_text(_needs(gone.missing), at, self.y0 - 5 - 12 * above, f"small mid w{_number(way)}"))
                notes.append(at)
            names.append(way)
            ends.append(self.y0 + 4 if gone else places[-1][1])
        right = self.x0 + PANEL[0] + 8
        for way, y in zip(names, apart(ends, LABEL, self.y0 + 4, self.y0 + PANEL[1])):
            drawn.append(_text(SHOWN.get(way, way), right, y + 4, f"w{_number(way)}"))
        return drawn

    def _line(self, way: str, there: Sequence[Result], places: Sequence[Point]) -> List[str]:
        out = [_path(f"line w{_number(way)}", places)]
        size = 4.2 if way == "streamkl" else 2.8
        for r, (x, y) in zip(there, places):
            said = f"{way}, {r.case.length}: {self.quantity.show(self.quantity.read(r))}"
            out.append(
                f'<circle class="dot w{_number(way)}" cx="{x:.1f}" cy="{y:.1f}" r="{size}">'
                f"<title>{escape(said)}</title></circle>"
            )
        return out


def _number(way: str) -> int:
    return NAMED.get(way, len(LIGHT) - 1)


def _path(kind: str, places: Sequence[Point]) -> str:
    return f'<path class="{kind}" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in places)}"/>'


def _heading(result: Result) -> Tuple[str, str]:
    case = result.case
    if case.attention:
        causal = ", causal" if case.causal else ""
        return "Attention", f"{case.heads} heads, width {case.width}, {case.dtype}{causal}; queries and keys"
    return "Vocabulary", f"{case.columns} words, width {case.width}, {case.dtype}; tokens"


def draw(groups: Sequence[Sequence[Result]], machine: str) -> str:
    """groups: a column each, of one kind of case at several lengths."""
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'role="img" aria-label="Time and peak extra memory of loss and gradient against length">',
        _style(),
        f'<rect class="ground" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="10"/>',
    ]
    for column, results in enumerate(groups):
        x0 = column * COLUMN + LEFT
        title, below = _heading(results[0])
        out += [_text(title, x0, 34, "title"), _text(below, x0, 54, "small")]
        for row, quantity in enumerate(QUANTITIES):
            y0 = TOP + row * (PANEL[1] + GAP)
            out += Panel(results, quantity, x0, y0).draw(row + 1 == len(QUANTITIES))
    out.append(_text(f"{machine}. Logarithmic axes; lower is better.", LEFT, HEIGHT - 34, "small"))
    if any(r.missing for results in groups for r in results):
        words = "Dashed: not run beyond that length; it would need so much memory, or time."
        out.append(_text(words, LEFT, HEIGHT - 16, "small"))
    return "\n".join([*out, "</svg>"]) + "\n"
