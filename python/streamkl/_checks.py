# SPDX-License-Identifier: Apache-2.0
"""What an option may be: each function takes its name and what people write, and returns what C takes, or raises."""

import math
import operator
from typing import Any, Tuple

from . import _c

REDUCTIONS = ("none", "mean", "sum")


def bad(name: str, value: object, rule: str, kind: type = ValueError) -> Exception:
    return kind(f"streamkl: cannot use {name} = {value!r}: {rule}")


def real(name: str, value: Any) -> float:
    if type(value) is float:
        return value
    if getattr(value, "requires_grad", False) or _has_tangent(value):
        raise bad(name, type(value).__name__, "options get no gradient: pass a number, or detach() it", TypeError)
    try:
        if isinstance(value, (str, bytes, bool)) or getattr(value, "shape", ()) != ():
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise bad(name, value, "it must be a number", TypeError) from None


def _has_tangent(value: object) -> bool:
    """A tensor that forward-mode differentiation follows."""
    if not hasattr(value, "requires_grad"):
        return False
    from torch.autograd.forward_ad import unpack_dual

    return unpack_dual(value).tangent is not None  # type: ignore[arg-type]


def positive(name: str, value: object) -> float:
    number = real(name, value)
    if not 0 < number < math.inf:
        raise bad(name, value, "it must be positive and finite")
    return number


def share(name: str, value: object) -> float:
    number = real(name, value)
    if not 0 <= number < 1:
        raise bad(name, value, "it must be at least 0 (nothing but zeros) and below 1")
    return number


def scale(name: str, value: object) -> float:
    if value is None:
        return 0.0  # the default, in C
    number = real(name, value)
    if number == 0 or not -math.inf < number < math.inf:
        raise bad(name, value, "it must be finite and not 0 (None: the default)")
    return number


def softcap(name: str, value: object) -> float:
    return 0.0 if value is None else positive(name, value)


def own_scale(name: str, value: object) -> Tuple[float]:
    """For a loss that has one side, and a field of C that has another name."""
    return (scale(name, value),)


def own_softcap(name: str, value: object) -> Tuple[float]:
    return (softcap(name, value),)


def beta(name: str, value: object) -> float:
    """_settle() knows if it is used at all, and what it may be."""
    return 0.5 if value is None else real(name, value)


def of_divergence(name: str, value: object) -> float:
    """skew and alpha, of which C takes 0 for "not given"."""
    return 0.0 if value is None else real(name, value)


def finite(name: str, value: object) -> float:
    number = real(name, value)
    if not -math.inf < number < math.inf:
        raise bad(name, value, "it must be finite")
    return number


def items(name: str, value: object) -> float:
    """HF's num_items_in_batch may be a tensor of one integer."""
    return 0.0 if value is None else positive(name, value)


def index(name: str, value: object) -> int:
    return whole(name, value, "it must be an integer")


def whole(name: str, value: Any, rule: str) -> int:
    if type(value) is int or type(value).__name__ == "SymInt":  # SymInt: a size that torch.compile does not know yet
        number = value
    else:
        try:
            if isinstance(value, bool):
                raise TypeError
            number = operator.index(value)
        except TypeError:
            raise bad(name, value, rule, TypeError) from None
    if number >= 2**63 or number < -(2**63):
        raise bad(name, value, rule + ", below 2^63")
    return number


def number_of(name: str, value: object, what: str, none: str, below: int = 2**63) -> int:
    """1 or more of something; None, which means what 'none' says, is 0."""
    if value is None:
        return 0
    number = whole(name, value, f"it must be a number of {what} (None: {none})")
    if not 1 <= number < below:
        rule = "at least 1" if number < 1 else f"below 2^{below.bit_length() - 1}"
        raise bad(name, value, f"it must be {rule} (None: {none})")
    return number


def columns(name: str, value: object) -> int:
    return number_of(name, value, "columns", "all")


def window(name: str, value: Any) -> Tuple[int, int]:
    if value is None:
        return -1, -1
    rule = "it must be None or (left, right), each a number of columns or -1 for no limit"
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise bad(name, value, rule, TypeError)
    left, right = whole(name, value[0], rule), whole(name, value[1], rule)
    if left < -1 or right < -1:
        raise bad(name, tuple(value), "left and right must be -1 (no limit) or a number of columns")
    return left, right


def heads(name: str, value: object) -> int:
    return number_of(name, value, "heads", "one", 2**31)


def unless(name: str, value: object) -> Tuple[bool]:
    """For a field of C that says the contrary."""
    return (not flag(name, value),)


def flag(name: str, value: object) -> bool:
    if value is True or value is False:
        return value
    if type(value).__name__ in ("int", "bool", "bool_") and value in (0, 1):  # NumPy's bool is no bool
        return bool(value)
    raise bad(name, value, "it must be True or False", TypeError)


def split(name: str, value: object) -> int:
    if value is not None and type(value).__name__ not in ("bool", "bool_"):  # in C, 1 is never
        raise bad(name, value, "it must be True, False or None", TypeError)
    return _c.SPLITS[None if value is None else bool(value)]


def choice(name: str, value: object, choices: Tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise bad(name, value, f"it must be one of {', '.join(repr(c) for c in choices)}")
    return value


def divergence(name: str, value: object) -> int:
    return _c.DIVERGENCES[choice(name, value, tuple(_c.DIVERGENCES))]


def direction(name: str, value: object) -> int:
    return _c.DIVERGENCES[choice(name, value, ("forward", "reverse"))]


def tail(name: str, value: object) -> int:
    return _c.TAILS[choice(name, value, tuple(_c.TAILS))]


def reduction(name: str, value: object) -> int:
    if value == "batchmean":
        raise bad(
            name, value, "it must be 'none', 'mean' (over the rows) or 'sum', which you may divide by the batch size"
        )
    return _c.MEAN if choice(name, value, REDUCTIONS) == "mean" else _c.SUM


def isa(name: str, value: object) -> int:
    return 0 if value is None else _c.ISAS[choice(name, value, tuple(_c.ISAS))]


def threads(name: str, value: object) -> int:
    number = whole(name, value, "it must be a number of threads (0: the default)")
    if not 0 <= number < 2**31:
        raise bad(name, value, "it must be a number of threads (0: the default)")
    return number


def block(name: str, value: object) -> int:
    return number_of(name, value, "keys", "the lists have single keys", 2**31)


def memory(name: str, value: object) -> int:
    return number_of(name, value, "bytes", "the default")
