# SPDX-License-Identifier: Apache-2.0
"""Arguments that are not arrays: checked and turned into the numbers that the C library takes."""

from __future__ import annotations

import math
from typing import NamedTuple, Optional, Tuple

from . import _c

REDUCTIONS = ("none", "mean", "sum")


class Options(NamedTuple):
    """Everything about a call but its arrays, flat, so that it can be the tail of a torch operator's arguments."""

    attention: bool
    divergence: int
    reduction: int
    beta: float
    temperature: float
    scale_s: float
    scale_t: float
    softcap_s: float
    softcap_t: float
    causal: bool
    window_left: int
    window_right: int
    columns: int


def bad(name: str, value: object, rule: str, kind: type = ValueError) -> Exception:
    return kind(f"streamkl: cannot use {name} = {value!r}: {rule}")


def _number(name: str, value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise bad(name, value, "it must be a number", TypeError) from None


def _positive(name: str, value: object) -> float:
    number = _number(name, value)
    if not 0 < number < math.inf:
        raise bad(name, value, "it must be positive and finite")
    return number


def _scale(name: str, value: Optional[float]) -> float:
    if value is None:
        return 0.0  # the default, in C
    number = _number(name, value)
    if number == 0 or not -math.inf < number < math.inf:
        raise bad(name, value, "it must be finite and not 0 (None: the default)")
    return number


def _window(window: Optional[Tuple[int, int]]) -> Tuple[int, int]:
    if window is None:
        return -1, -1
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise bad(
            "window", window, "it must be None or (left, right), each a number of columns or -1 for no limit", TypeError
        )
    for side in window:
        if side < -1:
            raise bad("window", tuple(window), "left and right must be -1 (no limit) or a number of columns")
    return window[0], window[1]


def choice(name: str, value: object, choices: Tuple[str, ...]) -> str:
    if value not in choices:
        raise bad(name, value, f"it must be one of {', '.join(repr(c) for c in choices)}")
    return value  # type: ignore[return-value]


def make_options(
    *,
    attention: bool,
    divergence: str,
    beta: float,
    reduction: str,
    temperature: float = 1.0,
    scale_s: Optional[float] = None,
    scale_t: Optional[float] = None,
    softcap_s: Optional[float] = None,
    softcap_t: Optional[float] = None,
    causal: bool = False,
    window: Optional[Tuple[int, int]] = None,
    columns: Optional[int] = None,
) -> Options:
    choice("divergence", divergence, tuple(_c.DIVERGENCES))
    choice("reduction", reduction, REDUCTIONS)
    if divergence == "jsd" and not 0 < _number("beta", beta) < 1:
        raise bad(
            "beta", beta, "it must be strictly between 0 and 1 (the limits are not KL: use 'forward' or 'reverse')"
        )
    if columns is not None and columns < 1:
        raise bad("columns", columns, "it must be at least 1 (None: all)")
    left, right = _window(window)
    return Options(
        attention,
        _c.DIVERGENCES[divergence],
        _c.MEAN if reduction == "mean" else _c.SUM,
        _number("beta", beta),
        _positive("temperature", temperature),
        _scale("scale_s", scale_s),
        _scale("scale_t", scale_t),
        0.0 if softcap_s is None else _positive("softcap_s", softcap_s),
        0.0 if softcap_t is None else _positive("softcap_t", softcap_t),
        bool(causal),
        left,
        right,
        columns or 0,
    )
