# SPDX-License-Identifier: Apache-2.0
"""Several teachers in one batch of arrays: _teachers.py for NumPy, where the gradients come with the loss."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np

from ._arrays import Array, read
from ._options import bad

_OWN = ("x_s", "w_s", "bias_s")  # operands that all teachers share


class _Group(NamedTuple):
    rows: Any  # as x_s is indexed: a slice, a bool mask, integers
    x_t: Any
    w_t: Any


def by_teacher(
    linear_kl: Callable[..., Any],
    x_s: Any,
    w_s: Any,
    teachers: Any,
    tensors: Mapping[str, Any],
    bias_s: Any,
    details: Sequence[str],
    return_lse: bool,
    grads: Sequence[str],
    options: Mapping[str, Any],
) -> Any:
    """linear_kl of each teacher's rows, put together. tensors: weight, labels, mass_ids."""
    x_s, w_s, bias_s = (read(name, x, np.float32) for name, x in zip(_OWN, (x_s, w_s, bias_s)))
    if x_s is None or x_s.ndim == 0:
        raise bad("x_s", None if x_s is None else (), "it must be an array with a last dimension of vectors", TypeError)
    for name in grads:
        if name not in _OWN:
            raise bad("grads", tuple(grads), f"with teachers= it may hold {', '.join(map(repr, _OWN))}")
    shape = x_s.shape[:-1]
    groups = [_group(i, one, shape) for i, one in enumerate(_listed(teachers))]
    _refuse_overlaps(groups, shape)
    given = {name: _over_rows(name, t, shape) for name, t in tensors.items() if t is not None}
    reduction, items = options.get("reduction", "mean"), options.get("num_items")
    numbers = {**options, "reduction": "none" if reduction == "none" else "sum", "num_items": None}
    asked = ("lse_s", "lse_t") if return_lse else tuple(details)
    told = tuple(dict.fromkeys((*asked, "count")))
    parts: List[Any] = []
    found: List[Dict[str, Array]] = []
    made = _zeros(grads, {"x_s": x_s, "w_s": w_s, "bias_s": bias_s})
    for rows, x_t, w_t in groups:
        own = {name: t[rows] for name, t in given.items()}
        result = linear_kl(x_s[rows], w_s, x_t, w_t, bias_s=bias_s, details=told, grads=tuple(grads), **own, **numbers)
        (part, rows_told), more = result if grads else (result, {})
        parts.append(part), found.append(rows_told)
        for name, g in more.items():
            if name == "x_s":
                made[name][rows] = g
            else:
                made[name] += g
    loss: Any = _put_together("loss", groups, parts, shape) if reduction == "none" else sum(parts)
    if reduction == "mean":
        count = sum(float(each["count"]) for each in found) if items is None else float(items)
        share = 1 / count if count else 1.0
        loss, made = loss * share, {name: g * np.float32(share) for name, g in made.items()}
    if asked:
        whole = {name: _put_together(name, groups, [each[name] for each in found], shape) for name in asked}
        loss = (loss, whole["lse_s"], whole["lse_t"]) if return_lse else (loss, whole)
    return (loss, made) if grads else loss


def _zeros(grads: Sequence[str], operands: Mapping[str, Any]) -> Dict[str, Array]:
    return {name: np.zeros(np.shape(operands[name]), np.float32) for name in grads}


def _listed(teachers: Any) -> List[Any]:
    if isinstance(teachers, (np.ndarray, str, dict)) or not hasattr(teachers, "__iter__"):
        raise bad("teachers", type(teachers).__name__, "it must be a list of (rows, x_t, w_t)", TypeError)
    found = list(teachers)
    if not found:
        raise bad("teachers", found, "there must be at least one (rows, x_t, w_t)")
    return found


def _group(i: int, one: Any, shape: Tuple[int, ...]) -> _Group:
    name = f"teachers[{i}]"
    if not isinstance(one, (tuple, list)) or len(one) != 3:
        raise bad(name, type(one).__name__, "it must be (rows, x_t, w_t)", TypeError)
    rows, x_t, w_t = one
    if not isinstance(rows, slice):
        rows = np.asarray(rows)
        if rows.ndim == 0 or rows.dtype.kind not in "biu":
            what = type(one[0]).__name__ if rows.ndim == 0 else rows.dtype.name
            rule = "they must be a slice, a bool mask or integers, as x_s is indexed"
            raise bad(f"{name} rows", what, rule, TypeError)
        if rows.dtype.kind == "b" and rows.shape != shape[: rows.ndim]:
            raise bad(f"{name} rows", rows.shape, f"a mask must be of the rows, {shape}")
    return _Group(rows, x_t, w_t)


def _refuse_overlaps(groups: Sequence[_Group], shape: Tuple[int, ...]) -> None:
    seen = np.zeros(shape, np.int32)
    for i, (rows, _, _) in enumerate(groups):
        try:
            np.add.at(seen, rows, 1)
        except IndexError as error:
            raise bad(f"teachers[{i}] rows", str(error), f"they must index the rows, {shape}") from None
    if (seen > 1).any():
        raise bad("teachers", f"rows {[int(i) for i in np.argwhere(seen > 1)[0]]} twice", "a row may have one teacher")


def _over_rows(name: str, given: Any, shape: Tuple[int, ...]) -> Array:
    """What is over the rows, for each of them, so that some can be taken out. mass_ids have a dimension of their own."""
    array: Any = read(name, given)
    try:
        if name == "labels" and array.shape != shape:
            raise ValueError
        return np.broadcast_to(array, (*shape, array.shape[-1]) if name == "mass_ids" else shape)
    except (ValueError, IndexError):
        raise bad(f"{name}.shape", np.shape(array), f"it must be that of the rows, {shape}") from None


def _put_together(name: str, groups: Sequence[_Group], parts: Sequence[Any], shape: Tuple[int, ...]) -> Any:
    """An array over all rows; what no teacher has is that of a row of weight 0."""
    if name in ("sum", "count"):
        return sum(parts)
    fill = -np.inf if name.startswith("lse") else 0
    whole = np.full(shape, fill, parts[0].dtype)
    for (rows, _, _), part in zip(groups, parts):
        whole[rows] = part
    return whole
