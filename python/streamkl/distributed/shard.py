# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a call know of each other: who holds which rows and columns, and which of them see each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, NamedTuple, Optional, Sequence

import torch
from torch import Tensor

from .. import _c
from .._autograd import saved_rows
from .._checks import bad
from .._inputs import Inputs
from .._ops import OPERANDS, row_bits
from .._options import FIELDS, Options
from .group import Group
from .pieces import ROWS_OPERANDS, Bounds, Run, with_fields

_FAR = 1 << 40  # no position is so large, and sums with it do not overflow


class Masks(NamedTuple):
    """Which columns a row at a position sees, besides its begin and end."""

    causal: bool
    left: int  # -1: no limit
    right: int

    @property
    def by_position(self) -> bool:
        return self.causal or self.left >= 0 or self.right >= 0


@dataclass
class Shard:
    """One call, after the ranks have agreed on it."""

    group: Group
    options: Options  # without columns and masks, which are global
    masks: Masks
    mean: bool
    sharded: bool  # rows are split over the ranks too
    counts: List[int]  # rows of each rank if they are, or of all
    runs: List[Sequence[Run]]  # columns of each rank, ascending
    columns: int  # how many of them exist
    positions: Optional[Tensor]  # of this rank's rows, where a mask asks for them
    columns_travel: bool
    meets: int  # rows of a block in which the ranks meet, within one call of the engine; 0: they do not

    @property
    def rows(self) -> int:
        return sum(self.counts) if self.sharded else self.counts[0]

    def bounds(self, inputs: Inputs, positions: Optional[Tensor]) -> Bounds:
        """Of rows at those positions, with their begin and end: what is asked for of a row is all of it."""
        begin, end = inputs[OPERANDS + 1 : OPERANDS + 3]
        first = None if begin is None else begin.to(torch.int64)
        past = None if end is None else end.to(torch.int64)
        if not self.masks.by_position:
            return Bounds(first, past)
        assert positions is not None
        diagonal = positions + (self.columns - self.rows)
        if self.masks.left >= 0:
            least = diagonal - min(self.masks.left, _FAR)
            first = least if first is None else torch.maximum(first, least)
        for reach in ([0] if self.masks.causal else []) + ([self.masks.right] if self.masks.right >= 0 else []):
            most = diagonal + (min(reach, _FAR) + 1)
            past = most if past is None else torch.minimum(past, most)
        return Bounds(first, past)


def global_masks(options: Options) -> Masks:
    causal, left, right = (options[FIELDS.index(name)] for name in ("causal", "window_left", "window_right"))
    return Masks(bool(causal), left, right)


def local_options(options: Options) -> Options:
    """For the engine's calls on pieces, which get their part of masks and columns as tensors of their own."""
    return with_fields(options, columns=0, causal=False, window_left=-1, window_right=-1)


def two_sweeps(options: Options) -> bool:
    """If the divergence needs the log-sum-exps over all columns before it can begin."""
    return bool(saved_rows(options) & row_bits("kl_s"))


def runs_in_order(lengths: Sequence[int]) -> List[Sequence[Run]]:
    """Each rank's columns after those of the ranks before it."""
    starts = [sum(lengths[:r]) for r in range(len(lengths))]
    return [[Run(start, length)] for start, length in zip(starts, lengths)]


def runs_of(positions: Tensor) -> List[Run]:
    """The runs of positions that follow each other."""
    places = positions.tolist()
    firsts = [i for i, p in enumerate(places) if i == 0 or p != places[i - 1] + 1]
    return [Run(places[i], j - i) for i, j in zip(firsts, [*firsts[1:], len(places)])]


def check_same_ids(student: Sequence[int], teacher: Sequence[int], columns: Optional[int]) -> int:
    """Refuses shards of a rank that cover different ids of the vocabulary; returns how many ids there are."""
    totals = sum(student), sum(teacher)
    if columns is not None and columns > min(totals):
        raise bad("columns", columns, f"it must be at most {min(totals)}, the rows that all ranks have together")
    most = max(totals) if columns is None else columns
    for rank, pair in enumerate(zip(runs_in_order(student), runs_in_order(teacher))):
        s, t = (runs[0].before(most) for runs in pair)
        if s != t and (s.length or t.length):
            ids = [f"{run.start}..{run.start + run.length - 1}" if run.length else "none" for run in (s, t)]
            rule = f"the student's shard covers ids {ids[0]}, the teacher's {ids[1]}: they must be the same"
            raise bad(f"w_s, w_t of rank {rank}", tuple(n[rank] for n in (student, teacher)), rule)
    return most


def check_cover(runs: Sequence[Sequence[Run]]) -> None:
    """Refuses keys that are held twice, and positions that nobody holds."""
    held = sorted((run.start, run.length, rank) for rank, many in enumerate(runs) for run in many if run.length)
    past, before = 0, -1
    for start, length, rank in held:
        if start < past:
            rule = "it is a key of "
            rule += f"rank {rank} twice" if rank == before else f"rank {before} and of rank {rank}"
            raise bad("key position", start, rule + ", and must be of one" if start >= 0 else "it must not be negative")
        if start > past:
            raise bad("key position", past, "it is a key of no rank: positions must be 0 to the number of keys - 1")
        past, before = start + length, rank


def columns_should_travel(inputs: Inputs, rows: int, columns: int, ranks: int, options: Options, need: int) -> bool:
    """Which way moves fewer bytes to a rank: the rows of all ranks with their states and gradients, or slices of the
    columns, once a sweep and once for gradients, with theirs."""
    sweeps = 2 if two_sweeps(options) else 1
    operands = [None if t is None else (_each(t), t.element_size()) for t in inputs[:OPERANDS]]
    moved = [0, 0]
    for i, operand in enumerate(operands):
        if operand is not None:
            entries, size = operand
            here = i not in ROWS_OPERANDS
            moved[here] += entries * size * (sweeps + (need > 0) if here else 1) + (4 * entries if need >> i & 1 else 0)
    lines = inputs[0].shape[:-2].numel()  # rows at one position: heads and batches
    moved[0] += lines * sweeps * _c.STATE * 8 * ranks
    return rows * moved[0] > columns * moved[1]


def _each(t: Tensor) -> int:
    """Entries that belong to one row or column, whose dimension is the last but one, or the only one of a bias."""
    return t.shape[:-2].numel() * t.shape[-1] if t.dim() > 1 else 1
