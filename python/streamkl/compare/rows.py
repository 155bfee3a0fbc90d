# SPDX-License-Identifier: Apache-2.0
"""Everything that touches logits: hidden states and heads of two models -> numbers a token.

No [tokens, vocabulary] is ever held: one call of linear_kl streams over the vocabulary and tells all numbers of a token,
with one product a side. Only the most likely tokens of the few that are shown come from another one, topk_of.
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional, Protocol, Tuple

import numpy as np
import torch
from torch import Tensor

from ..functional import linear_kl
from ..lists import topk_of

TOP = 10  # ranks beyond it are all told as TOP


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
    found = _told(reference, other, labels)
    for name, side in (("ref", reference), ("other", other)):
        found[f"logprob_top1_{name}"] = _logit_of(side, found[f"top1_{name}"]) - found[f"lse_{name}"]
        found[f"rank_{name}"].clamp_(max=TOP)
    return {
        name: value.cpu().numpy().astype(np.float32 if value.is_floating_point() else np.int32)
        for name, value in found.items()
    }


_DETAILS = ("kl", "reverse", "jsd", "tv", "entropy_s", "entropy_t", "lse_s", "lse_t", "top1_s", "top1_t")
_RANKS = {"rank_s": "rank_ref", "rank_t": "rank_other"}  # rank_s is in the student's order, of the teacher's first


@torch.no_grad()
def _told(reference: Side, other: Side, labels: Optional[Tensor]) -> Dict[str, Tensor]:
    """What one call tells: two products, and a second sweep over the logits that it kept."""
    _, told = linear_kl(
        other.hidden,
        other.head.weight,
        reference.hidden,
        reference.head.weight,
        bias_s=other.head.bias,
        bias_t=reference.head.bias,
        scale_s=other.head.scale,
        scale_t=reference.head.scale,
        softcap_s=other.head.softcap,
        softcap_t=reference.head.softcap,
        columns=vocabulary(reference.head),
        reduction="sum",
        labels=labels,
        details=(*_DETAILS, *_RANKS) if labels is None else (*_DETAILS, *_RANKS, "logprob_s", "logprob_t"),
    )
    names = {"_s": "_other", "_t": "_ref"}
    found = {_RANKS.get(name) or name[:-2] + names.get(name[-2:], name[-2:]): value for name, value in told.items()}
    return found if labels is None else {**found, "label": labels}


def _shaped(z: Tensor, head: HeadLike) -> Tensor:
    z = z if head.scale is None else z * head.scale
    return z if head.softcap is None else head.softcap * torch.tanh(z / head.softcap)


def _logit_of(side: Side, ids: Tensor) -> Tensor:
    """One logit of each token."""
    z = (side.hidden.float() * side.head.weight[ids].float()).sum(-1)
    return _shaped(z if side.head.bias is None else z + side.head.bias[ids].float(), side.head)


def top_tokens(side: Side, k: int) -> Tuple[Tensor, Tensor]:
    """ids and log-probabilities [tokens, k] of the k most likely tokens, the first first."""
    head, v = side.head, vocabulary(side.head)
    top = topk_of(
        side.hidden, head.weight, min(k, v), bias=head.bias, scale=head.scale, softcap=head.softcap, columns=v
    )
    return top.ids, top.logprobs


def not_finite(rows: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
    """Which rows cannot be counted, and through which side."""
    ref = ~np.isfinite(rows["lse_ref"]) | ~np.isfinite(rows["entropy_ref"])
    other = ~np.isfinite(rows["lse_other"]) | ~np.isfinite(rows["entropy_other"])
    rest = [rows[name] for name in ("kl", "reverse", "jsd", "tv", "logprob_ref", "logprob_other") if name in rows]
    return {"reference": ref, "other": other, "either": ref | other | ~np.isfinite(rest).all(0)}
