# SPDX-License-Identifier: Apache-2.0
"""From numbers a token to numbers a model: values, llama.cpp's errors, and a bootstrap over sequences.

A number that is a function f of means over tokens has three things here: f itself, the naive error, and an interval.
The naive error takes tokens as independent: by first order, f moves as the mean of its influence, one number a token.
For means that is the standard error, for shares the binomial one, for the others llama.cpp's propagation.
Tokens of one text are not independent. So whole sequences are drawn anew, with replacement, and f is computed of each
draw; the spread of the draws gives the interval.
"""

from __future__ import annotations

import functools
import math
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from .fields import FIELDS, PERCENTILES, percentile_key

Columns = Dict[str, np.ndarray]
Stat = Dict[str, Optional[float]]

CONFIDENCE = 0.95
RESAMPLES = 2000
QUANTILE_DRAWS = 400  # of percentiles, which cost a sweep over all tokens each


class Mean(NamedTuple):
    """A number that is a function of means: its value, and how one token moves it (None: no naive error)."""

    value: Callable[[Columns], np.ndarray]
    influence: Optional[Callable[[Columns, Columns], np.ndarray]]


def _of(name: str) -> Mean:
    return Mean(lambda m: m[name], lambda c, m: c[name])


def _correlation(m: Columns) -> np.ndarray:
    cov = m["nll_qb"] - m["nll_q"] * m["nll_b"]
    var = (m["nll_qq"] - m["nll_q"] ** 2) * (m["nll_bb"] - m["nll_b"] ** 2)
    return np.where(var > 0, cov / np.sqrt(np.where(var > 0, var, 1)), 1.0)


def _ratio(m: Columns) -> np.ndarray:
    return np.exp(m["nll_q"] - m["nll_b"])


def _rms(m: Columns) -> np.ndarray:
    return np.sqrt(m["dp2"])


MEANS: Dict[str, Mean] = {
    "mean_ppl_q": Mean(lambda m: np.exp(m["nll_q"]), lambda c, m: np.exp(m["nll_q"]) * c["nll_q"]),
    "mean_ppl_base": Mean(lambda m: np.exp(m["nll_b"]), lambda c, m: np.exp(m["nll_b"]) * c["nll_b"]),
    "cor_ln_ppl": Mean(_correlation, None),
    "mean_ln_ppl_ratio": Mean(lambda m: m["nll_q"] - m["nll_b"], lambda c, m: c["nll_q"] - c["nll_b"]),
    "mean_ppl_ratio": Mean(_ratio, lambda c, m: _ratio(m) * (c["nll_q"] - c["nll_b"])),
    "mean_ppl_diff": Mean(
        lambda m: np.exp(m["nll_q"]) - np.exp(m["nll_b"]),
        lambda c, m: np.exp(m["nll_q"]) * c["nll_q"] - np.exp(m["nll_b"]) * c["nll_b"],
    ),
    "rms_delta_p": Mean(_rms, lambda c, m: c["dp2"] / (2 * max(float(_rms(m)), 1e-300))),
    **{field.key: _of(field.column) for field in FIELDS.values() if field.column},
}

QUANTILES: Dict[str, Tuple[str, float]] = {}  # key: (column, fraction)
for _suffix, _column in (("kld", "kl"), ("delta_p", "dp")):
    QUANTILES[f"max_{_suffix}"] = (_column, 1.0)
    for _share in PERCENTILES[_suffix]:
        QUANTILES[percentile_key(_share, _suffix)] = (_column, float(_share) / 100)
    QUANTILES[f"min_{_suffix}"] = (_column, 0.0)


def columns_of(rows: Columns) -> Columns:
    """What the numbers above are means of, in double. Without labels those of the text's own token are missing."""
    c = {name: np.asarray(rows[name], np.float64) for name in ("kl", "reverse", "jsd", "tv")}
    c.update({name: np.asarray(rows[name], np.float64) for name in ("entropy_ref", "entropy_other")})
    c["same"] = (rows["top1_ref"] == rows["top1_other"]).astype(np.float64)
    for k in (5, 10):
        c[f"in{k}"] = (rows["rank_ref"] < k).astype(np.float64)
        c[f"back{k}"] = (rows["rank_other"] < k).astype(np.float64)
    if "label" not in rows:
        return c
    b, q = (np.asarray(rows[name], np.float64) for name in ("logprob_ref", "logprob_other"))
    right_b, right_q = rows["top1_ref"] == rows["label"], rows["top1_other"] == rows["label"]
    c.update(nll_b=-b, nll_q=-q, nll_bb=b * b, nll_qq=q * q, nll_qb=b * q, dp=np.exp(q) - np.exp(b))
    c["dp2"] = c["dp"] ** 2
    flags = dict(right_b=right_b, right_q=right_q, flip=right_b != right_q)
    flags.update(broken=right_b & ~right_q, fixed=~right_b & right_q)
    c.update({name: flag.astype(np.float64) for name, flag in flags.items()})
    return c


def naive_error(influence: np.ndarray) -> Optional[float]:
    """The standard error of a mean of independent numbers, as llama.cpp computes it."""
    n = len(influence)
    return float(np.sqrt(max(influence.var(), 0.0) / (n - 1))) if n > 1 else None


@functools.lru_cache(maxsize=None)
def student_t(freedom: int, confidence: float = CONFIDENCE) -> float:
    """The two-sided quantile of Student's t, by bisection of its distribution function's integral."""
    if freedom > 200:  # the normal one, to within 1 %
        freedom = 200
    norm = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)

    def inside(t: float) -> float:  # the mass between -t and t; x = tan(angle) makes the range finite
        angles = np.linspace(0, math.atan(t), 2001)
        x = np.tan(angles)
        y = norm * (1 + x * x / freedom) ** (-(freedom + 1) / 2) / np.cos(angles) ** 2
        return float(2 * np.sum((y[1:] + y[:-1]) / 2) * (angles[1] - angles[0]))

    low, high = 0.0, 700.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle) < confidence else (low, middle)
    return (low + high) / 2


class Bootstrap:
    """Draws of whole sequences, the same ones for every number and for every candidate over the same text."""

    def __init__(self, sequence: np.ndarray, resamples: int = RESAMPLES, seed: int = 0) -> None:
        names, self.index = np.unique(sequence, return_inverse=True)
        self.sequences = len(names)
        make = np.random.default_rng(seed)
        if self.sequences > 1:
            even = np.full(self.sequences, 1 / self.sequences)
            self.draws = make.multinomial(self.sequences, even, size=resamples).astype(np.float64)
            # Draws spread less than the truth: by (S - 1) / S, and the spread itself is only known to S - 1 freedoms.
            t = student_t(self.sequences - 1)
            self.wider = math.sqrt(self.sequences / (self.sequences - 1)) * t / 1.959964

    def sums(self, values: np.ndarray) -> np.ndarray:
        return np.bincount(self.index, weights=values, minlength=self.sequences)

    def means(self, columns: Columns) -> Columns:
        """The mean of each column in each draw."""
        count = self.draws @ self.sums(np.ones(len(self.index)))
        return {name: self.draws @ self.sums(column) / count for name, column in columns.items()}

    def interval(self, value: float, drawn: np.ndarray) -> Tuple[Optional[float], Optional[float]]:
        edges = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        low, high = (value + self.wider * (float(edge) - value) for edge in edges)
        return min(low, value), max(high, value)

    def quantiles(self, values: np.ndarray, fractions: List[float]) -> np.ndarray:
        """[draws, fractions]: the value below which that share of a draw's tokens lies."""
        order = np.argsort(values, kind="stable")
        ordered, which = values[order], self.index[order]
        found = np.empty((min(QUANTILE_DRAWS, len(self.draws)), len(fractions)))
        for i in range(len(found)):
            total = np.cumsum(self.draws[i][which])
            at = np.searchsorted(total, np.asarray(fractions) * total[-1])
            found[i] = ordered[np.minimum(at, len(ordered) - 1)]
        return found


def _stat(
    value: float, error: Optional[float] = None, low: Optional[float] = None, high: Optional[float] = None
) -> Stat:
    return {"value": float(value), "error": error, "low": low, "high": high}


# Beyond these a number cannot lie, and an interval that was widened must not claim so: of what a token has, only its change
# of a probability is ever negative, and shares are shares of one.
_AT_LEAST_ZERO = {field.key for field in FIELDS.values() if field.column not in ("", "dp")} | {"rms_delta_p"}
_SHARES_OF_ONE = {key for key in _AT_LEAST_ZERO if FIELDS[key].unit == "%"}


def _bounded(key: str, low: float, high: float, value: float) -> Tuple[float, float]:
    if key in _AT_LEAST_ZERO:
        low = min(max(low, 0.0), value)
    if key in _SHARES_OF_ONE:
        high = max(min(high, 1.0), value)
    return low, high


def summarise(rows: Columns, bootstrap: Bootstrap) -> Dict[str, Stat]:
    """All numbers of fields.py, of rows that are finite."""
    columns = columns_of(rows)
    n = len(columns["kl"])
    if n == 0:
        return {}
    means = {name: np.float64(column.mean()) for name, column in columns.items()}
    draws = bootstrap.means(columns) if bootstrap.sequences > 1 else None
    found: Dict[str, Stat] = {}
    for key, mean in MEANS.items():
        try:
            value = float(mean.value(means))
        except KeyError:  # no labels
            continue
        stat = _stat(value, naive_error(mean.influence(columns, means)) if mean.influence else None)
        if draws is not None:
            stat["low"], stat["high"] = _bounded(key, *bootstrap.interval(value, mean.value(draws)), value)
        found[key] = stat
    for column in ("kl", "dp"):
        if column in columns:
            found.update(_quantiles(columns[column], column, bootstrap))
    return found


def _quantiles(values: np.ndarray, column: str, bootstrap: Bootstrap) -> Dict[str, Stat]:
    wanted = {key: fraction for key, (name, fraction) in QUANTILES.items() if name == column}
    points = np.quantile(values, list(wanted.values()))
    found = {key: _stat(value) for key, value in zip(wanted, points)}
    if bootstrap.sequences > 1:
        drawn = bootstrap.quantiles(values, list(wanted.values()))
        edges = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
        for stat, low, high, fraction in zip(found.values(), *edges, wanted.values()):
            if 0 < fraction < 1:  # no draw knows of tokens beyond the largest one seen
                stat["low"], stat["high"] = min(float(low), stat["value"]), max(float(high), stat["value"])
    return found


def paired(a: np.ndarray, b: np.ndarray, bootstrap: Bootstrap) -> Dict[str, object]:
    """Is the mean of a below that of b, token by token over the same text? "better", "worse" or "cannot tell"."""
    gap = np.asarray(a, np.float64) - np.asarray(b, np.float64)
    value = float(gap.mean())
    stat: Dict[str, object] = dict(_stat(value, naive_error(gap)))
    if not gap.any():
        stat.update(low=0.0, high=0.0, verdict="cannot tell")
        return stat
    if bootstrap.sequences < 2:
        stat["verdict"] = "cannot tell"
        return stat
    low, high = bootstrap.interval(value, bootstrap.means({"gap": gap})["gap"])
    stat.update(low=low, high=high, verdict="better" if high < 0 else "worse" if low > 0 else "cannot tell")
    return stat


def grouped(values: Columns, group: np.ndarray, groups: int) -> List[Dict[str, Optional[float]]]:
    """Of each group of tokens: how many, mean and median KLD, naive error, same top."""
    found: List[Dict[str, Optional[float]]] = []
    for i in range(groups):
        kl = np.asarray(values["kl"], np.float64)[group == i]
        row: Dict[str, Optional[float]] = dict(
            tokens=len(kl), mean_kld=None, error=None, median_kld=None, same_top=None
        )
        if len(kl):
            same = (values["top1_ref"] == values["top1_other"])[group == i]
            row.update(mean_kld=float(kl.mean()), error=naive_error(kl), median_kld=float(np.median(kl)))
            row["same_top"] = float(same.mean())
        found.append(row)
    return found
