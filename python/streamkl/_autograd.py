# SPDX-License-Identifier: Apache-2.0
"""How autograd sees the operators.

mean, sum    the gradients are made in the forward call, in f32, and only scaled in backward (four products). They stay
             f32 until the upstream gradient is known: in f16, before a loss scale is applied, they would underflow.
none         the LSEs of the rows are saved, and backward recomputes the logits for any upstream gradient.

Both backwards go through a second Function that refuses to be differentiated: without it a double backward gives
wrong numbers or None, silently. 'forward' takes *args because torch binds its signature on every call.
"""

from __future__ import annotations

from typing import List, Sequence, Tuple

import torch
from torch import Tensor

from . import _ops
from ._ops import INPUTS, OPERANDS, OPTIONS


class _Once(torch.autograd.Function):
    """A backward that cannot be differentiated."""

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        pass

    @staticmethod
    def backward(ctx, *grads):
        raise NotImplementedError(
            "streamkl: double backward is not supported: the gradient of this loss has no gradient"
        )


def _own(args: Tuple) -> Tuple:
    """The arguments of a forward(*args): when torch 2.4 compiles a backward, it puts the context before them."""
    return args if isinstance(args[0], Tensor) else args[1:]


class _Scale(_Once):
    """g, dtypes, gradients, operands: the operands are there so that a double backward comes by."""

    @staticmethod
    def forward(*args):
        g, dtypes, *grads = _own(args)
        return tuple((grad * g).to(dtype) for grad, dtype in zip(grads, dtypes))


class _Recompute(_Once):
    """Operands, upstream gradient of the rows, begin, end, options, need, wide, what the forward saved."""

    @staticmethod
    def forward(*args):
        args, end = _own(args), INPUTS + OPTIONS
        return tuple(_ops.backward(*args[:end], list(args[end + 2 :]), *args[end : end + 2]))


def _needed(things: Sequence, need: int) -> List:
    return [thing for i, thing in enumerate(things) if need >> i & 1]


def _results(grads: Sequence[Tensor], need: int, total: int) -> List:
    rest = iter(grads)
    return [next(rest) if i < OPERANDS and need >> i & 1 else None for i in range(total)]


class Reduced(torch.autograd.Function):
    """Arguments of the operator value_and_grad, and 'wide'."""

    @staticmethod
    def forward(*args):
        return tuple(_ops.value_and_grad(*args[:-1]))

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.need, rows, wide = inputs[-3:]
        ctx.total = len(inputs)
        operands = _needed(inputs[:OPERANDS], ctx.need)
        wides = _needed([torch.float32 if wide >> i & 1 else None for i in range(OPERANDS)], ctx.need)
        ctx.dtypes = tuple(wide or t.dtype for t, wide in zip(operands, wides))
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*output[3 if rows else 1 :], *operands)

    @staticmethod
    def backward(ctx, g, *_):
        if g is None:
            return (None,) * ctx.total
        return tuple(_results(_Scale.apply(g, ctx.dtypes, *ctx.saved_tensors), ctx.need, ctx.total))


class Rows(torch.autograd.Function):
    """Inputs and options of the operator value, 'need' and 'wide'."""

    @staticmethod
    def forward(*args):
        return tuple(_ops.value(*args[:-2], True))

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
        saved = ctx.saved_tensors
        inputs = (*saved[:OPERANDS], g, *saved[OPERANDS + 1 : INPUTS])
        grads = _Recompute.apply(*inputs, *ctx.options, ctx.need, ctx.wide, *saved[INPUTS:])
        return tuple(_results(grads, ctx.need, ctx.total))
