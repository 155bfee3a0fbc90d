# SPDX-License-Identifier: Apache-2.0
"""What the ranks tell each other before any data moves: if a rank's arguments are wrong, and what the call is. So an
error on one rank is an error on all of them, and ranks that disagree are told who and what. One exchange of a fixed
size a call."""

from __future__ import annotations

import math
from typing import Any, Dict, List, Mapping, Optional

import torch
from torch import Tensor

from .. import _c
from .._checks import bad
from .._inputs import Inputs
from .._ops import _DTYPES, OPERANDS
from .._options import FIELDS, NAMES, Options
from .group import Group

BY_ROW = 2.0  # reduction "none" among the numbers of the others
_LENGTH = 256  # numbers of a status, with room for options to come

# Options that change how a rank computes and not what: they may differ.
_HOW = ("threads", "isa", "workspace_limit", "skip_below", "any_order", "round_dz", "split_f32")

# How far sums over the same tensor on two machines may be from each other, in units of the tensor's norm: other tokens
# are about 1 apart, other roundings in bf16 2^-9 at most.
_APART = 1e-2

Table = Dict[str, List[float]]  # what is said of a call, by each rank


def say_options(options: Options) -> Dict[str, float]:
    return {name: float(options[i]) for i, name in enumerate(FIELDS) if name not in _HOW}


def say_inputs(names: Mapping[str, str], inputs: Inputs, need: int) -> Dict[str, float]:
    """dtypes, vectors and gradients of operands, and which tensors there are; all of it has to be the same."""
    said: Dict[str, float] = {}
    for i, place in enumerate(_c.INPUTS):
        t, name = inputs[i], names.get(place, place)
        said[f"{name} given"] = t is not None
        if i < OPERANDS:
            said[f"{name}.dtype"] = -1 if t is None else _DTYPES[t.dtype]
            said[f"{name}.shape[-1]"] = -1 if t is None or t.dim() < 2 else t.shape[-1]
            said[f"{name}.requires_grad"] = need >> i & 1
    return {name: float(value) for name, value in said.items()}


def say_sums(names: Mapping[str, str], tensors: Mapping[str, Optional[Tensor]]) -> Dict[str, float]:
    """The sum and the norm of what should be the same on every rank."""
    said: Dict[str, float] = {}
    for place, t in tensors.items():
        wide = torch.zeros(1) if t is None else t.detach().float()
        said[f"sum of {names.get(place, place)}"] = wide.sum(dtype=torch.float64).item()
        said[f"norm of {names.get(place, place)}"] = wide.square().sum(dtype=torch.float64).sqrt().item()
    return said


def agree(group: Group, same: Mapping[str, float], own: Mapping[str, float], failure: Optional[Exception]) -> Table:
    """What every rank says, of facts that have to be the same and of those that need not; raises on every rank if it
    does on one. failure: why this rank has nothing to say."""
    status = [float(failure is not None), *same.values(), *own.values()]
    assert len(status) <= _LENGTH
    sent = torch.tensor(status + [0.0] * (_LENGTH - len(status)), dtype=torch.float64, device=group.device)
    found = group.gather(sent, "statuses").tolist()
    if any(status[0] for status in found):
        group.raise_together(failure, [status[0] != 0 for status in found])
    table = {name: [status[1 + i] for status in found] for i, name in enumerate([*same, *own])}
    for name in same:
        if len(set(table[name])) > 1:
            raise bad(name, _who(name, table[name]), "it must be the same on every rank")
    for name in own:
        if name.startswith("sum of "):
            _check_sums(name[7:], table)
    return table


def alone(group: Group, same: Mapping[str, float], own: Mapping[str, float]) -> Table:
    """The table without asking anybody: every rank is taken to say what this one does."""
    return {name: [value] * group.size for name, value in [*same.items(), *own.items()]}


def _who(name: str, values: List[float]) -> Any:
    """Which ranks say what: "2.0 on rank 1, 1.0 on ranks 0, 2"."""
    said = []
    for value in sorted(set(values), key=values.count):
        ranks = [str(r) for r, v in enumerate(values) if v == value]
        said.append(f"{_show(name, value)} on rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}")
    return _Plain(", ".join(said))


class _Plain(str):
    def __repr__(self) -> str:
        return str(self)


def _show(name: str, value: float) -> str:
    if name.endswith(".dtype"):
        return next((str(d) for d, code in _DTYPES.items() if code == value), "none")
    if name.endswith((".requires_grad", " given")) or name == "causal":
        return str(bool(value))
    words: Dict[str, Mapping[int, str]] = {
        "divergence": {code: word for word, code in _c.DIVERGENCES.items()},
        "reduction": {_c.MEAN: "mean", _c.SUM: "sum", int(BY_ROW): "none"},
        "rows": {0: "replicated", 1: "sharded"},
        "use": {use: f"{word}_kl" for use, word in NAMES.items()},
    }
    if name == "details":
        return repr(tuple(row for i, row in enumerate(_c.ROWS) if int(value) >> i & 1))
    if name in words:
        return repr(words[name].get(int(value), value))
    return str(int(value)) if value == int(value) and name not in ("temperature", "beta") else str(value)


def _check_sums(name: str, table: Table) -> None:
    sums, norms = table[f"sum of {name}"], table[f"norm of {name}"]
    for rank, total in enumerate(sums):
        apart = abs(total - sums[0])
        if math.isfinite(apart) and apart > _APART * max(norms[0], norms[rank]):
            rule = "it must be the same on every rank (rows that are split over the ranks: rows='sharded')"
            raise bad(name, _Plain(f"other values on rank {rank} than on rank 0"), rule)
