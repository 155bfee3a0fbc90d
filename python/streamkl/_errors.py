# SPDX-License-Identifier: Apache-2.0
"""The C library's sentences as Python exceptions, with the names of the Python arguments."""

from __future__ import annotations

import re
from itertools import permutations
from typing import Optional, Sequence, Tuple

from . import _c

# Others are RuntimeError, as torch's own troubles with a device are.
_KINDS = {_c.BAD_ARGUMENT: ValueError, _c.OUT_OF_MEMORY: MemoryError, _c.NO_LIBRARY: ImportError}

_OPERANDS = {
    _c.ATTENTION: {"s.a": "q_s", "s.b": "k_s", "t.a": "q_t", "t.b": "k_t"},
    _c.LINEAR: {"s.a": "x_s", "s.b": "w_s", "t.a": "x_t", "t.b": "w_t"},
    _c.INDEXER: {"s.a": "q_i", "s.b": "k_i", "t.a": "q_t", "t.b": "k_t", "s.bias": "w_i", "s.scale": "scale_i"},
}
_BOTH = {f"{side}.{name}": f"{name}_{side}" for side in "st" for name in ("bias", "scale", "softcap")}
_NAME = re.compile(r"\b(?:out\.)?([st]\.(?:a|b|bias|scale|softcap))\b")

Shape = Tuple[int, ...]


def in_python_words(sentence: str, use: int) -> str:
    names = {**_BOTH, **_OPERANDS[use]}
    for theirs, ours in (("listed.", ""), *((f"SKL_TAIL_{tail.upper()}", repr(tail)) for tail in _c.TAILS)):
        sentence = sentence.replace(theirs, ours)
    sentence = sentence.replace("labels.ids", "labels").replace("columns = 0 with", "columns = None with")
    sentence = (
        sentence.replace("raw_t = 1", "normalise_t = False")
        .replace("raw_t", "normalise_t")
        .replace("pool_block", "block")
    )
    return _NAME.sub(lambda match: names[match.group(1)], sentence)


def _fit(use: int, a_s: Shape, b_s: Shape, a_t: Shape, b_t: Shape) -> bool:
    dims = 4 if use == _c.ATTENTION else 2
    vectors = all(a and len(b) == dims and a[-1] == b[-1] for a, b in ((a_s, b_s), (a_t, b_t)))
    return vectors and a_s[:-1] == a_t[:-1]


def order_hint(use: int, a_s: Shape, b_s: Shape, a_t: Shape, b_t: Shape) -> str:
    """What to say about shapes that do not fit, and would in another order or transposed.

    (x_s, x_t, w_s, w_t), as other libraries have it, may have vocabularies of different sizes; other orders are
    believed only if everything fits."""
    given = (a_s, b_s, a_t, b_t)
    if use == _c.INDEXER:
        return ""
    if _fit(use, *given):
        return ""
    if _fit(use, a_s, a_t, b_s, b_t) or any(
        _fit(use, *order) and order[1][-2] == order[3][-2] for order in permutations(given)
    ):
        return f" (the order of the arguments is {', '.join(_OPERANDS[use].values())})"
    for name, a, b in (("w_s", a_s, b_s), ("w_t", a_t, b_t)) if use == _c.LINEAR else ():
        if a and len(b) == 2 and b[0] == a[-1] != b[1]:
            return f" ({name} is [V, D], a row for each word: pass {name}.T)"
    return ""


def _shape(view: Optional[bytes]) -> Shape:
    fields = _c.TENSOR.unpack(view or _c.NOTHING)
    return fields[5 : 5 + min(fields[3], 4)]


def error_of(status: int, use: int, views: Sequence[Optional[bytes]] = ()) -> Exception:
    """The exception for a failed call of this thread. views: of _c.INPUTS, for a hint."""
    sentence = in_python_words(_c.lib.skl_last_error().decode(), use)
    if views and status == _c.BAD_ARGUMENT:
        sentence += order_hint(use, *[_shape(views[_c.INPUTS.index(name)]) for name in ("a_s", "b_s", "a_t", "b_t")])
    return _KINDS.get(status, RuntimeError)(f"streamkl: {sentence}")
