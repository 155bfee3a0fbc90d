# SPDX-License-Identifier: Apache-2.0
"""Full-vocabulary distillation in verl: losses for its registry, with hidden states as what the teacher sends.

    VERL_USE_EXTERNAL_MODULES=streamkl.verl     every process of verl imports this, and that is all it takes
    @streamkl.verl.teacher                      marks the function that computes the teacher's hidden states

Loss modes (distillation.distillation_loss.loss_mode) and what they are: LOSSES below. Where verl's top-k losses carry
teacher_logprobs [tokens, k], these carry hidden states [tokens, D] under the same name; the teacher's head is read from
its checkpoint once in each worker. The student's logits are not made. examples/verl.md has a whole configuration.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import Tensor
from verl.experimental.teacher_loop.teacher_manager import AsyncTeacherLLMServerManager
from verl.trainer.distillation import losses as verl_losses
from verl.utils.tensordict_utils import get_non_tensor_data
from verl.utils.ulysses import get_ulysses_sequence_parallel_world_size
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.utils.padding import no_padding_2_padding

from ._checks import bad
from ._faces import warn_untested
from .hf.checkpoint import head_from
from .hf.heads import Head, head, linear_kl
from .hf.models import head_module, unwrap
from .hf.states import _instead_of_the_head as instead_of_the_head

TESTED = ("0.9", "0.10")
LOSSES: Dict[str, Dict[str, Any]] = {
    "nitrobrew": {"divergence": "forward"},  # Nitrobrew's names
    "nitrobrew_reverse_kl": {"divergence": "reverse"},
    "streamkl_forward": {"divergence": "forward"},  # KL(teacher || student)
    "streamkl_reverse": {"divergence": "reverse"},  # KL(student || teacher)
    "streamkl_jsd": {"divergence": "jsd"},  # with beta 1/2
}
Teacher = Callable[[List[int], Optional[str]], Tensor]

_teacher: List[Teacher] = []
_student: ContextVar[Tuple[Any, Any]] = ContextVar("student")  # the model, and what stands in for its head


def teacher(function: Teacher) -> Teacher:
    """Marks function(token ids, routing key) -> hidden states [tokens, D], as the teacher's head takes them."""
    _teacher[:] = [function]
    return function


@verl_losses.register_distillation_loss(verl_losses.DistillationLossSettings(names=list(LOSSES), use_topk=True))
def response_losses(config, distillation_config, model_output, data) -> Tuple[Tensor, Dict[str, Any]]:
    """The losses of the tokens, which the engine has by now, cut to the responses: [B, R]."""
    return no_padding_2_padding(model_output["distillation_losses"], data), {}


def packed_losses(config, distillation_config, data, student_logits: Tensor, data_format: str) -> Dict[str, Tensor]:
    """In place of verl's compute_topk_loss: the losses of all tokens of a micro batch, [1, tokens]. Tokens that are not
    of a response, or that response_mask leaves out, have loss 0 and cost nothing."""
    model, stand_in = _student.get()
    x_s = stand_in.x
    x_t = data["teacher_logprobs"].values().unsqueeze(0).to(x_s.device)
    head_t = _teacher_head(_only_teacher(distillation_config), x_s.device)
    if x_t.shape[-1] != head_t.weight.shape[1]:
        raise bad(
            "teacher's hidden states", tuple(x_t.shape), f"the head of the checkpoint takes {head_t.weight.shape[1]}"
        )
    rows = linear_kl(
        x_s,
        _at(head(model), data["temperature"]),
        x_t,
        head_t,
        weight=counted(data).to(x_s.device).unsqueeze(0),
        reduction="none",
        **LOSSES[distillation_config.distillation_loss.loss_mode],
    )
    return {"distillation_losses": rows}


def counted(data) -> Tensor:
    """1 for the tokens of a packed micro batch whose hidden state predicts a token of the response that counts."""
    ends = data["input_ids"].offsets()[1:].tolist()
    mask, responses = data["response_mask"], data["responses"]
    if responses.is_nested:
        lengths = responses.offsets().diff().tolist()
    else:
        lengths = data["attention_mask"][:, -responses.shape[1] :].sum(1).tolist()
    weight = torch.zeros(ends[-1])
    for end, length, row in zip(ends, lengths, mask.unbind()):
        weight[end - length - 1 : end - 1] = row[:length].to(weight)
    return weight


def _at(found: Head, temperature) -> Head:
    """The student's logits are those of the rollout, divided by its temperature; the teacher's are as they are. So it is
    with verl's own losses."""
    values = torch.as_tensor(temperature, dtype=torch.float64).unique()
    if len(values) > 1:
        raise bad("temperature", values.tolist(), "it must be the same for all samples")
    if values.item() != 1 and found.softcap is not None:
        raise bad("temperature", values.item(), "a student with a softcap on its logits needs temperature 1")
    return found._replace(scale=found.scale / values.item())


@lru_cache(maxsize=1)
def _teacher_head(path: str, device: torch.device) -> Head:
    return head_from(path, device=device)


def _only_teacher(distillation_config) -> str:
    models = list(distillation_config.teacher_models.values())
    if len(models) != 1:
        raise bad("distillation.teacher_models", len(models), "there must be one teacher for this loss mode")
    return models[0].model_path


# ---- the three places in verl that have to know


def _is_ours(distillation_config) -> bool:
    return distillation_config.distillation_loss.loss_mode in LOSSES


def _refuse(rule: str, name: str, value: object) -> None:
    raise bad(name, value, f"{rule}, because no logits are made")


def _with_losses(own: Callable) -> Callable:
    def compute_topk_loss(config, distillation_config, data, student_logits, data_format):
        ours = _is_ours(distillation_config)
        return (packed_losses if ours else own)(config, distillation_config, data, student_logits, data_format)

    return compute_topk_loss


def _with_hidden_states(own: Callable) -> Callable:
    def forward_step(self, micro_batch, loss_function, forward_only):
        config = getattr(loss_function, "keywords", {}).get("distillation_config")
        said = lambda key, default: get_non_tensor_data(data=micro_batch, key=key, default=default)  # noqa: E731
        if config is None or not _is_ours(config) or not said("distillation_use_topk", False):
            return own(self, micro_batch, loss_function, forward_only)
        if not said("distillation_only", False):
            _refuse("use_task_rewards and use_policy_gradient must be False", "distillation_loss", "with a policy loss")
        if said("calculate_entropy", False) or said("calculate_sum_pi_squared", False):
            _refuse("actor.entropy_coeff must be 0", "calculate_entropy", True)
        if not said("use_remove_padding", True):
            _refuse("model.use_remove_padding must be True", "use_remove_padding", False)
        if said("use_fused_kernels", False):
            _refuse("model.use_fused_kernels must be False", "use_fused_kernels", True)
        if get_ulysses_sequence_parallel_world_size() > 1:
            rule = "a sequence must be in one process"
            raise bad("ulysses_sequence_parallel_size", get_ulysses_sequence_parallel_world_size(), rule)
        with instead_of_the_head(head_module(unwrap(self.module))) as stand_in:
            before = _student.set((self.module, stand_in))
            try:
                return own(self, micro_batch, loss_function, forward_only)
            finally:
                _student.reset(before)
                stand_in.x = None

    return forward_step


def _with_teacher(own: Callable) -> Callable:
    async def compute_teacher_logprobs_single(self, sequence_ids, *args, routing_key=None, **kwargs):
        if not _is_ours(self.distillation_config):
            return await own(self, sequence_ids, *args, routing_key=routing_key, **kwargs)
        if not _teacher:
            rule = "no function is marked with @streamkl.verl.teacher in this process, see examples/verl.md"
            raise bad("loss_mode", self.distillation_config.distillation_loss.loss_mode, rule)
        x = await asyncio.to_thread(_teacher[0], sequence_ids, routing_key)
        if x.dim() != 2 or x.shape[0] != len(sequence_ids):
            raise bad("hidden states", tuple(x.shape), f"the teacher must give [{len(sequence_ids)}, D]")
        return torch.tensor(sequence_ids, dtype=torch.int32).unsqueeze(-1), x.detach().cpu()

    return compute_teacher_logprobs_single


warn_untested("verl", TESTED)
verl_losses.compute_topk_loss = _with_losses(verl_losses.compute_topk_loss)
FSDPEngineWithLMHead.forward_step = _with_hidden_states(FSDPEngineWithLMHead.forward_step)
AsyncTeacherLLMServerManager.compute_teacher_logprobs_single = _with_teacher(
    AsyncTeacherLLMServerManager.compute_teacher_logprobs_single
)
