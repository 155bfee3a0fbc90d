# SPDX-License-Identifier: Apache-2.0
"""Small parts of drawings: tags, scales and ticks. Colours are the style sheet's, so that light and dark both fit."""

from __future__ import annotations

import html
import math
from typing import Callable, Iterable, List, Sequence, Tuple, Union

from .numbers import power_of_ten

Number = Union[int, float]


def escape(text: object) -> str:
    return html.escape(str(text), quote=True)


def _value(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else escape(value)


def tag(name: str, *inside: str, **attributes: object) -> str:
    """<name attribute="value">inside</name>; an underscore at the end of an attribute's name is dropped."""
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(v)}"' for key, v in attributes.items() if v is not None
    )
    return f"<{name}{shown}>{''.join(inside)}</{name}>" if inside else f"<{name}{shown}/>"


def label(x: Number, y: Number, text: object, kind: str = "tick", anchor: str = "start", **more: object) -> str:
    return tag("text", escape(text), x=x, y=y, class_=kind, text_anchor=anchor, **more)


def line(x1: Number, y1: Number, x2: Number, y2: Number, kind: str = "grid") -> str:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


def path(points: Iterable[Tuple[float, float]], kind: str, close: bool = False, **more: object) -> str:
    d = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) + ("Z" if close else "")
    return tag("path", d=d, class_=kind, **more)


def mark(name: str, tip: Sequence[str], **attributes: object) -> str:
    """A part that says something when it is pointed at, or reached with the arrow keys: the first line is its title."""
    return tag(name, data_tip="\n".join(tip), **attributes)


def linear(low: float, high: float, first: float, last: float) -> Callable[[float], float]:
    return lambda v: first + (v - low) / ((high - low) or 1) * (last - first)


def logarithmic(low: float, high: float, first: float, last: float) -> Callable[[float], float]:
    place = linear(math.log10(low), math.log10(high), first, last)
    return lambda v: place(math.log10(min(max(v, low), high)))


def nice_ticks(high: float, about: int = 4) -> List[float]:
    """From 0 on, at 1, 2 or 5 times a power of ten, up to the first one that covers 'high'."""
    raw = max(high, 1e-12) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    return [i * step for i in range(math.ceil(high / step - 1e-9) + 1)]


def decades(low: float, high: float, at_most: int = 8) -> List[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    step = max(1, math.ceil((last - first + 1) / at_most))
    return [10.0**i for i in range(first, last + 1) if i % step == 0]


def decade_text(value: float) -> str:
    power = round(math.log10(value))
    return f"{value:g}" if -3 <= power <= 3 else power_of_ten(power)


def tick_text(value: float, step: float) -> str:
    """All ticks of an axis with as many digits as its step needs."""
    if value == 0:
        return "0"
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{value:,.{digits}f}" if digits < 5 else f"{value * 10**digits:.0f}×{power_of_ten(-digits)}"


def drawing(width: Number, height: Number, title: str, *parts: str, columns: int = 0, kind: str = "") -> str:
    """One svg, a stop of the tab key; arrow keys go from mark to mark ('columns' of them in a row of a grid)."""
    inside = "".join(parts)
    reachable = "data-tip" in inside
    return tag(
        "svg",
        inside,
        viewBox=f"0 0 {width:g} {height:g}",
        class_=f"plot {kind}".strip(),
        role="group" if reachable else "img",
        aria_label=title + (" Arrow keys read its parts." if reachable else ""),
        tabindex="0" if reachable else None,
        data_columns=columns or None,
        style=f"max-width:{width * 1.1:g}px",
    )
