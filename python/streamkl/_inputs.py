# SPDX-License-Identifier: Apache-2.0
"""The tensors of a call: checked, and brought to the shapes and dtypes that the operators take."""

from __future__ import annotations

import os
from typing import Any, Dict, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _c
from ._checks import bad
from ._errors import order_hint

Inputs = Tuple[Any, ...]  # of _c.INPUTS, None if not given

# What the rows of a call are: [B, H, N], packed [total, H], or tokens of any shape.
ATTENTION, PACKED, LINEAR = range(3)

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_DEVICES = ("cpu", "cuda", "meta") if torch.version.hip is None else ("cpu", "meta")  # ROCm calls itself cuda
_FIT_INT32 = (torch.int32, torch.int16, torch.int8, torch.uint8)
_PLAIN = (Tensor, torch.nn.Parameter)


def spread(*tensors: Any) -> bool:
    """If one of them is a DTensor."""
    return any(type(t) not in _PLAIN and type(t).__name__ == "DTensor" for t in tensors)


def attention_inputs(
    q_s,
    k_s,
    q_t,
    k_t,
    weight,
    begin,
    end,
    lse_t=None,
    head_map=None,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    support=None,
    sinks=None,
) -> Inputs:
    """C takes [B, H, N, D]: packed sequences, [total, H, D] here, are a batch of one there (unpacked() undoes it).
    sinks: of both sides, or None."""
    sink_s, sink_t = sinks or (None, None)
    for name, t in (("q_s", q_s), ("k_s", k_s), ("q_t", q_t), ("k_t", k_t), ("sink_s", sink_s), ("sink_t", sink_t)):
        if t is not None or not name.startswith("sink"):
            _check(name, t)
    _refuse_tangents(q_s, k_s, q_t, k_t, sink_s, sink_t)
    packed = cu_seqlens_q is not None or cu_seqlens_k is not None
    if packed:
        cu_seqlens_q, cu_seqlens_k = _offsets("cu_seqlens_q", cu_seqlens_q), _offsets("cu_seqlens_k", cu_seqlens_k)
        q_s, k_s, q_t, k_t = (_one_batch(*x) for x in (("q_s", q_s), ("k_s", k_s), ("q_t", q_t), ("k_t", k_t)))
    rows = q_s.shape[:-1]
    kind = PACKED if packed else ATTENTION
    return _c.named_inputs(
        a_s=q_s,
        b_s=k_s,
        a_t=q_t,
        b_t=k_t,
        weight=None if weight is None else _weight(weight, rows, kind),
        begin=None if begin is None else _bound("begin", begin, rows, kind),
        end=None if end is None else _bound("end", end, rows, kind),
        lse_t=None if lse_t is None else _lse(lse_t, packed),
        head_map=None if head_map is None else _head_map(head_map),
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        support=None if support is None else _support(support, packed),
        sink_s=sink_s,
        sink_t=sink_t,
    )


# The shapes of an indexer and its teacher, and of packed ones.
INDEXER_SHAPES = {
    "q_i": ("[B, Hi, N, Di]", "[total_q, Hi, Di]"),
    "k_i": ("[B, M, Di]", "[total_k, Di]"),
    "w_i": ("[B, N, Hi]", "[total_q, Hi]"),
    "q_t": ("[B, H, N, D]", "[total_q, H, D]"),
    "k_t": ("[B, Hkv, M, D]", "[total_k, Hkv, D]"),
}


def indexer_inputs(
    operands: Dict[str, Any],
    weight=None,
    begin=None,
    end=None,
    lse_t=None,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    support=None,
    sink_t=None,
) -> Inputs:
    """operands: those of INDEXER_SHAPES, all or the indexer's. C has one head of keys, [B, 1, M, Di], and packed sequences in
    a batch of one."""
    packed = cu_seqlens_q is not None or cu_seqlens_k is not None
    for name, t in operands.items():
        shape = INDEXER_SHAPES[name][packed]
        _check(name, t)
        if t.dim() != shape.count(",") + 1:
            raise bad(f"{name}.shape", tuple(t.shape), f"{'with cu_seqlens_q ' if packed else ''}it must be {shape}")
    if sink_t is not None:
        _check("sink_t", sink_t)
    _refuse_tangents(*operands.values(), sink_t)
    if packed:
        cu_seqlens_q, cu_seqlens_k = _offsets("cu_seqlens_q", cu_seqlens_q), _offsets("cu_seqlens_k", cu_seqlens_k)
        operands = {k: (t if k in ("k_i", "w_i") else t.transpose(0, 1))[None] for k, t in operands.items()}
    q_i, k_i, w_i, q_t, k_t = map(operands.get, INDEXER_SHAPES)
    rows = (q_i.shape[0], q_i.shape[2])
    return _c.named_inputs(
        a_s=q_i,
        b_s=k_i[:, None],
        bias_s=w_i,
        a_t=q_t,
        b_t=k_t,
        sink_t=sink_t,
        weight=None if weight is None else _weight(weight, rows, LINEAR),
        begin=None if begin is None else _bound("begin", begin, rows, LINEAR),
        end=None if end is None else _bound("end", end, rows, LINEAR),
        lse_t=None if lse_t is None else _lse(lse_t, packed),
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        support=None if support is None else _support(support, packed),
    )


def unpacked(t: Tensor) -> Tensor:
    """Rows [1, H, total] as callers have them, [total, H]."""
    return t[0].transpose(0, 1)


def _one_batch(name: str, t: Tensor) -> Tensor:
    if t.dim() != 3:
        raise bad(f"{name}.shape", tuple(t.shape), "with cu_seqlens_q it must be [total, heads, dim]")
    return t.transpose(0, 1)[None]


def _offsets(name: str, t: Any) -> Tensor:
    if t is None:
        raise bad(name, None, "packed sequences need both cu_seqlens_q and cu_seqlens_k")
    _check_tensor(name, t)
    if t.dtype is not torch.int32:
        raise bad(f"{name}.dtype", t.dtype, "it must be int32, as flash-attn has it", TypeError)
    return t


def refuse_teacher_gradient(q_t: Tensor, k_t: Tensor, sink_t: Optional[Tensor] = None) -> None:
    """Of a teacher of mixed heads, which gets none."""
    for name, t in (("q_t", q_t), ("k_t", k_t), ("sink_t", sink_t)):
        if torch.is_grad_enabled() and t is not None and t.requires_grad:
            raise bad(f"{name}.requires_grad", True, "this teacher gets no gradient: detach() it")


def _lse(t: Any, packed: bool) -> Tensor:
    """lse_t as f32; C knows its shape. Packed it is [total, heads]."""
    _check_tensor("lse_t", t)
    if not t.is_floating_point():
        raise bad("lse_t.dtype", t.dtype, "it must hold numbers", TypeError)
    if t.requires_grad:
        raise bad("lse_t.requires_grad", True, "it gets no gradient: detach() it")
    _refuse_tangents(t)
    t = t.to(torch.float32)
    return t.transpose(0, 1)[None] if packed and t.dim() == 2 else t


def _support(t: Any, packed: bool) -> Tensor:
    """Lists of keys as int32; C knows their shape. Packed they are [total, K]."""
    t = _ids("support", t)
    if t.dim() != 3 - packed:
        raise bad("support.shape", tuple(t.shape), "it must be [total_q, K]" if packed else "it must be [B, N, K]")
    t = t if t.dtype is torch.int32 else t.clamp(-2, 2**31 - 1).to(torch.int32)  # beyond every key, or before them
    return t[None] if packed else t


def _head_map(t: Any) -> Tensor:
    t = torch.as_tensor(t)
    _check_tensor("head_map", t)
    if t.is_floating_point() or t.is_complex() or t.dtype is torch.bool:
        raise bad("head_map.dtype", t.dtype, "it must hold integers, numbers of heads", TypeError)
    return t.to(torch.int64).clamp(-1, 2**31 - 1).to(torch.int32)


def linear_inputs(x_s, w_s, x_t, w_t, bias_s, bias_t, weight, labels=None, mass_ids=None, listed=None) -> Inputs:
    """C takes one to three leading dimensions: others become one, and results have to be reshaped. Without a teacher
    x_t and w_t are None. listed: ids, logprobs and tail_logprob of a listed teacher."""
    for name, t in (("x_s", x_s), ("w_s", w_s), ("x_t", x_t), ("w_t", w_t)):
        if t is not None or name.endswith("_s") or (labels is None and listed is None):
            _check(name, t)
    for name, t in (("bias_s", bias_s), ("bias_t", bias_t)):
        if t is not None:
            _check(name, t)
    _refuse_tangents(x_s, w_s, x_t, w_t, bias_s, bias_t)
    rows = x_s.shape[:-1]
    weight, labels, mass_ids = row_inputs(rows, weight, labels, mass_ids).values()
    ids, logprobs, tail_logprob = (None, None, None) if listed is None else _lists(*listed, rows)
    if not 2 <= x_s.dim() <= 4:
        if x_t is not None and x_t.shape[:-1] != rows:
            hint = order_hint(_c.LINEAR, *[tuple(t.shape) for t in (x_s, w_s, x_t, w_t)])
            rule = f"its leading dimensions must be those of x_s, {tuple(rows)}{hint}"
            raise bad("x_t.shape", tuple(x_t.shape), rule)
        x_s, x_t = (None if t is None else t.reshape(-1, t.shape[-1]) for t in (x_s, x_t))
        weight, labels, tail_logprob = (None if t is None else t.reshape(-1) for t in (weight, labels, tail_logprob))
        mass_ids, ids, logprobs = (
            None if t is None else t.reshape(rows.numel(), t.shape[-1]) for t in (mass_ids, ids, logprobs)
        )
    operands = dict(a_s=x_s, b_s=w_s, bias_s=bias_s, a_t=x_t, b_t=w_t, bias_t=bias_t)
    lists = dict(ids=ids, logprobs=logprobs, tail_logprob=tail_logprob)
    return _c.named_inputs(**operands, weight=weight, labels=labels, mass_ids=mass_ids, **lists)


def row_inputs(rows, weight=None, labels=None, mass_ids=None) -> Dict[str, Optional[Tensor]]:
    """What is over the rows, checked and for each of them, so that some of the rows can be taken out."""
    return {
        "weight": None if weight is None else _weight(weight, rows, LINEAR),
        "labels": None if labels is None else _labels(labels, rows),
        "mass_ids": None if mass_ids is None else _mass_ids(mass_ids, rows),
    }


def gradients_wanted(operands: Sequence[Optional[Tensor]]) -> Tuple[int, int]:
    """Bits of the operands that require grad, and of those whose gradient shall be f32."""
    need = wide = 0
    if torch.is_grad_enabled():
        for i, t in enumerate(operands):
            if t is not None and t.requires_grad:
                need |= 1 << i
                wide |= _wants_f32(t) << i
    return need, wide


def _wants_f32(t: Tensor) -> bool:
    """torch's own way to ask for f32 gradients of a 16-bit parameter; a compiled graph does not know it."""
    return not torch.compiler.is_compiling() and getattr(t, "grad_dtype", t.dtype) is torch.float32


def _refuse_tangents(*tensors: Optional[Tensor]) -> None:
    """Forward-mode differentiation would see a constant: the operators have no rule for it."""
    if forward_ad._current_level >= 0:
        for t in tensors:
            if t is not None and forward_ad.unpack_dual(t).tangent is not None:
                raise NotImplementedError(
                    "streamkl: forward-mode differentiation (jvp) is not supported: use backward or torch.func.grad"
                )


def _check(name: str, t: Any) -> None:
    _check_tensor(name, t)
    if t.dtype not in _FLOATS:
        raise bad(f"{name}.dtype", t.dtype, "it must be float32, bfloat16 or float16", TypeError)
    if t.layout is not torch.strided:
        raise bad(f"{name}.layout", t.layout, "it must be a dense tensor", TypeError)
    if t.dim() == 0:
        raise bad(f"{name}.shape", (), "it must have a last dimension of vectors")


def _check_tensor(name: str, t: Any) -> None:
    if type(t) not in _PLAIN:
        if not isinstance(t, Tensor):
            raise bad(name, type(t).__name__, f"it must be a torch.Tensor{_instead(name, t)}", TypeError)
        if spread(t):
            rule = "it is spread over processes: pass a plain tensor, such as its to_local(), or use linear_kl"
            raise bad(name, "DTensor", rule, TypeError)
    if t.device.type not in _DEVICES:
        raise bad(f"{name}.device", str(t.device), "streamkl computes on the CPU and on NVIDIA's GPUs")


def _instead(name: str, t: Any) -> str:
    """What to pass instead of something that holds the tensor or makes it."""
    if type(t).__module__ == "numpy":
        return ": torch.from_numpy(it), or use streamkl.numpy"
    if isinstance(getattr(t, "last_hidden_state", None), Tensor):
        return ", so pass its .last_hidden_state"
    if isinstance(t, (tuple, list)) and t and isinstance(t[0], Tensor):
        return f", so pass the one that is meant of these {len(t)}"
    if not isinstance(t, torch.nn.Module):
        return ""
    if name.startswith("bias"):
        return ", so pass its .bias"
    if not name.startswith("w_"):
        return ", what a module makes and not the module"
    if hasattr(t, "base_layer"):  # an adapter's
        return "; its .weight alone would leave its adapter out, so merge that first"
    if not isinstance(getattr(t, "weight", None), Tensor):
        return ""
    bias = isinstance(getattr(t, "bias", None), Tensor)
    return f", so pass its .weight{f', and its .bias as bias_{name[-1]}=' if bias else ''}"


def _weight(t: Any, rows, kind: int) -> Tensor:
    _check_tensor("weight", t)
    if t.is_complex():
        raise bad("weight.dtype", t.dtype, "it must hold numbers or a bool mask", TypeError)
    if t.requires_grad:
        raise bad("weight.requires_grad", True, "it gets no gradient: detach() it")
    _refuse_tangents(t)
    return _over_rows("weight", t.to(torch.float32), rows, kind)


def _bound(name: str, t: Any, rows, kind: int) -> Tensor:
    """begin or end, for the operators as int32. Values that int32 does not hold are beyond every column."""
    _check_tensor(name, t)
    if t.is_floating_point() or t.is_complex() or t.dtype is torch.bool:
        raise bad(f"{name}.dtype", t.dtype, "it must hold integers", TypeError)
    if t.dtype not in _FIT_INT32:
        if t.dtype is torch.uint64:  # torch has hardly an operation for it
            t = t.view(torch.int64)
            t = t.masked_fill(t < 0, 2**63 - 1)
        t = t.to(torch.int64).clamp(0, 2**31 - 1)
    return _over_rows(name, t.to(torch.int32), rows, kind)


def _ids(name: str, t: Any) -> Tensor:
    _check_tensor(name, t)
    if t.is_floating_point() or t.is_complex() or t.dtype is torch.bool:
        raise bad(f"{name}.dtype", t.dtype, "it must hold integers", TypeError)
    return t if t.dtype in (torch.int32, torch.int64) else t.to(torch.int64)


def _labels(t: Any, rows) -> Tensor:
    t = _ids("labels", t)
    if t.shape != rows:
        raise bad("labels.shape", tuple(t.shape), f"it must be that of the rows, {tuple(rows)}")
    return t


def check_labels(labels: Optional[Tensor], w: Tensor, columns: int, ignore: int) -> None:
    """Labels of a GPU are not looked at, unless STREAMKL_CHECK_LABELS=1 is set: that waits for the device. columns: 0 for
    all rows of w."""
    if labels is not None and labels.is_cuda and w.dim() == 2 and os.environ.get("STREAMKL_CHECK_LABELS") == "1":
        refuse_wrong(labels, columns or w.shape[0], ignore)


def refuse_wrong(labels: Tensor, columns: int, ignore: int) -> None:
    """The first label that is neither a column nor ignored, by its position and value."""
    flat = labels.reshape(-1)
    wrong = ((flat != ignore) & ((flat < 0) | (flat >= columns))).nonzero()
    if len(wrong):
        at = int(wrong[0])
        raise bad(f"labels[{at}]", int(flat[at]), f"it must be a column, 0 to {columns - 1}, or {ignore} (ignored)")


def _mass_ids(t: Any, rows) -> Tensor:
    """[..., K] for every row; fewer dimensions are the same ids for several of them."""
    t = _ids("mass_ids", t)
    if t.dim() == 0 or t.dim() > len(rows) + 1 or any(n not in (1, m) for n, m in zip(t.shape[-2::-1], rows[::-1])):
        raise bad(
            "mass_ids.shape", tuple(t.shape), f"it must broadcast to the rows and their ids, {tuple(rows)} + (K,)"
        )
    return t.expand(*rows, t.shape[-1])


def _lists(ids: Any, logprobs: Any, tail_logprob: Any, rows) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
    for name, t in (("ids", ids), ("logprobs", logprobs), ("tail_logprob", tail_logprob)):
        if t is None and name == "tail_logprob":
            continue
        _check_tensor(name, t)
        if (t.is_floating_point() != (name != "ids")) or t.is_complex() or t.dtype is torch.bool:
            rule = "it must hold integers" if name == "ids" else "it must hold logarithms of probabilities"
            raise bad(f"{name}.dtype", t.dtype, rule, TypeError)
        if t.requires_grad:
            raise bad(f"{name}.requires_grad", True, "a listed teacher gets no gradient: detach() it")
    _refuse_tangents(logprobs, tail_logprob)
    if ids.dim() != len(rows) + 1 or ids.shape[:-1] != rows:
        raise bad("ids.shape", tuple(ids.shape), f"it must be that of the rows and a last dimension, {(*rows, 'K')}")
    if logprobs.shape != ids.shape:
        raise bad("logprobs.shape", tuple(logprobs.shape), f"it must be that of ids, {tuple(ids.shape)}")
    if tail_logprob is not None and tail_logprob.shape != rows:
        raise bad("tail_logprob.shape", tuple(tail_logprob.shape), f"it must be that of the rows, {tuple(rows)}")
    return (
        ids if ids.dtype in (torch.int32, torch.int64) else ids.to(torch.int64),
        logprobs if logprobs.dtype in _FLOATS else logprobs.to(torch.float32),
        None if tail_logprob is None else tail_logprob.to(torch.float32),
    )


def _over_rows(name: str, t: Tensor, rows, kind: int) -> Tensor:
    """t broadcast to the rows. For attention, where they are [B, H, N], two dimensions are [B, N] and never [H, N]:
    with as many heads as batches nobody could tell what was meant. Packed, they are [total] or [total, H]."""
    attention = kind == ATTENTION
    if kind == PACKED:
        _, heads, total = rows
        if t.dim() not in (1, 2) or t.shape[0] != total or (t.dim() == 2 and t.shape[1] not in (1, heads)):
            rule = f"with packed sequences it must be [total] or [total, heads], ({total},) or ({total}, {heads})"
            raise bad(f"{name}.shape", tuple(t.shape), rule)
        return (t[:, None] if t.dim() == 1 else t).transpose(0, 1)[None].expand(rows)
    by_batch = attention and t.dim() == 2
    shape = (t.shape[0], 1, t.shape[1]) if by_batch else t.shape
    if len(shape) > len(rows) or any(n not in (1, m) for n, m in zip(reversed(shape), reversed(rows))):
        rule = f"it must broadcast to the rows, {tuple(rows)}"
        if by_batch:
            rule += " (two dimensions are batch and query; heads are written [1, H, N])"
        elif attention and t.dim() == len(rows) + 1:
            rule += (
                " (a mask of queries by keys is not taken: causal=, window=, begin= and end= say which keys are seen)"
            )
        raise bad(f"{name}.shape", tuple(t.shape), rule)
    return (t[:, None] if by_batch else t).expand(rows)
