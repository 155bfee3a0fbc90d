# SPDX-License-Identifier: Apache-2.0
"""Several teachers in one batch of arrays: _teachers.py for NumPy, where the gradients come with the loss."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from ._arrays import Array, read
from ._checks import bad
from ._groups import Group, answer, bad_index, bad_mask, bad_rows, groups_of, plan, put_together, refuse_twice

_OWN = ("x_s", "w_s", "bias_s")  # operands that all teachers share


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
    groups = groups_of(teachers, lambda name, rows: _rows(name, rows, shape))
    _refuse_overlaps(groups, shape)
    given = {name: _over_rows(name, t, shape) for name, t in tensors.items() if t is not None}
    asked = plan(details, return_lse, options)
    parts: List[Any] = []
    found: List[Dict[str, Array]] = []
    made = _zeros(grads, {"x_s": x_s, "w_s": w_s, "bias_s": bias_s})
    for rows, x_t, w_t in groups:
        own = {name: t[rows] for name, t in given.items()}
        more = dict(bias_s=bias_s, details=asked.details, grads=tuple(grads))
        result = linear_kl(x_s[rows], w_s, x_t, w_t, **more, **own, **asked.options)
        (part, told), gradients = result if grads else (result, {})
        parts.append(part), found.append(told)
        for name, g in gradients.items():
            if name == "x_s":
                made[name][rows] = g
            else:
                made[name] += g

    def full(part: Array, number: float) -> Array:
        return np.full(shape, number, part.dtype)

    loss: Any = put_together("loss", groups, parts, full) if asked.reduction == "none" else sum(parts)
    if asked.reduction == "mean":
        count = sum(float(each["count"]) for each in found) if asked.items is None else float(asked.items)
        share = 1 / count if count else 1.0
        loss, made = loss * share, {name: g * np.float32(share) for name, g in made.items()}
    result = answer(loss, asked, return_lse, lambda name: put_together(name, groups, [x[name] for x in found], full))
    return (result, made) if grads else result


def _zeros(grads: Sequence[str], operands: Mapping[str, Any]) -> Dict[str, Array]:
    return {name: np.zeros(np.shape(operands[name]), np.float32) for name in grads}


def _rows(name: str, given: Any, shape: Tuple[int, ...]) -> Any:
    if isinstance(given, slice):
        return given
    rows = np.asarray(given)
    if rows.ndim == 0 or rows.dtype.kind not in "biu":
        raise bad_rows(name, type(given).__name__ if rows.ndim == 0 else rows.dtype.name)
    if rows.dtype.kind == "b" and rows.shape != shape[: rows.ndim]:
        raise bad_mask(name, rows.shape, shape)
    return rows


def _refuse_overlaps(groups: Sequence[Group], shape: Tuple[int, ...]) -> None:
    seen = np.zeros(shape, np.int32)
    for i, (rows, _, _) in enumerate(groups):
        try:
            np.add.at(seen, rows, 1)
        except IndexError as error:
            raise bad_index(f"teachers[{i}] rows", str(error), shape) from None
    refuse_twice(np.argwhere(seen > 1))


def _over_rows(name: str, given: Any, shape: Tuple[int, ...]) -> Array:
    """What is over the rows, for each of them, so that some can be taken out. mass_ids have a dimension of their own."""
    array: Any = read(name, given)
    try:
        if name == "labels" and array.shape != shape:
            raise ValueError
        return np.broadcast_to(array, (*shape, array.shape[-1]) if name == "mass_ids" else shape)
    except (ValueError, IndexError):
        raise bad(f"{name}.shape", np.shape(array), f"it must be that of the rows, {shape}") from None
