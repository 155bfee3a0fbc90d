# SPDX-License-Identifier: Apache-2.0
"""A teacher's head of low rank: W [V, D] is nearly weight [V, r] project^T [r, D], and the teacher's side of a loss costs r
entries a logit instead of D.

    W = U S P^T        project = P[:, :r],  weight = W project

P and S come from the eigenvectors of W^T W [D, D], which is summed up from slices of W: W is never copied as a whole.
"""

from __future__ import annotations

from typing import Any, Iterator, NamedTuple, Optional

import torch
from torch import Tensor

from ._checks import bad
from .functional import linear_kl

_SLICE = 1 << 25  # entries of W that are converted at once: 128 MiB of f32


class LowRankHead(NamedTuple):
    """What compress_head makes: linear_kl(x_s, w_s, x_t @ project, weight).

    project [D, r] and weight [V, r] have the dtype of the head. error is the mean KL(head || low-rank head) in nats on the hidden
    states that were given, None without."""

    project: Tensor
    weight: Tensor
    error: Optional[float]


def compress_head(
    w_t: Tensor,
    rank: Optional[int] = None,
    energy: Optional[float] = None,
    *,
    hidden: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    scale: Optional[float] = None,
    softcap: Optional[float] = None,
    columns: Optional[int] = None,
    temperature: float = 1.0,
) -> LowRankHead:
    """The head of this rank that is nearest to w_t [V, D], in the sum of squares.

    rank: from 1 to D. energy: instead of it, the smallest rank that keeps this share of the sum of squares, 0 < energy <= 1.
    hidden: hidden states [..., D] on which the error is measured, as the divergence of the two heads' distributions; bias,
        scale, softcap, columns and temperature are those of linear_kl.
    """
    if not isinstance(w_t, Tensor) or w_t.dim() != 2 or not w_t.is_floating_point():
        raise bad("w_t", getattr(w_t, "shape", type(w_t).__name__), "it must be a head [V, D] of floats", TypeError)
    if (rank is None) == (energy is None):
        raise bad("rank", rank, f"give one of rank and energy ({energy!r})")
    _check(w_t.shape[1], rank, energy)
    with torch.no_grad():
        squares, vectors = torch.linalg.eigh(_gram(w_t))  # ascending
        squares, vectors = squares.flip(0).clamp(min=0), vectors.flip(1)
        r = _rank_of(squares, energy) if rank is None else rank
        project = vectors[:, :r].to(w_t.dtype)
        weight = torch.empty(w_t.shape[0], r, dtype=w_t.dtype, device=w_t.device)
        basis = vectors[:, :r].float()
        for rows in _slices(w_t):
            weight[rows] = (w_t[rows].float() @ basis).to(w_t.dtype)
        head = LowRankHead(project, weight, None)
        numbers = dict(columns=columns, temperature=temperature, bias=bias, scale=scale, softcap=softcap)
        return head if hidden is None else head._replace(error=_measured(w_t, head, hidden, **numbers))


def _check(dim: int, rank: Any, energy: Any) -> None:
    if rank is not None and (isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= dim):
        raise bad("rank", rank, f"it must be a number of entries, 1 to {dim}")
    if energy is not None and not 0 < energy <= 1:
        raise bad("energy", energy, "it must be above 0 and at most 1")


def _slices(w: Tensor) -> Iterator[slice]:
    step = max(1, _SLICE // max(w.shape[1], 1))
    return (slice(first, first + step) for first in range(0, w.shape[0], step))


def _gram(w: Tensor) -> Tensor:
    """W^T W in float64, of slices' products in f32."""
    total = torch.zeros(w.shape[1], w.shape[1], dtype=torch.float64, device=w.device)
    for rows in _slices(w):
        part = w[rows].float()
        total += part.T @ part
    return total


def _rank_of(squares: Tensor, energy: Any) -> int:
    """The sum of squares up to rounding: all of it, at energy 1."""
    kept = squares.cumsum(0)
    return min(int((kept < float(energy) * kept[-1]).sum()) + 1, squares.numel())


def _measured(
    w_t: Tensor, head: LowRankHead, hidden: Tensor, bias: Any, scale: Any, softcap: Any, **more: Any
) -> float:
    both = dict(bias_s=bias, bias_t=bias, scale_s=scale, scale_t=scale, softcap_s=softcap, softcap_t=softcap)
    loss: Any = linear_kl(hidden @ head.project.to(hidden.dtype), head.weight, hidden, w_t, **both, **more)
    return float(loss)
