# SPDX-License-Identifier: Apache-2.0
"""What the faces for other libraries (streamkl.trl, .liger, .verl, .nemo_rl) share."""

from __future__ import annotations

import warnings
from importlib.metadata import version
from typing import Any, Dict, Set, Tuple

from ._checks import bad

_warned: Set[str] = set()


def divergence_of(beta: float, name: str = "beta") -> Dict[str, Any]:
    """The options of linear_kl for the beta of Liger and TRL: 0 is KL(teacher || student), 1 KL(student || teacher)."""
    if not 0 <= beta <= 1:
        raise bad(name, beta, "it must be from 0, KL(teacher || student), to 1, KL(student || teacher)")
    if beta in (0, 1):
        return {"divergence": "reverse" if beta else "forward"}
    return {"divergence": "jsd", "beta": beta}


def warn_untested(package: str, tested: Tuple[str, str]) -> None:
    """A warning, once, if the installed version is not of tested[0] <= version < tested[1]."""
    found = version(package)
    if package not in _warned and not _numbers(tested[0]) <= _numbers(found) < _numbers(tested[1]):
        _warned.add(package)
        warnings.warn(
            f"streamkl: tested with {package} from {tested[0]} to before {tested[1]}, and this is {found}: compare the "
            f"first losses with {package}'s own",
            stacklevel=3,
        )


def _numbers(text: str) -> Tuple[int, ...]:
    """The first numbers of a version: 1.16.0.dev0 is (1, 16, 0)."""
    parts = []
    for part in text.split("."):
        if not part.isdigit():
            break
        parts.append(int(part))
    return tuple(parts)
