# SPDX-License-Identifier: Apache-2.0
"""Numbers as people read them: few digits, the same number of them in a column, units where they belong."""

from __future__ import annotations

import math
from typing import Optional

MINUS = "\N{MINUS SIGN}"
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def power_of_ten(power: int) -> str:
    return "10" + str(power).translate(_RAISED)


def significant(x: Optional[float], digits: int = 3) -> str:
    """So many digits that mean something: 0.0123, 4.56, 1,230; very small ones as 3.40×10⁻⁷."""
    if x is None:
        return "–"
    if not math.isfinite(x):
        return "NaN" if math.isnan(x) else ("∞" if x > 0 else f"{MINUS}∞")
    if x == 0:
        return "0"
    size = math.floor(math.log10(abs(x)))
    if size < -4:
        mantissa, _, power = f"{x:.{digits - 1}e}".partition("e")
        return f"{mantissa}×{power_of_ten(int(power))}".replace("-", MINUS)
    return f"{x:,.{max(0, digits - 1 - size)}f}".replace("-", MINUS)


def percent(x: Optional[float], digits: Optional[int] = None) -> str:
    """A share as a percentage; near 0 and near 100 with more digits, since there they matter."""
    if x is None:
        return "–"
    if digits is None:
        edge = min(abs(x), abs(1 - x)) * 100
        digits = 0 if edge == 0 else 1 if edge >= 1 else 2 if edge >= 0.1 else 3
    return f"{100 * x:.{digits}f} %".replace("-", MINUS)


def signed_percent(x: Optional[float]) -> str:
    if x is None:
        return "–"
    if x == 0:
        return "0 %"
    sign = "+" if x > 0 else MINUS
    return f"{sign}{significant(abs(100 * x), 2 if abs(x) < 0.1 else 3)} %"


def unit_text(x: Optional[float], unit: str) -> str:
    """A number of fields.py's table, in a column of its own kind."""
    if x is None:
        return "–"
    if not math.isfinite(x):
        return significant(x)
    if unit == "%":
        return f"{100 * x:.3f} %".replace("-", MINUS)
    return (f"{x:.6f}" if x == 0 or abs(x) >= 1e-4 else f"{x:.3e}").replace("-", MINUS)
