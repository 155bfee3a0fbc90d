# SPDX-License-Identifier: Apache-2.0
"""The report: one plain dict of numbers (schema.json), and the arrays a token behind it."""

from __future__ import annotations

import csv
import json
import math
import pathlib
from itertools import combinations
from typing import Any, Dict, List, NamedTuple, Optional, Union

import numpy as np

from .. import _c
from . import plain
from .rows import not_finite
from .statistics import RESAMPLES, Bootstrap, grouped, paired, summarise
from .verdict import grade, headline, reasons

SCHEMA, VERSION = "streamkl.compare", 1
CONFIDENCE_EDGES = (0.0, 0.25, 0.5, 0.75, 0.95, 1.0)
DEPTHS = 16  # at most so many groups of positions
Path = Union[str, "pathlib.Path"]
Data = Dict[str, Any]


class Tokens(NamedTuple):
    """What a candidate's report is made of: numbers a token (rows.py), and where the token stood."""

    rows: Dict[str, np.ndarray]
    sequence: np.ndarray
    position: np.ndarray


class Report:
    """What streamkl.compare found: 'data' is all of it but the tokens, 'tokens[name]' the arrays of one candidate."""

    def __init__(self, data: Data, tokens: Optional[Dict[str, Tokens]] = None) -> None:
        self.data, self.tokens = data, tokens or {}

    def __getitem__(self, name: str) -> Data:
        """The candidate of this name (or the only one's metric of this key)."""
        for candidate in self.data["candidates"]:
            if candidate["name"] == name:
                return candidate
        if len(self.data["candidates"]) == 1 and name in self.data["candidates"][0]["metrics"]:
            return self.data["candidates"][0]["metrics"][name]
        raise KeyError(name)

    def text(self) -> str:
        return plain.text(self.data)

    __str__ = text

    def __repr__(self) -> str:
        return f"<streamkl report: {'; '.join(c['verdict']['headline'] for c in self.data['candidates'])}>"

    def markdown(self) -> str:
        return plain.markdown(self.data)

    def html(self) -> str:
        from .page import page  # the only one of the outputs that takes time to import

        return page(self.data)

    def json(self) -> str:
        return json.dumps(_finite(self.data), indent=1, ensure_ascii=False, allow_nan=False)

    def save(self, *paths: Path) -> None:
        """Each path's ending says what is written: .html, .json, .md, .csv (a line a token), .txt."""
        for path in map(pathlib.Path, paths):
            if path.suffix == ".csv":
                self.csv(path)
                continue
            makers = {".html": self.html, ".json": self.json, ".md": self.markdown, ".txt": self.text}
            if path.suffix not in makers:
                raise ValueError(f"cannot use path = {str(path)!r}: it must end in .csv or {', '.join(makers)}")
            path.write_text(makers[path.suffix](), encoding="utf-8")

    def csv(self, path: Path) -> None:
        """A line for each token of each candidate, those that are not finite too."""
        with open(path, "w", newline="", encoding="utf-8") as file:
            out = csv.writer(file)
            names: List[str] = []
            for candidate, (rows, sequence, position) in self.tokens.items():
                if not names:
                    names = list(rows)
                    out.writerow(["candidate", "sequence", "position", *names])
                # float32 has nine digits; fewer lose some, more say nothing.
                columns = [[f"{v:.9g}" if v.dtype.kind == "f" else int(v) for v in rows[name]] for name in names]
                for s, p, *numbers in zip(sequence.tolist(), position.tolist(), *columns):
                    out.writerow([candidate, s, p, *numbers])


def _finite(value: Any) -> Any:
    """JSON has no infinity (of a perplexity, say): null stands for it."""
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def depth_edges(positions: int) -> List[int]:
    """The first positions of groups that get longer as depth grows, half as wide as they are deep."""
    edges, step = [0], 16.0
    while len(edges) < DEPTHS and edges[-1] + step < positions:
        edges.append(int(edges[-1] + step))
        step = max(16.0, edges[-1] * 0.4)
    return edges


def histogram(values: np.ndarray, low: float = -9.0, high: float = 2.0, bins: int = 66) -> Data:
    """Of log10 of the values; what lies below the first edge (0 too) is in the first bin."""
    logs = np.log10(np.maximum(np.asarray(values, np.float64), 10.0**low))
    counts, edges = np.histogram(np.clip(logs, low, high), bins=bins, range=(low, high))
    return {"log10_edges": [round(float(e), 6) for e in edges], "counts": counts.tolist()}


def probability_map(p: np.ndarray, q: np.ndarray, bins: int = 24) -> Data:
    """How often the text's token had probability p in the reference and q in the other: counts[p bin][q bin]."""
    counts, _, _ = np.histogram2d(p, q, bins=bins, range=((0, 1), (0, 1)))
    return {"bins": bins, "counts": counts.astype(int).tolist()}


def describe(
    info: Data, tokens: Tokens, *, resamples: int = RESAMPLES, seed: int = 0, floor: Optional[Data] = None
) -> Data:
    """A candidate's part of the report, but its worst tokens and attention."""
    bad = not_finite(tokens.rows)
    good = ~bad["either"]
    rows = {name: column[good] for name, column in tokens.rows.items()}
    sequence, position = tokens.sequence[good], tokens.position[good]
    bootstrap = Bootstrap(sequence, resamples, seed)
    found: Data = dict(info, tokens=int(good.sum()), sequences=int(bootstrap.sequences))
    found["not_finite"] = {
        "rows": int(bad["either"].sum()),
        "reference": int(bad["reference"].sum()),
        "other": int(bad["other"].sum()),
    }
    found["metrics"] = summarise(rows, bootstrap)
    found["below_zero"] = int((rows["kl"] < 0).sum())
    found["floor"] = dict(floor, tokens_within=int((rows["kl"] <= floor["p99_kld"]).sum())) if floor else None
    found["by_confidence"] = _by_confidence(rows)
    found["by_depth"] = _by_depth(rows, position)
    found["histogram"] = histogram(rows["kl"])
    if "label" in rows:
        found["probability_map"] = probability_map(np.exp(rows["logprob_ref"]), np.exp(rows["logprob_other"]))
    return found


def _by_confidence(rows: Dict[str, np.ndarray]) -> List[Data]:
    sure = np.exp(rows["logprob_top1_ref"])
    group = np.clip(np.searchsorted(CONFIDENCE_EDGES, sure, side="right") - 1, 0, len(CONFIDENCE_EDGES) - 2)
    groups = grouped(rows, group, len(CONFIDENCE_EDGES) - 1)
    return [dict(low=a, high=b, **g) for a, b, g in zip(CONFIDENCE_EDGES, CONFIDENCE_EDGES[1:], groups)]


def _by_depth(rows: Dict[str, np.ndarray], position: np.ndarray) -> List[Data]:
    if not len(position):
        return []
    edges = depth_edges(int(position.max()) + 1)
    groups = grouped(rows, np.searchsorted(edges, position, side="right") - 1, len(edges))
    ends = [*edges[1:], int(position.max()) + 1]
    return [dict(first=a, last=b - 1, **g) for a, b, g in zip(edges, ends, groups) if g["tokens"]]


def pairs(tokens: Dict[str, Tokens], resamples: int = RESAMPLES, seed: int = 0) -> List[Data]:
    """Every two candidates over the tokens that are finite in both."""
    found = []
    for a, b in combinations(tokens, 2):
        good = ~(not_finite(tokens[a].rows)["either"] | not_finite(tokens[b].rows)["either"])
        if not good.any():
            gap: Data = dict(value=None, error=None, low=None, high=None, verdict="cannot tell")
        else:
            kl_a, kl_b = (tokens[name].rows["kl"][good] for name in (a, b))
            gap = dict(paired(kl_a, kl_b, Bootstrap(tokens[a].sequence[good], resamples, seed)))
        verdict = gap.pop("verdict")
        found.append(dict(a=a, b=b, tokens=int(good.sum()), difference=gap, verdict=verdict))
    return found


def assemble(reference: Data, text: Data, candidates: List[Data], tokens: Dict[str, Tokens], **options: Any) -> Report:
    """The whole report."""
    for candidate in candidates:
        word, _ = grade(candidate)
        candidate["verdict"] = {
            "grade": word,
            "headline": headline(candidate, reference["name"]),
            "reasons": reasons(candidate),
        }
    data: Data = {
        "schema": SCHEMA,
        "version": VERSION,
        "streamkl": _c.version(),
        "reference": reference,
        "text": text,
        "bootstrap": {
            "resamples": options.get("resamples", RESAMPLES),
            "seed": options.get("seed", 0),
            "confidence": 0.95,
        },
        "candidates": candidates,
        "pairs": pairs(tokens, **options),
    }
    return Report(data, tokens)
