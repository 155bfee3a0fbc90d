# SPDX-License-Identifier: Apache-2.0
"""What rows can tell beyond their loss: the names that details= takes, and the row results of C that they come from."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Sequence, Tuple

from ._checks import bad

# Straight from C; agree, sum and count are made of others.
_ROWS = (
    "kl",
    "ce",
    "lse_s",
    "lse_t",
    "entropy_s",
    "entropy_t",
    "logprob_s",
    "logprob_t",
    "top1_s",
    "top1_t",
    "reverse",
    "jsd",
    "tv",
    "mass_s",
    "mass_t",
    "rank_s",
    "rank_t",
    "sink_mass_s",
    "sink_mass_t",
)
_MADE = {"agree": ("top1_s", "top1_t"), "sum": ("loss",), "count": ("loss",)}
NAMES = (*_ROWS, *_MADE)
_OF_LABELS = ("ce", "logprob_s", "logprob_t")
_OF_TEACHER = ("kl", "lse_t", "entropy_t", "logprob_t", "top1_t", "agree", "reverse", "jsd", "tv", "mass_t")
_OF_TEACHER += ("rank_s", "rank_t")
_OF_MASS = ("mass_s", "mass_t")
_OF_SINKS = ("sink_mass_s", "sink_mass_t")


def refuse_without_labels(options: Mapping[str, Any]) -> None:
    for name in ("label_weight", "label_smoothing", "z_loss", "lse_weight"):
        if options.get(name):
            raise bad(name, options[name], "there are no labels")
    if options.get("kl_weight", 1) != 1:
        raise bad("kl_weight", options["kl_weight"], "there are no labels beside which it could count: use weight=")


def wanted_rows(
    details: Any,
    labels: bool,
    teacher: bool = True,
    mass_ids: bool = False,
    listed: bool = False,
    sinks: bool = False,
) -> Tuple[str, ...]:
    """The row results that C has to give for these details; what they cannot be is refused."""
    if isinstance(details, str) or not hasattr(details, "__iter__"):
        raise bad("details", details, "it must hold names, such as ('kl', 'entropy_s')", TypeError)
    for name in details:
        if name not in NAMES:
            raise bad("details", tuple(details), f"{name!r} is none of {', '.join(NAMES)}")
        if name in _OF_LABELS and not labels:
            raise bad("details", tuple(details), f"{name!r} needs labels")
        if name in _OF_MASS and not mass_ids:
            raise bad("details", tuple(details), f"{name!r} needs mass_ids")
        if name in _OF_SINKS and not sinks:
            raise bad("details", tuple(details), f"{name!r} needs the sinks of both sides, as a column")
        if name in _OF_TEACHER and listed and name != "kl":
            raise bad("details", tuple(details), f"{name!r} needs a live teacher: a listed one does not tell it")
        if name in _OF_TEACHER and not teacher and not listed:
            raise bad("details", tuple(details), f"{name!r} needs a teacher")
    if mass_ids and not any(name in _OF_MASS for name in details):
        raise bad("details", tuple(details), "there are mass_ids, but neither 'mass_s' nor 'mass_t' is asked for")
    return tuple(dict.fromkeys(row for name in details for row in _MADE.get(name, (name,))))


def make_details(details: Sequence[str], rows: Mapping[str, Any], weight: Any, ignored: Any) -> Dict[str, Any]:
    """The dict of the details. weight: of the rows, or None; ignored: which rows take no part, or None. 'sum' is the
    sum of weight loss, 'count' the sum of the weights: what a mean over several calls or processes is made of."""
    found: Dict[str, Any] = {}
    for name in details:
        if name == "agree":
            found[name] = rows["top1_s"] == rows["top1_t"]
        elif name == "sum":
            found[name] = (rows["loss"] if weight is None else rows["loss"] * weight).sum()
        elif name == "count":
            ones = rows["loss"] * 0 + 1 if ignored is None else ~ignored
            found[name] = (ones if weight is None else weight).sum()
        else:
            found[name] = rows[name]
    return found
