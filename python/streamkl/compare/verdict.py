# SPDX-License-Identifier: Apache-2.0
"""Is it good? The answer in a sentence, from a candidate's numbers."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

from .numbers import percent, signed_percent, significant

Data = Dict[str, Any]

# Mean KLD in nats: below the first, the word. They are a scale to speak with and no law; docs/report.md says so.
SCALE: Tuple[Tuple[float, str, str], ...] = (
    (0.001, "same", "is practically the same as"),
    (0.01, "close", "is very close to"),
    (0.05, "near", "is close to"),
    (0.2, "apart", "differs noticeably from"),
    (float("inf"), "far", "is far from"),
)

WORDS = {
    "same": "practically the same",
    "close": "very close",
    "near": "close",
    "apart": "noticeable",
    "far": "far",
    "broken": "not finite",
}


def grade(candidate: Data) -> Tuple[str, str]:
    """A word for colours and tests, and the words of the sentence between the two names."""
    if not candidate["tokens"]:
        return "broken", "cannot be compared with"
    if candidate["not_finite"]["rows"]:
        return "broken", "is broken beside"
    kld = candidate["metrics"]["mean_kld"]["value"]
    floor = candidate.get("floor")
    if kld == 0:
        return "same", "is equal, number by number, to"
    if floor and kld <= 2 * floor["mean_kld"]:
        return "same", "cannot be told, beyond rounding, from"
    return next((word, words) for limit, word, words in SCALE if kld < limit)


def headline(candidate: Data, reference: str) -> str:
    return f"{candidate['name']} {grade(candidate)[1]} {reference}."


def reasons(candidate: Data) -> str:
    """The numbers behind the headline, in one sentence or two."""
    bad = candidate["not_finite"]
    counted = candidate["tokens"] + bad["rows"]
    if not candidate["tokens"]:
        return f"None of the {counted:,} tokens has finite numbers on both sides ({_sides(bad)})."
    m = candidate["metrics"]
    kld = m["mean_kld"]
    said = [f"It moves the next-token distribution by {significant(kld['value'])} nats a token on average"]
    floor = candidate.get("floor")
    if floor and floor["mean_kld"] > 0:
        times = kld["value"] / floor["mean_kld"]
        said[0] += f" ({significant(times, 2)} × what {floor['dtype']} alone does)"
    said.append(f"picks the same first token {percent(m['same_top_p']['value'])} of the time")
    if "mean_ppl_ratio" in m:
        said.append(f"and changes the perplexity by {signed_percent(m['mean_ppl_ratio']['value'] - 1)}")
    sentence = ", ".join(said) + "."
    if bad["rows"]:
        share = percent(bad["rows"] / counted)
        sentence += (
            f" But {bad['rows']:,} of {counted:,} tokens ({share}) are not finite ({_sides(bad)}) and were left out."
        )
    return sentence


def _sides(bad: Data) -> str:
    return f"{bad['reference']:,} in the reference, {bad['other']:,} in the other"


def pair_sentence(pair: Data) -> str:
    gap = pair["difference"]
    if pair["verdict"] == "cannot tell":
        if gap["low"] is None:
            return f"{pair['a']} or {pair['b']}: cannot tell, one sequence is no sample."
        return f"{pair['a']} or {pair['b']}: cannot tell on this text."
    word = "closer to" if pair["verdict"] == "better" else "further from"
    return f"{pair['a']} is {word} the reference than {pair['b']}, by {significant(abs(gap['value']))} nats a token."


def order(candidates: List[Data]) -> List[int]:
    """Which candidate first: the closest; those without a number last."""
    return sorted(
        range(len(candidates)),
        key=lambda i: candidates[i]["metrics"]["mean_kld"]["value"] if candidates[i]["tokens"] else float("inf"),
    )


def overall(data: Data) -> Tuple[str, str]:
    """Headline and reasons of the whole report."""
    reference, candidates = data["reference"]["name"], data["candidates"]
    if len(candidates) == 1:
        return headline(candidates[0], reference), reasons(candidates[0])
    first, second = (candidates[i] for i in order(candidates)[:2])
    if grade(first)[0] == "broken" and not first["tokens"]:
        return f"None of the {len(candidates)} candidates can be compared with {reference}.", reasons(first)
    pair = next(p for p in data["pairs"] if {p["a"], p["b"]} == {first["name"], second["name"]})
    if pair["verdict"] == "cannot tell":
        return (
            f"{first['name']} and {second['name']} are the closest to {reference}: this text cannot tell which.",
            (f"{first['name']}: {reasons(first)}"),
        )
    return f"{first['name']} is the closest of {len(candidates)}, and {grade(first)[1]} {reference}.", reasons(first)
