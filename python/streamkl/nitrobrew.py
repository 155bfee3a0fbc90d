# SPDX-License-Identifier: Apache-2.0
"""Nitrobrew's two calls: change `from nitrobrew import ...` to `from streamkl.nitrobrew import ...`.

xs [B, T, Ds] and ws [V, Ds] are the student, xt [B, T, Dt] and wt [V, Dt] the teacher, which is fixed: gradients go to
xs and ws only. reduction "none" gives [B, T].
"""

from __future__ import annotations

from torch import Tensor

from ._checks import bad
from .functional import linear_kl

__all__ = ["forward_kl", "reverse_kl"]


def forward_kl(
    xs: Tensor,
    xt: Tensor,
    ws: Tensor,
    wt: Tensor,
    temperature: float = 1.0,
    reduction: str = "none",
    chunk_V: int = 2048,
) -> Tensor:
    """KL(teacher || student). chunk_V is accepted and not needed: memory does not depend on it."""
    return _kl("forward", xs, xt, ws, wt, temperature, reduction, chunk_V)


def reverse_kl(
    xs: Tensor,
    xt: Tensor,
    ws: Tensor,
    wt: Tensor,
    temperature: float = 1.0,
    reduction: str = "none",
    chunk_V: int = 2048,
) -> Tensor:
    """KL(student || teacher). chunk_V is accepted and not needed: memory does not depend on it."""
    return _kl("reverse", xs, xt, ws, wt, temperature, reduction, chunk_V)


def _kl(divergence: str, xs, xt, ws, wt, temperature: float, reduction: str, chunk_V: int) -> Tensor:
    if chunk_V < 1:
        raise bad("chunk_V", chunk_V, "it must be at least 1")
    return linear_kl(
        xs, ws, xt.detach(), wt.detach(), temperature=temperature, divergence=divergence, reduction=reduction
    )
