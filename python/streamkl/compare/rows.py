# SPDX-License-Identifier: Apache-2.0
"""Everything that touches logits: hidden states and heads of two models -> numbers a token.

No [tokens, vocabulary] is ever held: linear_kl streams, and what it does not tell comes from tiles of both.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, NamedTuple, Optional, Protocol, Tuple

import numpy as np
import torch
from torch import Tensor

from ..functional import linear_kl

TOKENS, COLUMNS, TOP = 512, 4096, 10  # of a tile; TOP: ranks beyond it are all told as TOP


class HeadLike(Protocol):
    """What streamkl.hf.head returns: logits are softcap(scale (x w' + bias)) over the first 'columns' rows of w."""

    weight: Tensor
    bias: Optional[Tensor]
    scale: Optional[float]
    softcap: Optional[float]
    columns: Optional[int]


class Side(NamedTuple):
    hidden: Tensor  # [tokens, D]
    head: HeadLike


def on_cpu(head: Any) -> Any:
    """A head without its graph, where rows are computed."""
    return type(head)(*(t.detach().cpu() if isinstance(t, Tensor) else t for t in head))


def vocabulary(head: HeadLike) -> int:
    return head.columns or head.weight.shape[0]


def token_rows(reference: Side, other: Side, labels: Optional[Tensor] = None) -> Dict[str, np.ndarray]:
    """For each token, as arrays [tokens]:

    kl KL(reference || other), reverse KL(other || reference), jsd (beta 1/2), tv; entropy_ref, entropy_other;
    lse_ref, lse_other; top1_ref, top1_other (ids), logprob_top1_ref, logprob_top1_other (of each side's own first);
    rank_ref (place of the reference's first in the other's order, 0 to 10, 10 is beyond), rank_other (the reverse);
    with labels: label, logprob_ref, logprob_other. Numbers are float32 and in nats, ids and ranks int32.
    A row with a NaN or an infinity in it has NaN somewhere in its numbers.
    """
    sides = {"ref": reference, "other": other}
    found = _divergences(reference, other)
    lse = {name: found[f"lse_{name}"] for name in sides}
    top = {name: top_tokens(side, TOP, lse[name]) for name, side in sides.items()}
    found.update(_sweep(reference, other, lse["ref"], lse["other"]))
    for name, opposite in (("ref", "other"), ("other", "ref")):
        ids, logprob = top[name]
        found[f"top1_{name}"], found[f"logprob_top1_{name}"] = ids[:, 0], logprob[:, 0]
        at = top[opposite][0] == ids[:, :1]
        found[f"rank_{name}"] = torch.where(at.any(-1), at.int().argmax(-1), TOP)
    if labels is not None:
        found["label"] = labels
        for name, side in sides.items():
            found[f"logprob_{name}"] = _logit_of(side, labels) - lse[name]
    return {
        name: value.cpu().numpy().astype(np.float32 if value.is_floating_point() else np.int32)
        for name, value in found.items()
    }


@torch.no_grad()
def _divergences(reference: Side, other: Side) -> Dict[str, Tensor]:
    options = dict(
        bias_s=other.head.bias,
        bias_t=reference.head.bias,
        scale_s=other.head.scale,
        scale_t=reference.head.scale,
        softcap_s=other.head.softcap,
        softcap_t=reference.head.softcap,
        columns=vocabulary(reference.head),
        reduction="none",
    )
    operands = (other.hidden, other.head.weight, reference.hidden, reference.head.weight)
    found = {}
    for name, divergence in (("kl", "forward"), ("reverse", "reverse"), ("jsd", "jsd")):
        found[name], found["lse_other"], found["lse_ref"] = linear_kl(
            *operands, divergence=divergence, return_lse=True, **options
        )
    return found


def _shaped(z: Tensor, head: HeadLike) -> Tensor:
    z = z if head.scale is None else z * head.scale
    return z if head.softcap is None else head.softcap * torch.tanh(z / head.softcap)


def _logits(side: Side, rows: slice, columns: slice) -> Tensor:
    z = side.hidden[rows].float() @ side.head.weight[columns].float().T
    return _shaped(z if side.head.bias is None else z + side.head.bias[columns].float(), side.head)


def _logit_of(side: Side, ids: Tensor) -> Tensor:
    """The logit of one id a row."""
    ids = ids.long()
    found = []
    for rows in _slices(len(ids), TOKENS):
        z = (side.hidden[rows].float() * side.head.weight[ids[rows]].float()).sum(-1)
        found.append(_shaped(z if side.head.bias is None else z + side.head.bias[ids[rows]].float(), side.head))
    return torch.cat(found) if found else side.hidden.new_zeros(0, dtype=torch.float32)


def _slices(n: int, step: int) -> Iterator[slice]:
    return (slice(i, min(i + step, n)) for i in range(0, n, step))


@torch.no_grad()
def _sweep(reference: Side, other: Side, lse_ref: Tensor, lse_other: Tensor) -> Dict[str, Tensor]:
    """Total variation and entropies, with the log-sum-exps known: sums over tiles."""
    n = len(lse_ref)
    sums = {name: torch.zeros(n) for name in ("tv", "entropy_ref", "entropy_other")}
    for rows in _slices(n, TOKENS):
        for columns in _slices(vocabulary(reference.head), COLUMNS):
            log_p = _logits(reference, rows, columns) - lse_ref[rows, None]
            log_q = _logits(other, rows, columns) - lse_other[rows, None]
            p, q = log_p.exp(), log_q.exp()
            sums["tv"][rows] += 0.5 * (p - q).abs().sum(-1)
            sums["entropy_ref"][rows] -= torch.where(p > 0, p * log_p, p).sum(-1)  # 0 log 0 is 0; a NaN stays one
            sums["entropy_other"][rows] -= torch.where(q > 0, q * log_q, q).sum(-1)
    return sums


@torch.no_grad()
def top_tokens(side: Side, k: int, lse: Optional[Tensor] = None) -> Tuple[Tensor, Tensor]:
    """ids and log-probabilities [tokens, k] of the k most likely tokens, the first first."""
    ids, values = [], []
    v = vocabulary(side.head)
    for rows in _slices(len(side.hidden), TOKENS):
        best, where, total = None, None, None
        for columns in _slices(v, COLUMNS):
            z = _logits(side, rows, columns)
            part, at = z.topk(min(k, z.shape[-1]))
            at = at + columns.start
            log_sum = z.logsumexp(-1)
            if best is not None:
                part, at = torch.cat([best, part], -1), torch.cat([where, at], -1)
                log_sum = torch.logaddexp(total, log_sum)
            best, order = part.topk(min(k, part.shape[-1]))
            where, total = at.gather(-1, order), log_sum
        ids.append(where)
        values.append(best - (total if lse is None else lse[rows])[:, None])
    if not ids:
        return torch.zeros(0, min(k, v), dtype=torch.long), torch.zeros(0, min(k, v))
    return torch.cat(ids), torch.cat(values)


def not_finite(rows: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
    """Which rows cannot be counted, and through which side."""
    ref = ~np.isfinite(rows["lse_ref"]) | ~np.isfinite(rows["entropy_ref"])
    other = ~np.isfinite(rows["lse_other"]) | ~np.isfinite(rows["entropy_other"])
    rest = [rows[name] for name in ("kl", "reverse", "jsd", "tv", "logprob_ref", "logprob_other") if name in rows]
    return {"reference": ref, "other": other, "either": ref | other | ~np.isfinite(rest).all(0)}
