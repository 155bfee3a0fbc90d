# SPDX-License-Identifier: Apache-2.0
"""The sinks of attention_kl: which of them count, for torch and for NumPy."""

from __future__ import annotations

from typing import Any, Tuple

from ._checks import bad

MODES = ("column", "conditional")


def sinks_that_count(sink_s: Any, sink_t: Any, mode: str) -> Tuple[Any, Any]:
    """Both, or neither: where there are none, and where the two sides are compared over the keys alone."""
    if mode not in MODES:
        raise bad("sink", mode, "it must be 'column' or 'conditional'")
    if mode == "conditional":
        if sink_s is None and sink_t is None:
            raise bad("sink", mode, "there is neither sink_s nor sink_t")
        return None, None
    if (sink_s is None) != (sink_t is None):
        one, other = ("sink_s", "sink_t") if sink_t is None else ("sink_t", "sink_s")
        rule = f"only {one} is given, and a category that one side alone has makes KLs infinite: give both, or "
        raise bad(other, None, rule + "sink='conditional' to compare the two over the keys alone")
    return sink_s, sink_t
