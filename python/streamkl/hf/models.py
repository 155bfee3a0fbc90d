# SPDX-License-Identifier: Apache-2.0
"""Which model, and which head of it, is meant by what people hand over."""

from __future__ import annotations

from typing import Any

from torch import nn

from .._checks import bad


def unwrap(model: Any, name: str = "model") -> nn.Module:
    """The transformers model inside of torch.compile, DDP, FSDP, DataParallel, DeepSpeed and PEFT."""
    inner = model
    while isinstance(inner, nn.Module) and not _is_transformers(inner):
        base = getattr(inner, "get_base_model", None)  # PEFT
        following = base() if callable(base) else getattr(inner, "_orig_mod", getattr(inner, "module", None))
        if following is inner or not isinstance(following, nn.Module):
            break
        inner = following
    if not isinstance(inner, nn.Module) or not _is_transformers(inner):
        raise bad(name, type(model).__name__, "it must be a model of transformers (PreTrainedModel)", TypeError)
    return inner


def _is_transformers(model: nn.Module) -> bool:
    try:
        from transformers import PreTrainedModel
    except ModuleNotFoundError as error:
        raise ImportError("streamkl.hf needs transformers: pip install 'streamkl[hf]'") from error
    return isinstance(model, PreTrainedModel)


def head_module(model: nn.Module, name: str = "model") -> nn.Module:
    """The module that turns hidden states into logits."""
    found = model.get_output_embeddings()
    if not isinstance(found, nn.Module):
        rule = "it has no head that gives logits: load it with AutoModelForCausalLM"
        raise bad(name, type(model).__name__, rule)
    return found
