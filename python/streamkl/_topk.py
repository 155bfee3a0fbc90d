# SPDX-License-Identifier: Apache-2.0
"""The keys that an indexer chooses: the largest of its logits, a few rows of them at a time."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

import numpy as np

from ._options import bad, make_options

Array = Any

_LOGITS = 1 << 22  # held at once: 16 MiB


def check_count(k: object) -> int:
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 1 <= k < 2**31:
        raise bad("k", k, "it must be a number of keys, at least 1")
    return int(k)


def seen_keys(n: int, m: int, causal: bool, window: Optional[Tuple[int, int]], begin: Array, end: Array):
    """Of n queries the keys first .. last - 1 of m that each sees, aligned bottom right. begin, end: [n], or None."""
    diagonal = np.arange(n) + m - n
    first, last = np.zeros(n, np.int64), np.full(n, m)
    left, right = (-1, -1) if window is None else window
    if left >= 0:
        first = np.maximum(first, diagonal - left)
    if causal or right >= 0:
        last = np.minimum(last, diagonal + 1 + (0 if causal else right))
    if begin is not None:
        first = np.maximum(first, begin)
    if end is not None:
        last = np.minimum(last, end)
    return first, last


def _choose(z: Array, seen: Array, count: int, first_key: int) -> Array:
    """The 'count' largest of the seen entries of each row, the largest first, of equal ones the lower key first; -1 behind."""
    z = np.where(seen, np.where(np.isnan(z), np.inf, z), -np.inf)
    few = min(count, z.shape[1])
    least = np.partition(z, z.shape[1] - few, axis=1)[:, z.shape[1] - few, None]
    above, equal = seen & (z > least), seen & (z == least)
    room = count - above.sum(1, keepdims=True)
    rows, keys = np.nonzero(above | (equal & (np.cumsum(equal, 1) <= room)))
    at = np.arange(len(rows)) - np.searchsorted(rows, rows)  # how many of its row come before it
    chosen, scores = np.full((len(z), count), -1, np.int32), np.full((len(z), count), np.inf, np.float32)
    chosen[rows, at], scores[rows, at] = keys + first_key, -z[rows, keys]
    return np.take_along_axis(chosen, np.argsort(scores, axis=1, kind="stable"), axis=1)


def one_batch(q: Array, k: Array, w: Array, count: int, seen, relu: bool, scale: float) -> Array:
    """q [Hi, N, Di], k [M, Di], w [N, Hi] in f32; seen: first and last + 1 of the keys of each query. [N, count] int32."""
    first, last = seen
    n, out = q.shape[1], np.full((q.shape[1], count), -1, np.int32)
    step = max(1, _LOGITS // max(1, len(k)))
    for i in range(0, n, step):
        rows = slice(i, min(n, i + step))
        some = first[rows] < last[rows]
        if not some.any():
            continue
        lo, hi = int(first[rows][some].min()), int(last[rows][some].max())
        z = np.zeros((rows.stop - i, hi - lo), np.float32)
        for h in range(q.shape[0]):
            x = q[h, rows] @ k[lo:hi].T
            z += w[rows, h, None] * (np.maximum(x, 0) if relu else x)
        j = np.arange(lo, hi)
        visible = (j >= first[rows, None]) & (j < last[rows, None])
        out[rows] = _choose(np.float32(scale) * z, visible, count, lo)
    return out


def lists_of(
    operands: Sequence[Array],
    count: int,
    begin: Array,
    end: Array,
    offsets: Optional[Sequence[Array]],
    relu: bool,
    scale: float,
    causal: bool,
    window: Optional[Tuple[int, int]],
) -> Array:
    """operands: q [B, Hi, N, Di], k [B, M, Di], w [B, N, Hi] in f32; begin, end: [B, N] or None; offsets: of packed sequences in
    one batch. [B, N, count] int32; keys count from the first of their sequence."""
    q, k, w = operands
    batch, _, n, _ = q.shape
    pieces: List[Tuple[int, slice, slice]] = [(b, slice(0, n), slice(0, k.shape[1])) for b in range(batch)]
    if offsets is not None:
        cu_q, cu_k = ([int(x) for x in one] for one in offsets)
        _check_offsets("cu_seqlens_q", cu_q, n, len(cu_q))
        _check_offsets("cu_seqlens_k", cu_k, k.shape[1], len(cu_q))
        pieces = [(0, slice(*cu_q[i : i + 2]), slice(*cu_k[i : i + 2])) for i in range(len(cu_q) - 1)]
    out = np.full((batch, n, count), -1, np.int32)
    for b, rows, keys in pieces:
        bounds = [None if x is None else x[b, rows] for x in (begin, end)]
        seen = seen_keys(rows.stop - rows.start, keys.stop - keys.start, causal, window, *bounds)
        out[b, rows] = one_batch(q[b, :, rows], k[b, keys], w[b, rows], count, seen, relu, scale)
    return out


def _check_offsets(name: str, x: Sequence[int], total: int, entries: int) -> None:
    if len(x) != entries or not x or x[0] != 0 or x[-1] != total or any(a > b for a, b in zip(x, x[1:])):
        rule = f"it must rise from 0 to {total}, with as many entries in cu_seqlens_q and cu_seqlens_k"
        raise bad(name, list(x), rule)


def check_options(use: int, relu: bool, scale: float, causal: bool, window: Optional[Tuple[int, int]]) -> None:
    make_options(use, dict(relu=relu, scale_s=scale, causal=causal, window=window))
