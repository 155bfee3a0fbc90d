# SPDX-License-Identifier: Apache-2.0
"""The report for a terminal, and as Markdown."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Sequence

from .fields import LLAMA_PARTS, PARTS, Field
from .numbers import MINUS, percent, significant, unit_text
from .verdict import overall, pair_sentence

Data = Dict[str, Any]


def facts(data: Data) -> List[List[str]]:
    """How it was measured: what is asked about every such number."""
    text, reference = data["text"], data["reference"]
    positions = "second half of each window" if text["second_half"] else "all positions"
    return [
        ["Reference", f"{reference['name']}, {reference['dtype']}, vocabulary {reference['vocabulary']:,}"],
        ["Candidates", "; ".join(f"{c['name']}, {c['dtype']}" for c in data["candidates"])],
        [
            "Text",
            f"{text['name']}, {text['windows']:,} windows of {text['window']:,} tokens"
            + (", each after the begin token" if text["bos"] else ""),
        ],
        ["Scored", f"{text['scored']:,} tokens: {positions}, the same prefixes for every model"],
        ["Direction", "KLD is KL(base‖Q), base the reference and Q the candidate; nats; temperature 1"],
        ["Arithmetic", "logits in float32 of each model's own hidden states and head, none stored"],
        ["±", "standard error with tokens taken as independent, as llama.cpp has it"],
        ["Interval", f"95 %, bootstrap over windows, {data['bootstrap']['resamples']:,} draws"],
    ]


def floor_sentence(candidate: Data) -> str:
    floor = candidate["floor"]
    if not floor:
        return candidate.get("floor_missing", "The floor was not measured.")
    if floor["max_kld"] == 0:
        return f"Floor: {floor['how']} gives the same numbers ({floor['tokens']:,} tokens)."
    share = percent(floor["tokens_within"] / candidate["tokens"]) if candidate["tokens"] else "–"
    return (
        f"Floor: {floor['how']} moves the mean KLD by {significant(floor['mean_kld'])} and 1 % of tokens by more than "
        f"{significant(floor['p99_kld'])} nats ({floor['tokens']:,} tokens). "
        f"{share} of the candidate's tokens are within that."
    )


def _intervals(stat: Data, field: Field) -> List[str]:
    error = "" if stat["error"] is None else f"± {unit_text(stat['error'], field.unit)}"
    bounds = "" if stat["low"] is None else " … ".join(unit_text(stat[side], field.unit) for side in ("low", "high"))
    return [unit_text(stat["value"], field.unit), error, bounds]


def metric_tables(candidate: Data) -> Iterator[tuple]:
    """(title, rows of name, value, error, interval) for each part that has numbers."""
    for part in PARTS:
        rows = [
            [f.name, *_intervals(candidate["metrics"][f.key], f)] for f in part.fields if f.key in candidate["metrics"]
        ]
        if rows:
            yield part.title, rows


def confidence_rows(candidate: Data) -> List[List[str]]:
    total = max(candidate["tokens"], 1)
    return [
        [
            f"{g['low']:.2f} – {g['high']:.2f}",
            percent(g["tokens"] / total),
            significant(g["mean_kld"]),
            significant(g["median_kld"]),
            percent(g["same_top"]),
        ]
        for g in candidate["by_confidence"]
    ]


def depth_rows(candidate: Data) -> List[List[str]]:
    return [
        [
            f"{g['first']:,} – {g['last']:,}",
            f"{g['tokens']:,}",
            significant(g["mean_kld"]),
            f"± {significant(g['error'], 2)}",
            percent(g["same_top"]),
        ]
        for g in candidate["by_depth"]
    ]


def _top(entries: Sequence[Data]) -> str:
    return "  ".join(f"{e['text']!r} {percent(e['p'], 1)}" for e in entries)


def _pad(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths))]
        yield "  ".join(cells).rstrip()


def _candidate_text(candidate: Data) -> Iterator[str]:
    yield f"\n{candidate['name']}\n{'=' * len(candidate['name'])}"
    yield candidate["verdict"]["headline"]
    yield candidate["verdict"]["reasons"]
    yield floor_sentence(candidate)
    if candidate["not_finite"]["rows"]:
        yield "Not finite: {rows:,} tokens ({reference:,} in the reference, {other:,} in the other).".format(
            **candidate["not_finite"]
        )
    for i, (title, rows) in enumerate(metric_tables(candidate)):
        yield f"\n====== {title} ======"
        if i < LLAMA_PARTS:
            width = max(len(row[0]) for row in rows)
            for name, value, error, bounds in rows:
                interval = f"[{bounds}]" if bounds else ""
                yield f"{name.ljust(width)}: {value:>13} {error:<14} {interval}".rstrip()
        else:
            yield from _pad(rows, right=(1,))
    if not candidate["tokens"]:
        return
    yield "\n====== By the reference's confidence ======"
    yield from _pad(
        [["its top p", "share", "mean KLD", "median", "same top"], *confidence_rows(candidate)], (1, 2, 3, 4)
    )
    yield "\n====== By depth in context ======"
    yield from _pad([["position", "tokens", "mean KLD", "", "same top"], *depth_rows(candidate)], (1, 2, 4))
    if candidate.get("worst"):
        yield "\n====== Worst tokens ======"
        for w in candidate["worst"][:5]:
            where = f"{w['position']:,} of window {w['sequence']}"
            yield f"KLD {significant(w['kld'])} at {where}: …{w['before'][-60:]!r} → {w['token']!r}"
            yield f"    base  {_top(w['top_reference'])}\n    Q     {_top(w['top_other'])}"
    attention = candidate.get("attention")
    if attention and attention.get("layers"):
        yield "\n====== Attention ======"
        together = significant(attention["head_mean"])
        yield f"mean KL {significant(attention['mean'])} nats a query; of the heads' mean {together}"
        for h in attention["worst"][:5]:
            yield f"layer {h['layer']:>3} head {h['head']:>3}: {significant(h['kl'])}"
    elif attention:
        yield f"\nAttention: {attention['missing']}"


def text(data: Data) -> str:
    head, why = overall(data)
    lines = [head, why, ""]
    lines += list(_pad(facts(data)))
    for candidate in data["candidates"]:
        lines += list(_candidate_text(candidate))
    if data["pairs"]:
        lines += ["", "====== Between candidates ======", *map(pair_sentence, data["pairs"])]
    return "\n".join(lines).replace(MINUS, "-") + "\n"  # what reads llama.cpp's report reads this one


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
    yield ""


def markdown(data: Data) -> str:
    head, why = overall(data)
    lines = [f"# {head}", "", why, "", *_table(["", ""], facts(data))]
    for candidate in data["candidates"]:
        lines += [f"## {candidate['name']}", "", candidate["verdict"]["reasons"], "", floor_sentence(candidate), ""]
        for title, rows in metric_tables(candidate):
            lines += [f"### {title}", "", *_table(["", "value", "±", "95 % interval"], rows)]
        if candidate["tokens"]:
            names = ["reference's top p", "share", "mean KLD", "median KLD", "same top"]
            lines += ["### By the reference's confidence", "", *_table(names, confidence_rows(candidate))]
            names = ["position", "tokens", "mean KLD", "±", "same top"]
            lines += ["### By depth in context", "", *_table(names, depth_rows(candidate))]
        if candidate.get("worst"):
            rows = [
                [
                    significant(w["kld"]),
                    f"`{w['before'][-40:]!r}`",
                    f"`{w['token']!r}`",
                    _top(w["top_reference"][:2]),
                    _top(w["top_other"][:2]),
                ]
                for w in candidate["worst"][:10]
            ]
            lines += ["### Worst tokens", "", *_table(["KLD", "after", "token", "base", "Q"], rows)]
    if data["pairs"]:
        lines += ["## Between candidates", "", *(f"- {pair_sentence(pair)}" for pair in data["pairs"]), ""]
    return "\n".join(lines)
