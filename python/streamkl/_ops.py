# SPDX-License-Identifier: Apache-2.0
"""The C calls as torch operators. Private: they know nothing of autograd (that is _autograd.py) and take no
defaults (that is functional.py).

    value           -> value, loss, lse_s, lse_t, kl_s, kl_t
    value_and_grad  -> value, lse_s, lse_t, then the gradients of a_s, b_s, bias_s, a_t, b_t, bias_t, in f32
    backward        -> the same six gradients, in the operand's dtype

'need' has one bit per operand, in that order; what is not needed comes back with no elements. 'wide' has a bit for each
gradient that backward shall write in f32.
"""
from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from . import _c, _call
from ._options import Options

OPERANDS = 6  # a_s, b_s, bias_s, a_t, b_t, bias_t
INPUTS = OPERANDS + 3  # and weight, begin, end

_TENSORS = (
    "Tensor a_s, Tensor b_s, Tensor? bias_s, Tensor a_t, Tensor b_t, Tensor? bias_t, "
    "Tensor? weight, Tensor? begin, Tensor? end"
)
_OPTIONS = (
    "bool attention, int divergence, int reduction, float beta, float temperature, float scale_s, float scale_t, "
    "float softcap_s, float softcap_t, bool causal, SymInt window_left, SymInt window_right, SymInt columns"
)
_SIX = ", ".join(["Tensor"] * 6)

_DTYPES = {torch.float32: _c.F32, torch.bfloat16: _c.BF16, torch.float16: _c.F16, torch.int32: _c.I32}

_library = torch.library.Library("streamkl", "DEF")


def _view(t: Optional[Tensor]) -> Optional[_c.Tensor]:
    return None if t is None else _call.view(t.data_ptr(), _DTYPES[t.dtype], t.shape, t.stride())


def _wanted(t: Tensor) -> Optional[_c.Tensor]:
    return None if t.dim() == 1 and t.shape[0] == 0 else _view(t)


def _last_contiguous(t: Optional[Tensor]) -> Optional[Tensor]:
    return t if t is None or t.dim() < 2 or t.stride(-1) == 1 or t.shape[-1] <= 1 else t.contiguous()


def _kept(tensors: Sequence[Optional[Tensor]]) -> Tuple[List[Optional[Tensor]], _call.Operands]:
    """Operands as C takes them, and their views. The tensors must outlive the call."""
    kept = [_last_contiguous(t) for t in tensors]
    return kept, _call.Operands(*map(_view, kept))


def _absent(like: Tensor) -> Tensor:
    return like.new_empty(0, dtype=torch.float32)


def _rows(a_s: Tensor, wanted: bool = True) -> Tensor:
    return a_s.new_empty(a_s.shape[:-1], dtype=torch.float32) if wanted else _absent(a_s)


def _gradients(operands: Sequence[Optional[Tensor]], need: int, wide: int) -> List[Tensor]:
    result = []
    for i, t in enumerate(operands):
        if t is None or not need >> i & 1:
            result.append(_absent(operands[0]))  # type: ignore[arg-type]
        else:
            result.append(t.new_empty(t.shape, dtype=torch.float32 if wide >> i & 1 else t.dtype))
    return result


# ------------------------------------------------------------------------------------------------------- value ---

_library.define(f"value({_TENSORS}, {_OPTIONS}) -> (Tensor, {', '.join(['Tensor'] * 5)})", tags=(torch.Tag.pt2_compliant_tag,))


def _value_shapes(*args) -> Tuple[Tensor, ...]:
    a_s, options = args[0], Options(*args[INPUTS:])
    jsd = options.divergence == _c.DIVERGENCES["jsd"]
    return (a_s.new_empty((), dtype=torch.float32), *[_rows(a_s) for _ in range(3)], *[_rows(a_s, jsd) for _ in range(2)])


def _value(*args) -> Tuple[Tensor, ...]:
    kept, operands = _kept(args[:INPUTS])
    out = _value_shapes(*args)
    total = _call.value(operands, Options(*args[INPUTS:]), torch.get_num_threads(), [_wanted(t) for t in out[1:]])
    out[0].fill_(total)
    return out


# ---------------------------------------------------------------------------------------------- value_and_grad ---

_library.define(
    f"value_and_grad({_TENSORS}, {_OPTIONS}, int need, bool lse) -> (Tensor, Tensor, Tensor, {_SIX})",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _value_and_grad_shapes(*args) -> Tuple[Tensor, ...]:
    a_s, (need, lse) = args[0], args[-2:]
    value = a_s.new_empty((), dtype=torch.float32)
    return (value, _rows(a_s, lse), _rows(a_s, lse), *_gradients(args[:OPERANDS], need, ~0))


def _value_and_grad(*args) -> Tuple[Tensor, ...]:
    kept, operands = _kept(args[:INPUTS])
    out = _value_and_grad_shapes(*args)
    views = [_wanted(t) for t in out]
    options = Options(*args[INPUTS:-2])
    out[0].fill_(_call.value_and_grad(operands, options, torch.get_num_threads(), [None, *views[1:3]], views[3:]))
    return out


# ---------------------------------------------------------------------------------------------------- backward ---

_library.define(
    f"backward({_TENSORS}, {_OPTIONS}, Tensor loss, Tensor lse_s, Tensor lse_t, Tensor kl_s, Tensor kl_t, "
    f"int need, int wide) -> ({_SIX})",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _backward_shapes(*args) -> Tuple[Tensor, ...]:
    need, wide = args[-2:]
    return tuple(_gradients(args[:OPERANDS], need, wide))


def _backward(*args) -> Tuple[Tensor, ...]:
    kept, operands = _kept(args[:INPUTS])
    out = _backward_shapes(*args)
    saved = [_wanted(t) for t in args[-7:-2]]
    options = Options(*args[INPUTS:-7])
    _call.backward(operands, options, torch.get_num_threads(), saved, [_wanted(t) for t in out])
    return out


for _name, _run, _shapes in (
    ("value", _value, _value_shapes),
    ("value_and_grad", _value_and_grad, _value_and_grad_shapes),
    ("backward", _backward, _backward_shapes),
):
    _library.impl(_name, _run, "CPU")
    torch.library.register_fake(f"streamkl::{_name}", _shapes, lib=_library)

value = torch.ops.streamkl.value.default
value_and_grad = torch.ops.streamkl.value_and_grad.default
backward = torch.ops.streamkl.backward.default
