# SPDX-License-Identifier: Apache-2.0
"""Lists of a live teacher of arrays: lists.py for NumPy, with the same formulas, order of equal logits and bounds of memory.

The vocabulary is read once for each block of rows, in slices: the k best so far and the slice's scores are [rows, k + width],
the k best of both stay, and everything else is summed up into the rest.
"""

from __future__ import annotations

import math
from typing import Any, Iterator, NamedTuple, Tuple

import numpy as np

from . import _options as options
from ._arrays import Array, read_operand
from ._options import bad

_ENTRIES = 1 << 20  # of a buffer: 4 MiB of f32
_WIDTH = 4096  # most columns of a slice


class Lists(NamedTuple):
    """What topk_of makes: linear_topk_kl(x_s, w_s, **lists._asdict()).

    ids [..., k] int32, the likeliest first; logprobs [..., k] f32; tail_logprob [...] f32, the logarithm of the mass that is
    not listed (-inf if all columns are)."""

    ids: Array
    logprobs: Array
    tail_logprob: Array


class _Head(NamedTuple):
    """What makes scores of hidden states, over the first 'columns' rows of w."""

    w: Array
    bias: Any
    scale: float
    softcap: float  # 0 is none
    columns: int
    unit: float


def topk_of(x_t, w_t, k, temperature, bias, scale, softcap, columns) -> Lists:
    x, w, bias = (read_operand(name, t) for name, t in (("x_t", x_t), ("w_t", w_t), ("bias", bias)))
    head = _head(x, w, bias, scale, softcap, columns, temperature)
    k = options._whole("k", k, "it must be a number of ids")
    if not 1 <= k <= head.columns:
        raise bad("k", k, f"it must be at least 1 and at most the number of columns, {head.columns}")
    rows = x.shape[:-1]
    x = x.reshape(math.prod(rows), x.shape[-1])
    made = Lists(np.empty((len(x), k), np.int32), np.empty((len(x), k), np.float32), np.empty(len(x), np.float32))
    width = max(1, min(head.columns, _WIDTH, _ENTRIES // max(x.shape[1], 1)))
    for some in _slices(len(x), max(1, _ENTRIES // max(x.shape[1], k + width))):
        for whole, part in zip(made, _block(x[some].astype(np.float32), head, k, width)):
            whole[some] = part
    return Lists(made.ids.reshape(*rows, k), made.logprobs.reshape(*rows, k), made.tail_logprob.reshape(rows))


def _head(x: Array, w: Array, bias: Any, scale: Any, softcap: Any, columns: Any, temperature: Any) -> _Head:
    if w.ndim != 2 or x.shape[-1] != w.shape[1]:
        raise bad("w_t.shape", w.shape, f"it must be [V, D] with the D of x_t.shape = {x.shape}")
    if bias is not None and bias.shape != w.shape[:1]:
        raise bad("bias.shape", bias.shape, f"it must be that of the columns, {w.shape[:1]}")
    factor, cap = options._scale("scale", scale) or 1.0, options._softcap("softcap", softcap)
    number = options._columns("columns", columns) or len(w)
    if number > len(w):
        raise bad("columns", columns, f"w_t has {len(w)} rows")
    unit = (1 if cap else abs(factor)) / options._positive("temperature", temperature)
    return _Head(w, bias, factor, cap, number, unit)


def _slices(n: int, step: int) -> Iterator[slice]:
    return (slice(first, min(first + step, n)) for first in range(0, n, step))


def _block(x: Array, head: _Head, k: int, width: int) -> Tuple[Array, Array, Array]:
    best, ids = np.empty((len(x), 0), np.float32), np.empty((len(x), 0), np.int64)
    rest = np.full((len(x), 1), -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):  # log 0 of rows with nothing left; NaN as it comes
        for columns in _slices(head.columns, width):
            u = np.concatenate([best, _scores(x, head, columns)], axis=1)
            new = np.broadcast_to(np.arange(columns.start, columns.stop), (len(x), columns.stop - columns.start))
            at = _largest(u, min(k, u.shape[1]))
            ids = np.take_along_axis(np.concatenate([ids, new], axis=1), at, 1)
            best = np.take_along_axis(u, at, 1)
            np.put_along_axis(u, at, -np.inf, 1)
            rest = np.logaddexp(rest, _lse(u, head.unit))
        lse = np.logaddexp(rest, _lse(best, head.unit))
        logprobs = np.minimum(best * np.float64(head.unit) - lse, 0)
        return ids, logprobs, np.minimum(rest - lse, 0)[:, 0]


def _scores(x: Array, head: _Head, columns: slice) -> Array:
    u = x @ head.w[columns].astype(np.float32).T
    if head.bias is not None:
        u += head.bias[columns].astype(np.float32)
    if head.softcap:
        return np.tanh(u * np.float32(head.scale / head.softcap)) * np.float32(head.softcap)
    return -u if head.scale < 0 else u


def _largest(u: Array, k: int) -> Array:
    """Where the k largest of each row are, in order; of equal ones the first come first. NaN is the largest."""
    key = np.where(np.isnan(u), np.inf, u)
    last = np.partition(key, u.shape[1] - k, axis=1)[:, u.shape[1] - k, None]
    above, equal = key > last, key == last
    left = k - above.sum(1, keepdims=True)
    at = np.nonzero(above | (equal & (equal.cumsum(1) <= left)))[1].reshape(len(u), k)
    return np.take_along_axis(at, np.argsort(-np.take_along_axis(key, at, 1), axis=1, kind="stable"), 1)


def _lse(u: Array, unit: float) -> Array:
    """log of the sum of e^(unit u), [rows, 1] in float64; -inf if nothing is there."""
    most = u.max(1, keepdims=True)
    most = np.where(most == -np.inf, np.float32(0), most)
    total = np.exp((u - most) * np.float32(unit)).sum(1, keepdims=True, dtype=np.float64)
    return most * np.float64(unit) + np.log(total)
