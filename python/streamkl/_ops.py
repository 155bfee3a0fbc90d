# SPDX-License-Identifier: Apache-2.0
"""The C calls as torch operators. Private: they know nothing of autograd (that is _autograd.py) and take no
defaults (that is functional.py).

    value           -> value; the wanted rows
    value_and_grad  -> value; the wanted rows; the needed gradients, in f32
    backward        -> the needed gradients, in the operand's dtype
    topk            -> ids of the k largest logits of side s; with 'sums' their log-probabilities, and that of the others
    partial         -> states, float64 [rows.., 6]
    merge           -> states
    finish          -> value; the wanted rows

'rows' has one bit for each of _c.ROWS, 'need' one for each of _c.OPERANDS; 'wide' a bit for each gradient that backward
shall write in f32. 'saved' are the tensors of the bits in 'rows'.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from . import _c, _call
from ._options import FIELDS, SCHEMA, USE, Options

OPERANDS, INPUTS = len(_c.OPERANDS), len(_c.INPUTS)
END = INPUTS + len(FIELDS)  # of inputs and options among an operator's arguments

_DTYPES = {
    torch.float32: _c.F32,
    torch.bfloat16: _c.BF16,
    torch.float16: _c.F16,
    torch.int32: _c.I32,
    torch.int64: _c.I64,
}


def row_bits(*names: str) -> int:
    return sum(1 << _c.ROWS.index(name) for name in names)


def _cuda_index(t: Tensor) -> int:
    """The number of its CUDA device; -1: it is on the CPU."""
    return t.get_device()


def _view(t: Optional[Tensor]) -> Optional[bytes]:
    return None if t is None else _call.view(t.data_ptr(), _DTYPES[t.dtype], t.shape, t.stride(), _cuda_index(t))


def _views(tensors: Sequence[Tensor], bits: int, count: int) -> List[Optional[bytes]]:
    """The views of 'count' places: of the next tensor where a bit is set, of nothing elsewhere."""
    rest = iter(tensors)
    return [_view(next(rest)) if bits >> i & 1 else None for i in range(count)]


def _on_device(call: int, kept: Sequence[Any], options: Options, **outputs) -> None:
    """The call on the current stream of the CUDA device that a_s is on. Its workspace is torch's memory: given back
    when this returns, and used again by what comes later in the stream."""
    home = kept[0].device
    memory: List[Tensor] = []

    def reserve(size: int) -> int:
        memory.append(torch.empty(size, dtype=torch.uint8, device=home))
        return memory[0].data_ptr()

    device = _call.Device(torch.cuda.current_stream(home).cuda_stream, reserve)
    _call.on_device(device, call, [*map(_view, kept)], options, **outputs)


def _last_contiguous(t: Any) -> Any:
    return t if t is None or t.stride(-1) == 1 or t.dim() < 2 or t.shape[-1] <= 1 else t.contiguous()


def _work(a: Tensor, b: Tensor) -> float:
    return float(a.numel()) * b.shape[-2 if b.dim() > 1 else 0]


def _row_tensors(shape, bits: int, device) -> List[Tensor]:
    return [
        torch.empty(shape, dtype=torch.int32 if name in _c.INTEGER_ROWS else torch.float32, device=device)
        for i, name in enumerate(_c.ROWS)
        if bits >> i & 1
    ]


def _gradients(operands: Sequence[Optional[Tensor]], need: int, wide: int) -> List[Tensor]:
    return [
        torch.empty(t.shape, dtype=torch.float32 if wide >> i & 1 else t.dtype, device=t.device)
        for i, t in enumerate(operands)
        if t is not None and need >> i & 1
    ]


def rows_shape(a: Tensor, use: int) -> Any:
    """Of the results of rows. The heads of an indexer make one row."""
    return (a.shape[0], a.shape[2]) if use == _c.INDEXER else a.shape[:-1]


def _value_outputs(*args) -> List[Tensor]:
    value = torch.empty((), dtype=torch.float32, device=args[0].device)
    return [value, *_row_tensors(rows_shape(args[0], args[INPUTS + USE]), args[END], args[0].device)]


def _value(*args) -> List[Tensor]:
    kept, options = [_last_contiguous(t) for t in args[:INPUTS]], args[INPUTS:END]
    out = _value_outputs(*args)
    rows = _views(out[1:], args[END], len(_c.ROWS))
    if _cuda_index(kept[0]) >= 0:
        total = torch.empty((), dtype=torch.float64, device=kept[0].device)
        _on_device(_c.VALUE, kept, options, rows=rows, value=total.data_ptr())
        out[0].copy_(total)
        return out
    work, threads = _work(kept[0], kept[1]), torch.get_num_threads()
    out[0].fill_(_call.value([*map(_view, kept)], work, options, threads, rows))
    return out


def _value_and_grad_outputs(*args) -> List[Tensor]:
    return [*_value_outputs(*args), *_gradients(args[:OPERANDS], args[END + 1], ~0)]


def _value_and_grad(*args) -> List[Tensor]:
    rows, need = args[END:]
    kept, options = [_last_contiguous(t) for t in args[:INPUTS]], args[INPUTS:END]
    out = _value_and_grad_outputs(*args)
    first = len(out) - bin(need).count("1")
    wanted, places = _views(out[1:first], rows, len(_c.ROWS)), _views(out[first:], need, OPERANDS)
    if _cuda_index(kept[0]) >= 0:
        total = torch.empty((), dtype=torch.float64, device=kept[0].device)
        _on_device(_c.VALUE_AND_GRAD, kept, options, rows=wanted, grads=places, value=total.data_ptr())
        out[0].copy_(total)
        return out
    work, threads = _work(kept[0], kept[1]), torch.get_num_threads()
    out[0].fill_(_call.value_and_grad([*map(_view, kept)], work, options, threads, wanted, places))
    return out


def _topk_outputs(*args) -> List[Tensor]:
    k, sums = args[END:]
    rows, home = rows_shape(args[0], args[INPUTS + USE]), args[0].device
    made = [torch.empty((*rows, k), dtype=torch.int32, device=home)]
    for shape in ((*rows, k), rows) if sums else ():
        made.append(torch.empty(shape, dtype=torch.float32, device=home))
    return made


def _topk(*args) -> List[Tensor]:
    kept, options = [_last_contiguous(t) for t in args[:INPUTS]], args[INPUTS:END]
    out = _topk_outputs(*args)
    rows = _views(out, row_bits(*("topk_ids", "topk_logprobs", "tail_logprob")[: len(out)]), len(_c.ROWS))
    if _cuda_index(kept[0]) >= 0:
        _on_device(_c.TOPK, kept, options, rows=rows)
        return out
    _call.topk([*map(_view, kept)], _work(kept[0], kept[1]), options, torch.get_num_threads(), rows)
    return out


def on_shard(shard: _call.ShardCall, *args) -> List[Tensor]:
    """value_and_grad of a problem on a shard of its columns, on the CPU; no operator, since it takes functions."""
    rows, need = args[END:]
    kept, options = [_last_contiguous(t) for t in args[:INPUTS]], args[INPUTS:END]
    out = _value_and_grad_outputs(*args)
    first = len(out) - bin(need).count("1")
    wanted, places = _views(out[1:first], rows, len(_c.ROWS)), _views(out[first:], need, OPERANDS)
    views, threads = [*map(_view, kept)], torch.get_num_threads()
    out[0].fill_(_call.on_shard(shard, kept[0].shape[:-1], views, options, threads, wanted, places))
    return out


def _backward_outputs(*args) -> List[Tensor]:
    _, _, need, wide = args[END:]
    return _gradients(args[:OPERANDS], need, wide)


def _backward(*args) -> List[Tensor]:
    saved, rows, need, _ = args[END:]
    kept, options = [_last_contiguous(t) for t in args[:INPUTS]], args[INPUTS:END]
    found = _views(saved, rows, len(_c.ROWS))
    out = _backward_outputs(*args)
    places = _views(out, need, OPERANDS)
    if _cuda_index(kept[0]) >= 0:
        _on_device(_c.BACKWARD, kept, options, grads=places, saved=found)
        return out
    work, threads = _work(kept[0], kept[1]), torch.get_num_threads()
    _call.backward([*map(_view, kept)], work, options, threads, found, places)
    return out


def backward_on_shard(place: Tuple[int, int], *args) -> List[Tensor]:
    """'backward' of a problem with labels on a shard of its columns, on the CPU; place: the first one of them, and how many
    all shards have."""
    saved, rows, need, _ = args[END:]
    kept, options = [_last_contiguous(t) for t in args[:INPUTS]], args[INPUTS:END]
    out = _backward_outputs(*args)
    found, places = _views(saved, rows, len(_c.ROWS)), _views(out, need, OPERANDS)
    work, threads = _work(kept[0], kept[1]), torch.get_num_threads()
    _call.backward([*map(_view, kept)], work, options, threads, found, places, place)
    return out


def _partial_output(*args) -> Tensor:
    return torch.empty((*args[0].shape[:-1], _c.STATE), dtype=torch.float64, device=args[0].device)


def _partial(*args) -> Tensor:
    saved, rows = args[END:]
    kept, options = [_last_contiguous(t) for t in args[:INPUTS]], args[INPUTS:END]
    found = _views(saved, rows, len(_c.ROWS)) if rows else ()
    states = _partial_output(*args)
    if _cuda_index(kept[0]) >= 0:
        _on_device(_c.PARTIAL, kept, options, saved=found, states=states.data_ptr())
        return states
    work, threads = _work(kept[0], kept[1]), torch.get_num_threads()
    _call.partial([*map(_view, kept)], work, options, threads, found, states.data_ptr())
    return states


def check_partial(inputs: Sequence[Optional[Tensor]], options: Options) -> None:
    """Raises what the operator 'partial' would raise for these arguments."""
    _call.check_partial([_view(_last_contiguous(t)) for t in inputs], options)


def _merge_output(states: Tensor, other: Tensor) -> Tensor:
    return torch.empty(states.shape, dtype=torch.float64, device=states.device)


def _merge(states: Tensor, other: Tensor) -> Tensor:
    """C merges on the host, so states of a GPU go there and back."""
    into = torch.empty(states.shape, dtype=torch.float64).copy_(states)
    other = other.cpu().contiguous()
    _call.merge(into.numel() // _c.STATE, into.data_ptr(), other.data_ptr())
    return into.to(states.device)


def _finish_outputs(states: Tensor, weight: Optional[Tensor], *args) -> List[Tensor]:
    value = torch.empty((), dtype=torch.float32, device=states.device)
    return [value, *_row_tensors(states.shape[:-1], args[-1], states.device)]


def _finish(states: Tensor, weight: Optional[Tensor], *args) -> List[Tensor]:
    options, (width_s, width_t, bits) = args[:-3], args[-3:]
    states = states.contiguous()
    out = _finish_outputs(states, weight, *args)
    rows, shape = _views(out[1:], bits, len(_c.ROWS)), states.shape[:-1]
    total, device = torch.empty((), dtype=torch.float64, device=states.device), _cuda_index(states)
    stream = torch.cuda.current_stream(states.device).cuda_stream if device >= 0 else 0
    address, value = states.data_ptr(), total.data_ptr()
    _call.finish(options, shape, (width_s, width_t), address, _view(weight), rows, value, device, stream)
    out[0].copy_(total)
    return out


_library = torch.library.Library("streamkl", "DEF")
_TENSORS = ", ".join(f"{'Tensor' if name in ('a_s', 'b_s') else 'Tensor?'} {name}" for name in _c.INPUTS)


def no_vmap(*args, **kwargs):
    raise NotImplementedError("streamkl: vmap is not supported: leading dimensions of the operands are batches already")


def _operator(name: str, schema: str, run, outputs):
    _library.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, run, "CPU")
    _library.impl(name, run, "CUDA")  # also when only some tensors are there: C names those that are not
    for key in ("FuncTorchBatched", "Batched"):
        _library.impl(name, no_vmap, key)
    torch.library.register_fake(f"streamkl::{name}", outputs, lib=_library)
    return getattr(torch.ops.streamkl, name).default


value = _operator("value", f"({_TENSORS}, {SCHEMA}, int rows) -> Tensor[]", _value, _value_outputs)
value_and_grad = _operator(
    "value_and_grad",
    f"({_TENSORS}, {SCHEMA}, int rows, int need) -> Tensor[]",
    _value_and_grad,
    _value_and_grad_outputs,
)
topk = _operator("topk", f"({_TENSORS}, {SCHEMA}, SymInt k, bool sums) -> Tensor[]", _topk, _topk_outputs)
backward = _operator(
    "backward",
    f"({_TENSORS}, {SCHEMA}, Tensor[] saved, int rows, int need, int wide) -> Tensor[]",
    _backward,
    _backward_outputs,
)
partial = _operator("partial", f"({_TENSORS}, {SCHEMA}, Tensor[] saved, int rows) -> Tensor", _partial, _partial_output)
merge = _operator("merge", "(Tensor states, Tensor other) -> Tensor", _merge, _merge_output)
finish = _operator(
    "finish",
    f"(Tensor states, Tensor? weight, {SCHEMA}, SymInt width_s, SymInt width_t, int rows) -> Tensor[]",
    _finish,
    _finish_outputs,
)
