# SPDX-License-Identifier: Apache-2.0
"""The page's plots of tokens. Each takes the width it is drawn for: 560 beside others, 340 on a telephone."""

from __future__ import annotations

import math
from typing import Any, Dict, List, Optional

from .numbers import percent, signed_percent, significant
from .svg import (
    decade_text,
    decades,
    drawing,
    label,
    line,
    linear,
    logarithmic,
    mark,
    nice_ticks,
    path,
    tag,
    tick_text,
)

Data = Dict[str, Any]
SMALLEST = 1e-9


def _log_axis(x, values: List[float], top: float, bottom: float, title: str, width: float) -> str:
    parts = [line(x(v), top, x(v), bottom) + label(x(v), bottom + 16, decade_text(v), anchor="middle") for v in values]
    return "".join(parts) + label(width, bottom + 33, title, "axis", "end")


def _scale_of(values: List[float]) -> tuple:
    """Whole decades around what is to be seen."""
    seen = [v for v in values if v and v > 0] or [1e-4, 1e-1]
    low, high = max(min(seen), SMALLEST), max(max(seen), 10 * SMALLEST)
    return 10.0 ** math.floor(math.log10(low) - 0.05), 10.0 ** math.ceil(math.log10(high) + 0.05)


def overview(data: Data, width: int) -> str:
    """Mean KLD of every candidate with its interval, on one logarithmic line, beside the floor."""
    candidates = [c for c in data["candidates"] if c["tokens"]]
    stats = [c["metrics"]["mean_kld"] for c in candidates]
    floors = [c["floor"]["mean_kld"] for c in candidates if c["floor"]]
    low, high = _scale_of([s[k] for s in stats for k in ("value", "low", "high")] + floors)
    narrow = width < 500
    left = 14 if narrow else 210
    row = 52 if narrow else 40
    bottom = 14 + row * len(candidates)
    x = logarithmic(low, high, left, width - 16)
    parts = [_log_axis(x, decades(low, high, 5 if narrow else 8), 6, bottom, "mean KLD, nats a token", width - 4)]
    for i, (c, s) in enumerate(zip(candidates, stats)):
        y = 14 + row * i + (row - 16 if narrow else row / 2)
        floor = c["floor"]["mean_kld"] if c["floor"] else 0.0
        if floor > low:
            tip = [f"Floor of {c['name']}", f"rounding to {c['floor']['dtype']} alone: {significant(floor)} nats"]
            place = dict(x=left, y=y - 10, width=x(floor) - left, height=20)
            parts.append(mark("rect", tip, class_="floor", rx=3, **place))
        name = c["name"] if len(c["name"]) < 29 else c["name"][:13] + "…" + c["name"][-13:]
        parts.append(label(left if narrow else 0, y - 14 if narrow else y + 4, name, "name"))
        if s["low"] is not None and s["high"] > 0:
            parts.append(line(x(s["low"]), y, x(s["high"]), y, f"whisker c{c['colour']}"))
        tip = [c["name"], f"mean KLD {significant(s['value'])} nats"]
        if s["low"] is not None:
            tip.append(f"95 % interval {significant(s['low'])} to {significant(s['high'])}")
        parts.append(mark("circle", tip, cx=x(s["value"]), cy=y, r=6, class_=f"dot c{c['colour']}"))
    return drawing(width, bottom + 40, "Mean KLD of each candidate.", *parts, kind="overview")


def distribution(candidate: Data, width: int) -> str:
    """How many tokens moved how far."""
    edges, counts = candidate["histogram"]["log10_edges"], candidate["histogram"]["counts"]
    used = [i for i, n in enumerate(counts) if n]
    first, last = max(0, used[0] - 1), min(len(counts), used[-1] + 2)
    total, most = sum(counts), max(counts)
    left, top, bottom, right = 4.0, 34.0, 214.0, width - 4.0
    x, y = linear(edges[first], edges[last], left, right), linear(0, most, bottom, top)
    values = decades(10 ** edges[first], 10 ** edges[last], 6 if width < 500 else 9)
    parts = [_log_axis(lambda v: x(math.log10(v)), values, top, bottom, "KLD of a token, nats", right)]
    below = 0
    for i in range(first, last):
        below += counts[i]
        if counts[i]:
            span = f"{significant(10 ** edges[i], 2)} to {significant(10 ** edges[i + 1], 2)} nats"
            if i == 0:
                span = f"at most {significant(10 ** edges[1], 2)} nats"
            tip = [span, f"{counts[i]:,} tokens, {percent(counts[i] / total)}", f"{percent(below / total)} move less"]
            a, b = x(edges[i]), x(edges[i + 1])
            parts.append(
                mark(
                    "rect", tip, x=a + 0.5, y=y(counts[i]), width=b - a - 1, height=bottom - y(counts[i]), class_="bar"
                )
            )
    parts.append(line(left, bottom, right, bottom, "base"))
    shown = [("median", "median_kld", 26, "end"), ("mean", "mean_kld", 26, "start"), ("99 %", "p99_kld", 11, "middle")]
    for word, key, height, side in shown:
        value = candidate["metrics"][key]["value"]
        if value > 10 ** edges[first]:
            at = x(math.log10(value))
            parts.append(line(at, height + (4 if side == "middle" else -9), at, bottom, "rule"))
            apart = {"start": 5, "end": -5, "middle": 0}[side]
            side = side if 90 < at < width - 90 else _side(at, width)
            parts.append(label(at + apart, height, f"{word} {significant(value, 2)}", "note", side))
    return drawing(width, 252, "Histogram of the KLD of tokens, logarithmic.", *parts)


def _side(at: float, width: float) -> str:
    return "start" if at < 60 else "end" if at > width - 60 else "middle"


def probabilities(candidate: Data, width: int) -> Optional[str]:
    """The probability that both models gave to the text's own token: counts on a grid, the diagonal is no change."""
    grid = candidate.get("probability_map")
    if not grid:
        return None
    bins, counts = grid["bins"], grid["counts"]
    most = max(max(row) for row in counts) or 1
    side = min(width - 60, 250)
    left, top = 44.0, 26.0
    bottom, cell = top + side, side / grid["bins"]
    parts = [tag("rect", x=left, y=top, width=side, height=side, class_="paper")]
    for i, row in enumerate(counts):
        for j, n in enumerate(row):
            if n:
                share = math.log1p(n) / math.log1p(most)
                tip = [
                    f"reference {i / bins:.0%} to {(i + 1) / bins:.0%}",
                    f"candidate {j / bins:.0%} to {(j + 1) / bins:.0%}",
                    f"{n:,} tokens",
                ]
                place = dict(x=left + i * cell, y=bottom - (j + 1) * cell, width=cell, height=cell)
                parts.append(mark("rect", tip, class_="cell", style=f"--h:{6 + 94 * share:.0f}%", **place))
    parts.append(line(left, bottom, left + side, top, "rule"))
    for v in (0, 0.5, 1):
        parts.append(label(left + v * side, bottom + 16, f"{v:.0%}", anchor="middle"))
        parts.append(label(left - 8, bottom - v * side + 4, f"{v:.0%}", anchor="end"))
    parts.append(label(left + side, bottom + 34, "p in the reference", "axis", "end"))
    parts.append(label(left, top - 10, "p in the candidate", "axis"))
    if width >= 480:
        parts.append(_changes(candidate["metrics"], left + side + 44, top + 10, width - 4))
    return drawing(width, bottom + 40, "Probability of the text's token in both models.", *parts)


def _changes(metrics: Data, left: float, top: float, right: float) -> str:
    """A short list beside the map: how much probability the text's token won or lost."""
    parts = [label(left, top, "change of p", "axis")]
    names = [
        ("best 5 %", "p95"),
        ("best quarter", "p75"),
        ("median", "median"),
        ("worst quarter", "p25"),
        ("worst 5 %", "p5"),
    ]
    for i, (name, key) in enumerate(names):
        y = top + 30 + 34 * i
        parts.append(label(left, y, name) + line(left, y + 12, right, y + 12))
        parts.append(label(right, y, signed_percent(metrics[f"{key}_delta_p"]["value"]), "name", "end"))
    return "".join(parts)


def confidence(candidate: Data, width: int) -> str:
    """Mean KLD where the reference was unsure, and where it was sure."""
    groups = candidate["by_confidence"]
    most = max((g["mean_kld"] or 0) + (g["error"] or 0) for g in groups) or 1e-9
    ticks = nice_ticks(most)
    left, top, bottom, right = 52.0, 12.0, 190.0, width - 4.0
    y = linear(0, ticks[-1], bottom, top)
    parts = [
        line(left, y(t), right, y(t)) + label(left - 8, y(t) + 4, tick_text(t, ticks[1]), anchor="end") for t in ticks
    ]
    step = (right - left) / len(groups)
    total = max(candidate["tokens"], 1)
    for i, g in enumerate(groups):
        middle = left + step * (i + 0.5)
        parts.append(label(middle, bottom + 16, f"{g['low']:g}–{g['high']:g}".replace("0.", "."), anchor="middle"))
        parts.append(label(middle, bottom + 31, percent(g["tokens"] / total, 0), "share", "middle"))
        if g["mean_kld"] is None:
            continue
        tip = [
            f"reference's top p {g['low']:g} to {g['high']:g}",
            f"mean KLD {significant(g['mean_kld'])} ± {significant(g['error'], 2)}",
            f"median {significant(g['median_kld'])}",
            f"same top {percent(g['same_top'])}",
            f"{g['tokens']:,} tokens",
        ]
        w = min(step * 0.62, 64)
        height = max(bottom - y(g["mean_kld"]), 1.0)
        parts.append(mark("rect", tip, x=middle - w / 2, y=bottom - height, width=w, height=height, rx=2, class_="bar"))
        parts.append(line(middle - w / 2, y(g["median_kld"]), middle + w / 2, y(g["median_kld"]), "median"))
    parts.append(line(left, bottom, right, bottom, "base"))
    parts.append(label(right, bottom + 50, "the reference's top probability, and the share of tokens", "axis", "end"))
    return drawing(width, bottom + 56, "Mean KLD by the reference's confidence.", *parts)


def depth(candidate: Data, width: int) -> str:
    """Mean KLD against the position in the window, with two standard errors around it."""
    groups = candidate["by_depth"]
    end = groups[-1]["last"] + 1
    high = [g["mean_kld"] + 2 * (g["error"] or 0) for g in groups]
    ticks = nice_ticks(max(max(high), 1e-9))
    left, top, bottom, right = 52.0, 12.0, 250.0, width - 8.0
    x, y = linear(0, end, left, right), linear(0, ticks[-1], bottom, top)
    parts = [
        line(left, y(t), right, y(t)) + label(left - 8, y(t) + 4, tick_text(t, ticks[1]), anchor="end") for t in ticks
    ]
    xticks = nice_ticks(end, 4)
    for t in xticks:
        if t <= end * 1.001:
            parts.append(label(x(t), bottom + 16, f"{t:,.0f}", anchor="middle" if x(t) < right - 20 else "end"))
    middles = [x((g["first"] + g["last"] + 1) / 2) for g in groups]
    lows = [max(g["mean_kld"] - 2 * (g["error"] or 0), 0) for g in groups]
    band = [(m, y(h)) for m, h in zip(middles, high)] + [(m, y(v)) for m, v in zip(middles[::-1], lows[::-1])]
    parts.append(path(band, "band", close=True))
    parts.append(path([(m, y(g["mean_kld"])) for m, g in zip(middles, groups)], "curve"))
    for m, g in zip(middles, groups):
        tip = [
            f"positions {g['first']:,} to {g['last']:,}",
            f"mean KLD {significant(g['mean_kld'])} ± {significant(g['error'], 2)}",
            f"median {significant(g['median_kld'])}",
            f"same top {percent(g['same_top'])}",
            f"{g['tokens']:,} tokens",
        ]
        parts.append(mark("circle", tip, cx=m, cy=y(g["mean_kld"]), r=4, class_="point"))
    parts.append(line(left, bottom, right, bottom, "base"))
    parts.append(label(right, bottom + 34, "tokens before", "axis", "end"))
    return drawing(width, bottom + 40, "Mean KLD by depth in context.", *parts)
