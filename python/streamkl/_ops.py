# SPDX-License-Identifier: Apache-2.0
"""The C calls as torch operators. Private: they know nothing of autograd (that is _autograd.py) and take no
defaults (that is functional.py).

    value           -> value; with rows: loss, lse_s, lse_t; with rows and JSD: kl_s, kl_t
    value_and_grad  -> value; with rows: lse_s, lse_t; the needed gradients, in f32
    backward        -> the needed gradients, in the operand's dtype

'need' has one bit for each of a_s, b_s, bias_s, a_t, b_t, bias_t; 'wide' a bit for each gradient that backward shall
write in f32.
"""

from __future__ import annotations

from typing import List, Optional, Sequence

import torch
from torch import Tensor

from . import _c, _call
from ._options import Options

OPERANDS = 6  # a_s, b_s, bias_s, a_t, b_t, bias_t
INPUTS = OPERANDS + 3  # and weight, begin, end
OPTIONS = len(Options._fields)

_ARGUMENTS = (
    "Tensor a_s, Tensor b_s, Tensor? bias_s, Tensor a_t, Tensor b_t, Tensor? bias_t, "
    "Tensor? weight, Tensor? begin, Tensor? end, "
    "bool attention, int divergence, int reduction, float beta, float temperature, float scale_s, float scale_t, "
    "float softcap_s, float softcap_t, bool causal, SymInt window_left, SymInt window_right, SymInt columns"
)

_DTYPES = {torch.float32: _c.F32, torch.bfloat16: _c.BF16, torch.float16: _c.F16, torch.int32: _c.I32}


def _cuda_index(t: Tensor) -> int:
    """The number of its CUDA device; -1: it is on the CPU."""
    return t.get_device()


def _view(t: Optional[Tensor]) -> Optional[bytes]:
    return None if t is None else _call.view(t.data_ptr(), _DTYPES[t.dtype], t.shape, t.stride(), _cuda_index(t))


def _on_device(call: int, kept: Sequence[Optional[Tensor]], options: Options, *outputs, value=None, saved=()) -> None:
    """The call on the current stream of the CUDA device that a_s is on. Its workspace is torch's memory: given back
    when this returns, and used again by what comes later in the stream."""
    home = kept[0].device
    memory: List[Tensor] = []

    def reserve(size: int) -> int:
        memory.append(torch.empty(size, dtype=torch.uint8, device=home))
        return memory[0].data_ptr()

    device = _call.Device(torch.cuda.current_stream(home).cuda_stream, reserve)
    address = 0 if value is None else value.data_ptr()
    _call.on_device(device, call, [*map(_view, kept)], options, *outputs, value=address, saved=saved)


def _last_contiguous(t: Optional[Tensor]) -> Optional[Tensor]:
    return t if t is None or t.stride(-1) == 1 or t.dim() < 2 or t.shape[-1] <= 1 else t.contiguous()


def _work(a: Tensor, b: Tensor) -> float:
    return float(a.numel()) * b.shape[-2 if b.dim() > 1 else 0]


def _rows(a_s: Tensor, count: int) -> List[Tensor]:
    return [torch.empty(a_s.shape[:-1], dtype=torch.float32, device=a_s.device) for _ in range(count)]


def _gradients(operands: Sequence[Optional[Tensor]], need: int, wide: int) -> List[Tensor]:
    return [
        torch.empty(t.shape, dtype=torch.float32 if wide >> i & 1 else t.dtype, device=t.device)
        for i, t in enumerate(operands)
        if t is not None and need >> i & 1
    ]


def _places(grads: Sequence[Tensor], need: int) -> List[Optional[bytes]]:
    """The views of the six gradients, from those that are needed."""
    rest = iter(grads)
    return [_view(next(rest)) if need >> i & 1 else None for i in range(OPERANDS)]


def _value_outputs(*args) -> List[Tensor]:
    options, rows = Options(*args[INPUTS:-1]), args[-1]
    value = torch.empty((), dtype=torch.float32, device=args[0].device)
    count = 0 if not rows else 5 if options.divergence == _c.DIVERGENCES["jsd"] else 3
    return [value, *_rows(args[0], count)]


def _value(*args) -> List[Tensor]:
    kept = [_last_contiguous(t) for t in args[:INPUTS]]
    out = _value_outputs(*args)
    options, rows = Options(*args[INPUTS:-1]), [*map(_view, out[1:])]
    if _cuda_index(kept[0]) >= 0:
        total = torch.empty((), dtype=torch.float64, device=kept[0].device)
        _on_device(_c.VALUE, kept, options, rows, (), value=total)
        out[0].copy_(total)
        return out
    work, threads = _work(kept[0], kept[1]), torch.get_num_threads()
    out[0].fill_(_call.value([*map(_view, kept)], work, options, threads, rows))
    return out


def _value_and_grad_outputs(*args) -> List[Tensor]:
    need, rows = args[-2:]
    value = torch.empty((), dtype=torch.float32, device=args[0].device)
    return [value, *_rows(args[0], 2 if rows else 0), *_gradients(args[:OPERANDS], need, ~0)]


def _value_and_grad(*args) -> List[Tensor]:
    need, rows = args[-2:]
    kept = [_last_contiguous(t) for t in args[:INPUTS]]
    out = _value_and_grad_outputs(*args)
    lse, grads = ([None, *map(_view, out[1:3])], out[3:]) if rows else ([], out[1:])
    options, places = Options(*args[INPUTS:-2]), _places(grads, need)
    if _cuda_index(kept[0]) >= 0:
        total = torch.empty((), dtype=torch.float64, device=kept[0].device)
        _on_device(_c.VALUE_AND_GRAD, kept, options, lse, places, value=total)
        out[0].copy_(total)
        return out
    work, threads = _work(kept[0], kept[1]), torch.get_num_threads()
    out[0].fill_(_call.value_and_grad([*map(_view, kept)], work, options, threads, lse, places))
    return out


def _backward_outputs(*args) -> List[Tensor]:
    need, wide = args[-2:]
    return _gradients(args[:OPERANDS], need, wide)


def _backward(*args) -> List[Tensor]:
    need = args[-2]
    kept = [_last_contiguous(t) for t in args[:INPUTS]]
    saved = [*map(_view, args[INPUTS + OPTIONS])]
    out = _backward_outputs(*args)
    options, places = Options(*args[INPUTS : INPUTS + OPTIONS]), _places(out, need)
    if _cuda_index(kept[0]) >= 0:
        _on_device(_c.BACKWARD, kept, options, (), places, saved=saved)
        return out
    work, threads = _work(kept[0], kept[1]), torch.get_num_threads()
    _call.backward([*map(_view, kept)], work, options, threads, saved, places)
    return out


_library = torch.library.Library("streamkl", "DEF")


def _operator(name: str, more: str, run, outputs):
    _library.define(f"{name}({_ARGUMENTS}, {more}) -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, run, "CPU")
    _library.impl(name, run, "CUDA")  # also when only some tensors are there: C names those that are not
    torch.library.register_fake(f"streamkl::{name}", outputs, lib=_library)
    return getattr(torch.ops.streamkl, name).default


value = _operator("value", "bool rows", _value, _value_outputs)
value_and_grad = _operator("value_and_grad", "int need, bool rows", _value_and_grad, _value_and_grad_outputs)
backward = _operator("backward", "Tensor[] saved, int need, int wide", _backward, _backward_outputs)
