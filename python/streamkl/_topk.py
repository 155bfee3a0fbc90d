# SPDX-License-Identifier: Apache-2.0
"""What the calls that make lists ask of their arguments, for tensors and for arrays alike: topk_of and indexer_topk."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Sequence, Tuple

from . import _c
from . import _checks as check
from ._checks import bad
from ._options import Options, make_options

Shape = Sequence[int]


class Lists(NamedTuple):
    """What topk_of makes, tensors or arrays: linear_topk_kl(x_s, w_s, **lists._asdict()).

    ids [..., k] int32, the likeliest first; logprobs [..., k] f32; tail_logprob [...] f32, the logarithm of the mass that is
    not listed (-inf if all columns are)."""

    ids: Any
    logprobs: Any
    tail_logprob: Any


def check_count(k: Any) -> int:
    """Of keys; a query that sees fewer has empty places behind them."""
    try:
        count = check.whole("k", k, "")
    except (TypeError, ValueError):
        count = 0
    if not 1 <= count < 2**31:
        raise bad("k", k, "it must be a number of keys, at least 1")
    return count


def indexer_options(relu: bool, scale_i: float, causal: bool, window: Optional[Tuple[int, int]]) -> Options:
    return make_options(_c.INDEXER, dict(relu=relu, scale_s=scale_i, causal=causal, window=window))


def head_options(
    x: Shape, w: Shape, bias: Optional[Shape], k: Any, temperature: Any, scale: Any, softcap: Any, columns: Any
) -> Tuple[Options, int]:
    """The options of a head as C takes them, and k. x, w, bias: shapes of x_t, w_t and the bias."""
    if len(w) != 2 or x[-1] != w[1]:
        raise bad("w_t.shape", tuple(w), f"it must be [V, D] with the D of x_t.shape = {tuple(x)}")
    if bias is not None and tuple(bias) != (w[0],):
        raise bad("bias.shape", tuple(bias), f"it must be that of the columns, {(w[0],)}")
    check.scale("scale", scale)
    check.softcap("softcap", softcap)
    number = check.columns("columns", columns) or w[0]
    if number > w[0]:
        raise bad("columns", columns, f"w_t has {w[0]} rows")
    k = check.whole("k", k, "it must be a number of ids")
    if not 1 <= k <= number:
        raise bad("k", k, f"it must be at least 1 and at most the number of columns, {number}")
    given = dict(scale_s=scale, softcap_s=softcap, temperature=temperature, columns=columns)
    return make_options(_c.LINEAR, {name: value for name, value in given.items() if value is not None}), k
