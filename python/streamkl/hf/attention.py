# SPDX-License-Identifier: Apache-2.0
"""The divergence between the attentions of two models, from what was captured of each."""

from __future__ import annotations

import operator
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from .. import functional
from .._checks import bad
from .capture import Layer

Pairs = Union[str, Mapping[int, int], Sequence[Tuple[int, int]]]
_Side = Tuple[Tensor, Tensor, Optional[Tensor]]  # q, k and the sinks of the heads that are compared
# Options of streamkl.attention_kl that the layers decide, or that would change what is returned.
_OF_THE_LAYERS = (
    *(
        "scale_s",
        "scale_t",
        "softcap_s",
        "softcap_t",
        "begin",
        "end",
        "causal",
        "window",
        "columns",
        "sink_s",
        "sink_t",
    ),
    *("cu_seqlens_q", "cu_seqlens_k", "lse_t", "head_map", "mix_t", "support", "support_block"),
)
_OF_THE_RESULT = ("return_lse", "reduction", "details")


def attention_kl(
    captured_s: Sequence[Layer],
    captured_t: Sequence[Layer],
    *,
    layers: Pairs = "uniform",
    heads: Pairs = "same",
    weight: Optional[Tensor] = None,
    **options: Any,
) -> Tensor:
    """The mean over pairs of layers of the mean over heads and real (not padded) queries.

    captured_s, captured_t: the student's and the teacher's capture, of the same tokens. The teacher gets no gradient.
    layers: "uniform": each layer of the student with one of the teacher's, spread evenly, the last with the last; or
        {student's layer: teacher's layer}, or pairs of them.
    heads: "same": head h with head h, which needs the same number; "grouped": the side with fewer heads repeats each of
        them, so that head h meets its group of the other's, whose number must be a multiple; or {student's head:
        teacher's head}, or pairs of them.
    weight: over the queries, [B, N], beside padding, which always has weight 0: a mask of the answers, say.
    options: divergence, beta and the others of streamkl.attention_kl. Scales, caps, masks and sinks are the layers'.
        sink="conditional" compares the keys alone, which layers need of which one side alone has sinks.
    """
    for name in options:
        if name in _OF_THE_LAYERS:
            raise bad(name, options[name], "it is what the layers say", TypeError)
        if name in _OF_THE_RESULT:
            raise bad(name, options[name], "the result is a mean over layers", TypeError)
    sides = list(captured_s), list(captured_t)
    total = 0.0
    pairs = layer_pairs(layers, len(sides[0]), len(sides[1]))
    for i, j in pairs:
        total = total + _layer_kl(sides[0][i], sides[1][j], heads, weight, options)
    return total / len(pairs)


def layer_pairs(layers: Pairs, n_s: int, n_t: int) -> List[Tuple[int, int]]:
    if layers == "uniform":
        # Layer i of the student ends at the share (i + 1) / n_s of its depth, and meets the teacher's layer that ends
        # nearest to it (halves go up); with more layers than the teacher, the one that it lies in.
        depths = [(i + 1) * n_t for i in range(n_s)]
        ends = [(2 * d + n_s) // (2 * n_s) if n_t > n_s else -(-d // n_s) for d in depths]
        return [(i, end - 1) for i, end in enumerate(ends)]
    return _pairs("layers", layers, "'uniform'", n_s, n_t)


def _pairs(name: str, given: Pairs, words: str, n_s: int, n_t: int) -> List[Tuple[int, int]]:
    """(student's, teacher's) indices, each in its range; negative ones count from the end."""
    rule = f"it must be {words}, or pairs of the student's and the teacher's indices, such as {{0: 0, 1: 3}}"
    if isinstance(given, str):
        raise bad(name, given, rule)
    try:
        found: Iterable[Tuple[int, int]] = given.items() if isinstance(given, Mapping) else given
        pairs = [(operator.index(i), operator.index(j)) for i, j in found]
    except (TypeError, ValueError):
        raise bad(name, given, rule, TypeError) from None
    if not pairs:
        raise bad(name, given, "there is nothing to compare")
    for i, j in pairs:
        if not (-n_s <= i < n_s and -n_t <= j < n_t):
            raise bad(name, {i: j}, f"the student has {n_s} {name}, the teacher {n_t}")
    return [(i % n_s, j % n_t) for i, j in pairs]


def _layer_kl(s: Layer, t: Layer, heads: Pairs, weight: Optional[Tensor], options: Dict[str, Any]) -> Tensor:
    _refuse_other_keys(s, t)
    (q_s, k_s, sink_s), (q_t, k_t, sink_t) = _matched(s, t, heads)
    if sink_s is None and sink_t is None:  # "conditional" is for layers that have some
        options = {name: value for name, value in options.items() if name != "sink"}
    real = s.real if weight is None else s.real * _over_queries(weight)
    own = torch.arange(s.q.shape[2], device=s.q.device) + s.k.shape[2] - s.q.shape[2]
    return functional.attention_kl(
        q_s,
        k_s,
        q_t.detach().to(q_s.device),
        k_t.detach().to(q_s.device),
        weight=real,
        begin=s.begin,
        end=s.end,
        causal=bool((s.end <= own + 1).all()),  # says nothing new, and lets whole blocks be left out
        scale_s=s.scale,
        scale_t=t.scale,
        softcap_s=s.softcap,
        softcap_t=t.softcap,
        sink_s=sink_s,
        sink_t=None if sink_t is None else sink_t.detach().to(q_s.device),
        **options,
    )


def _over_queries(weight: Tensor) -> Tensor:
    if not isinstance(weight, Tensor):
        raise bad("weight", type(weight).__name__, "it must be a torch.Tensor", TypeError)
    return weight[:, None] if weight.dim() == 2 else weight


def _refuse_other_keys(s: Layer, t: Layer) -> None:
    """Two distributions over different keys have no divergence, or an infinite one. Padded queries may differ."""
    shapes = [(*layer.q.shape[:3:2], layer.k.shape[2]) for layer in (s, t)]
    if shapes[0] != shapes[1]:
        rule = "(batch, queries, keys) must be those of the student's layer"
        raise bad(f"teacher's layer {t.name}", shapes[1], f"{rule} {s.name}, {shapes[0]}")
    begin, end, real = (x.to(s.q.device) for x in (t.begin, t.end, t.real))
    if not (((begin == s.begin) & (end == s.end) & real) | ~(s.real | real)).all():
        windows = f"windows {s.window} and {t.window}"
        rule = f"its queries see other keys than those of the teacher's layer {t.name} ({windows}): pair other layers"
        raise bad("layers", s.name, rule)


def _matched(s: Layer, t: Layer, heads: Pairs) -> Tuple[_Side, _Side]:
    h_s, h_t = s.q.shape[1], t.q.shape[1]
    if heads == "same" or heads == "grouped":
        if heads == "same" and h_s != h_t:
            rule = f"the student has {h_s} and the teacher {h_t}: heads='grouped', or a mapping such as {{0: 0, 1: 3}}"
            raise bad("heads", "same", rule)
        h = max(h_s, h_t)
        if h % h_s or h % h_t:
            rule = f"{h_s} and {h_t} do not divide each other: give a mapping such as {{0: 0, 1: 3}}"
            raise bad("heads", "grouped", rule)
        # Repeated queries meet the same key heads as before, since these are grouped over all heads of a side.
        return _repeated(s, h), _repeated(t, h)
    pairs = _pairs("heads", heads, "'same', 'grouped'", h_s, h_t)
    return _chosen(s, [i for i, _ in pairs]), _chosen(t, [j for _, j in pairs])


def _repeated(layer: Layer, heads: int) -> _Side:
    times = heads // layer.q.shape[1]
    if times == 1:
        return layer.q, layer.k, layer.sink
    sink = None if layer.sink is None else layer.sink.repeat_interleave(times)
    return layer.q.repeat_interleave(times, 1), layer.k, sink


def _chosen(layer: Layer, heads: List[int]) -> _Side:
    group = layer.q.shape[1] // layer.k.shape[1]
    sink = None if layer.sink is None else layer.sink[heads]
    return layer.q[:, heads], layer.k[:, [h // group for h in heads]], sink
