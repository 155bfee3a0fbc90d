# SPDX-License-Identifier: Apache-2.0
"""The engine on a shard's columns. Its calls take columns that lie one after the other, so a shard is cut into runs of
global positions: one for a part of a vocabulary or of a context, two for a context in zig-zag order."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .. import _c, _ops
from .._inputs import Inputs
from .._ops import OPERANDS
from .._options import FIELDS, Options

ROWS_OPERANDS = (0, 3)  # a_s and a_t in _c.OPERANDS; the others belong to the columns
WIDE = (1 << OPERANDS) - 1  # every gradient in f32


class Run(NamedTuple):
    """So many columns whose global positions follow each other."""

    start: int
    length: int

    def before(self, columns: int) -> Run:
        """The part of it at positions below that."""
        return Run(self.start, max(0, min(self.length, columns - self.start)))


class Piece(NamedTuple):
    inputs: Inputs
    at: slice  # its columns among those of the shard


class Bounds(NamedTuple):
    """The global columns first .. past - 1 that a row sees, int64 over the rows; None: no limit on that side."""

    first: Optional[Tensor]
    past: Optional[Tensor]

    def within(self, run: Run, rows: torch.Size) -> Tuple[Optional[Tensor], Optional[Tensor]]:
        """The same, counted from the run's first column."""

        def local(t: Optional[Tensor]) -> Optional[Tensor]:
            return None if t is None else (t - run.start).clamp(0, run.length).to(torch.int32).expand(rows)

        return local(self.first), local(self.past)


def cut(inputs: Inputs, runs: Sequence[Run], columns: int, bounds: Bounds, empty: bool = False) -> List[Piece]:
    """The pieces of a shard that holds those runs, as far as their positions are below 'columns'. empty: those without
    columns, too."""
    pieces, at = [], 0
    a_s, b_s, bias_s, a_t, b_t, bias_t, weight = inputs[: OPERANDS + 1]
    for run in runs:
        here = slice(at, at + run.before(columns).length)
        at += run.length
        if here.start == here.stop and not empty:
            continue
        first, past = bounds.within(Run(run.start, here.stop - here.start), a_s.shape[:-1])
        sliced = [t if t is None else t[..., here, :] if t.dim() > 1 else t[here] for t in (b_s, bias_s, b_t, bias_t)]
        rows = dict(a_s=a_s, a_t=a_t, weight=weight, begin=first, end=past, labels=inputs[_c.LABELS_AT])
        columns_of = dict(zip(("b_s", "bias_s", "b_t", "bias_t"), sliced))
        pieces.append(Piece(_c.named_inputs(**rows, **columns_of), here))
    return pieces


def sweep(pieces: Sequence[Piece], a: Tensor, options: Options, saved: Sequence[Tensor], bits: int) -> Tensor:
    """The states of the rows of a over the pieces."""
    states: Optional[Tensor] = None
    for piece in pieces:
        more = _ops.partial(*piece.inputs, *options, list(saved), bits)
        states = more if states is None else _ops.merge(states, more)
    return no_columns(a) if states is None else states


def no_columns(a: Tensor) -> Tensor:
    """States of rows that have not seen a column."""
    states = torch.zeros((*a.shape[:-1], _c.STATE), dtype=torch.float64, device=a.device)
    states[..., 0] = states[..., 3] = -torch.inf  # m_s and m_t
    return states


def gradients(
    pieces: Sequence[Piece], inputs: Inputs, options: Options, saved: Sequence[Tensor], bits: int, need: int
) -> List[Tensor]:
    """Of the needed operands in f32: those of columns are complete, those of rows are sums over the pieces."""
    made = [_ops.backward(*piece.inputs, *options, list(saved), bits, need, WIDE) for piece in pieces]
    return in_place(pieces, made, inputs, need)


def in_place(pieces: Sequence[Piece], made: Sequence[List[Tensor]], inputs: Inputs, need: int) -> List[Tensor]:
    """The pieces' gradients as those of the shard."""
    wanted = [i for i in range(OPERANDS) if need >> i & 1]
    if len(pieces) == 1 and all(t is None or pieces[0].at.stop == t.shape[-2] for t in (inputs[1], inputs[4])):
        return made[0]
    out = [torch.zeros(inputs[i].shape, dtype=torch.float32, device=inputs[i].device) for i in wanted]
    for piece, grads in zip(pieces, made):
        for i, into, g in zip(wanted, out, grads):
            if i in ROWS_OPERANDS:
                into += g
            else:
                (into[..., piece.at, :] if into.dim() > 1 else into[piece.at]).copy_(g)
    return out


def with_fields(options: Options, **values: Any) -> Options:
    """The options with other values of those fields of struct skl_problem."""
    made = list(options)
    for name, value in values.items():
        made[FIELDS.index(name)] = value
    return tuple(made)
