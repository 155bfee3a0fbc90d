# SPDX-License-Identifier: Apache-2.0
"""The engine on a shard's columns, which are runs of global positions: one for a part of a vocabulary or of a context, two
for a context in zig-zag order. Runs ascend, so that the columns that a row sees, a range of positions, are a range of the
shard's columns as well, and the engine takes them all in one call."""

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


class Bounds(NamedTuple):
    """The global columns first .. past - 1 that a row sees, int64 over the rows; None: no limit on that side."""

    first: Optional[Tensor]
    past: Optional[Tensor]

    def within(self, runs: Sequence[Run], rows: torch.Size) -> Tuple[Optional[Tensor], Optional[Tensor]]:
        """The same, counted in the columns of those runs. Since these ascend, what a row sees of them is one range."""

        def local(t: Optional[Tensor]) -> Optional[Tensor]:
            if t is None:
                return None
            seen = torch.zeros_like(t)
            for run in runs:
                seen = seen + (t - run.start).clamp(0, run.length)
            return seen.to(torch.int32).expand(rows)

        return local(self.first), local(self.past)


def held(runs: Sequence[Run], columns: int) -> int:
    """How many of their columns are at positions below that."""
    return sum(run.before(columns).length for run in runs)


def local_inputs(inputs: Inputs, runs: Sequence[Run], columns: int, bounds: Bounds) -> Inputs:
    """The engine's inputs on a shard that holds those runs, as far as their positions are below 'columns'."""
    here = slice(0, held(runs, columns))
    a_s, b_s, bias_s, a_t, b_t, bias_t = inputs[:6]
    weight = inputs[OPERANDS]
    first, past = bounds.within([run.before(columns) for run in runs], a_s.shape[:-1])
    sliced = [t if t is None else t[..., here, :] if t.dim() > 1 else t[here] for t in (b_s, bias_s, b_t, bias_t)]
    rows = dict(a_s=a_s, a_t=a_t, weight=weight, begin=first, end=past, labels=inputs[_c.LABELS_AT])
    return _c.named_inputs(**rows, **dict(zip(("b_s", "bias_s", "b_t", "bias_t"), sliced)))


def sweep(inputs: Inputs, options: Options, saved: Sequence[Tensor], bits: int) -> Tensor:
    """The states of the rows over the shard's columns. inputs: of local_inputs()."""
    if inputs[1].shape[-2] == 0:
        return no_columns(inputs[0])
    return _ops.partial(*inputs, *options, list(saved), bits)


def no_columns(a: Tensor) -> Tensor:
    """States of rows that have not seen a column."""
    states = torch.zeros((*a.shape[:-1], _c.STATE), dtype=torch.float64, device=a.device)
    states[..., 0] = states[..., 3] = -torch.inf  # m_s and m_t
    return states


def gradients(
    inputs: Inputs,
    whole: Inputs,
    options: Options,
    saved: Sequence[Tensor],
    bits: int,
    need: int,
    place: Tuple[int, int] = (0, 0),
) -> List[Tensor]:
    """Of the needed operands in f32: those of columns are complete, those of rows this shard's part of a sum. inputs: of
    local_inputs(), from the whole ones. place: what labels count, the shard's first column and the number of all."""
    if inputs[1].shape[-2] == 0:
        wanted = [t for i, t in enumerate(inputs[:OPERANDS]) if need >> i & 1]
        made = [torch.zeros(t.shape, dtype=torch.float32, device=t.device) for t in wanted]
    elif inputs[_c.LABELS_AT] is not None:
        made = _ops.backward_on_shard(place, *inputs, *options, list(saved), bits, need, WIDE)
    else:
        made = _ops.backward(*inputs, *options, list(saved), bits, need, WIDE)
    return with_padding(made, whole, need)


def with_padding(made: List[Tensor], whole: Inputs, need: int) -> List[Tensor]:
    """Gradients with zeros for the columns that do not exist."""
    found = []
    for i, g in zip([i for i in range(OPERANDS) if need >> i & 1], made):
        if g.shape != whole[i].shape:
            full = torch.zeros(whole[i].shape, dtype=torch.float32, device=g.device)
            (full[..., : g.shape[-2], :] if g.dim() > 1 else full[: len(g)]).copy_(g)
            g = full
        found.append(g)
    return found


def with_fields(options: Options, **values: Any) -> Options:
    """The options with other values of those fields of struct skl_problem."""
    made = list(options)
    for name, value in values.items():
        made[FIELDS.index(name)] = value
    return tuple(made)
