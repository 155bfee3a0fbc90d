# SPDX-License-Identifier: Apache-2.0
"""TRL's DistillationTrainer: its _compute_loss with another _chunked_divergence_loss."""

from __future__ import annotations

from types import FunctionType
from typing import Callable, Optional, Tuple, Union

from torch import Tensor

from .._faces import divergence_of
from ..functional import linear_kl
from ..hf.heads import _whole as whole
from ._versions import inside

TrlDistillationTrainer = inside("trl.trainer.distillation_trainer", "DistillationTrainer")
maybe_gather_lm_head_ctx = inside("trl.trainer.utils", "maybe_gather_lm_head_ctx")
PLACE = TrlDistillationTrainer, "_compute_loss"


def chunked_divergence_loss(
    student_hidden_states: Tensor,
    teacher_hidden_states: Tensor,
    student_lm_head_weight: Tensor,
    teacher_lm_head_weight: Tensor,
    completion_mask: Tensor,
    beta: float,
    num_items_in_batch: Union[Tensor, int, None] = None,
    student_lm_head_bias: Optional[Tensor] = None,
    teacher_lm_head_bias: Optional[Tensor] = None,
    student_logit_scale: float = 1.0,
    teacher_logit_scale: float = 1.0,
    student_final_logit_softcapping: Optional[float] = None,
    teacher_final_logit_softcapping: Optional[float] = None,
    temperature: float = 1.0,
) -> Tuple[Tensor, Tensor, Tensor]:
    """What TRL's _chunked_divergence_loss returns: loss, sum of the student's entropies, number of tokens that count.

    Tokens outside of completion_mask cost nothing, the gradients are made in the forward call, and the entropies come
    from the same logits."""
    valid = completion_mask != 0
    heads = student_lm_head_weight, student_lm_head_bias, teacher_lm_head_weight, teacher_lm_head_bias
    with maybe_gather_lm_head_ctx(*heads):  # DeepSpeed's ZeRO-3
        w_s, b_s, w_t, b_t = (None if t is None else whole(t) for t in heads)
        loss, told = linear_kl(
            student_hidden_states,
            w_s,
            teacher_hidden_states.detach(),
            w_t.detach(),
            bias_s=b_s,
            bias_t=None if b_t is None else b_t.detach(),
            scale_s=student_logit_scale,
            scale_t=teacher_logit_scale,
            softcap_s=student_final_logit_softcapping,
            softcap_t=teacher_final_logit_softcapping,
            temperature=temperature,
            weight=valid,
            reduction="mean" if num_items_in_batch is None else "sum",
            details=("entropy_s",),
            **divergence_of(beta),
        )
    if isinstance(num_items_in_batch, Tensor):
        num_items_in_batch = num_items_in_batch.to(loss.device)
    loss = loss if num_items_in_batch is None else loss / num_items_in_batch
    return loss, told["entropy_s"].sum(), valid.sum()


def with_streamkl(method: Callable) -> Callable:
    """TRL's _compute_loss, which finds the function above under the name of TRL's."""
    inside(method.__module__, "_chunked_divergence_loss")
    names = {**method.__globals__, "_chunked_divergence_loss": chunked_divergence_loss}
    changed = FunctionType(method.__code__, names, method.__name__, method.__defaults__, method.__closure__)
    changed.__kwdefaults__ = method.__kwdefaults__
    return changed


class DistillationTrainer(TrlDistillationTrainer):
    """TRL's DistillationTrainer with streamkl's loss: same arguments, same losses, same log."""

    _compute_loss = with_streamkl(TrlDistillationTrainer._compute_loss)
