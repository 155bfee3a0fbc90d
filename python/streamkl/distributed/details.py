# SPDX-License-Identifier: Apache-2.0
"""What rows tell of a vocabulary that is spread over the ranks.

kl, ce, lse, logprob_s   the loss's own call gives them
reverse, jsd, tv         a call with that divergence
the others               each rank asks the engine about its own columns, and the answers are put together: with
                         pi_r = e^(LSE_r - LSE), the mass on rank r's columns,
                             entropy = sum pi_r (H_r - log pi_r)        mass = sum pi_r mass_r
                             logprob_t = logprob_r + LSE_r - LSE        of the rank that has the label, at temperature 1
                             top1 = that of the rank whose largest logit is the largest, these compared in float64
rank_s, rank_t           need the other side's largest logit before a sweep: refused
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .. import _c, _ops
from .._checks import bad
from .._details import make_details, wanted_rows
from .._inputs import Inputs
from .._ops import OPERANDS, row_bits
from .._options import DIVERGENCE, FIELDS, IGNORE_INDEX, TEMPERATURE
from .pieces import held, with_fields
from .shard import Shard
from .ways import RowsHere, names_of

_OF_CALL = ("loss", "kl", "ce", "lse_s", "lse_t", "logprob_s")
_OTHERS = ("reverse", "jsd", "tv")
_FROM_STUDENT = [_c.DIVERGENCES[name] for name in ("reverse", "skew_reverse")]  # of which "the other way" is forward
_REFUSED = ("rank_s", "rank_t")
_BLOCK = 4096  # rows whose largest logits are computed at once
_SIDES = {"s": (0, 1, 2), "t": (3, 4, 5)}  # where a, b and bias of a side are among the operands


def wanted(details: Any, inputs: Inputs) -> Tuple[str, ...]:
    """The row results behind these details; what they cannot be over a group is refused."""
    given = [inputs[_c.INPUTS.index(name)] is not None for name in ("labels", "a_t", "mass_ids")]
    names = wanted_rows(details, *given)
    for name in names:
        if name in _REFUSED:
            raise bad("details", tuple(details), f"{name!r} is told on one process only, not over a process group")
    if names and inputs[0].device.type != "cpu":
        rule = "over a process group only the CPU has them"
        raise bad("details", tuple(details), rule, NotImplementedError)
    return names


def bits_of_call(names: Sequence[str]) -> int:
    """Which of them the loss's own call gives."""
    return row_bits(*[name for name in names if name in _OF_CALL])


def rows_told(shard: Shard, inputs: Inputs, names: Sequence[str], known: Mapping[str, Tensor]) -> Dict[str, Tensor]:
    """The row results of those names for this rank's rows. known: those of the loss's own call."""
    rest = [name for name in names if name not in known]
    if not rest:
        return dict(known)
    way = RowsHere(shard, inputs)
    found: Dict[str, Tensor] = {}
    for name in rest:
        if name in _OTHERS:
            turned = name == "reverse" and shard.options[DIVERGENCE] in _FROM_STUDENT
            which = _c.DIVERGENCES["forward" if turned else name]
            other = with_fields(shard.options, divergence=which, beta=0.5)
            found[name] = RowsHere(replace(shard, options=other, sharded=False), way.inputs).value(row_bits("kl"))[1][
                "kl"
            ]
    parts = _Parts(shard, way.inputs, [name for name in rest if name not in found])
    found.update(parts.told())
    return {**known, **{name: way.own_rows(t) for name, t in found.items()}}


def told_of(shard: Shard, inputs: Inputs, details: Sequence[str], rows: Mapping[str, Tensor]) -> Dict[str, Tensor]:
    """The details, from the row results of this rank's rows; sum and count are those of the group."""
    weight, labels = inputs[OPERANDS], inputs[_c.LABELS_AT]
    ignored = None if labels is None else labels == shard.options[IGNORE_INDEX]
    found = make_details(details, rows, weight, ignored)
    totals = [name for name in ("sum", "count") if name in found]
    if totals and shard.sharded:
        each = shard.group.gather(torch.stack([found[name].double() for name in totals]), "sums and counts")
        for name, total in zip(totals, each.sum(0)):
            found[name] = total.to(found[name].dtype)
    return found


class _Parts:
    """What each rank's engine says of its own columns."""

    def __init__(self, shard: Shard, inputs: Inputs, names: Sequence[str]) -> None:
        self.shard, self.inputs, self.names = shard, inputs, names
        runs = shard.runs[shard.group.rank]
        self.first, self.here = runs[0].start, held(runs, shard.columns)
        self.rows = inputs[0].shape[:-1]

    def told(self) -> Dict[str, Tensor]:
        found: Dict[str, Tensor] = {}
        sums = [name for name in self.names if name[:-2] in ("entropy", "mass")]
        tops = [name for name in self.names if name.startswith("top1")]
        sides = {name[-1] for name in sums}
        asked = [*sums, *tops, *[f"lse_{side}" for side in sides]]
        if asked:
            own = self._ask(asked, self.shard.options)
            for name in sums:
                found[name] = self._mean(name, own)
            for name in tops:
                found[name] = self._top(name, own[name])
        if "logprob_t" in self.names:
            found["logprob_t"] = self._logprob()
        return found

    def _ask(self, names: Sequence[str], options, labels: Optional[Tensor] = None) -> Dict[str, Tensor]:
        """The engine's row results of this rank's columns; the rows that take part are those of the whole call."""
        if self.here == 0:
            return {name: self._nothing(name) for name in names}
        inputs = [t if t is None or i in (0, 3) else t[: self.here] for i, t in enumerate(self.inputs[:OPERANDS])]
        ids = self._here(self.inputs[_c.INPUTS.index("mass_ids")], -1)
        masses = any(name.startswith("mass") for name in names)
        more = dict(weight=self._weight(), labels=labels, mass_ids=ids if masses else None)
        bits = row_bits(*names)
        _, *rows = _ops.value(*_c.named_inputs(**dict(zip(_c.OPERANDS, inputs)), **more), *options, bits)
        return dict(zip(names_of(bits), rows))

    def _nothing(self, name: str) -> Tensor:
        dtype = torch.int32 if name in _c.INTEGER_ROWS else torch.float32
        return torch.full(self.rows, -torch.inf if name.startswith("lse") else 0, dtype=dtype)

    def _weight(self) -> Optional[Tensor]:
        weight, labels = self.inputs[OPERANDS], self.inputs[_c.LABELS_AT]
        if weight is None and labels is not None:
            return (labels != self.shard.options[IGNORE_INDEX]).float()
        return weight

    def _here(self, ids: Optional[Tensor], otherwise: int) -> Optional[Tensor]:
        """Ids of the whole vocabulary, counted in this rank's columns."""
        if ids is None:
            return None
        own = ids.long() - self.first
        return own.masked_fill((own < 0) | (own >= self.here), otherwise)

    def _gathered(self, *tensors: Tensor) -> List[Tensor]:
        """Each rank's, [ranks, rows], in float64."""
        sent = torch.stack([t.double() for t in tensors])
        return list(self.shard.group.gather(sent, "details").unbind(1))

    def _mean(self, name: str, own: Dict[str, Tensor]) -> Tensor:
        each, lse = self._gathered(own[name], own[f"lse_{name[-1]}"])
        log_pi = lse - lse.logsumexp(0)
        pi = log_pi.exp().nan_to_num(0.0)  # rows that take no part have no mass anywhere
        more = -log_pi.masked_fill(pi == 0, 0.0) if name.startswith("entropy") else 0.0
        return (pi * (each + more)).sum(0).float()

    def _top(self, name: str, own: Tensor) -> Tensor:
        largest = self._logits(name[-1], own) if self.here else torch.full(self.rows, -torch.inf).double()
        weight = self._weight()
        takes_part = torch.ones(self.rows, dtype=torch.bool) if weight is None else weight != 0
        logits, ids = self._gathered(largest, own.long() + self.first)
        rank = (logits == logits.amax(0)).int().argmax(0)  # of equal ones the first: its ids are lower
        return ids.gather(0, rank[None])[0].masked_fill(~takes_part, 0).int()

    def _logits(self, side: str, ids: Tensor) -> Tensor:
        """Of one id a row, in float64, before softcap and temperature, which keep their order."""
        a, b, bias = (self.inputs[i] for i in _SIDES[side])
        scale = self.shard.options[FIELDS.index(f"scale_{side}")] or 1.0
        flat, at = a.detach().reshape(-1, a.shape[-1]), ids.reshape(-1).long()
        made = torch.empty(len(flat), dtype=torch.float64)
        for rows in (slice(i, i + _BLOCK) for i in range(0, len(flat), _BLOCK)):
            z = (flat[rows].double() * b.detach()[at[rows]].double()).sum(-1)
            made[rows] = scale * (z if bias is None else z + bias.detach()[at[rows]].double())
        return made.view(self.rows)

    def _logprob(self) -> Tensor:
        """The teacher's, of the label, at temperature 1."""
        ignore = self.shard.options[IGNORE_INDEX]
        labels = self.inputs[_c.LABELS_AT]
        local = self._here(labels, ignore).masked_fill(labels == ignore, ignore)  # type: ignore[union-attr]
        options = list(self.shard.options)
        options[TEMPERATURE] = 1.0
        own = self._ask(["logprob_t", "lse_t"], tuple(options), local)
        has = (local != ignore).double()
        logprob, lse, has = self._gathered(own["logprob_t"], own["lse_t"], has)
        each = (logprob + lse - lse.logsumexp(0)).masked_fill(has == 0, 0.0)
        weight = self._weight()
        total = each.sum(0).float()
        return total if weight is None else total.masked_fill(weight == 0, 0.0)
