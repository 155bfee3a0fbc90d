# SPDX-License-Identifier: Apache-2.0
"""The head of a model: the numbers that turn hidden states into the logits that the model itself returns."""

from __future__ import annotations

import inspect
import re
from typing import Any, Dict, NamedTuple, Optional

import torch
from torch import Tensor, nn

from .. import functional
from .._checks import bad
from .adapters import merged
from .models import head_module, unwrap


class Head(NamedTuple):
    """logits = softcap tanh(scale (x weight^T + bias) / softcap), of the first 'columns' rows of weight and bias."""

    weight: Tensor  # [V, D]
    bias: Optional[Tensor]  # [V]
    scale: float
    softcap: Optional[float]
    columns: int

    def student(self, x: Tensor) -> Dict[str, Any]:
        """Arguments of streamkl.linear_kl for the side that learns, whose hidden states x are."""
        return self._side("s", x, self.weight, self.bias)

    def teacher(self, x: Tensor) -> Dict[str, Any]:
        """Arguments of streamkl.linear_kl for the side that is fixed: nothing of it gets a gradient."""
        return self._side("t", x.detach(), self.weight.detach(), None if self.bias is None else self.bias.detach())

    def _side(self, side: str, x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Dict[str, Any]:
        bias = None if bias is None else bias[: self.columns]
        values = {"x": x, "w": weight[: self.columns], "bias": bias, "scale": self.scale, "softcap": self.softcap}
        return {f"{name}_{side}": value for name, value in values.items()}

    def logits(self, x: Tensor) -> Tensor:
        """As the model computes them, all of them: for small examples and for tests."""
        z = self.scale * nn.functional.linear(x.to(self.weight.dtype), self.weight, self.bias)[..., : self.columns]
        return z if self.softcap is None else self.softcap * torch.tanh(z / self.softcap)

    def first(self, columns: int) -> Head:
        """The same head with a smaller vocabulary: columns=len(tokenizer) leaves out what pads the unembedding."""
        if not 1 <= columns <= self.columns:
            raise bad("columns", columns, f"the head has {self.columns}")
        return self._replace(columns=columns)


def linear_kl(x_s: Tensor, head_s: Head, x_t: Tensor, head_t: Head, **options: Any):
    """streamkl.linear_kl of two heads and the hidden states they are given. The teacher's side gets no gradient.

    Vocabularies of different sizes are cut to the smaller: families such as Qwen2.5 pad theirs differently. Other
    arguments are those of streamkl.linear_kl: weight, temperature, divergence, reduction ...
    """
    for name, found in (("head_s", head_s), ("head_t", head_t)):
        if not isinstance(found, Head):
            raise bad(name, type(found).__name__, "it must be what streamkl.hf.head(model) returns", TypeError)
    columns = options.pop("columns", None)
    columns = min(head_s.columns, head_t.columns) if columns is None else columns
    return functional.linear_kl(**head_s.first(columns).student(x_s), **head_t.first(columns).teacher(x_t), **options)


def head(model: Any) -> Head:
    """The head of a causal language model, so that Head.logits(hidden_states(model, batch)) are the model's logits.

    model: of transformers, also inside of torch.compile, DDP, FSDP2 or PEFT. weight and bias are the parameters
    themselves, so gradients reach them; a LoRA adapter on the head is merged into the weight, with gradients to its
    factors. Ask again after each step of the optimiser if there is one, or if the model is sharded by FSDP2: then the
    weight is a tensor made for this call. Quantised heads are refused.
    """
    inner = unwrap(model)
    kind = type(inner).__name__
    weight, bias = merged(head_module(inner), kind)
    weight, bias = _whole(weight), None if bias is None else _whole(bias)
    found = _after_the_product(inner)
    if "bias" in found:
        extra = found["bias"].reshape(-1).to(weight.dtype)
        bias = extra if bias is None else bias + extra
    columns = found.get("columns") or weight.shape[0]
    return Head(weight, bias, found.get("scale", 1.0), found.get("softcap"), min(columns, weight.shape[0]))


def _whole(t: Tensor) -> Tensor:
    """A tensor that is spread over processes, gathered. Each process has a loss of its own, of which FSDP takes the
    mean: so must the gradient of what was gathered here."""
    if type(t).__name__ != "DTensor":
        return t
    from torch.distributed.tensor import Partial

    return t.full_tensor(grad_placements=[Partial("avg")] * t.device_mesh.ndim)


# ---- what a model does to logits after the product

# A name that the model's forward reads: what its value is to the logits. None: it acts on the hidden states.
_MEANINGS = {
    "final_logit_softcapping": "softcap",
    "logits_soft_cap": "softcap",
    "output_logit_soft_cap": "softcap",
    "logit_softcap": "softcap",
    "logit_scale": "scale",
    "lm_head_multiplier": "scale",
    "output_multiplier": "scale",
    "final_logits_bias": "bias",
    "unpadded_vocab_size": "columns",
    "logits_mup_width_multiplier": None,
    "logits_scaling": "divisor",
}
# Models for which such a name means something else.
_EXCEPTIONS = {
    ("hyperclovax", "logits_scaling"): "scale",
    ("hyperclovax_vision_v2", "logits_scaling"): "scale",
    ("minicpm3", "logits_scaling"): None,
}
_SUSPECT = re.compile(r"soft_?cap|logits?_\w*(scal|mult|cap|bias|temp)|(lm_head|output)_\w*(scal|mult)", re.I)


def _after_the_product(model: nn.Module) -> Dict[str, Any]:
    """scale, softcap, bias and columns, as far as the model has them.

    Configurations have keys that some of their models do not look at, so the names in the compiled code of the model's
    own forward decide. A name that looks like one of these and is not known is refused: the logits would be wrong."""
    names = inspect.unwrap(type(model).forward).__code__.co_names
    found: Dict[str, Any] = {}
    for name in dict.fromkeys(names):
        meaning = _EXCEPTIONS.get((model.config.model_type, name), _MEANINGS.get(name))
        if name not in _MEANINGS:
            if _SUSPECT.search(name) and _value(model, name) not in (None, 1.0):
                rule = f"its forward uses {name}, which streamkl does not know: pass scale and softcap to linear_kl"
                raise bad("model", type(model).__name__, rule)
            continue
        value = _value(model, name)
        if meaning is None or value is None:
            continue
        if isinstance(value, nn.Module):
            rule = f"its forward calls {name}, a {type(value).__name__} that streamkl does not know"
            raise bad("model", type(model).__name__, f"{rule}: pass scale and softcap to linear_kl")
        found["scale" if meaning == "divisor" else meaning] = 1.0 / value if meaning == "divisor" else value
    if found.get("softcap") == 0:  # some forwards ask "if cap:"
        del found["softcap"]
    return found


def _value(model: nn.Module, name: str) -> Any:
    """Of an attribute of the model, of its decoder, or of its configuration: the first that has it."""
    for place in (model, model.base_model, model.config.get_text_config(decoder=True), model.config):
        value = getattr(place, name, None)
        if value is not None:
            value = _only_number(value) if isinstance(value, nn.Module) else value
            return value if isinstance(value, (Tensor, int, nn.Module)) else float(value)
    return None


def _only_number(module: nn.Module) -> Any:
    """Of a module that stands for it, such as Inkling's softcap; the module itself where it has none or several."""
    numbers = [x for x in vars(module).values() if isinstance(x, (int, float)) and not isinstance(x, bool)]
    return float(numbers[0]) if len(numbers) == 1 else module
