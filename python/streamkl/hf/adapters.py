# SPDX-License-Identifier: Apache-2.0
"""Weight and bias of a head's module, with PEFT's adapters merged into them."""

from __future__ import annotations

from typing import Any, Optional, Tuple

from torch import Tensor, nn

from .._checks import bad

Affine = Tuple[Tensor, Optional[Tensor]]


def merged(module: nn.Module, kind: str) -> Affine:
    """(weight, bias) of what the module computes, with gradients to every parameter of it. kind: the model's name."""
    if hasattr(module, "modules_to_save"):
        chosen = None if module.disable_adapters or not module.active_adapters else module.active_adapters[0]
        return merged(module.original_module if chosen is None else module.modules_to_save[chosen], kind)
    if hasattr(module, "base_layer"):
        return _with_lora(module, kind)
    return _plain(module, kind)


def _plain(module: nn.Module, kind: str) -> Affine:
    weight, name = getattr(module, "weight", None), type(module).__name__
    if getattr(module, "_hf_hook", None) is not None and getattr(weight, "is_meta", False):
        raise bad("model", kind, f"the weight of its head ({name}) is offloaded: keep lm_head in memory")
    forward = getattr(type(module), "forward", None)
    quantised = type(weight).__name__ not in ("Tensor", "Parameter", "DTensor") or not weight.is_floating_point()
    if quantised or weight.element_size() < 2 or forward is not nn.Linear.forward:
        rule = f"its head ({name}) is not a linear layer with a weight of plain numbers"
        raise bad("model", kind, f"{rule}: leave lm_head out of the quantisation")
    if weight.dim() != 2 or not weight.numel():
        raise bad("model", kind, f"the weight of its head has shape {tuple(weight.shape)} in this process: gather it")
    return weight, module.bias


def _with_lora(module: Any, kind: str) -> Affine:
    """W + sum of scaling B A over the active adapters, as lora.Linear.forward computes it."""
    weight, bias = merged(module.base_layer, kind)
    if module.disable_adapters or module.merged:
        if module.disable_adapters and module.merged:  # its forward would take them out first
            raise bad("model", kind, "the adapters of its head are merged and disabled: unmerge them")
        return weight, bias
    for adapter in module.active_adapters:
        if adapter not in getattr(module, "lora_A", {}):
            if adapter in getattr(module, "_get_available_adapters", set)():
                raise bad("model", kind, f"its head has an adapter ({type(module).__name__}) that is not LoRA")
            continue
        a, b, drop = module.lora_A[adapter], module.lora_B[adapter], module.lora_dropout[adapter]
        if adapter in module.lora_variant:
            variant = type(module.lora_variant[adapter]).__name__
            raise bad("model", kind, f"its head has a variant of LoRA ({variant}) that cannot be merged with gradients")
        if drop.training and getattr(drop, "p", 0.0) > 0:
            rule = f"lora_dropout = {drop.p} on its head acts on what goes in, so nothing can be merged"
            raise bad("model", kind, f"{rule}: set it to 0, or call eval()")
        scaling = module.scaling[adapter]
        delta = scaling * (b.weight.float() @ a.weight.float())
        weight = (weight.float() + delta).to(weight.dtype)
        if b.bias is not None:
            more = scaling * b.bias
            bias = more if bias is None else bias + more
    return weight, bias
