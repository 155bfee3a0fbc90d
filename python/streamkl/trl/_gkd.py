# SPDX-License-Identifier: Apache-2.0
"""TRL's GKDTrainer: its compute_loss from hidden states instead of logits."""

from __future__ import annotations

from typing import Any, Callable, Mapping

import torch
from torch import Tensor

from .._faces import divergence_of
from ..hf import head, hidden_states, linear_kl
from ._versions import inside

TrlGKDTrainer = inside("trl.experimental.gkd.gkd_trainer", "GKDTrainer")
through_forward = inside("trl.models.utils", "_ForwardRedirection")()
PLACE = TrlGKDTrainer, "compute_loss"


def gkd_loss(student: Any, teacher: Any, inputs: Mapping[str, Tensor], beta: float, num_items_in_batch) -> Tensor:
    """The generalised JSD over the tokens that have a label. GKD's temperature is of the sampling, not of the loss."""
    batch = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    x_s = hidden_states(student, batch)
    teacher.eval()
    with torch.no_grad():
        x_t = hidden_states(teacher, batch)
        head_t = head(teacher)
    kept = inputs["labels"][:, 1:] != -100  # a hidden state predicts the token after it
    reduction = "mean" if num_items_in_batch is None else "sum"
    options = dict(divergence_of(beta), weight=kept, reduction=reduction)
    loss = linear_kl(x_s[:, :-1], head(student), x_t[:, :-1], head_t, **options)
    if isinstance(num_items_in_batch, Tensor):
        num_items_in_batch = num_items_in_batch.to(loss.device)
    return loss if num_items_in_batch is None else loss / num_items_in_batch


def with_streamkl(method: Callable) -> Callable:
    """Instead of TRL's compute_loss, which is called only by who wants the model's outputs too."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        if return_outputs:
            return method(self, model, inputs, return_outputs, num_items_in_batch)
        student = self.accelerator.unwrap_model(model)
        args = student, self.teacher_model, inputs, self.beta, num_items_in_batch
        return through_forward(model, student, gkd_loss, *args)  # so that DDP and FSDP see all of it

    return compute_loss


class GKDTrainer(TrlGKDTrainer):
    """TRL's GKDTrainer with streamkl's loss: same arguments, same losses, same log."""

    compute_loss = with_streamkl(TrlGKDTrainer.compute_loss)
