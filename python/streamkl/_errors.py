# SPDX-License-Identifier: Apache-2.0
"""The C library's sentences as Python exceptions, with the names of the Python arguments."""

from __future__ import annotations

import re

from . import _c

# Others are RuntimeError, as torch's own troubles with a device are.
_KINDS = {_c.BAD_ARGUMENT: ValueError, _c.OUT_OF_MEMORY: MemoryError, _c.NO_LIBRARY: ImportError}

_ATTENTION = {"s.a": "q_s", "s.b": "k_s", "t.a": "q_t", "t.b": "k_t"}
_LINEAR = {"s.a": "x_s", "s.b": "w_s", "t.a": "x_t", "t.b": "w_t"}
_BOTH = {f"{side}.{name}": f"{name}_{side}" for side in "st" for name in ("bias", "scale", "softcap")}
_NAME = re.compile(r"\b(?:out\.)?([st]\.(?:a|b|bias|scale|softcap))\b")


def in_python_words(sentence: str, attention: bool) -> str:
    names = {**_BOTH, **(_ATTENTION if attention else _LINEAR)}
    return _NAME.sub(lambda match: names[match.group(1)], sentence).replace("columns = 0 with", "columns = None with")


def error_of(status: int, attention: bool) -> Exception:
    """The exception for a failed call of this thread."""
    sentence = in_python_words(_c.lib.skl_last_error().decode(), attention)
    return _KINDS.get(status, RuntimeError)(f"streamkl: {sentence}")
