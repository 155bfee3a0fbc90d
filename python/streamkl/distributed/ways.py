# SPDX-License-Identifier: Apache-2.0
"""The two ways to compute a loss whose columns are spread over the ranks.

RowsHere        every rank has all rows (or gathers them) and its own columns: states travel, 48 bytes a row and rank
ColumnsTravel   every rank keeps its rows; the columns of one rank after the other come by, never all of them at once
"""

from __future__ import annotations

from typing import Dict, Iterator, List, Sequence, Tuple

import torch
from torch import Tensor

from .. import _c, _ops
from .._autograd import saved_rows_of
from .._call import ShardCall
from .._finished import PARTS
from .._inputs import Inputs
from .._ops import OPERANDS, row_bits
from .pieces import ROWS_OPERANDS, gradients, held, local_inputs, no_columns, sweep, with_padding
from .shard import Shard, two_sweeps


def names_of(bits: int) -> List[str]:
    return [name for i, name in enumerate(_c.ROWS) if bits >> i & 1]


class Way:
    """A call on its way: inputs are those of the rows that this rank computes."""

    def __init__(self, shard: Shard, inputs: Inputs) -> None:
        self.shard, self.group, self.inputs = shard, shard.group, inputs

    def states(self, saved: Sequence[Tensor], bits: int) -> Tensor:
        """Of this rank's rows over all columns."""
        raise NotImplementedError

    def gradients(self, inputs: Inputs, saved: Sequence[Tensor], bits: int, need: int) -> List[Tensor]:
        """Complete ones of this rank's operands, in f32; inputs with the upstream gradient of the rows as weight."""
        raise NotImplementedError

    def value(self, bits: int) -> Tuple[Tensor, Dict[str, Tensor]]:
        """The reduced loss over the group, and the row results of those bits for the rows that are computed here."""
        first = self.states((), 0)
        if not two_sweeps(self.shard.options):
            total, rows = self._finish(first, bits)
            return self.reduced(total), rows
        _, known = self._finish(first, bits & row_bits("lse_s", "lse_t") | row_bits(*PARTS))
        second = self.states([known[name] for name in PARTS], row_bits(*PARTS))
        total, found = self._finish(second, bits & row_bits("loss", "kl_s", "kl_t"))
        return self.reduced(total), {**known, **found}

    def _finish(self, states: Tensor, bits: int) -> Tuple[Tensor, Dict[str, Tensor]]:
        widths = self.inputs[0].shape[-1], self.inputs[3].shape[-1]
        total, *rows = _ops.finish(states, self.inputs[OPERANDS], *self.shard.options, *widths, bits)
        return total, dict(zip(names_of(bits), rows))

    def value_and_grad(self, bits: int, need: int) -> Tuple[Tensor, Dict[str, Tensor], List[Tensor]]:
        """The reduced loss, the row results of those bits and the needed gradients, complete and in f32.

        Six products: the logits are computed again for the gradients."""
        kept = saved_rows_of(self.shard.options, self.inputs)
        total, rows = self.value(bits | kept)
        made = self.gradients(self.upstream(), [rows[name] for name in names_of(kept)], kept, need)
        return total, rows, made

    def backward(self, g: Tensor, saved: Sequence[Tensor], need: int) -> List[Tensor]:
        """The gradients for an upstream gradient of this rank's rows."""
        inputs = (*self.inputs[:OPERANDS], self.all_rows(g), *self.inputs[OPERANDS + 1 :])
        return self.gradients(inputs, saved, saved_rows_of(self.shard.options, self.inputs), need)

    def reduced(self, total: Tensor) -> Tensor:
        """The loss of the group, from what the engine made of the rows that this rank computes."""
        return total

    def upstream(self) -> Inputs:
        """Inputs whose weights give the engine the gradient of the reduced loss. Called after reduced()."""
        return self.inputs

    def own_rows(self, t: Tensor) -> Tensor:
        """A row result of the rows that this rank was given."""
        return t

    def all_rows(self, t: Tensor) -> Tensor:
        """One number for each row that this rank computes, from that of each row it was given."""
        return t


class RowsHere(Way):
    def __init__(self, shard: Shard, inputs: Inputs) -> None:
        positions = shard.positions
        if shard.sharded:
            self.group = shard.group
            gathered = [self._gathered(shard, i, t) for i, t in enumerate(inputs)]
            inputs = tuple(gathered)
            if positions is not None:
                positions = shard.group.rows(positions, shard.counts, 0, "positions")
        super().__init__(shard, inputs)
        self.bounds = shard.bounds(inputs, positions)

    @staticmethod
    def _gathered(shard: Shard, i: int, t):
        if t is None or (i < OPERANDS and i not in ROWS_OPERANDS):
            return t
        vectors = i < OPERANDS or _c.INPUTS[i] == "mass_ids"
        return shard.group.rows(t, shard.counts, -2 if vectors else -1, _c.INPUTS[i])

    def _local(self, inputs: Inputs) -> Inputs:
        return local_inputs(inputs, self.shard.runs[self.group.rank], self.shard.columns, self.bounds)

    def value(self, bits: int) -> Tuple[Tensor, Dict[str, Tensor]]:
        return self._meeting(bits, 0)[:2] if self.shard.meets else super().value(bits)

    def value_and_grad(self, bits: int, need: int) -> Tuple[Tensor, Dict[str, Tensor], List[Tensor]]:
        return self._meeting(bits, need) if self.shard.meets else super().value_and_grad(bits, need)

    def _meeting(self, bits: int, need: int) -> Tuple[Tensor, Dict[str, Tensor], List[Tensor]]:
        """One call of the engine, in which the ranks meet once a block of rows: it keeps the logits meanwhile. Four
        products."""
        total, *found = _ops.on_shard(self._shard_call(), *self._local(self.inputs), *self.shard.options, bits, need)
        names = names_of(bits)
        made = with_padding(found[len(names) :], self.inputs, need)
        return total, dict(zip(names, found)), self._summed(made, need)

    def _shard_call(self) -> ShardCall:
        first, most = self._place()
        columns = range(first, first + held(self.shard.runs[self.group.rank], most))
        return ShardCall(self.group.merge_at, self.group.give_up, columns, most, self.shard.meets)

    def _place(self) -> Tuple[int, int]:
        """Where this rank's columns begin, and how many all ranks have: what labels count. With those there is one run."""
        runs, most = self.shard.runs[self.group.rank], self.shard.columns
        return (min(runs[0].start, most) if runs else 0), most

    def states(self, saved: Sequence[Tensor], bits: int) -> Tensor:
        try:
            own = sweep(self._local(self.inputs), self.shard.options, saved, bits)
        except BaseException as error:
            self.group.give_up(error, self.inputs[0].shape[:-1].numel())
            raise
        return self.group.merge(own)

    def gradients(self, inputs: Inputs, saved: Sequence[Tensor], bits: int, need: int) -> List[Tensor]:
        made = gradients(self._local(inputs), inputs, self.shard.options, saved, bits, need, self._place())
        return self._summed(made, need)

    def _summed(self, made: List[Tensor], need: int) -> List[Tensor]:
        """Gradients with those of rows summed over the ranks."""
        places = [i for i in range(OPERANDS) if need >> i & 1]
        shared = [k for k, i in enumerate(places) if i in ROWS_OPERANDS]
        if self.shard.sharded:
            for k in shared:
                made[k] = self.group.sum_own(made[k], self.shard.counts, -2, "gradients of rows")
        else:
            for k, total in zip(shared, self.group.sum([made[k] for k in shared], "gradients of rows")):
                made[k] = total
        return made

    def own_rows(self, t: Tensor) -> Tensor:
        return t.split(self.shard.counts, -1)[self.group.rank] if self.shard.sharded else t

    def all_rows(self, t: Tensor) -> Tensor:
        return self.group.rows(t, self.shard.counts, -1, "upstream gradients") if self.shard.sharded else t


class ColumnsTravel(Way):
    def __init__(self, shard: Shard, inputs: Inputs) -> None:
        super().__init__(shard, inputs)
        self.bounds = shard.bounds(inputs, shard.positions)

    def _visits(self) -> Iterator[Tuple[int, Inputs]]:
        """Each rank's columns beside this rank's rows. The next ones are on their way while these are worked on."""
        coming = self._send(0)
        for rank in range(self.group.size):
            columns, started = coming
            if rank + 1 < self.group.size:
                coming = self._send(rank + 1)
            self.group.end_broadcast(started)
            rest = iter(columns)
            yield (
                rank,
                tuple(
                    t if t is None or i in ROWS_OPERANDS or i >= OPERANDS else next(rest)
                    for i, t in enumerate(self.inputs)
                ),
            )

    def _send(self, rank: int):
        length, columns = sum(run.length for run in self.shard.runs[rank]), []
        for i in range(OPERANDS):
            t = self.inputs[i]
            if t is None or i in ROWS_OPERANDS:
                continue
            if rank != self.group.rank:
                shape = (*t.shape[:-2], length, t.shape[-1]) if t.dim() > 1 else (length,)
                t = torch.empty(shape, dtype=t.dtype, device=t.device)
            columns.append(t.contiguous())
        return columns, self.group.start_broadcast(columns, rank)

    def _local(self, rank: int, inputs: Inputs) -> Inputs:
        return local_inputs(inputs, self.shard.runs[rank], self.shard.columns, self.bounds)

    def states(self, saved: Sequence[Tensor], bits: int) -> Tensor:
        states = no_columns(self.inputs[0])
        for rank, inputs in self._visits():
            states = _ops.merge(states, sweep(self._local(rank, inputs), self.shard.options, saved, bits))
        return states

    def reduced(self, total: Tensor) -> Tensor:
        """The engine has summed this rank's rows: sums and counts of all ranks are added up, in rank order."""
        weight, rows = self.inputs[OPERANDS], self.inputs[0].shape[:-1].numel()
        count = torch.full_like(total, rows, dtype=torch.float64) if weight is None else weight.double().sum()
        both = self.group.gather(torch.stack([total.double(), count]), "sums and counts")
        total, count = both.cumsum(0)[-1].unbind()
        self.share = torch.where(count == 0, 0.0, 1 / count) if self.shard.mean else None
        return (total if self.share is None else total * self.share).float()

    def upstream(self) -> Inputs:
        if self.share is None:
            return self.inputs
        a, weight = self.inputs[0], self.inputs[OPERANDS]
        weight = torch.ones(a.shape[:-1], device=a.device) if weight is None else weight
        return (*self.inputs[:OPERANDS], (weight * self.share).float(), *self.inputs[OPERANDS + 1 :])

    def gradients(self, inputs: Inputs, saved: Sequence[Tensor], bits: int, need: int) -> List[Tensor]:
        places = [i for i in range(OPERANDS) if need >> i & 1]
        total = [torch.zeros(inputs[i].shape, dtype=torch.float32, device=inputs[i].device) for i in places]
        weight = inputs[OPERANDS]
        for rank, visit in self._visits():
            visit = (*visit[:OPERANDS], weight, *visit[OPERANDS + 1 :])
            made = gradients(self._local(rank, visit), visit, self.shard.options, saved, bits, need)
            for k, i in enumerate(places):
                if i in ROWS_OPERANDS:
                    total[k] += made[k]
                else:
                    self.group.sum_at(made[k], rank, "gradients of columns")
                    if rank == self.group.rank:
                        total[k] = made[k]
        return total


def way_of(shard: Shard, inputs: Inputs) -> Way:
    return (ColumnsTravel if shard.columns_travel else RowsHere)(shard, inputs)
