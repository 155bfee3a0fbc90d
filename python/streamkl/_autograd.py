# SPDX-License-Identifier: Apache-2.0
"""How autograd sees the operators.

mean, sum    the gradients are made in the forward call, in f32, and only scaled in backward (four products). They stay
             f32 until the upstream gradient is known: in f16, before a loss scale is applied, they would underflow.
none         the LSEs of the rows are saved, and backward recomputes the logits for any upstream gradient.

Both backwards go through a second Function that refuses to be differentiated: without it a double backward gives
wrong numbers or None, silently. 'forward' takes *args because torch binds its signature on every call.
"""
from __future__ import annotations

from typing import Optional, Sequence, Tuple

import torch
from torch import Tensor

from . import _ops
from ._ops import INPUTS, OPERANDS


class _Once(torch.autograd.Function):
    """A backward that cannot be differentiated."""

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        pass

    @staticmethod
    def backward(ctx, *grads):
        raise NotImplementedError("streamkl: double backward is not supported: the gradient of this loss has no gradient")


class _Scale(_Once):
    """(g, dtypes, six gradients, six operands): the operands are there so that a double backward comes by."""

    @staticmethod
    def forward(*args):
        g, dtypes, grads = args[0], args[1], args[2 : 2 + OPERANDS]
        return tuple(grad if dtype is None else (grad * g).to(dtype) for grad, dtype in zip(grads, dtypes))


class _Recompute(_Once):
    @staticmethod
    def forward(*args):
        return _ops.backward(*args)


def _dtypes(operands: Sequence[Optional[Tensor]], need: int, wide: int) -> Tuple[Optional[torch.dtype], ...]:
    return tuple(
        None if t is None or not need >> i & 1 else torch.float32 if wide >> i & 1 else t.dtype
        for i, t in enumerate(operands)
    )


def _results(ctx, grads: Sequence[Tensor], total: int):
    chosen = [grad if needed else None for grad, needed in zip(grads, ctx.needs_input_grad)]
    return (*chosen, *[None] * (total - OPERANDS))


class Reduced(torch.autograd.Function):
    """Arguments of the operator value_and_grad, and 'wide'."""

    @staticmethod
    def forward(*args):
        return _ops.value_and_grad(*args[:-1])

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        operands, need, wide = inputs[:OPERANDS], inputs[-3], inputs[-1]
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.dtypes, ctx.total = _dtypes(operands, need, wide), len(inputs)
        ctx.save_for_backward(*output[3:], *[t if need >> i & 1 else None for i, t in enumerate(operands)])

    @staticmethod
    def backward(ctx, g, *_):
        if g is None:
            return (None,) * ctx.total
        return _results(ctx, _Scale.apply(g, ctx.dtypes, *ctx.saved_tensors), ctx.total)


class Rows(torch.autograd.Function):
    """Arguments of the operator value, 'need' and 'wide'."""

    @staticmethod
    def forward(*args):
        return _ops.value(*args[:-2])

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.mark_non_differentiable(output[0], *output[2:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:INPUTS], *output[1:])
        ctx.options, ctx.need, ctx.wide, ctx.total = inputs[INPUTS:-2], inputs[-2], inputs[-1], len(inputs)

    @staticmethod
    def backward(ctx, _value, g, *_):
        if g is None:
            return (None,) * ctx.total
        operands, (begin, end) = ctx.saved_tensors[:OPERANDS], ctx.saved_tensors[OPERANDS + 1 : INPUTS]
        saved = ctx.saved_tensors[INPUTS:]
        grads = _Recompute.apply(*operands, g, begin, end, *ctx.options, *saved, ctx.need, ctx.wide)
        return _results(ctx, grads, ctx.total)
