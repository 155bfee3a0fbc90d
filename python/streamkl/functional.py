# SPDX-License-Identifier: Apache-2.0
"""The two losses for torch tensors."""

from __future__ import annotations

from typing import Optional, Tuple, Union

import torch
from torch import Tensor

from . import _ops
from ._autograd import Reduced, Rows
from ._options import Options, bad, make_options

Result = Union[Tensor, Tuple[Tensor, Tensor, Tensor]]

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_DEVICES = ("cpu", "cuda", "meta") if torch.version.hip is None else ("cpu", "meta")  # ROCm calls itself cuda


def attention_kl(
    q_s: Tensor,
    k_s: Tensor,
    q_t: Tensor,
    k_t: Tensor,
    *,
    causal: bool = False,
    scale_s: Optional[float] = None,
    scale_t: Optional[float] = None,
    divergence: str = "forward",
    beta: float = 0.5,
    weight: Optional[Tensor] = None,
    reduction: str = "mean",
    window: Optional[Tuple[int, int]] = None,
    begin: Optional[Tensor] = None,
    end: Optional[Tensor] = None,
    softcap_s: Optional[float] = None,
    softcap_t: Optional[float] = None,
    columns: Optional[int] = None,
    return_lse: bool = False,
) -> Result:
    """Divergence between the attention distributions of a student and a teacher, per (batch, head, query).

    q_s [B, H, N, Ds], k_s [B, Hs, M, Ds]: student; q_t [B, H, N, Dt], k_t [B, Ht, M, Dt]: teacher. f32, bf16 or f16,
        each its own. Hs and Ht divide H (grouped heads). Any strides; only a last dimension that is not contiguous is
        copied.
    causal: query i sees keys j <= i + M - N (aligned bottom right).
    scale_s, scale_t: factor of the logits; None is 1/sqrt(D) of that side.
    divergence: "forward" KL(teacher || student), "reverse" KL(student || teacher), or
        "jsd": beta KL(t || m) + (1 - beta) KL(s || m), m = beta t + (1 - beta) s, 0 < beta < 1.
    weight: over the queries, broadcast to [B, H, N]; numbers or a bool mask. Weight 0 costs nothing.
    reduction: "mean" is sum(weight loss) / sum(weight), without weight a division by B H N (0, not NaN, if that is 0);
        "sum" is sum(weight loss); "none" is weight loss, [B, H, N].
    window: (left, right), query i sees keys i + M - N - left .. i + M - N + right; -1 is no limit.
    begin, end: integers broadcast to [B, H, N]: a query sees only keys begin .. end - 1 (padding, packed sequences).
    softcap_s, softcap_t: c > 0 makes logits c tanh(z / c), after the scale.
    columns: only the first so many keys exist, the others are padding.
    return_lse: also return the log-sum-exps of both sides, (loss, lse_s, lse_t), [B, H, N] f32, not differentiable.

    The loss is f32. Gradients go to each tensor that requires them, in its dtype. With mean and sum they are made in
    the forward call; with none they are recomputed in backward.
    """
    options = make_options(
        attention=True,
        divergence=divergence,
        beta=beta,
        reduction=reduction,
        scale_s=scale_s,
        scale_t=scale_t,
        softcap_s=softcap_s,
        softcap_t=softcap_t,
        causal=causal,
        window=window,
        columns=columns,
    )
    for name, tensor in (("q_s", q_s), ("k_s", k_s), ("q_t", q_t), ("k_t", k_t)):
        _check(name, tensor)
    rows = q_s.shape[:-1]
    return _divergence(
        (q_s, k_s, None, q_t, k_t, None),
        _over_rows("weight", weight, rows, torch.float32),
        _over_rows("begin", begin, rows, torch.int32),
        _over_rows("end", end, rows, torch.int32),
        options,
        reduction,
        return_lse,
    )


def linear_kl(
    x_s: Tensor,
    w_s: Tensor,
    x_t: Tensor,
    w_t: Tensor,
    *,
    temperature: float = 1.0,
    divergence: str = "forward",
    beta: float = 0.5,
    weight: Optional[Tensor] = None,
    reduction: str = "mean",
    bias_s: Optional[Tensor] = None,
    bias_t: Optional[Tensor] = None,
    scale_s: Optional[float] = None,
    scale_t: Optional[float] = None,
    softcap_s: Optional[float] = None,
    softcap_t: Optional[float] = None,
    columns: Optional[int] = None,
    return_lse: bool = False,
) -> Result:
    """Divergence between the next-token distributions of a student and a teacher, from hidden states.

    x_s [..., Ds], w_s [V, Ds]: the student's hidden states and unembedding (lm_head.weight); x_t [..., Dt],
        w_t [V, Dt]: the teacher's. f32, bf16 or f16, each its own. Any strides; only a last dimension that is not
        contiguous is copied.
    temperature: logits are divided by it. Neither loss nor gradient is multiplied by its square.
    divergence, beta: as in attention_kl.
    weight: over the tokens, broadcast to x_s.shape[:-1]; numbers or a bool mask. Weight 0 costs nothing.
    reduction: "mean" is sum(weight loss) / sum(weight), without weight a division by the number of tokens (0, not NaN,
        if that is 0); "sum" is sum(weight loss); "none" is weight loss, x_s.shape[:-1].
    bias_s, bias_t: [V], added to the product.
    scale_s, scale_t: factor of the product and bias; None is 1.
    softcap_s, softcap_t: c > 0 makes logits c tanh(z / c), after the scale and before the temperature.
    columns: the first so many rows of w_s and w_t are the vocabulary, the others are padding. Needed if their
        numbers of rows differ.
    return_lse: also return the log-sum-exps of both sides, (loss, lse_s, lse_t), f32, not differentiable.

    The loss is f32. Gradients go to each tensor that requires them, in its dtype; a bf16 head that accumulates its
    gradient in f32 (w_s.grad_dtype = torch.float32) gets it in f32. With mean and sum they are made in the forward
    call; with none they are recomputed in backward.
    """
    options = make_options(
        attention=False,
        divergence=divergence,
        beta=beta,
        reduction=reduction,
        temperature=temperature,
        scale_s=scale_s,
        scale_t=scale_t,
        softcap_s=softcap_s,
        softcap_t=softcap_t,
        columns=columns,
    )
    for name, tensor in (("x_s", x_s), ("w_s", w_s), ("x_t", x_t), ("w_t", w_t)):
        _check(name, tensor)
    for name, tensor in (("bias_s", bias_s), ("bias_t", bias_t)):
        if tensor is not None:
            _check(name, tensor)
    rows = x_s.shape[:-1]
    weight = _over_rows("weight", weight, rows, torch.float32)
    if not 2 <= x_s.dim() <= 4:  # what C takes
        if x_t.shape[:-1] != rows:
            raise bad("x_t.shape", tuple(x_t.shape), f"its leading dimensions must be those of x_s, {tuple(rows)}")
        x_s, x_t = x_s.reshape(-1, x_s.shape[-1]), x_t.reshape(-1, x_t.shape[-1])
        weight = None if weight is None else weight.reshape(-1)
        operands = (x_s, w_s, bias_s, x_t, w_t, bias_t)
        loss, lse_s, lse_t = _divergence(operands, weight, None, None, options, reduction, True)
        loss = loss.reshape(rows) if reduction == "none" else loss
        return (loss, lse_s.reshape(rows), lse_t.reshape(rows)) if return_lse else loss
    return _divergence((x_s, w_s, bias_s, x_t, w_t, bias_t), weight, None, None, options, reduction, return_lse)


def _divergence(operands, weight, begin, end, options: Options, reduction: str, return_lse: bool) -> Result:
    need = wide = 0
    if torch.is_grad_enabled():
        for i, t in enumerate(operands):
            if t is not None and t.requires_grad:
                need |= 1 << i
                wide |= _wants_f32(t) << i
    inputs = (*operands, weight, begin, end, *options)
    if reduction == "none":
        _, loss, *lse = Rows.apply(*inputs, need, wide) if need else _ops.value(*inputs, True)
        loss = loss if weight is None else loss * weight
    elif need:
        loss, *lse = Reduced.apply(*inputs, need, return_lse, wide)
    else:
        loss, *lse = _ops.value(*inputs, return_lse)
        lse = lse[1:]
    return (loss, lse[0], lse[1]) if return_lse else loss


def _wants_f32(t: Tensor) -> bool:
    """torch's own way to ask for f32 gradients of a 16-bit parameter; a compiled graph does not know it."""
    return not torch.compiler.is_compiling() and getattr(t, "grad_dtype", t.dtype) is torch.float32


def _check(name: str, t: object) -> None:
    if not isinstance(t, Tensor):
        raise bad(name, type(t).__name__, "it must be a torch.Tensor", TypeError)
    if t.dtype not in _FLOATS:
        raise bad(f"{name}.dtype", t.dtype, "it must be float32, bfloat16 or float16", TypeError)
    if t.device.type not in _DEVICES:
        raise bad(f"{name}.device", str(t.device), "streamkl computes on the CPU and on NVIDIA's GPUs")
    if t.layout is not torch.strided:
        raise bad(f"{name}.layout", t.layout, "it must be a dense tensor", TypeError)
    if t.dim() == 0:
        raise bad(f"{name}.shape", (), "it must have a last dimension of vectors")


def _over_rows(name: str, t: Optional[Tensor], rows, dtype: torch.dtype) -> Optional[Tensor]:
    if t is None:
        return None
    if not isinstance(t, Tensor):
        raise bad(name, type(t).__name__, "it must be a torch.Tensor", TypeError)
    if dtype is torch.int32 and (t.is_floating_point() or t.is_complex() or t.dtype is torch.bool):
        raise bad(f"{name}.dtype", t.dtype, "it must hold integers", TypeError)
    if t.is_complex():
        raise bad(f"{name}.dtype", t.dtype, "it must hold numbers or a bool mask", TypeError)
    if t.device.type not in _DEVICES:
        raise bad(f"{name}.device", str(t.device), "streamkl computes on the CPU and on NVIDIA's GPUs")
    if t.requires_grad:
        raise bad(f"{name}.requires_grad", True, "it gets no gradient: detach() it")
    if t.dim() > len(rows) or any(n not in (1, m) for n, m in zip(reversed(t.shape), reversed(rows))):
        raise bad(f"{name}.shape", tuple(t.shape), f"it must broadcast to the rows, {tuple(rows)}")
    return t.to(dtype).expand(rows)
