# SPDX-License-Identifier: Apache-2.0
"""A whole recipe of distillation in one call."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor

from .._checks import bad, real
from ..functional import linear_cross_entropy
from .attention import attention_kl
from .capture import capture
from .heads import Head, head, linear_kl
from .states import hidden_states

IGNORED = -100  # the label of a token that counts for nothing

Part = Union[float, Mapping[str, Any]]


class DistillationLoss(NamedTuple):
    loss: Tensor
    parts: Dict[str, Tensor]  # "kl", "ce", "attention", as far as asked for: without their factors and without a graph


def distillation_loss(
    student: Any,
    teacher: Union[Any, Tuple[Tensor, Head]],
    batch: Mapping[str, Any],
    *,
    kl: Part = 1.0,
    ce: Part = 0.0,
    attention: Part = 0.0,
    **unknown: Any,
) -> DistillationLoss:
    """loss = kl * KL of the next tokens + ce * cross-entropy of the labels + attention * KL of the attentions.

    teacher: a model, called without a graph; or (hidden states, head), of a TeacherCache for instance.
    batch: what the models take: input_ids, attention_mask, labels ...
    kl, ce, attention: a factor; or a dict with "factor" and options: those of streamkl.linear_kl for kl (temperature,
        divergence, beta, columns ...), those of streamkl.hf.attention_kl for attention (layers, heads ...). A part with
        the factor 0 is not computed.

    Tokens: position i predicts token i + 1. With labels, kl and ce are means over the positions whose next label is not
    -100 (batch["shift_labels"], if it is there, is taken as it is); without, kl is the mean over attention_mask.
    Attention is compared at every real token. Nothing is multiplied by the square of the temperature.
    """
    for name in unknown:
        rule = "tokens, masks and labels are in batch, options in the dicts kl=, ce= and attention="
        raise TypeError(f"streamkl: cannot use {name}=: distillation_loss has no such argument: {rule}")
    factors: Dict[str, float] = {}
    options: Dict[str, Dict[str, Any]] = {}
    for name, part in (("kl", kl), ("ce", ce), ("attention", attention)):
        factors[name], options[name] = _factor(name, part)
    if not any(factors.values()):
        raise bad("kl, ce, attention", (0, 0, 0), "at least one factor must not be 0")
    targets = _targets(batch)
    if factors["ce"] and targets is None:
        raise bad("ce", ce, "batch has no labels")
    cached = isinstance(teacher, tuple)
    if factors["attention"] and cached:
        raise bad("attention", attention, "hidden states have no attention: the teacher must be a model")

    noticed = bool(factors["attention"])
    if not cached and (factors["kl"] or noticed):
        with torch.no_grad(), capture(teacher) if noticed else nullcontext() as seen_t:
            x_t = hidden_states(teacher, batch)
    elif cached:
        x_t = teacher[0]
    with capture(student) if noticed else nullcontext() as seen_s:
        x_s = hidden_states(student, batch)

    head_s = head(student)
    head_t = None if not factors["kl"] else teacher[1] if cached else head(teacher)
    if factors["kl"] and factors["ce"] and _one_pass(head_s, head_t, options["kl"]):
        loss, parts = _together(x_s, head_s, x_t, head_t, targets, factors, options["kl"])
    else:
        parts: Dict[str, Tensor] = {}
        if factors["kl"]:
            weight = batch.get("attention_mask") if targets is None else targets != IGNORED
            parts["kl"] = linear_kl(x_s, head_s, x_t.to(x_s.device), head_t, weight=weight, **options["kl"])
        if factors["ce"]:
            parts["ce"] = _cross_entropy(x_s, head_s, targets)
        loss = sum(factors[name] * part for name, part in parts.items())
    if noticed:
        parts["attention"] = attention_kl(seen_s, seen_t, **options["attention"])
        loss = loss + factors["attention"] * parts["attention"]
    return DistillationLoss(loss, {name: part.detach() for name, part in parts.items()})


def _one_pass(head_s: Head, head_t: Head, options: Mapping[str, Any]) -> bool:
    """Whether one call gives both parts: of means, and over the columns of the student's own vocabulary."""
    own = head_s.columns <= head_t.columns and options.get("columns") is None
    return own and options.get("reduction", "mean") == "mean"


def _together(
    x_s: Tensor,
    head_s: Head,
    x_t: Tensor,
    head_t: Head,
    targets: Tensor,
    factors: Mapping[str, float],
    options: Mapping[str, Any],
) -> Tuple[Tensor, Dict[str, Tensor]]:
    """kl and ce from the same products."""
    weights = dict(labels=targets, label_weight=factors["ce"], kl_weight=factors["kl"])
    loss, told = linear_kl(x_s, head_s, x_t, head_t, details=("kl", "ce", "count"), **weights, **options)
    return loss, {name: told[name].sum() / told["count"].clamp(min=1) for name in ("kl", "ce")}


def _factor(name: str, part: Part) -> Tuple[float, Dict[str, Any]]:
    options = dict(part) if isinstance(part, Mapping) else {"factor": part}
    factor = real(name, options.pop("factor", 1.0))
    if name == "ce" and options:
        raise bad("ce", part, "it has no options but its factor")
    return factor, options


def _targets(batch: Mapping[str, Any]) -> Optional[Tensor]:
    """The label that each position predicts, or None."""
    if batch.get("shift_labels") is not None:
        return batch["shift_labels"]
    labels = batch.get("labels")
    return None if labels is None else torch.nn.functional.pad(labels[..., 1:], (0, 1), value=IGNORED)


def _cross_entropy(x: Tensor, head_s: Head, targets: Tensor) -> Tensor:
    """The mean of -log softmax(logits)[target] over the positions whose target is not ignored; 0 if there are none."""
    logits = dict(bias=head_s.bias, scale=head_s.scale, softcap=head_s.softcap, columns=head_s.columns)
    return linear_cross_entropy(x, head_s.weight, targets, **logits)
