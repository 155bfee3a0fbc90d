# SPDX-License-Identifier: Apache-2.0
"""How autograd sees the operators.

mean, sum    the gradients are made in the forward call, in f32, and only scaled in backward (four products). They stay
             f32 until the upstream gradient is known: in f16, before a loss scale is applied, they would underflow.
none         the LSEs of the rows are saved, in two parts that together are exact, and backward recomputes the logits
             for any upstream gradient.

Both backwards go through a second Function that refuses to be differentiated: without it a double backward gives
wrong numbers or None, silently. 'forward' takes *args because torch binds its signature on every call.
"""

from __future__ import annotations

from typing import List, Sequence, Tuple

import torch
from torch import Tensor

from . import _c, _ops
from ._ops import INPUTS, OPERANDS, row_bits
from ._options import DIVERGENCE, IGNORE_INDEX, TAIL, TEMPERATURE, Options

_LSES = row_bits("m_s", "m_t", "l_s", "l_t")
_PIECE = 32704  # numbers that torch multiplies without its threads: it wakes them from 32768 on
_FEW = 1 << 20  # numbers of a gradient that one thread scales in a millisecond


def saved_rows_of(options: Options, inputs: Sequence) -> int:
    """Bits of the row results that a backward of these options and inputs reads."""
    teacher, labels, listed = (inputs[i] is not None for i in (_c.TEACHER_AT, _c.LABELS_AT, _c.IDS_AT))
    if listed and not labels and options[TAIL] == _c.TAILS["renormalise"]:
        return 0  # of the listed columns alone: their scores are all there is
    return saved_rows(options, teacher, labels, listed)


def saved_rows(options: Options, teacher: bool = True, labels: bool = False, listed: bool = False) -> int:
    rows = _LSES if teacher else row_bits("m_rest", "l_rest") if listed else row_bits("m_s", "l_s")
    if labels and options[TEMPERATURE] != 1:
        rows |= row_bits("m_s", "l1_s")
    if not teacher:
        return rows
    if options[DIVERGENCE] in _c.ONE_SWEEP:  # with labels the loss is more than the divergence
        return rows | row_bits("kl" if labels else "loss")
    return rows | row_bits("kl_s", "kl_t")


class _Function(torch.autograd.Function):
    """A Function that vmap cannot map. No jvp beside it: torch.compile refuses Functions that have one, so that
    forward-mode differentiation is refused where the tensors come in (_inputs.py)."""

    @staticmethod
    def vmap(*args):
        _ops.no_vmap()


class _Once(_Function):
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


def _plain(t: Tensor) -> bool:
    kinds = torch._C._functorch  # torch.func's tensors, and several upstream gradients in one: no item(), and no out=
    wrapped = kinds.is_functorch_wrapped_tensor(t) or kinds.is_legacy_batchedtensor(t)
    return type(t) is Tensor and not wrapped and t.is_contiguous() and t.device.type == "cpu"


def _graph_ends() -> bool:
    """Does the backward that is running give up its graph, and what was saved with it? Where torch does not say: no."""
    keeps = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return keeps is not None and not keeps()


def _scaled(grad: Tensor, g: Tensor) -> Tensor:
    """grad * g, in the memory of grad where nobody will read that again: a fresh page costs more than what is written
    to it, and a g of 1, as of loss.backward(), leaves nothing to do. A short one piece by piece: torch's threads, once
    woken, look for more work for milliseconds, on the processors that the threads of the next call want."""
    if torch.compiler.is_compiling() or not (_plain(grad) and _plain(g)):
        return grad * g
    ours = _graph_ends()
    scaled = grad.detach() if ours else torch.empty_like(grad)
    if ours and g.item() == 1:
        return scaled
    size = _PIECE if grad.numel() <= _FEW else grad.numel()
    for piece, to in zip(grad.view(-1).split(size), scaled.view(-1).split(size)):
        torch.mul(piece, g, out=to)
    return scaled


class _Scale(_Once):
    """g, dtypes, gradients, operands: the operands are there so that a double backward comes by."""

    @staticmethod
    def forward(*args):
        g, dtypes, *grads = _own(args)
        return tuple(_scaled(grad, g).to(dtype) for grad, dtype in zip(grads, dtypes))


class _Recompute(_Once):
    """Inputs with the upstream gradient of the rows as weight; options, rows, need, wide; what the forward saved."""

    @staticmethod
    def forward(*args):
        args = _own(args)
        options, rows, need, wide = args[INPUTS : INPUTS + 4]
        return tuple(_ops.backward(*args[:INPUTS], *options, list(args[INPUTS + 4 :]), rows, need, wide))


def _needed(things: Sequence, need: int) -> List:
    return [thing for i, thing in enumerate(things) if need >> i & 1]


def _results(grads: Sequence[Tensor], need: int, total: int) -> List:
    rest = iter(grads)
    return [next(rest) if i < OPERANDS and need >> i & 1 else None for i in range(total)]


class Reduced(_Function):
    """Inputs; options, rows, need, wide. Gives the value and the rows."""

    @staticmethod
    def forward(*args):
        options, rows, need, _ = args[INPUTS:]
        return tuple(_ops.value_and_grad(*args[:INPUTS], *options, rows, need))

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        _, rows, ctx.need, wide = inputs[INPUTS:]
        operands = _needed(inputs[:OPERANDS], ctx.need)
        wides = _needed([torch.float32 if wide >> i & 1 else None for i in range(OPERANDS)], ctx.need)
        ctx.dtypes = tuple(wide or t.dtype for t, wide in zip(operands, wides))
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*output[len(output) - len(operands) :], *operands)

    @staticmethod
    def backward(ctx, g, *_):
        if g is None:
            return (None,) * (INPUTS + 4)
        return tuple(_results(_Scale.apply(g, ctx.dtypes, *ctx.saved_tensors), ctx.need, INPUTS + 4))


def without_ignored(g: Tensor, inputs: Sequence, options: Options) -> Tensor:
    """The upstream gradient of rows, where they take part: it is a weight from here on, and with a weight those whose label
    is ignored would."""
    labels = inputs[_c.LABELS_AT]
    if labels is None or inputs[OPERANDS] is not None:
        return g
    return g.masked_fill(labels == options[IGNORE_INDEX], 0)


class Rows(_Function):
    """Inputs; options, rows, need, wide. Gives the value, the loss of the rows and the other rows."""

    @staticmethod
    def forward(*args):
        options, rows = args[INPUTS : INPUTS + 2]
        return tuple(_ops.value(*args[:INPUTS], *options, rows))

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.options, rows, ctx.need, ctx.wide = inputs[INPUTS:]
        ctx.mark_non_differentiable(output[0], *output[2:])
        ctx.set_materialize_grads(False)
        made = iter(output[1:])
        found = [(i, next(made)) for i in range(len(_c.ROWS)) if rows >> i & 1]
        ctx.kept = kept = saved_rows_of(ctx.options, inputs)
        ctx.save_for_backward(*inputs[:INPUTS], *[t for i, t in found if kept >> i & 1])

    @staticmethod
    def backward(ctx, _value, g, *_):
        if g is None:
            return (None,) * (INPUTS + 4)
        saved = ctx.saved_tensors
        rows, g = ctx.kept, without_ignored(g, saved, ctx.options)
        inputs = (*saved[:OPERANDS], g, *saved[OPERANDS + 1 : INPUTS])
        grads = _Recompute.apply(*inputs, ctx.options, rows, ctx.need, ctx.wide, *saved[INPUTS:])
        return tuple(_results(grads, ctx.need, INPUTS + 4))
