# SPDX-License-Identifier: Apache-2.0
"""How far attention moved: each head, the heads of a layer together, and the mass on the first token."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, NamedTuple, Optional

import torch
from torch import Tensor

from ..functional import attention_kl

BLOCK = 1 << 19  # entries of the maps of a block of queries, all heads of a side: some 10 MiB in double
WORST = 10
Data = Dict[str, Any]


class Layer(NamedTuple):
    """Of one window: logits are softcap(scale q k'), and query i sees keys begin[i] to end[i] - 1, and the sink."""

    q: Tensor  # [1, H, N, D]
    k: Tensor  # [1, Hkv, M, D]
    scale: float
    softcap: Optional[float]
    begin: Tensor  # [1, 1, N]
    end: Tensor
    sink: Optional[Tensor] = None  # [H]


def window_of(captured: Iterable[Any], window: int) -> List[Layer]:
    """The layers that streamkl.hf.capture saw, one window of the batch."""

    def cut(t: Tensor) -> Tensor:
        return t[window : window + 1] if t.shape[0] > 1 else t

    def layer(c: Any) -> Layer:
        q, k, begin, end = (cut(t).detach().cpu() for t in (c.q, c.k, c.begin, c.end))
        return Layer(q, k, c.scale, c.softcap, begin, end, None if c.sink is None else c.sink.detach().cpu())

    return [layer(c) for c in captured]


def _maps(layer: Layer, rows: slice) -> Tensor:
    """The heads' mean attention of some queries, [queries, keys], in double: a mean of many small numbers. Sinks are
    one more column."""
    q, k = layer.q[0, :, rows].float(), layer.k[0].float()
    k = k.repeat_interleave(q.shape[0] // k.shape[0], 0)
    z = layer.scale * (q @ k.transpose(-1, -2))
    if layer.softcap:
        z = layer.softcap * torch.tanh(z / layer.softcap)
    keys = torch.arange(k.shape[1])
    seen = (keys >= layer.begin[0, 0, rows, None]) & (keys < layer.end[0, 0, rows, None])
    z = z.masked_fill_(~seen, float("-inf"))
    if layer.sink is not None:
        z = torch.cat([z, layer.sink.float()[:, None, None].expand(*z.shape[:2], 1)], -1)
    return z.softmax(-1, dtype=torch.float64).mean(0)


def _mean_kl(reference: Layer, other: Layer) -> Tensor:
    """KL(reference || other) of the heads' mean attention, [queries]."""
    n, m = reference.q.shape[2], reference.k.shape[2]
    step = max(1, BLOCK // (reference.q.shape[1] * m))
    found = []
    for i in range(0, n, step):
        rows = slice(i, min(i + step, n))
        p, q = _maps(reference, rows), _maps(other, rows)
        found.append(torch.where(p > 0, p * (p.log() - q.clamp_min(1e-300).log()), 0.0).sum(-1))
    return torch.cat(found)


def _sink(layer: Layer, lse: Tensor) -> Tensor:
    """The mass on the first key of the window, [heads], mean over queries that see it and others too."""
    k = layer.k[0, :, :1].float().repeat_interleave(layer.q.shape[1] // layer.k.shape[1], 0)
    z = layer.scale * (layer.q[0].float() * k).sum(-1)
    if layer.softcap:
        z = layer.softcap * torch.tanh(z / layer.softcap)
    mass = (z - lse).exp()
    mass = torch.where(layer.begin[0] <= 0, mass, 0.0)  # a sliding layer's later queries do not see it
    return mass[:, 1:].mean(-1) if mass.shape[-1] > 1 else mass.mean(-1)


@torch.no_grad()
def window_drift(reference: List[Layer], other: List[Layer]) -> Data:
    """Numbers of one window: a list a layer of kl (a head), head_mean_kl, sink_reference and sink_other (a head)."""
    found: Data = {"kl": [], "head_mean_kl": [], "sink_reference": [], "sink_other": []}
    for r, o in zip(reference, other):
        kl, lse_o, lse_r = attention_kl(
            o.q, o.k, r.q, r.k, begin=r.begin, end=r.end, scale_s=o.scale, scale_t=r.scale, softcap_s=o.softcap,
            softcap_t=r.softcap, sink_s=o.sink, sink_t=r.sink, reduction="none", return_lse=True,
        )  # fmt: skip
        found["kl"].append(kl[0].double().mean(-1).tolist())
        found["head_mean_kl"].append(_mean_kl(r, o).mean().item())
        found["sink_reference"].append(_sink(r, lse_r[0]).double().mean().item())
        found["sink_other"].append(_sink(o, lse_o[0]).double().mean().item())
    return found


def why_not(reference: List[Layer], other: List[Layer]) -> Optional[str]:
    """Why the attentions of two models cannot be compared, if so."""
    if len(reference) != len(other):
        return f"The models have {len(reference)} and {len(other)} layers: there is no layer by layer."
    for i, (r, o) in enumerate(zip(reference, other)):
        if r.q.shape[1] != o.q.shape[1]:
            return f"Layer {i} has {r.q.shape[1]} heads in the reference and {o.q.shape[1]} in the other."
        if not (torch.equal(r.begin.expand(1, 1, -1), o.begin) and torch.equal(r.end.expand(1, 1, -1), o.end)):
            return f"Layer {i} sees other keys in the two models: their windows differ."
        if (r.sink is None) != (o.sink is None):
            return f"Layer {i} has attention sinks in one of the two models alone."
    return None


def _mean(windows: List[Any]) -> Any:
    """Of equally nested lists."""
    if isinstance(windows[0], list):
        return [_mean([w[i] for w in windows]) for i in range(len(windows[0]))]
    return sum(windows) / len(windows)


def summary(windows: List[Data]) -> Data:
    """The report's part of attention, mean over windows. Numbers that are not finite are left out as None."""
    found = {name: _mean([w[name] for w in windows]) for name in windows[0]}
    kl = found["kl"]
    flat = [(v, layer, head) for layer, row in enumerate(kl) for head, v in enumerate(row)]
    if any(v != v or abs(v) == float("inf") for v, _, _ in flat):
        return {"missing": "A head's attention is not finite."}
    worst = sorted(flat, key=lambda x: -x[0])[:WORST]
    return {
        "layers": len(kl),
        "windows": len(windows),
        "mean": sum(v for v, _, _ in flat) / len(flat),
        "head_mean": sum(found["head_mean_kl"]) / len(kl),
        **found,
        "worst": [{"layer": layer, "head": head, "kl": v} for v, layer, head in worst],
    }
