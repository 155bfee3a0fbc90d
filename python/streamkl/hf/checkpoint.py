# SPDX-License-Identifier: Apache-2.0
"""The head of a checkpoint on disk, without reading the rest of it."""

from __future__ import annotations

import functools
import json
import pathlib
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

import torch
from torch import Tensor, nn

from .._checks import bad
from .heads import Head, head
from .models import head_module

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def head_from(folder: Union[str, pathlib.Path], *, dtype: Optional[torch.dtype] = None, device: Any = "cpu") -> Head:
    """head(model) of the model that was saved in a folder (config.json and safetensors). For a teacher that runs
    elsewhere and sends its hidden states. No gradient; dtype None is the one in the file."""
    path = pathlib.Path(folder)
    if not (path / "config.json").is_file():
        adapter = (path / "adapter_config.json").is_file()
        rule = "it holds an adapter: merge it and save the model" if adapter else "there is no config.json in it"
        raise bad("folder", str(folder), rule)
    model = _empty_model(path)
    empty = head(model)
    files = _files(path, model)
    module = head_module(model)
    weight = _read(path, files, _names(model, module.weight), empty.weight.shape, dtype, device)
    bias = None
    if empty.bias is not None:
        if module.bias is None:
            raise bad("folder", str(folder), f"{type(model).__name__} adds a bias that is no part of its head")
        bias = _read(path, files, _names(model, module.bias), empty.bias.shape, dtype, device)
    return empty._replace(weight=weight, bias=bias)


def _empty_model(path: pathlib.Path) -> nn.Module:
    """The model with its shapes and names, and without its numbers."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
    kind = getattr(transformers, (getattr(config, "architectures", None) or ["?"])[0], None)
    with torch.device("meta"):
        if kind is not None and hasattr(kind, "_from_config"):
            return kind._from_config(config)
        return transformers.AutoModelForCausalLM.from_config(config)


Place = Tuple[str, str]  # of a tensor: its file, and what it is called there


def _files(path: pathlib.Path, model: nn.Module) -> Dict[str, Place]:
    """Where each tensor is, by the name that the model has for it."""
    from safetensors import safe_open

    index = path / "model.safetensors.index.json"
    if index.is_file():
        files = json.loads(index.read_text())["weight_map"]
    elif (path / "model.safetensors").is_file():
        with safe_open(path / "model.safetensors", "pt") as file:
            files = dict.fromkeys(file.keys(), "model.safetensors")
    else:
        raise bad("folder", str(path), "there are no safetensors in it (model.safetensors, or its index)")
    rename = _renaming(model)
    return {rename(name): (file, name) for name, file in files.items()}


def _renaming(model: nn.Module) -> Callable[[str], str]:
    """From a checkpoint's names to the model's: transformers knows which of them have changed with its versions."""
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightRenaming
    except ImportError:
        return lambda name: name
    steps = [step for step in get_model_conversion_mapping(model) if isinstance(step, WeightRenaming)]
    return lambda name: functools.reduce(lambda found, step: step.rename_source_key(found)[0], steps, name)


def _names(model: nn.Module, wanted: Tensor) -> List[str]:
    """What a checkpoint may call a parameter: the head's name first, then the embedding's it is tied to."""
    own = [name for name, p in model.named_parameters(remove_duplicate=False) if p is wanted]
    head_first = sorted(own, key=lambda name: "embed" in name or "wte" in name)
    prefix = f"{model.base_model_prefix}."
    return [x for name in head_first for x in dict.fromkeys((name, name.removeprefix(prefix), prefix + name))]


def _read(
    path: pathlib.Path, files: Dict[str, Place], names: List[str], shape: Tuple[int, ...], dtype, device
) -> Tensor:
    from safetensors import safe_open

    name = next((name for name in names if name in files), None)
    if name is None:  # inside of a model with other parts
        inside = [key for key in files if any(key.endswith(f".{name}") for name in names)]
        if len(inside) != 1:
            raise bad("folder", str(path), f"it has no tensor of the name {names[0]}")
        name = inside[0]
    file_name, there = files[name]
    with safe_open(path / file_name, "pt") as file:
        found = file.get_tensor(there)
    if found.dtype not in _FLOATS or tuple(found.shape) != tuple(shape):
        got = f"{tuple(found.shape)} of {found.dtype}"
        raise bad("folder", str(path), f"{name} is {got}: a head of plain numbers, {tuple(shape)}, was expected")
    return found.to(device=device, dtype=dtype)
