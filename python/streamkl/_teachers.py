# SPDX-License-Identifier: Apache-2.0
"""Several teachers in one batch of tensors: each has its rows, and the student is swept once for each of them."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor

from ._checks import bad
from ._groups import Group, answer, bad_index, bad_mask, bad_rows, groups_of, plan, put_together, refuse_twice
from ._inputs import row_inputs

_WHOLE = (torch.bool, torch.int64, torch.int32, torch.int16, torch.int8)


def by_teacher(
    linear_kl: Callable[..., Any],
    x_s: Tensor,
    w_s: Tensor,
    teachers: Any,
    tensors: Mapping[str, Optional[Tensor]],
    bias_s: Optional[Tensor],
    details: Sequence[str],
    return_lse: bool,
    options: Mapping[str, Any],
) -> Any:
    """linear_kl of each teacher's rows, put together. tensors: weight, labels, mass_ids."""
    groups, given = checked(x_s, teachers, tensors)
    asked = plan(details, return_lse, options)
    parts, found = [], []
    for rows, x_t, w_t in groups:
        own = {name: t[rows] for name, t in given.items()}
        part, told = linear_kl(x_s[rows], w_s, x_t, w_t, bias_s=bias_s, details=asked.details, **own, **asked.options)
        parts.append(part)
        found.append(told)

    def full(part: Tensor, number: float) -> Tensor:
        return torch.full(x_s.shape[:-1], number, dtype=part.dtype, device=part.device)

    loss = put_together("loss", groups, parts, full) if asked.reduction == "none" else sum(parts)
    if asked.reduction == "mean":
        loss = loss / (_denominator([told["count"] for told in found]) if asked.items is None else asked.items)
    return answer(loss, asked, return_lse, lambda name: put_together(name, groups, [x[name] for x in found], full))


def checked(
    x_s: Tensor, teachers: Any, tensors: Mapping[str, Optional[Tensor]]
) -> Tuple[List[Group], Dict[str, Tensor]]:
    """The teachers, and the tensors over all rows."""
    groups = groups_of(teachers, lambda name, rows: _rows(name, rows, x_s))
    for i, (_, x_t, w_t) in enumerate(groups):
        if not isinstance(x_t, Tensor) or not isinstance(w_t, Tensor):
            kinds = (type(x_t).__name__, type(w_t).__name__)
            raise bad(f"teachers[{i}]", kinds, "x_t and w_t must be tensors", TypeError)
    if not torch.compiler.is_compiling():  # a graph cannot raise
        _refuse_overlaps(groups, x_s.shape[:-1])
    return groups, {name: t for name, t in row_inputs(x_s.shape[:-1], **tensors).items() if t is not None}


def _rows(name: str, rows: Any, x_s: Tensor) -> Any:
    if isinstance(rows, slice):
        return rows
    rows = torch.as_tensor(rows, device=x_s.device) if isinstance(rows, (list, tuple, range)) else rows
    if not isinstance(rows, Tensor) or rows.dtype not in _WHOLE:
        raise bad_rows(name, rows.dtype if isinstance(rows, Tensor) else type(rows).__name__)
    if rows.dtype is torch.bool and rows.shape != x_s.shape[: rows.dim()]:
        raise bad_mask(name, rows.shape, x_s.shape[:-1])
    if not 0 < rows.dim() < x_s.dim():
        raise bad_index(name, tuple(rows.shape), x_s.shape[:-1])
    return rows if rows.dtype is torch.bool else rows.long()


def _refuse_overlaps(groups: Sequence[Group], shape: torch.Size) -> None:
    seen = torch.zeros(shape, dtype=torch.int32)
    for rows, _, _ in groups:
        if isinstance(rows, slice):
            seen[rows] += 1
        else:
            seen.index_put_((rows.cpu(),), torch.ones((), dtype=torch.int32), accumulate=True)
    refuse_twice((seen > 1).nonzero())


def _denominator(counts: List[Tensor]) -> Tensor:
    total = torch.stack(counts).sum().to(torch.float32)
    return torch.where(total == 0, torch.ones_like(total), total)
