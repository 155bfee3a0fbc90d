# SPDX-License-Identifier: Apache-2.0
"""How autograd sees a loss over a group.

mean, sum    the gradients are made and summed over the ranks in the forward call: backward is local, and cannot hang
none         backward recomputes the logits for the upstream gradients of the rows, and sums over the ranks
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._autograd import Reduced, _Function, _needed, _Once, _own, _results, saved_rows_of, without_ignored
from .._ops import INPUTS, OPERANDS, row_bits
from .group import Group
from .ways import names_of, way_of


class ShardReduced(Reduced):
    """Inputs; the shard in place of the options, rows, need, wide. Gives the value and this rank's rows."""

    @staticmethod
    def forward(*args):
        shard, rows, need, _ = args[INPUTS:]
        way = way_of(shard, args[:INPUTS])
        total, found, made = way.value_and_grad(rows, need)
        return (total, *[way.own_rows(found[name]) for name in names_of(rows)], *made)


class ShardRows(_Function):
    """Inputs; shard, rows, need, wide. Gives the loss of this rank's rows, their other results, and what is saved of
    the rows that this rank computes."""

    @staticmethod
    def forward(*args):
        shard, rows = args[INPUTS : INPUTS + 2]
        way, kept = way_of(shard, args[:INPUTS]), saved_rows_of(shard.options, args[:INPUTS])
        _, found = way.value(rows | kept | row_bits("loss"))
        own = [way.own_rows(found[name]).clone() for name in ("loss", *names_of(rows))]
        return (*own, *[found[name] for name in names_of(kept)])

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.shard, _, ctx.need, ctx.wide = inputs[INPUTS:]
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        kept = len(names_of(saved_rows_of(ctx.shard.options, inputs[:INPUTS])))
        ctx.save_for_backward(*inputs[:INPUTS], *output[len(output) - kept :])

    @staticmethod
    def backward(ctx, g, *_):
        if g is None:
            return (None,) * (INPUTS + 4)
        saved = ctx.saved_tensors
        g = without_ignored(g, saved, ctx.shard.options)
        grads = _ShardRecompute.apply(*saved[:INPUTS], ctx.shard, ctx.need, ctx.wide, g, *saved[INPUTS:])
        return tuple(_results(grads, ctx.need, INPUTS + 4))


class _ShardRecompute(_Once):
    """Inputs; shard, need, wide; the upstream gradient of the rows, and what the forward saved."""

    @staticmethod
    def forward(*args):
        args = _own(args)
        shard, need, wide, g, *saved = args[INPUTS:]
        made = way_of(shard, args[:INPUTS]).backward(g, saved, need)
        operands = _needed(args[:OPERANDS], need)
        wides = _needed([wide >> i & 1 for i in range(OPERANDS)], need)
        return tuple(grad if wide else grad.to(t.dtype) for grad, t, wide in zip(made, operands, wides))


class _Averaged(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factor, None


def averaged_by(x: Tensor, factor: float) -> Tensor:
    return _Averaged.apply(x, factor) if x.requires_grad else x


def averaged(x: Tensor, group: Any) -> Tensor:
    """x, whose gradient is multiplied by the number of ranks: for hidden states of a model whose gradients are averaged
    over the group afterwards, as DDP does it, when the loss is the group's."""
    return averaged_by(x, Group(group).size)
