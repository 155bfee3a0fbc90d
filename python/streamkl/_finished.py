# SPDX-License-Identifier: Apache-2.0
"""What the faces for torch and for NumPy share about partial rows: the result of finish(), and names of operands."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Optional, Tuple

from . import _c
from ._options import bad


class Finished(NamedTuple):
    """What complete states say: the reduced loss, and one number a row of each of _c.ROWS. None: not known."""

    value: Any
    loss: Any = None
    lse_s: Any = None
    lse_t: Any = None
    kl_s: Any = None
    kl_t: Any = None
    m_s: Any = None
    m_t: Any = None
    l_s: Any = None
    l_t: Any = None


assert Finished._fields[1:] == _c.ROWS

_LSES = ("lse_s", "lse_t", "m_s", "m_t", "l_s", "l_t")


def rows_of_finish(divergence: str, saved: Optional[Finished]) -> Tuple[str, ...]:
    """The rows that complete states hold. The first sweep of JSD ends with the LSEs, the second one has the rest."""
    if divergence != "jsd":
        return ("loss", *_LSES)
    return _LSES if saved is None else ("loss", "kl_s", "kl_t")


def finished(value: Any, rows: Mapping[str, Any], saved: Optional[Finished]) -> Finished:
    """The result of finish() from what C gave; the LSEs of a second sweep are those of the first."""
    kept = {} if saved is None else {name: getattr(saved, name) for name in _LSES}
    return Finished(value if "loss" in rows else None, **kept, **rows)


def check_saved(saved: object) -> None:
    if not isinstance(saved, Finished):
        raise bad("saved", type(saved).__name__, "it must be what finish() returned", TypeError)


def check_grads(grads: object, operands: Mapping[str, Any]) -> None:
    """grads: names of operands that are given."""
    rule = f"it must hold names of operands, such as ({next(iter(operands))!r},)"
    if isinstance(grads, (str, bool)) or not hasattr(grads, "__iter__"):
        raise bad("grads", grads, rule, TypeError)
    for name in grads:
        if operands.get(name) is None:
            raise bad("grads", tuple(grads), f"{name!r} is not an operand of this call")
