# SPDX-License-Identifier: Apache-2.0
"""The report as one page that needs nothing else: no network, no font, no script but its own."""

from __future__ import annotations

import pathlib
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence

from . import charts, maps
from .numbers import percent, signed_percent, significant
from .plain import facts, floor_sentence, metric_tables
from .svg import escape
from .verdict import WORDS, order, overall, pair_sentence

Data = Dict[str, Any]
HERE = pathlib.Path(__file__).parent
COLOURS = 6
WIDE, NARROW = 520, 330

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def page(data: Data) -> str:
    """data: of Report.data, or read from its JSON."""
    candidates = [dict(c, colour=i % COLOURS) for i, c in enumerate(data["candidates"])]
    data = dict(data, candidates=candidates)
    head, why = overall(data)
    parts = [_top(data, head, why)]
    parts.append("<main>")
    if len(candidates) > 1:
        parts += [_overview(data), _pairs(data)]
    parts.append(_panels(data))
    parts.append(_measured(data))
    parts.append("</main>")
    parts.append(f"<footer>Made by streamkl {escape(data['streamkl'])}, report version {data['version']}. ")
    parts.append("The page asks no network for anything.</footer>")
    return _document(head, "".join(parts))


def _document(title: str, body: str) -> str:
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><link rel="icon" href="data:,">'
        f"<style>{style}</style></head><body>{body}"
        f'<div id="tip" role="status" hidden></div><script>{script}</script></body></html>\n'
    )


def _both(draw: Callable[[int], Optional[str]], wide: int = WIDE, narrow: int = NARROW) -> str:
    """Drawn twice, so that letters are as large on a small screen as on a large one."""
    large = draw(wide)
    if large is None:
        return ""
    return f'<div class="only-wide">{large}</div><div class="only-narrow">{draw(narrow)}</div>'


def _card(title: str, hint: str, inside: str, kind: str = "") -> str:
    return f'<section class="card {kind}"><h3>{escape(title)}</h3><p class="hint">{escape(hint)}</p>{inside}</section>'


def _pill(word: str, text: str) -> str:
    return f'<span class="pill {escape(word)}">{escape(text)}</span>'


def _top(data: Data, head: str, why: str) -> str:
    text, reference = data["text"], data["reference"]
    strip = [
        ("Reference", f"{reference['name']} · {reference['dtype']}"),
        ("Text", text["name"]),
        ("Scored", f"{text['scored']:,} tokens in {text['windows']:,} windows of {text['window']:,}"),
    ]
    if len(data["candidates"]) == 1:
        strip.insert(1, ("Candidate", f"{data['candidates'][0]['name']} · {data['candidates'][0]['dtype']}"))
    items = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in strip)
    return (
        '<header class="top"><div class="eyebrow"><span><b>streamkl</b> drift report</span>'
        '<button id="theme" type="button" hidden>Dark</button></div>'
        f'<h1>{escape(head)}</h1><p class="lead">{escape(why)}</p><dl class="strip">{items}</dl></header>'
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are markup already."""
    top = "".join(f"<th scope=col>{cell}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _overview(data: Data) -> str:
    ranked = [data["candidates"][i] for i in order(data["candidates"])]
    rows = []
    for c in ranked:
        m = c["metrics"]
        ppl = signed_percent(m["mean_ppl_ratio"]["value"] - 1) if "mean_ppl_ratio" in m else "–"
        cells = [significant(m["mean_kld"]["value"]), percent(m["same_top_p"]["value"]), ppl] if m else ["–"] * 3
        cells.append(percent(m["flips"]["value"]) if "flips" in m else "–")
        word = c["verdict"]["grade"]
        name = f'<span class="swatch c{c["colour"]}"></span><span class="own">{escape(c["name"])}</span>'
        pill = f'<span class="grade">{_pill(word, WORDS[word])}</span>'
        rows.append([f'<td class="name"><div>{name}{pill}</div></td>', *(f"<td>{cell}</td>" for cell in cells)])
    table = _table(["", "mean KLD", "same top", "perplexity", "flips"], rows)
    plot = _both(lambda w: charts.overview(dict(data, candidates=ranked), w), 1080)
    return (
        '<h2>Which one is closest?</h2><p class="hint">Mean divergence from the reference with its 95 % interval. '
        "Left is better; the grey bar is as far as rounding alone moves the reference itself.</p>"
        f'<section class="card">{plot}<div class="overview-table">{table}</div></section>'
    )


def _pairs(data: Data) -> str:
    items = []
    for pair in data["pairs"]:
        gap = pair["difference"]
        between = ""
        if gap["low"] is not None:
            low, high = significant(gap["low"]), significant(gap["high"])
            between = f"difference {significant(gap['value'])}, 95 % interval {low} to {high}"
        word = pair["verdict"]
        items.append(
            f"<li>{_pill(word.split()[0], word)}<span>{escape(pair_sentence(pair))}</span>"
            f'<span class="dim">{escape(between)}</span></li>'
        )
    hint = "Token by token, so that what makes a text hard cancels. “Better” and “worse” are the first one's."
    return (
        f'<div class="grid">{_card("Two at a time", hint, f"<ul class=pairs>{chr(10).join(items)}</ul>", "full")}</div>'
    )


def _panels(data: Data) -> str:
    candidates = data["candidates"]
    if len(candidates) == 1:
        return f'<div class="c{candidates[0]["colour"]}">{_panel(candidates[0])}</div>'
    ranked = order(candidates)
    tabs, panels = [], []
    for i in ranked:
        c = candidates[i]
        chosen = "true" if i == ranked[0] else "false"
        tabs.append(
            f'<button type="button" role="tab" id="tab{i}" aria-controls="panel{i}" aria-selected="{chosen}">'
            f"{escape(c['name'])}</button>"
        )
        panels.append(
            f'<section class="panel c{c["colour"]}" role="tabpanel" id="panel{i}" aria-labelledby="tab{i}">'
            f'<p class="said"><b>{escape(c["verdict"]["headline"])}</b> {escape(c["verdict"]["reasons"])}</p>'
            f"{_panel(c)}</section>"
        )
    row = f'<div class="tabs" role="tablist" aria-label="Candidates" hidden>{"".join(tabs)}</div>'
    return f"<h2>One at a time</h2>{row}{''.join(panels)}"


def _panel(c: Data) -> str:
    bad = c["not_finite"]
    parts: List[str] = []
    if bad["rows"]:
        parts.append(
            f'<p class="alarm" role="alert">{bad["rows"]:,} tokens are not finite: {bad["reference"]:,} in the '
            f"reference, {bad['other']:,} in the candidate. They are left out of every number below.</p>"
        )
    if not c["tokens"]:
        return "".join(parts)
    parts.append(_tiles(c))
    cards = [
        _card("How far tokens moved", floor_sentence(c), _both(lambda w: charts.distribution(c, w))),
        _card(
            "Where the reference is sure, and where not",
            "Mean KLD; the light line is the median. A drift where the reference is sure changes what is written.",
            _both(lambda w: charts.confidence(c, w)),
        ),
        _card(
            "Deeper in the context",
            "Mean KLD with two standard errors. A rise to the right: errors gather as the context grows.",
            _both(lambda w: charts.depth(c, w)),
        ),
    ]
    if "probability_map" in c:
        hint = (
            "Where both put the text's own token. On the diagonal nothing changed; below it the candidate is less sure."
        )
        cards.append(_card("What the text's token was worth", hint, _both(lambda w: charts.probabilities(c, w))))
    cards.append(_attention(c))
    cards.append(_worst(c))
    cards.append(_numbers(c))
    return "".join(parts) + f'<div class="grid">{"".join(cards)}</div>'


def _tiles(c: Data) -> str:
    m = c["metrics"]

    def tile(what: str, value: str, unit: str, key: str, show: Callable[[float], str]) -> str:
        low, high = m[key]["low"], m[key]["high"]
        between = f"{show(low)} to {show(high)}" if low is not None else "one window: no interval"
        return (
            f'<div class="tile"><div class="what">{escape(what)}</div>'
            f'<div class="value">{escape(value)} <small>{unit}</small></div>'
            f'<div class="range">{escape(between)}</div></div>'
        )

    made = [tile("Mean KLD", significant(m["mean_kld"]["value"]), "nats", "mean_kld", significant)]
    made.append(tile("Same top token", percent(m["same_top_p"]["value"]), "", "same_top_p", percent))
    if "mean_ppl_ratio" in m:
        change = signed_percent(m["mean_ppl_ratio"]["value"] - 1)
        made.append(tile("Perplexity", change, "", "mean_ppl_ratio", lambda v: signed_percent(v - 1)))
        made.append(tile("RMS change of p", percent(m["rms_delta_p"]["value"]), "", "rms_delta_p", percent))
        made.append(tile("Flips", percent(m["flips"]["value"]), "", "flips", percent))
    else:
        made.append(tile("Mean JSD", significant(m["mean_jsd"]["value"]), "nats", "mean_jsd", significant))
        made.append(tile("Mean TV", percent(m["mean_tv"]["value"]), "", "mean_tv", percent))
    return f'<div class="tiles">{"".join(made)}</div>'


def _attention(c: Data) -> str:
    a = c.get("attention")
    if not a:
        return ""
    if not a.get("layers"):
        return _card("Attention", a["missing"], "", "full")
    rows = "".join(
        f"<li><span>layer {h['layer']}, head {h['head']}</span><span>{significant(h['kl'])}</span></li>"
        for h in a["worst"]
    )
    keys = '<span class="key reference">reference</span><span class="key">candidate</span>'
    side = (
        "<div><h3>All heads of a layer together</h3><p class=hint>KL of the heads' mean attention, nats a query.</p>"
        f"{_both(lambda w: maps.head_mean(a, w), 440)}</div>"
        f"<div><h3>Resting on the first token</h3><p class=hint>{keys}</p>"
        f"{_both(lambda w: maps.sink_mass(a, w), 440)}</div>"
    )
    furthest = f"<div><h3>Furthest heads</h3><ol class=heads>{rows}</ol></div>"
    hint = (
        f"KL of each head's attention: {significant(a['mean'])} nats a query on average, over "
        f"{a['windows']} window{'s' * (a['windows'] > 1)}. Logarithmic colours."
    )
    plot = f"<div>{_both(lambda w: maps.heads(a, w), 560)}</div>"
    left, right = (plot + furthest, side) if a["layers"] <= 10 else (plot, side + furthest)  # columns of like height
    inside = f'<div class="attention"><div class="side">{left}</div><div class="side">{right}</div></div>'
    return _card("Where attention moved", hint, inside, "full")


def visible(token: str) -> str:
    """A token with its blanks and breaks seen."""
    return token.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "·") or "∅"


def _top_list(entries: Sequence[Data], token: str, side: str, kind: str) -> str:
    rows = "".join(
        f'<div class="row{" right" if e["text"] == token else ""}" style="--p:{100 * e["p"]:.1f}%">'
        f"<code>{escape(visible(e['text']))}</code><span>{percent(e['p'], 1)}</span></div>"
        for e in entries
    )
    return f'<div class="top {kind}"><div class="side-name">{side}</div>{rows}</div>'


def _worst(c: Data) -> str:
    if not c.get("worst"):
        return ""

    def item(w: Data) -> str:
        return (
            f'<div class="worst"><div class="where"><div class="facts"><b>{significant(w["kld"])}</b> nats · '
            f"window {w['sequence']}, position {w['position']:,}</div>"
            f'<div class="context">…{escape(w["before"])}<mark>{escape(visible(w["token"]))}</mark></div></div>'
            f"{_top_list(w['top_reference'], w['token'], 'reference', '')}"
            f"{_top_list(w['top_other'], w['token'], 'candidate', 'own')}</div>"
        )

    first, rest = c["worst"][:5], c["worst"][5:]
    inside = "".join(map(item, first))
    if rest:
        inside += f"<details><summary>{len(rest)} more</summary><div>{''.join(map(item, rest))}</div></details>"
    hint = "The text before, the token that followed (marked), and what each model expected there."
    return _card("Tokens that moved most", hint, inside, "full")


def _numbers(c: Data) -> str:
    parts = []
    for i, (title, rows) in enumerate(metric_tables(c)):
        cells = [
            [f'<td>{escape(name)}</td><td>{value}</td><td class="dim">{error}</td><td class="dim">{between}</td>']
            for name, value, error, between in rows
        ]
        table = _table(["", "value", "±", "95 % interval"], cells)
        parts.append(
            f"<details{' open' if i == 1 else ''}><summary>{escape(title)}</summary><div>{table}</div></details>"
        )
    hint = "The first three are llama.cpp's. ± takes tokens as independent; the interval draws whole windows."
    return _card("Every number", hint, "".join(parts), "full")


def _measured(data: Data) -> str:
    rows = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts(data))
    return f'<h2>How it was measured</h2><section class="card"><dl class="measured">{rows}</dl></section>'
