# SPDX-License-Identifier: Apache-2.0
"""Models by name: a folder, and what to do to it on the way in (FOLDER:bf16, FOLDER:int4)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import pathlib
from typing import Any, Dict, Iterator, NamedTuple, Optional, Tuple

import torch
from torch import nn

from .._checks import bad

DTYPES = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
BITS = {"int8": 8, "int4": 4}
GROUP = 32  # weights that share a scale
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tokenizer_config.json")


class Source(NamedTuple):
    """A model that can be loaded, or one that is (given)."""

    name: str
    path: Optional[pathlib.Path] = None
    bits: Optional[int] = None
    dtype: Optional[torch.dtype] = None
    given: Any = None
    config: Any = None

    @property
    def positions(self) -> Optional[int]:
        text = self.config.get_text_config(decoder=True)
        return next((p for k in ("max_position_embeddings", "n_positions") if (p := getattr(text, k, None))), None)

    @property
    def runs_in(self) -> torch.dtype:
        """The dtype of its weights, before it is loaded."""
        if self.given is not None:
            return next(p.dtype for p in self.given.parameters() if p.is_floating_point())
        stored = getattr(self.config, "dtype", None) or getattr(self.config, "torch_dtype", None)
        stored = DTYPES.get(stored, stored) if isinstance(stored, str) else stored
        return self.dtype or stored or torch.float32

    def key(self) -> Dict[str, Any]:
        """What a run that goes on must find unchanged."""
        files = sorted(self.path.glob("*.safetensors")) + sorted(self.path.glob("*.bin")) if self.path else []
        stamps = [[f.name, f.stat().st_size, f.stat().st_mtime_ns] for f in files]
        weights = hashlib.sha256(json.dumps(stamps).encode()).hexdigest()[:16] if files else None
        return {"name": self.name, "bits": self.bits, "dtype": short(self.runs_in), "weights": weights}

    @contextlib.contextmanager
    def loaded(self, device: str = "cpu", dtype: Optional[torch.dtype] = None) -> Iterator[nn.Module]:
        """The model, ready to be asked, for the time of a 'with'; a given one stays as it is."""
        if self.given is not None:
            yield from _borrowed(self.given, dtype)
            return
        from transformers import AutoModelForCausalLM

        try:
            with _quietly():
                model = AutoModelForCausalLM.from_pretrained(
                    str(self.path), dtype=self.dtype or "auto", local_files_only=True
                )
        except Exception as error:  # transformers, safetensors and pickle have each their own kinds
            raise bad("model", str(self.path), f"transformers cannot load it: {str(error).splitlines()[0]}") from error
        if self.bits:
            quantise(model, self.bits)
        if dtype is not None:
            model.to(dtype)
        yield model.to(device).eval()


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without transformers' own bar for the weights, which would stand inside of ours."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _borrowed(model: nn.Module, dtype: Optional[torch.dtype]) -> Iterator[nn.Module]:
    if dtype is not None:
        import copy

        yield copy.deepcopy(model).to(dtype).eval()
        return
    training = model.training
    model.eval()
    try:
        yield model
    finally:
        model.train(training)


def short(dtype: torch.dtype) -> str:
    return str(dtype).replace("torch.", "")


def split_variant(text: str) -> Tuple[str, Optional[int], Optional[torch.dtype]]:
    """'folder:int4:bf16' -> folder, 4, bfloat16."""
    bits, dtype = None, None
    while ":" in text and not pathlib.Path(text).exists():
        rest, _, last = text.rpartition(":")
        if last in BITS:
            bits = BITS[last]
        elif last in DTYPES:
            dtype = DTYPES[last]
        else:
            known = ", ".join([*BITS, "f32", "bf16", "f16"])
            raise bad("model", text, f"there is no such folder, and what follows a colon must be one of {known}")
        text = rest
    return text, bits, dtype


def source(given: Any, dtype: Optional[torch.dtype] = None) -> Source:
    """given: a folder's name with variants, or a model of transformers."""
    if isinstance(given, nn.Module):
        inner = getattr(given, "config", None)
        if inner is None:
            raise bad(
                "model", type(given).__name__, "it must be a model of transformers, or a folder's name", TypeError
            )
        name = str(getattr(inner, "name_or_path", "") or type(given).__name__)
        return Source(pathlib.Path(name).name or name, given=given, config=inner)
    if not isinstance(given, (str, pathlib.Path)):
        raise bad("model", type(given).__name__, "it must be a folder's name or a model of transformers", TypeError)
    folder, bits, own = split_variant(str(given))
    path = pathlib.Path(folder)
    if not path.is_dir():
        raise bad("model", folder, "there is no such folder")
    if not (path / "config.json").is_file():
        raise bad("model", folder, "there is no config.json in it: it is no model that transformers can load")
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(str(path), local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise bad("model", folder, f"transformers cannot read its config.json: {str(error).splitlines()[0]}") from error
    name = path.resolve().name + str(given)[len(folder) :]
    return Source(name, path, bits, own or dtype, None, config)


def tokenizer_of(found: Source) -> Any:
    """None if there is none in the folder."""
    if found.path is None or not any((found.path / name).is_file() for name in _TOKENIZERS):
        return None
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(found.path), local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise bad("model", str(found.path), f"its tokenizer cannot be read: {str(error).splitlines()[0]}") from error


def words_key(tokenizer: Any) -> str:
    """The same for two tokenizers that give the same ids to the same words."""
    words = sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0]))
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]


@torch.no_grad()
def quantise(model: nn.Module, bits: int) -> None:
    """Rounds every matrix of the body to the nearest of 2^bits - 1 values a group of 32, times the group's largest.

    Weights only, and neither embeddings nor head: a quick look at what so few bits do, not a format anyone ships.
    """
    apart = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    out = model.get_output_embeddings()
    if out is not None:
        apart.add(id(out.weight))
    turned = {id(m.weight) for m in model.modules() if type(m).__name__ == "Conv1D"}  # GPT-2 keeps [in, out]
    for p in model.parameters():
        if p.dim() >= 2 and p.is_floating_point() and id(p) not in apart:
            w = p.data.T if id(p) in turned else p.data
            w.copy_(rounded(w, bits))


def rounded(w: torch.Tensor, bits: int) -> torch.Tensor:
    top, columns = 2 ** (bits - 1) - 1, w.shape[-1]
    groups = nn.functional.pad(w.float(), (0, -columns % GROUP)).unflatten(-1, (-1, GROUP))
    scale = groups.abs().amax(-1, keepdim=True) / top
    scale = torch.where(scale > 0, scale, 1.0)
    return ((groups / scale).round() * scale).flatten(-2)[..., :columns].to(w.dtype)
