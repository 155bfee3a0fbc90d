# SPDX-License-Identifier: Apache-2.0
"""Several teachers in one batch, for torch and for NumPy: what teachers= may hold, what each teacher's own call is asked, and
how their answers become one.

    loss = sum over the teachers of sum(weight loss) / sum(weight) of all rows that have a teacher

Rows that no teacher has take no part, as rows of weight 0; a row that two teachers have is refused.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ._checks import bad


class Group(NamedTuple):
    rows: Any  # as x_s is indexed: a slice, a bool mask, integers
    x_t: Any
    w_t: Any


class Plan(NamedTuple):
    """What a call with teachers= makes of what it was asked."""

    reduction: str
    items: Optional[float]  # the denominator of a mean; None: what the teachers counted
    options: Dict[str, Any]  # of each teacher's call: sums, which add up, or rows
    details: Tuple[str, ...]  # of each teacher's call
    asked: Tuple[str, ...]  # of these, what goes back to who called


def refuse_beside(**teacher: Any) -> None:
    """One teacher beside several."""
    for name, given in teacher.items():
        if given is not None:
            rule = "with teachers= each of them brings its x_t and w_t, and no bias"
            raise bad(name, type(given).__name__, rule, TypeError)


def groups_of(teachers: Any, rows_of: Callable[[str, Any], Any]) -> List[Group]:
    """rows_of(name, rows): what indexes the rows of this library's arrays; it refuses what does not."""
    if isinstance(teachers, (str, dict)) or hasattr(teachers, "shape") or not hasattr(teachers, "__iter__"):
        raise bad("teachers", type(teachers).__name__, "it must be a list of (rows, x_t, w_t)", TypeError)
    found = list(teachers)
    if not found:
        raise bad("teachers", found, "there must be at least one (rows, x_t, w_t)")
    for i, one in enumerate(found):
        if not isinstance(one, (tuple, list)) or len(one) != 3:
            raise bad(f"teachers[{i}]", type(one).__name__, "it must be (rows, x_t, w_t)", TypeError)
    return [Group(rows_of(f"teachers[{i}] rows", rows), x_t, w_t) for i, (rows, x_t, w_t) in enumerate(found)]


def bad_rows(name: str, what: object) -> Exception:
    return bad(name, what, "they must be a slice, a bool mask or integers, as x_s is indexed", TypeError)


def bad_mask(name: str, shape: Sequence[int], rows: Sequence[int]) -> Exception:
    return bad(name, tuple(shape), f"a mask must be of the rows, {tuple(rows)}")


def bad_index(name: str, what: object, rows: Sequence[int]) -> Exception:
    return bad(name, what, f"they must index the rows, {tuple(rows)}")


def refuse_twice(at: Sequence[Any]) -> None:
    """at: the places that two teachers have."""
    if len(at):
        raise bad("teachers", f"rows {[int(i) for i in at[0]]} twice", "a row may have one teacher")


def plan(details: Sequence[str], return_lse: bool, options: Mapping[str, Any]) -> Plan:
    reduction = options.get("reduction", "mean")
    own = {**options, "reduction": "none" if reduction == "none" else "sum", "num_items": None}
    asked = ("lse_s", "lse_t") if return_lse else tuple(details)
    return Plan(reduction, options.get("num_items"), own, tuple(dict.fromkeys((*asked, "count"))), asked)


def put_together(name: str, groups: Sequence[Group], parts: Sequence[Any], full: Callable[[Any, float], Any]) -> Any:
    """An array over all rows; what no teacher has is that of a row of weight 0. full(part, number): an array over all rows
    like a part, of this number."""
    if name in ("sum", "count"):
        return sum(parts)
    whole = full(parts[0], -math.inf if name.startswith("lse") else 0)
    for group, part in zip(groups, parts):
        whole[group.rows] = part
    return whole


def answer(loss: Any, asked: Plan, return_lse: bool, told: Callable[[str], Any]) -> Any:
    """What linear_kl returns. told(name): this detail of all rows."""
    if return_lse:
        return loss, told("lse_s"), told("lse_t")
    return (loss, {name: told(name) for name in asked.asked}) if asked.asked else loss
