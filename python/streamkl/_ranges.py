# SPDX-License-Identifier: Apache-2.0
"""Which keys queries see, from the words of others: dense masks and position ids. For torch and for NumPy alike, which
'xp' is."""

from __future__ import annotations

from typing import Any, Tuple

from ._checks import bad


def runs_of(seen: Any, xp: Any, columns: Any) -> Tuple[Any, Any, Any]:
    """Of each row of a bool mask [.., M] the first True and the one behind the last (0, 0 if there is none), and if all
    between them are True. columns: 0 .. M - 1."""
    m = seen.shape[-1]
    if m == 0:
        nothing = seen.sum(-1)
        return nothing, nothing, nothing == 0
    first, last = xp.amin(xp.where(seen, columns, m), -1), xp.amax(xp.where(seen, columns, -1), -1)
    count = seen.sum(-1)
    return xp.where(count > 0, first, 0), last + 1, count == xp.where(count > 0, last + 1 - first, 0)


def ranges_of_mask(mask: Any, xp: Any, columns: Any) -> Tuple[Any, Any]:
    """begin and end of a mask [.., N, M]."""
    begin, end, whole = runs_of(mask, xp, columns)
    if not bool(whole.all()):
        place = [int(i) for i in xp.argwhere(~whole)[0]]
        row = f"mask[{', '.join(map(str, place))}]"
        rule = "a row must be one run of True: begin and end cannot leave out keys between two that are seen"
        raise bad(row, "a row with gaps", rule)
    return begin, end


def starts_of_positions(positions: Any) -> Any:
    """Which of the flattened positions [.., N] begin a sequence: those that do not follow the one before, and the first of
    every row."""
    starts = positions == positions  # noqa: PLR0124  all of them, to begin with
    starts[..., 1:] = positions[..., 1:] != positions[..., :-1] + 1
    return starts.reshape(-1)
