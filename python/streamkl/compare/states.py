# SPDX-License-Identifier: Apache-2.0
"""One run of a model over the windows: the reference's states, kept in a file, and a candidate's numbers."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, Optional

import numpy as np
import torch
from torch import Tensor

from .. import hf
from .._checks import bad
from . import attention
from .report import Tokens
from .rows import Side, not_finite, on_cpu, token_rows, top_tokens, vocabulary
from .store import Store
from .windows import Windows

TOP = 5  # expected tokens that are shown beside a worst one
Tick = Callable[[int], Any]


class Reference:
    """What is left of the reference once it ran: windows, hidden states, head, and queries and keys of some windows."""

    def __init__(self, store: Store) -> None:
        self.store, self.about = store, store.about
        if not self.about.get("complete"):
            raise bad("states", str(store.path), "it is not complete: the run that wrote it was cut; run it again")
        text = self.about["text"]
        self.windows = Windows(store["ids"], self.about["first"], text)
        head = self.about["head"]
        bias = store["head.bias"] if "head.bias" in store else None
        self.head = hf.Head(store["head.weight"], bias, head["scale"], head["softcap"], head["columns"])

    @property
    def batch(self) -> int:
        return self.about["batch"]

    def hidden(self, i: int) -> Tensor:
        return self.store[f"hidden.{i}"]

    def labels(self, i: int) -> Tensor:
        return self.windows.ids[i * self.batch : (i + 1) * self.batch, self.windows.first + 1 :].flatten()

    def layers(self, window: int) -> Optional[List[attention.Layer]]:
        facts = self.about["attention"].get(str(window))
        if facts is None:
            return None

        def part(layer: int, name: str) -> Tensor:
            return self.store[f"{name}.{window}.{layer}"]

        def layer(i: int, scale: float, softcap: Optional[float]) -> attention.Layer:
            sink = part(i, "sink") if f"sink.{window}.{i}" in self.store else None
            return attention.Layer(part(i, "q"), part(i, "k"), scale, softcap, part(i, "begin"), part(i, "end"), sink)

        return [layer(i, *fact) for i, fact in enumerate(facts)]


def batches(windows: Windows, batch: int) -> int:
    return -(-len(windows.ids) // batch)


@torch.no_grad()
def forward(model: Any, windows: Windows, batch: int, i: int) -> Tensor:
    """The hidden states of the positions that count, [windows of the batch x positions, D]."""
    ids = windows.ids[i * batch : (i + 1) * batch].to(next(model.parameters()).device)
    return hf.hidden_states(model, {"input_ids": ids})[:, windows.first : -1].flatten(0, 1).cpu()


class _Seen:
    """Runs a batch with the model's attention watched, as long as there are windows whose attention is wanted."""

    def __init__(self, model: Any, windows: Windows, batch: int, wanted: int) -> None:
        self.model, self.windows, self.batch, self.wanted = model, windows, batch, wanted
        self.trouble = ""

    def run(self, i: int) -> tuple:
        """Hidden states, and (window, layers) of those that are wanted."""
        mine = range(i * self.batch, min((i + 1) * self.batch, self.wanted))
        if not len(mine) or self.trouble:
            return forward(self.model, self.windows, self.batch, i), iter(())
        with torch.no_grad(), hf.capture(self.model) as seen:
            hidden = forward(self.model, self.windows, self.batch, i)
        try:
            layers = list(seen)
            found = [(w, attention.window_of(layers, w - i * self.batch)) for w in mine]
        except (ValueError, RuntimeError) as error:  # biases, no attention at all: the rest of the report is as good
            self.trouble = str(error).replace("streamkl: ", "")
            return hidden, iter(())
        return hidden, iter(found)


def run_reference(
    store: Store, model: Any, windows: Windows, about: Dict[str, Any], batch: int, attend: int, tick: Tick
) -> None:
    """Fills the file; what is in it already is not computed again."""
    head = hf.head(model)
    if "ids" not in store:
        store.add("ids", windows.ids)
    if "head.weight" not in store:
        store.add("head.weight", head.weight)
    if head.bias is not None and "head.bias" not in store:
        store.add("head.bias", head.bias)
    plain = {"scale": head.scale, "softcap": head.softcap, "columns": head.columns}
    store.note(**about, head=plain, batch=batch, first=windows.first, attention=store.about.get("attention", {}))
    seen = _Seen(model, windows, batch, attend)
    for i in range(batches(windows, batch)):
        if f"hidden.{i}" not in store:
            hidden, found = seen.run(i)
            for window, layers in found:
                _keep(store, window, layers)
            store.add(f"hidden.{i}", hidden)
        tick(min(batch, len(windows.ids) - i * batch))
    store.note(complete=True, attention_missing=seen.trouble)


def _keep(store: Store, window: int, layers: List[attention.Layer]) -> None:
    for i, layer in enumerate(layers):
        for name in ("q", "k", "begin", "end", "sink"):
            if f"{name}.{window}.{i}" not in store and getattr(layer, name) is not None:
                store.add(f"{name}.{window}.{i}", getattr(layer, name))
    facts = {**store.about["attention"], str(window): [[layer.scale, layer.softcap] for layer in layers]}
    store.note(attention=facts)


def run_other(store: Store, model: Any, reference: Reference, worst: int, tick: Tick) -> None:
    """Numbers a token of one candidate, its worst tokens, and its attention."""
    head = hf.head(model)
    check_vocabulary(
        reference.about["reference"]["name"], vocabulary(reference.head), store.about["name"], vocabulary(head)
    )
    head = on_cpu(head)
    windows, batch = reference.windows, reference.batch
    seen = _Seen(model, windows, batch, len(reference.about["attention"]))
    for i in range(batches(windows, batch)):
        if f"rows.{i}" not in store:
            hidden, found = seen.run(i)
            for window, layers in found:
                _compare_attention(store, window, reference.layers(window), layers)
            _add_rows(
                store, i, Side(reference.hidden(i), reference.head), Side(hidden, head), reference.labels(i), worst
            )
        tick(min(batch, len(windows.ids) - i * batch))
    if seen.trouble:
        store.note(attention_missing=seen.trouble)


def _compare_attention(store: Store, window: int, reference: Optional[list], other: list) -> None:
    if reference is None or store.about.get("attention_missing"):
        return
    trouble = attention.why_not(reference, other)
    if trouble:
        store.note(attention_missing=trouble)
    else:
        store.note(
            attention={**store.about.get("attention", {}), str(window): attention.window_drift(reference, other)}
        )


def _add_rows(store: Store, i: int, reference: Side, other: Side, labels: Tensor, worst: int) -> None:
    rows = token_rows(reference, other, labels)
    kl = np.where(not_finite(rows)["either"], -np.inf, rows["kl"])
    at = torch.from_numpy(np.argsort(-kl, kind="stable")[:worst].copy())
    at = at[torch.from_numpy(kl)[at] > -np.inf]
    tops = [top_tokens(Side(side.hidden[at], side.head), TOP) for side in (reference, other)]
    table = torch.cat([at[:, None].float()] + [t.float() for top in tops for t in top], 1)
    store.add(f"worst.{i}", table)
    store.note(rows=list(rows))
    store.add(f"rows.{i}", torch.stack([torch.from_numpy(rows[name]).float() for name in rows]))  # ids are below 2^24


def check_vocabulary(reference: str, size: int, other: str, own: int) -> None:
    if size != own:
        rule = (
            f"its vocabulary has {own:,} tokens and that of {reference} {size:,}; only models of one vocabulary compare"
        )
        raise bad("model", other, rule)


def tokens_of(store: Store, reference: Reference) -> Tokens:
    """All rows of a candidate, in the order of the text."""
    names = store.about["rows"]
    parts = [store[f"rows.{i}"].numpy() for i in range(batches(reference.windows, reference.batch))]
    table = np.concatenate(parts, 1)
    whole = ("top1_ref", "top1_other", "rank_ref", "rank_other", "label")
    rows = {name: (column.astype(np.int32) if name in whole else column) for name, column in zip(names, table)}
    windows, scored = len(reference.windows.ids), reference.windows.scored
    sequence = np.repeat(np.arange(windows), scored)
    position = np.tile(np.arange(scored) + reference.windows.first + 1, windows)
    return Tokens(rows, sequence, position)


def worst_of(store: Store, reference: Reference, tokens: Tokens, worst: int) -> Iterator[Dict[str, Any]]:
    """The worst tokens of all batches: their place, ids and the tops of both sides."""
    size = reference.batch * reference.windows.scored
    found = []
    for i in range(batches(reference.windows, reference.batch)):
        for entry in store[f"worst.{i}"].tolist():
            found.append((tokens.rows["kl"][i * size + int(entry[0])], i * size + int(entry[0]), entry[1:]))
    for kl, row, tops in sorted(found, key=lambda x: -x[0])[:worst]:
        k = len(tops) // 4
        pick = [list(zip(map(int, tops[s : s + k]), np.exp(tops[s + k : s + 2 * k]).tolist())) for s in (0, 2 * k)]
        yield {"row": row, "kld": float(kl), "top_reference": pick[0], "top_other": pick[1]}
