# SPDX-License-Identifier: Apache-2.0
"""What the faces for torch and for NumPy share about partial rows: the result of finish(), and names of operands."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Optional, Tuple

from . import _c
from ._checks import bad


class Finished(NamedTuple):
    """What complete states say: the reduced loss, one number a row of each of the others (None: not known), and the
    states of the log-sum-exps themselves, from which the backward of a piece takes these without a rounding."""

    value: Any
    loss: Any = None
    lse_s: Any = None
    lse_t: Any = None
    kl_s: Any = None
    kl_t: Any = None
    states: Any = None


PARTS = ("m_s", "m_t", "l_s", "l_t")  # of log-sum-exps: C makes them from the states for the options of a call


def rows_of_finish(divergence: int, saved: Optional[Finished]) -> Tuple[str, ...]:
    """The rows that complete states hold. The first of two sweeps ends with the LSEs, the second one has the rest."""
    if divergence in _c.ONE_SWEEP:
        return ("loss", "lse_s", "lse_t")
    return ("lse_s", "lse_t") if saved is None else ("loss", "kl_s", "kl_t")


def finished(value: Any, rows: Mapping[str, Any], states: Any, saved: Optional[Finished]) -> Finished:
    """The result of finish() from what C gave; the LSEs of a second sweep are those of the first."""
    if saved is None:
        return Finished(value if "loss" in rows else None, **rows, states=states)
    return Finished(value, **rows, lse_s=saved.lse_s, lse_t=saved.lse_t, states=saved.states)


def check_saved(saved: object, rows: Tuple[int, ...]) -> None:
    if not isinstance(saved, Finished):
        raise bad("saved", type(saved).__name__, "it must be what finish() returned", TypeError)
    for name in ("loss", "kl_s", "kl_t", "states"):
        array = getattr(saved, name)
        shape = None if array is None else tuple(array.shape[:-1] if name == "states" else array.shape)
        if shape not in (None, rows):
            raise bad(f"saved.{name}.shape", tuple(array.shape), f"its rows must be {rows}")


def check_grads(grads: object, operands: Mapping[str, Any]) -> None:
    """grads: names of operands that are given."""
    rule = f"it must hold names of operands, such as ({next(iter(operands))!r},)"
    if isinstance(grads, (str, bool)) or not hasattr(grads, "__iter__"):
        raise bad("grads", grads, rule, TypeError)
    for name in grads:
        if operands.get(name) is None:
            raise bad("grads", tuple(grads), f"{name!r} is not an operand of this call")
