# SPDX-License-Identifier: Apache-2.0
"""Several teachers in one batch: each has rows of its own, and the student is swept once for each of them.

    loss = sum over the teachers of sum(weight loss) / sum(weight) of all rows that have a teacher

Rows that no teacher has take no part, as rows of weight 0; a row that two teachers have is refused.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from ._inputs import row_inputs
from ._options import bad


class _Group(NamedTuple):
    rows: Any  # as x_s is indexed: a slice, a bool mask, integers
    x_t: Tensor
    w_t: Tensor


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
    shape = x_s.shape[:-1]
    reduction, items = options.get("reduction", "mean"), options.get("num_items")
    numbers = {**options, "reduction": "none" if reduction == "none" else "sum", "num_items": None}
    asked = ("lse_s", "lse_t") if return_lse else tuple(details)
    told = tuple(dict.fromkeys((*asked, "count")))
    parts, rows = [], []
    for rows_of, x_t, w_t in groups:
        own = {name: t[rows_of] for name, t in given.items()}
        part, found = linear_kl(x_s[rows_of], w_s, x_t, w_t, bias_s=bias_s, details=told, **own, **numbers)
        parts.append(part)
        rows.append(found)
    loss = _put_together("loss", groups, parts, shape) if reduction == "none" else sum(parts)
    if reduction == "mean":
        loss = loss / (_denominator([found["count"] for found in rows]) if items is None else items)
    if not asked:
        return loss
    whole = {name: _put_together(name, groups, [found[name] for found in rows], shape) for name in asked}
    return (loss, whole["lse_s"], whole["lse_t"]) if return_lse else (loss, whole)


def checked(
    x_s: Tensor, teachers: Any, tensors: Mapping[str, Optional[Tensor]]
) -> Tuple[List[_Group], Dict[str, Tensor]]:
    """The teachers, and the tensors over all rows."""
    groups = [_group(i, one, x_s) for i, one in enumerate(_listed(teachers))]
    if not torch.compiler.is_compiling():  # a graph cannot raise
        _refuse_overlaps(groups, x_s.shape[:-1])
    return groups, {name: t for name, t in row_inputs(x_s.shape[:-1], **tensors).items() if t is not None}


def _listed(teachers: Any) -> List[Any]:
    if isinstance(teachers, (Tensor, str, dict)) or not hasattr(teachers, "__iter__"):
        raise bad("teachers", type(teachers).__name__, "it must be a list of (rows, x_t, w_t)", TypeError)
    found = list(teachers)
    if not found:
        raise bad("teachers", found, "there must be at least one (rows, x_t, w_t)")
    return found


def _group(i: int, one: Any, x_s: Tensor) -> _Group:
    name = f"teachers[{i}]"
    if not isinstance(one, (tuple, list)) or len(one) != 3:
        raise bad(name, type(one).__name__, "it must be (rows, x_t, w_t)", TypeError)
    rows, x_t, w_t = one
    rows = torch.as_tensor(rows, device=x_s.device) if isinstance(rows, (list, tuple, range)) else rows
    whole = isinstance(rows, Tensor) and rows.dtype in (torch.bool, torch.int64, torch.int32, torch.int16, torch.int8)
    if not isinstance(rows, slice) and not whole:
        what = rows.dtype if isinstance(rows, Tensor) else type(rows).__name__
        raise bad(f"{name} rows", what, "they must be a slice, a bool mask or integers, as x_s is indexed", TypeError)
    if whole and rows.dtype is not torch.bool:
        rows = rows.long()
    if isinstance(rows, Tensor) and rows.dtype is torch.bool and rows.shape != x_s.shape[: rows.dim()]:
        raise bad(f"{name} rows", tuple(rows.shape), f"a mask must be of the rows, {tuple(x_s.shape[:-1])}")
    if isinstance(rows, Tensor) and not 0 < rows.dim() < x_s.dim():
        raise bad(f"{name} rows", tuple(rows.shape), f"they must index the rows, {tuple(x_s.shape[:-1])}")
    if not isinstance(x_t, Tensor) or not isinstance(w_t, Tensor):
        kinds = (type(x_t).__name__, type(w_t).__name__)
        raise bad(name, kinds, "x_t and w_t must be tensors", TypeError)
    return _Group(rows, x_t, w_t)


def _refuse_overlaps(groups: Sequence[_Group], shape: torch.Size) -> None:
    seen = torch.zeros(shape, dtype=torch.int32)
    for rows, _, _ in groups:
        if isinstance(rows, slice):
            seen[rows] += 1
        else:
            seen.index_put_((rows.cpu(),), torch.ones((), dtype=torch.int32), accumulate=True)
    if (seen > 1).any():
        at = tuple(int(i) for i in (seen > 1).nonzero()[0])
        raise bad("teachers", f"rows {list(at)} twice", "a row may have one teacher")


def _denominator(counts: List[Tensor]) -> Tensor:
    total = torch.stack(counts).sum().to(torch.float32)
    return torch.where(total == 0, torch.ones_like(total), total)


def _put_together(name: str, groups: Sequence[_Group], parts: Sequence[Tensor], shape: torch.Size) -> Tensor:
    """A tensor over all rows; what no teacher has is that of a row of weight 0."""
    if name in ("sum", "count"):
        return torch.stack(list(parts)).sum()
    first = parts[0]
    fill = -torch.inf if name.startswith("lse") else 0
    whole = torch.full(shape, fill, dtype=first.dtype, device=first.device)
    for (rows, _, _), part in zip(groups, parts):
        whole[rows] = part
    return whole
