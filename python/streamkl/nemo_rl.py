# SPDX-License-Identifier: Apache-2.0
"""NeMo-RL's distillation loss over the whole vocabulary, from hidden states.

DistillationLossFn has the configuration, the masks, the normalisation and the result of NeMo-RL's class of that name;
where that one takes top-k log-probabilities of both sides [B, S - 1, k], this one takes their hidden states [B, S - 1, D].

Written from NeMo-RL's source and tested against its formula. It was never run inside of NeMo-RL, whose package cannot be
installed from PyPI (nemo-rl 0.0.0 there is empty): examples/verl.md says what its workers would have to hand over.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Tuple, Union

from torch import Tensor

from ._checks import bad
from .hf.heads import Head, linear_kl

try:
    from nemo_rl.algorithms.loss.interfaces import LossInputType, LossType

    _LOSS_TYPE, _INPUT_TYPE = LossType.TOKEN_LEVEL, LossInputType.DISTILLATION
except ImportError:
    _LOSS_TYPE, _INPUT_TYPE = "token_level", "distillation"  # type: ignore[assignment]

Heads = Union[Head, Callable[[], Head]]


class DistillationLossFn:
    """KL(teacher || student) ("forward"), KL(student || teacher) ("reverse"), or mixed_kl_weight of the one and the rest of
    the other ("mixed"): the sum over the tokens that count, divided by global_valid_toks.

    cfg: kl_type and mixed_kl_weight as in NeMo-RL, a dict or an object; zero_outside_topk says nothing here.
    student_head, teacher_head: streamkl.hf.Head, or a function that returns one, asked at every call: a student whose
        head is sharded or has an adapter has another one after each step."""

    loss_type = _LOSS_TYPE
    input_type = _INPUT_TYPE

    def __init__(self, cfg: Any, student_head: Heads, teacher_head: Heads) -> None:
        read = cfg.get if isinstance(cfg, Mapping) else lambda name, default: getattr(cfg, name, default)
        self.kl_type = read("kl_type", "mixed")
        self.mixed_kl_weight = read("mixed_kl_weight", 0.5)
        if self.kl_type not in ("forward", "reverse", "mixed"):
            raise bad("kl_type", self.kl_type, "it must be one of 'forward', 'reverse', 'mixed'")
        if not 0 <= self.mixed_kl_weight <= 1:
            raise bad("mixed_kl_weight", self.mixed_kl_weight, "it must be from 0 to 1")
        self.heads = student_head, teacher_head

    def __call__(
        self,
        student_hidden_states: Tensor,
        teacher_hidden_states: Tensor,
        data: Mapping[str, Tensor],
        global_valid_seqs: Tensor,
        global_valid_toks: Tensor,
    ) -> Tuple[Tensor, Dict[str, Any]]:
        student, teacher = (found if isinstance(found, Head) else found() for found in self.heads)
        tokens = student_hidden_states.shape[1]
        counts = (data["token_mask"][:, 1:] * data["sample_mask"].unsqueeze(-1))[:, :tokens]

        def kl(divergence: str) -> Tensor:
            options = dict(weight=counts, divergence=divergence, reduction="sum")
            return linear_kl(student_hidden_states, student, teacher_hidden_states, teacher, **options)

        if self.kl_type == "mixed":
            share = self.mixed_kl_weight
            total = share * kl("forward") + (1 - share) * kl("reverse")
        else:
            total = kl(self.kl_type)
        loss = total / global_valid_toks.clamp(min=1)
        return loss, {"loss": loss.item(), "num_valid_samples": data["input_ids"].shape[0]}
