# SPDX-License-Identifier: Apache-2.0
"""Every number of the report: its key, its name, its unit, what it is the mean of, and its place. The first three parts
are llama.cpp's.

Text, Markdown, JSON, the page, --fail-if and statistics.py all read this table. A number that is the mean of something a
token has is a line here; one that is not says in statistics.py how it comes from means.
"""

from __future__ import annotations

from typing import Dict, NamedTuple, Tuple


class Field(NamedTuple):
    key: str
    name: str
    unit: str = ""  # "%" is stored as a share and shown times 100; "nats"; "" is a bare number
    column: str = ""  # of statistics.columns_of, whose mean it is


class Part(NamedTuple):
    title: str
    fields: Tuple[Field, ...]


# llama.cpp's percentiles of the two quantities that have them.
PERCENTILES = {"kld": "99.9 99 95 90 50 10 5 1 0.1".split(), "delta_p": "99.9 99 95 90 75 50 25 10 5 1 0.1".split()}


def percentile_key(share: str, suffix: str) -> str:
    return f"median_{suffix}" if share == "50" else f"p{share.replace('.', '_')}_{suffix}"


def _percentiles(suffix: str, word: str, unit: str) -> Tuple[Field, ...]:
    names = {"50": f"Median  {word}"}
    return tuple(
        Field(percentile_key(share, suffix), names.get(share, f"{float(share):4.1f}%   {word}"), unit)
        for share in PERCENTILES[suffix]
    )


PARTS: Tuple[Part, ...] = (
    Part(
        "Perplexity statistics",
        (
            Field("mean_ppl_q", "Mean PPL(Q)"),
            Field("mean_ppl_base", "Mean PPL(base)"),
            Field("cor_ln_ppl", "Cor(ln(PPL(Q)), ln(PPL(base)))", "%"),
            Field("mean_ln_ppl_ratio", "Mean ln(PPL(Q)/PPL(base))"),
            Field("mean_ppl_ratio", "Mean PPL(Q)/PPL(base)"),
            Field("mean_ppl_diff", "Mean PPL(Q)-PPL(base)"),
        ),
    ),
    Part(
        "KL divergence statistics",
        (
            Field("mean_kld", "Mean    KLD", "nats", "kl"),
            Field("max_kld", "Maximum KLD", "nats"),
            *_percentiles("kld", "KLD", "nats"),
            Field("min_kld", "Minimum KLD", "nats"),
        ),
    ),
    Part(
        "Token probability statistics",
        (
            Field("mean_delta_p", "Mean    Δp", "%", "dp"),
            Field("max_delta_p", "Maximum Δp", "%"),
            *_percentiles("delta_p", "Δp", "%"),
            Field("min_delta_p", "Minimum Δp", "%"),
            Field("rms_delta_p", "RMS Δp", "%"),
            Field("same_top_p", "Same top p", "%", "same"),
        ),
    ),
    Part(
        "Other divergences",
        (
            Field("mean_reverse_kld", "Mean KLD(Q‖base)", "nats", "reverse"),
            Field("mean_jsd", "Mean JSD", "nats", "jsd"),
            Field("mean_tv", "Mean TV", "%", "tv"),
            Field("mean_entropy_base", "Mean entropy(base)", "nats", "entropy_ref"),
            Field("mean_entropy_q", "Mean entropy(Q)", "nats", "entropy_other"),
        ),
    ),
    Part(
        "Agreement",
        (
            Field("top5_base_in_q", "Base's top in Q's top 5", "%", "in5"),
            Field("top10_base_in_q", "Base's top in Q's top 10", "%", "in10"),
            Field("top5_q_in_base", "Q's top in base's top 5", "%", "back5"),
            Field("top10_q_in_base", "Q's top in base's top 10", "%", "back10"),
            Field("accuracy_base", "Base's top is the text's", "%", "right_b"),
            Field("accuracy_q", "Q's top is the text's", "%", "right_q"),
            Field("flips", "Flips (right to wrong or back)", "%", "flip"),
            Field("broken", "Right in base, wrong in Q", "%", "broken"),
            Field("fixed", "Wrong in base, right in Q", "%", "fixed"),
        ),
    ),
)

FIELDS: Dict[str, Field] = {field.key: field for part in PARTS for field in part.fields}
LLAMA_PARTS = 3  # so many of PARTS are llama.cpp's, with its names in its order
