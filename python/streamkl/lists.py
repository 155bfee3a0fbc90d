# SPDX-License-Identifier: Apache-2.0
"""Lists of a live teacher for linear_topk_kl, and files of them: the teacher runs once, the student reads K numbers a token.

    u = sign(scale) (x w^T + bias), or c tanh(scale (x w^T + bias) / c)     scores, in f32; logits are unit u
    S = the ids of the k largest u, of equal ones the lower
    rest = LSE of unit u off S        LSE = log(e^rest + sum over S of e^(unit u))
    logprobs = unit u - LSE           tail_logprob = rest - LSE

C makes them (skl_topk), on the CPU and on CUDA. rest is a sum over what is not listed, and never 1 minus the others.
"""

from __future__ import annotations

import os
import pathlib
from typing import Any, Dict, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor

from . import _c
from . import _checks as check
from ._checks import bad
from ._files import write_whole
from ._inputs import _check as check_operand
from ._inputs import _refuse_tangents
from ._ops import topk
from ._topk import Lists, head_options

_STORED = (torch.float32, torch.bfloat16, torch.float16)
_NAMES = ("ids", "logprobs", "tail_logprob")

Path = Union[str, "os.PathLike[str]"]


class StoredLists(NamedTuple):
    """What load_lists reads: Lists, the temperature at which they were made, and the other metadata, as text."""

    ids: Tensor
    logprobs: Tensor
    tail_logprob: Tensor
    temperature: float
    metadata: Dict[str, str]


@torch.no_grad()
def topk_of(
    x_t: Tensor,
    w_t: Tensor,
    k: int,
    *,
    temperature: float = 1.0,
    bias: Optional[Tensor] = None,
    scale: Optional[float] = None,
    softcap: Optional[float] = None,
    columns: Optional[int] = None,
) -> Lists:
    """The k likeliest ids of each token, their log-probabilities and that of all others together, without storing logits.

    x_t [..., D], w_t [V, D]: the teacher's hidden states and unembedding, f32, bf16 or f16, each its own; products are in
        f32.
    k: from 1 to the number of columns. Of equal logits the lower id comes first; NaN counts as +inf.
    temperature: at which the probabilities are; say it to linear_topk_kl as stored_temperature.
    bias, scale, softcap, columns: as in linear_kl.

    There is no gradient. Extra memory is some MiB (on CUDA a hundred), for any number of tokens and columns; it grows with k.
    """
    for name, t in (("x_t", x_t), ("w_t", w_t), *((("bias", bias),) if bias is not None else ())):
        check_operand(name, t)
    _refuse_tangents(x_t, w_t, bias)
    shapes = x_t.shape, w_t.shape, None if bias is None else bias.shape
    made, k = head_options(*shapes, k, temperature, scale, softcap, columns)
    for name, t in (("w_t", w_t), ("bias", bias)):
        if t is not None and t.device != x_t.device:
            raise bad(f"{name}.device", str(t.device), f"it must be that of x_t, {x_t.device}")
    rows = x_t.shape[:-1]
    x = x_t.reshape(rows.numel(), x_t.shape[-1])
    ids, logprobs, tail_logprob = topk(*_c.named_inputs(a_s=x, b_s=w_t, bias_s=bias), *made, k, True)
    return Lists(ids.view(*rows, k), logprobs.view(*rows, k), tail_logprob.view(rows))


# ---- files


def save_lists(
    path: Path, lists: Any, *, temperature: float = 1.0, dtype: torch.dtype = torch.float32, **metadata: Any
) -> None:
    """Writes lists as a file of safetensors: ids in int32, logprobs in dtype, tail_logprob in f32.

    lists: of topk_of, or any (ids, logprobs, tail_logprob) of these shapes. temperature: at which they were made.
    dtype: float32, bfloat16 or float16. metadata: what else the file shall say, kept as text.

    The file is there when it is whole: it is written under another name first.
    """
    if dtype not in _STORED:
        raise bad("dtype", dtype, "it must be float32, bfloat16 or float16", TypeError)
    ids, logprobs, tail_logprob = _checked(lists)
    tensors = dict(zip(_NAMES, (ids.to(torch.int32), logprobs.to(dtype), tail_logprob.to(torch.float32))))
    text = {name: str(value) for name, value in metadata.items()}
    text["temperature"] = repr(check.positive("temperature", temperature))
    write_whole(pathlib.Path(path), {name: t.detach().cpu().contiguous() for name, t in tensors.items()}, text)


def _checked(lists: Any) -> Tuple[Tensor, Tensor, Tensor]:
    parts = tuple(lists)[:3] if isinstance(lists, (tuple, list)) else ()
    if len(parts) != 3 or not all(isinstance(t, Tensor) for t in parts):
        raise bad(
            "lists", type(lists).__name__, "it must be (ids, logprobs, tail_logprob), as topk_of makes", TypeError
        )
    ids, logprobs, tail_logprob = parts
    if ids.dim() < 1 or ids.is_floating_point() or logprobs.shape != ids.shape or tail_logprob.shape != ids.shape[:-1]:
        shapes = ", ".join(f"{name} {tuple(t.shape)}" for name, t in zip(_NAMES, parts))
        raise bad("lists", shapes, "they must be integers [..., K], and numbers [..., K] and [...]")
    return ids, logprobs, tail_logprob


def load_lists(path: Path, rows: Optional[slice] = None) -> StoredLists:
    """Reads what save_lists wrote. rows: a slice of the first dimension; only its bytes are read, through a memory map."""
    from safetensors import SafetensorError, safe_open

    if not os.path.isfile(path):
        raise FileNotFoundError(f"streamkl: cannot use path = {str(path)!r}: there is no such file")
    if rows is not None and (not isinstance(rows, slice) or rows.step not in (None, 1)):
        raise bad("rows", rows, "it must be a slice without a step, or None for all", TypeError)
    try:
        file = safe_open(path, "pt")
    except SafetensorError as error:
        raise bad("path", str(path), f"it is no whole file of safetensors ({error})") from None
    with file:
        text = dict(file.metadata() or {})
        if set(file.keys()) != set(_NAMES) or "temperature" not in text:
            raise bad(
                "path", str(path), "it holds no lists: save_lists writes ids, logprobs, tail_logprob and temperature"
            )
        tensors = (file.get_tensor(name) if rows is None else file.get_slice(name)[rows] for name in _NAMES)
        return StoredLists(*tensors, temperature=float(text.pop("temperature")), metadata=text)
