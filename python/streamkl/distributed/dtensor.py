# SPDX-License-Identifier: Apache-2.0
"""DTensor operands: their mesh is the group, their placements say what is split; what has no meaning here is refused by
its name. Plain tensors beside them are what every rank holds whole."""

from __future__ import annotations

import weakref
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from .._checks import bad


class Spread(NamedTuple):
    """What the DTensors of a call say."""

    mesh: Any
    rows: Optional[str]  # "sharded", "replicated"; None: they do not say
    average: float  # what the gradients of rows are multiplied by: whoever averages them later divides by it


class Kind(NamedTuple):
    """The operands of a loss that have columns or rows, and the dimensions that may be split."""

    columns: Tuple[str, ...]
    column_dim: int
    rows: Tuple[str, ...]
    row_dims: Tuple[int, ...]  # counted from the first one; (): all but the last
    row_tensors: Tuple[str, ...]  # one number a row
    words: str


LINEAR = Kind(("w_s", "w_t", "bias_s", "bias_t"), 0, ("x_s", "x_t"), (), ("weight", "labels"), "rows of the vocabulary")
ATTENTION = Kind(("k_s", "k_t"), 2, ("q_s", "q_t"), (2,), ("weight", "begin", "end"), "keys")


def is_spread(t: Any) -> bool:
    return type(t).__name__ == "DTensor"


def mesh_of(tensors: Mapping[str, Any], kind: Kind) -> Any:
    """The one mesh of all DTensors among them. What it refuses is the same on every rank."""
    found: Dict[str, Any] = {name: t.device_mesh for name, t in tensors.items() if is_spread(t)}
    first = next(iter(found))
    for name, mesh in found.items():
        if mesh.ndim != 1:
            rule = "it must have one dimension; of a mesh with more, take the one that splits the columns, mesh['tp']"
            raise bad(f"{name}.device_mesh", mesh, rule)
        if mesh != found[first]:
            raise bad(f"{name}.device_mesh", mesh, f"it must be that of {first}, {found[first]}")
    for name in kind.columns:
        if is_spread(tensors.get(name)):
            _check_placement(name, tensors[name], kind)
    if not any(is_spread(tensors.get(name)) for name in kind.columns):
        rule = f"beside {first}, a DTensor, it must be one too, split into {kind.words}"
        raise bad(kind.columns[0], type(tensors[kind.columns[0]]).__name__, rule, TypeError)
    return found[first]


def _check_placement(name: str, t: Any, kind: Kind) -> None:
    from torch.distributed.tensor import Shard

    want = (Shard(kind.column_dim),)
    if tuple(t.placements) != want or type(t.placements[0]) is not Shard:
        raise bad(f"{name}.placements", tuple(t.placements), f"it must be {want}: {kind.words} on each rank")


def spread_of(tensors: Mapping[str, Any], kind: Kind, mesh: Any) -> Spread:
    spread = [name for name in (*kind.rows, *kind.row_tensors) if is_spread(tensors[name])]
    rows = {name: _row_meaning(name, tensors[name], kind) for name in spread}
    if len(set(rows.values())) > 1:
        raise bad(", ".join(rows), tuple(rows.values()), "all must be split over the ranks, or none")
    meaning = next(iter(rows.values()), None)
    for name in kind.columns:
        divisor = _fsdp_divisor(tensors.get(name), mesh.size())
        if divisor is not None:
            return Spread(mesh, meaning or "sharded", divisor)
    return Spread(mesh, meaning, 1)


def _row_meaning(name: str, t: Any, kind: Kind) -> str:
    from torch.distributed.tensor import Replicate, Shard

    (placement,) = t.placements
    if type(placement) is Replicate:
        return "replicated"
    allowed = kind.row_dims or tuple(range(t.dim() - 1))
    if name in kind.row_tensors:
        allowed = tuple(range(t.dim()))[-1:] if kind.row_dims else tuple(range(t.dim()))
    if type(placement) is Shard and placement.dim % t.dim() in allowed:
        return "sharded"
    dims = " or ".join(f"Shard({d})" for d in allowed)
    raise bad(f"{name}.placements", tuple(t.placements), f"it must be Replicate() or {dims}")


def _fsdp_divisor(t: Any, ranks: int) -> Optional[float]:
    """What FSDP2 divides this parameter's gradient by, if it is one of its parameters, as it lies between forwards. A
    DTensor does not say so itself; FSDP's states know their parameters."""
    if not isinstance(t, torch.nn.Parameter):
        return None
    try:
        from torch.distributed._composable_state import _module_state_mapping as states
    except ImportError:
        return None
    for found in list(states.values()):
        state = found() if isinstance(found, weakref.ref) else found
        groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
        for group in groups:
            if any(p.sharded_param is t for p in getattr(group, "fsdp_params", ())):
                return getattr(group, "gradient_divide_factor", None) or float(ranks)
    return None


def local_tensors(tensors: Mapping[str, Any], kind: Kind, spread: Spread, columns: Any) -> Dict[str, Any]:
    """This rank's part of each: what linear_kl and attention_kl take with group=."""
    model = next(tensors[name] for name in kind.columns if is_spread(tensors.get(name)))
    total, rank = model.shape[kind.column_dim], spread.mesh.get_local_rank()
    each = -(-total // spread.mesh.size())  # as torch.chunk cuts: the last ones may be shorter, or empty
    start, stop = min(rank * each, total), min((rank + 1) * each, total)
    found = {}
    for name, t in tensors.items():
        if is_spread(t):
            found[name] = t.to_local()
        elif name in kind.columns and isinstance(t, Tensor):
            found[name] = _slice(name, t, kind, (start, stop, total), columns)
        else:
            found[name] = t
    return found


def _slice(name: str, t: Tensor, kind: Kind, part: Tuple[int, int, int], columns: Any) -> Tensor:
    start, stop, total = part
    if t.requires_grad:
        rule = "beside DTensors a plain tensor is the whole one, on every rank, and would get a part of its gradient: "
        raise bad(f"{name}.requires_grad", True, rule + "make it a DTensor, or detach() it")
    dim = kind.column_dim
    if t.dim() <= dim or (columns is None and t.shape[dim] != total):
        rule = f"a plain tensor beside DTensors must be whole, with {total} {kind.words}"
        raise bad(f"{name}.shape", tuple(t.shape), rule)
    index: List[Any] = [slice(None)] * dim + [slice(start, stop)]
    return t[tuple(index)]
