# SPDX-License-Identifier: Apache-2.0
"""Which keys a query sees, as ranges, from the mask that a model gives to its attention function."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from .._ranges import runs_of

_ROWS_AT_ONCE = 1 << 24  # entries of a mask that exists only as a rule, evaluated together


class Mask(NamedTuple):
    """What an attention function was given to tell which keys a query sees."""

    mask: Any  # [B, 1, N, M] bool, or numbers that are added; [B, M] for flash attention; a BlockMask; None
    causal: bool  # query i sees no key after i: what implementations do that get no mask, and flash attention always
    aligned: (
        bool  # with more keys than queries the last query is beside the last key; False: the first beside the first
    )
    window: Optional[int]  # as flash attention takes it: the query's own key and so many - 1 before it
    positions: Optional[Tensor]  # [B, N] of packed sequences, where the attention function looks at them


class Ranges(NamedTuple):
    """Query i sees keys begin[i] to end[i] - 1. 'real': the queries that see themselves, which padding does not."""

    begin: Tensor  # [B or 1, h, N], h is 1 but for masks that differ between heads
    end: Tensor
    real: Tensor


def ranges(given: Mask, n: int, m: int, device: torch.device) -> Ranges:
    """Of n queries and m keys. ValueError: what a query sees is not a range, or the mask is not only a mask."""
    rule = given.mask is None or (isinstance(given.mask, Tensor) and given.mask.dim() == 2)
    begin, end = _of_a_rule(given, n, m, device) if rule else _of_entries(given.mask, n, m)
    own = torch.arange(n, device=device) + (m - n if given.aligned or given.mask is not None else 0)
    return Ranges(begin, end, (begin <= own) & (own < end))


def _of_a_rule(given: Mask, n: int, m: int, device: torch.device):
    """Causal or not, windows, and padding given for each key: as flash attention has it."""
    own = torch.arange(n, device=device)[None, None] + (m - n if given.aligned else 0)
    begin, end = torch.zeros_like(own), torch.full_like(own, m)
    if given.causal:
        end = own + 1
    if given.window is not None:
        begin = (own + 1 - given.window).clamp_min(0)
        end = end if given.causal else (own + given.window).clamp_max(m)
    if given.mask is not None:
        first, last = _range_of(given.mask[:, -m:].bool()[:, None])  # [B, 1]
        begin, end = torch.maximum(begin, first[..., None]), torch.minimum(end, last[..., None])
    if given.positions is not None:
        starts = torch.where(given.positions.diff(prepend=given.positions[:, :1] - 2) != 1, own[0], 0)
        begin = torch.maximum(begin, starts.cummax(-1).values[:, None])
    return begin, torch.maximum(begin, end)


def _of_entries(mask: Any, n: int, m: int):
    if not hasattr(mask, "mask_mod"):
        return _range_of(_seen(mask[..., :m]))
    batch, heads = mask.shape[:2]
    device = mask.kv_num_blocks.device
    step = max(1, _ROWS_AT_ONCE // max(1, batch * heads * m))
    b, h, k = (torch.arange(size, device=device) for size in (batch, heads, m))
    pieces = []
    for first in range(0, n, step):
        q = torch.arange(first, min(n, first + step), device=device)
        rows = mask.mask_mod(b[:, None, None, None], h[:, None, None], q[:, None], k)
        pieces.append(_range_of(rows.expand(batch, heads, len(q), m)))
    return torch.cat([p[0] for p in pieces], -1), torch.cat([p[1] for p in pieces], -1)


def _seen(mask: Tensor) -> Tensor:
    if mask.dtype is torch.bool:
        return mask
    seen, least = mask == 0, torch.finfo(mask.dtype).min / 2
    if not (seen | (mask <= least)).all():
        raise ValueError("its attention adds numbers to the logits (a position bias such as ALiBi)")
    return seen


def _range_of(seen: Tensor):
    """The first True of each row, and the one behind the last; 0, 0 if there is none."""
    begin, end, whole = runs_of(seen, torch, torch.arange(seen.shape[-1], device=seen.device))
    if not whole.all():
        raise ValueError("what a query sees has gaps, and is not a range of keys")
    return begin, end
