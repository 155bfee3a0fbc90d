# SPDX-License-Identifier: Apache-2.0
"""Liger's fused linear divergences: change `from liger_kernel... import NAME` to `from streamkl.liger import NAME`.

    LigerFusedLinearJSDLoss                      of liger_kernel.chunked_loss: JSD and cross-entropy on labels
    LigerFusedLinearJSD, liger_fused_linear_jsd  of liger_kernel.transformers and its functional: JSD alone

Arguments, their order and their defaults are Liger's, of version 0.8.5; Liger itself is not needed. The teacher is
fixed: gradients go to the student only. What Liger has beside these is refused by its name.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple, Union

import torch
from torch import Tensor

from ._checks import bad
from ._faces import divergence_of
from .functional import linear_cross_entropy, linear_kl

__all__ = ["LigerFusedLinearJSD", "LigerFusedLinearJSDLoss", "liger_fused_linear_jsd"]


def liger_fused_linear_jsd(
    student_input: Tensor,
    student_weight: Tensor,
    teacher_input: Tensor,
    teacher_weight: Tensor,
    shift_labels: Optional[Tensor] = None,
    jsd_beta: float = 0.5,
    ignore_index: int = -100,
    temperature: float = 1.0,
    accum_dtype: Optional[torch.dtype] = None,
) -> Tensor:
    """The mean of JSD(jsd_beta) over the tokens whose label is not ignore_index. Labels say nothing but that.

    accum_dtype is accepted and not needed: gradients are summed in f32."""
    _check_accum_dtype(accum_dtype)
    kept = _kept("shift_labels", shift_labels, ignore_index, student_input)
    options = dict(weight=kept, temperature=temperature, **divergence_of(jsd_beta))
    return _linear_kl(student_input, student_weight, teacher_input, teacher_weight, None, None, **options)


class LigerFusedLinearJSD(torch.nn.Module):
    """liger_fused_linear_jsd as a module. Liger asks for shift_labels; here they may be left out."""

    def __init__(
        self,
        jsd_beta: float = 0.5,
        ignore_index: int = -100,
        temperature: float = 1.0,
        accum_dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__()
        _check_options("jsd_beta", jsd_beta, temperature)
        _check_accum_dtype(accum_dtype)
        self.jsd_beta = jsd_beta
        self.ignore_index = ignore_index
        self.temperature = temperature
        self.accum_dtype = accum_dtype

    def forward(
        self,
        student_input: Tensor,
        student_weight: Tensor,
        teacher_input: Tensor,
        teacher_weight: Tensor,
        shift_labels: Optional[Tensor] = None,
    ) -> Tensor:
        return liger_fused_linear_jsd(
            student_input,
            student_weight,
            teacher_input,
            teacher_weight,
            shift_labels,
            self.jsd_beta,
            self.ignore_index,
            self.temperature,
            self.accum_dtype,
        )


class LigerFusedLinearJSDLoss(torch.nn.Module):
    """weight_hard_loss CE(labels) + weight_soft_loss JSD(beta), each a mean over the tokens that are not ignored.

    Both come from the same logits. The temperature is of the JSD alone, and nothing is multiplied by its square. With
    return_soft_hard_loss the result is (loss, soft, hard), of which the loss alone has a gradient, as Liger's. compiled
    and chunk_size are accepted and not needed: memory does not depend on a chunk size. A teacher with more rows than
    the student is padded: the further rows have no mass (Liger gives the student logits of 0 there, and mass)."""

    def __init__(
        self,
        weight_hard_loss: float = 0.5,
        weight_soft_loss: float = 0.5,
        beta: float = 0.5,
        ignore_index: int = -100,
        temperature: float = 1.0,
        compiled: bool = True,
        chunk_size: int = 1024,
        return_soft_hard_loss: bool = False,
    ) -> None:
        super().__init__()
        _check_options("beta", beta, temperature)
        self.weight_hard_loss = weight_hard_loss
        self.weight_soft_loss = weight_soft_loss
        self.beta = beta
        self.ignore_index = ignore_index
        self.temperature = temperature
        self.compiled = compiled
        self.chunk_size = chunk_size
        self.return_soft_hard_loss = return_soft_hard_loss

    def forward(
        self,
        student_input: Tensor,
        student_weight: Tensor,
        teacher_input: Tensor,
        teacher_weight: Tensor,
        true_labels: Tensor,
        student_bias: Optional[Tensor] = None,
        teacher_bias: Optional[Tensor] = None,
    ) -> Union[Tensor, Tuple[Tensor, Tensor, Tensor]]:
        kept = _kept("true_labels", true_labels, self.ignore_index, student_input)
        if kept is None:
            raise bad("true_labels", None, "they say which tokens count, and the hard loss is theirs", TypeError)
        hard, soft, parts = self.weight_hard_loss, self.weight_soft_loss, self.return_soft_hard_loss
        given = (student_input, student_weight, teacher_input, teacher_weight, student_bias, teacher_bias)
        options = dict(divergence_of(self.beta), temperature=self.temperature)
        of_labels = dict(labels=true_labels, ignore_index=self.ignore_index)
        if parts:
            weights = dict(kl_weight=soft, label_weight=hard)
            loss, told = _linear_kl(*given, **of_labels, **weights, **options, details=("kl", "ce"))
            count = kept.sum().clamp(min=1)
            return loss, told["kl"].sum() / count, told["ce"].sum() / count
        if hard and soft:
            return _linear_kl(*given, **of_labels, kl_weight=soft, label_weight=hard, **options)
        if soft:
            return soft * _linear_kl(*given, weight=kept, **options)
        return hard * linear_cross_entropy(student_input, student_weight, **of_labels, bias=student_bias)


def _linear_kl(x_s, w_s, x_t, w_t, b_s, b_t, **options) -> Any:
    """linear_kl with a teacher that is fixed, and whose further rows are padding."""
    if w_s.shape[0] > w_t.shape[0]:
        raise bad("student_weight.shape", tuple(w_s.shape), f"the teacher has only {w_t.shape[0]} rows")
    b_t = None if b_t is None else b_t.detach()
    return linear_kl(x_s, w_s, x_t.detach(), w_t.detach(), bias_s=b_s, bias_t=b_t, columns=w_s.shape[0], **options)


def _kept(name: str, labels: Optional[Tensor], ignore_index: int, x: Tensor) -> Optional[Tensor]:
    if labels is None:
        return None
    if labels.shape != x.shape[:-1]:
        raise bad(f"{name}.shape", tuple(labels.shape), f"it must be that of the tokens, {tuple(x.shape[:-1])}")
    return labels != ignore_index


def _check_options(name: str, beta: float, temperature: float) -> None:
    divergence_of(beta, name)
    if not temperature > 0:
        raise bad("temperature", temperature, "it must be positive")


def _check_accum_dtype(dtype: Optional[torch.dtype]) -> None:
    if dtype not in (None, torch.float32):
        raise bad("accum_dtype", dtype, "gradients are summed in float32")


# ---- what Liger has and this has not

_LOGITS = "it takes logits or probabilities, which streamkl never makes: use LigerFusedLinearJSD on hidden states"
_OTHER = "it is no divergence of two softmaxes: import it from liger_kernel.chunked_loss"
_REFUSED = {
    "LigerFusedLinearCosineSimilarityLoss": _OTHER,
    "liger_fused_linear_cosine": _OTHER,
    "LigerFusedLinearDistillationBase": "its subclasses take logits, which streamkl never makes: use linear_kl",
    "LigerFusedLinearJSDFunction": "it is an inner class of Liger's: use LigerFusedLinearJSD or LigerFusedLinearJSDLoss",
    "LigerFusedLinearKLDivLoss": "its target is an array of probabilities: use LigerFusedLinearJSD(jsd_beta=0) on hidden states",
    "liger_fused_linear_kl_div": "its target is an array of probabilities: use liger_fused_linear_jsd(jsd_beta=0)",
    "LigerJSD": _LOGITS,
    "liger_jsd": _LOGITS,
    "LigerKLDIVLoss": _LOGITS,
    "liger_kl_div": _LOGITS,
    "LigerTVDLoss": _LOGITS,
    "liger_tvd": _LOGITS,
    "LigerFusedCETVDLoss": _LOGITS,
}


def __getattr__(name: str):
    if name in _REFUSED:
        raise ImportError(f"streamkl: cannot use {name}: {_REFUSED[name]}")
    raise AttributeError(f"module 'streamkl.liger' has no attribute {name!r}")
