# SPDX-License-Identifier: Apache-2.0
"""The page's plots of attention: heads as a map, and layers as lines."""

from __future__ import annotations

import math
from typing import Any, Dict, List

from .numbers import percent, significant
from .svg import drawing, label, line, linear, mark, nice_ticks, path, tag, tick_text

Data = Dict[str, Any]


def heads(attention: Data, width: int) -> str:
    """Layer by head, the darker the further; logarithmic, from the smallest to the largest of this map."""
    kl: List[List[float]] = attention["kl"]
    layers, count = len(kl), max(len(row) for row in kl)
    positive = [v for row in kl for v in row if v > 0] or [1.0]
    low, high = math.log10(min(positive)), math.log10(max(positive))
    low = min(max(low, high - 3), high - 0.3)  # three decades at most, or one dark cell would flatten the rest
    left, top = 34.0, 22.0
    cell = min((width - left - 2) / count, 60.0)
    tall = min(max(min(cell, 400.0 / layers), 9.0), 36.0)
    every = 1 if layers <= 16 else 2 if layers <= 40 else 4
    across = 1 if cell >= 18 else 2 if cell >= 11 else 4
    parts = [label(left - 8, top - 8, "layer", "axis", "end")]
    for h in range(0, count, across):
        parts.append(label(left + (h + 0.5) * cell, top - 8, h, anchor="middle"))
    for i, row in enumerate(kl):
        if i % every == 0:
            parts.append(label(left - 8, top + (i + 0.5) * tall + 4, i, anchor="end"))
        for h, v in enumerate(row):
            share = 0.0 if v <= 0 else min(max((math.log10(v) - low) / (high - low), 0.0), 1.0)
            tip = [f"layer {i}, head {h}", f"KL {significant(v)} nats a query"]
            place = dict(x=left + h * cell + 0.5, y=top + i * tall + 0.5, width=cell - 1, height=tall - 1)
            parts.append(mark("rect", tip, class_="cell", style=f"--h:{5 + 95 * share:.0f}%", rx=1.5, **place))
    bottom = top + layers * tall
    parts.append(_legend(left, bottom + 12, low, high))
    return drawing(left + count * cell + 2, bottom + 34, "Attention KL by layer and head.", *parts, columns=count)


def _legend(x: float, y: float, low: float, high: float) -> str:
    steps = 24
    cells = [
        tag("rect", x=x + 5 * i, y=y, width=5, height=8, class_="cell", style=f"--h:{5 + 95 * i / (steps - 1):.0f}%")
        for i in range(steps)
    ]
    text = f"{significant(10**low, 2)} to {significant(10**high, 2)} nats"
    return "".join(cells) + label(x + 5 * steps + 8, y + 8, text)


def _layer_axes(layers: int, most: float, width: int, share: bool) -> tuple:
    ticks = nice_ticks(most, 3)
    left, top, bottom, right = 46.0, 10.0, 128.0, width - 6.0
    x, y = linear(-0.5, layers - 0.5, left, right), linear(0, ticks[-1], bottom, top)
    parts = []
    for t in ticks:
        text = f"{100 * t:g} %" if share else tick_text(t, ticks[1])
        parts.append(line(left, y(t), right, y(t)) + label(left - 8, y(t) + 4, text, anchor="end"))
    every = max(1, math.ceil(layers / 8))
    parts += [label(x(i), bottom + 16, i, anchor="middle") for i in range(0, layers, every)]
    parts.append(line(left, bottom, right, bottom, "base"))
    parts.append(label(right, bottom + 32, "layer", "axis", "end"))
    return x, y, bottom, parts


def head_mean(attention: Data, width: int) -> str:
    """The KL of the heads' mean attention, a bar a layer: what is left once heads may take each other's place."""
    values = attention["head_mean_kl"]
    x, y, bottom, parts = _layer_axes(len(values), max(max(values), 1e-12), width, share=False)
    w = min(26.0, (width - 70) / len(values) * 0.7)
    for i, v in enumerate(values):
        own = attention["kl"][i]
        tip = [
            f"layer {i}",
            f"of the heads' mean {significant(v)} nats",
            f"mean of the heads {significant(sum(own) / len(own))}",
        ]
        parts.append(
            mark("rect", tip, x=x(i) - w / 2, y=y(v), width=w, height=max(bottom - y(v), 0.5), rx=1.5, class_="bar")
        )
    return drawing(width, bottom + 38, "KL of the heads' mean attention by layer.", *parts)


def sink_mass(attention: Data, width: int) -> str:
    """The share of attention that rests on the first token, in both models."""
    reference, other = attention["sink_reference"], attention["sink_other"]
    x, y, bottom, parts = _layer_axes(len(reference), max(*reference, *other, 1e-12), width, share=True)
    for values, kind in ((reference, "curve reference"), (other, "curve")):
        parts.append(path([(x(i), y(v)) for i, v in enumerate(values)], kind))
    for i, (a, b) in enumerate(zip(reference, other)):
        tip = [f"layer {i}", f"reference {percent(a, 2)}", f"candidate {percent(b, 2)}"]
        parts.append(tag("circle", cx=x(i), cy=y(a), r=3, class_="point reference"))
        parts.append(mark("circle", tip, cx=x(i), cy=y(b), r=3.5, class_="point"))
    return drawing(width, bottom + 38, "Attention on the first token by layer.", *parts)
