# SPDX-License-Identifier: Apache-2.0
"""The two losses for NumPy arrays: value, value and gradients, and partial rows. No torch.

Arrays are float32, float16 or bfloat16 (ml_dtypes), each its own, or what NumPy makes one of: lists, the array protocol,
buffers, DLPack. Results are float32. Options are those of the calls for torch, and mean the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from . import _array_lists, _array_teachers, _c, _call
from ._array_lists import Lists
from ._arrays import Array, Call, row_arrays, row_views, view
from ._checks import bad
from ._details import make_details, refuse_without_labels, wanted_rows
from ._finished import PARTS, Finished, check_grads, check_saved, finished, rows_of_finish
from ._groups import refuse_beside
from ._options import (
    DIVERGENCE,
    IGNORE_INDEX,
    AttentionOptions,
    CrossEntropyOptions,
    IndexerOptions,
    LinearOptions,
    ListedOptions,
    Options,
    make_options,
    pooling,
    show_options,
)
from ._ranges import ranges_of_mask, starts_of_positions
from ._sinks import sinks_that_count
from ._topk import check_count, indexer_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

Loss = Union[float, Array]
LossAndLses = Tuple[Loss, Array, Array]
Gradients = Dict[str, Array]
Result = Union[Loss, LossAndLses, Tuple[Union[Loss, LossAndLses], Gradients]]

__all__ = [
    "attention_backward",
    "attention_kl",
    "attention_partial",
    "cu_seqlens_from_position_ids",
    "finish",
    "indexer_kl",
    "indexer_topk",
    "linear_backward",
    "linear_cross_entropy",
    "linear_kl",
    "linear_logsumexp",
    "linear_partial",
    "linear_topk_kl",
    "merge",
    "pooled_attention_kl",
    "ranges_from_mask",
    "topk_of",
]


def _attention(q_s, k_s, q_t, k_t, weight, begin, end, **more: Any) -> Call:
    operands = {"q_s": q_s, "k_s": k_s, "bias_s": None, "q_t": q_t, "k_t": k_t, "bias_t": None}
    return Call(_c.ATTENTION, operands, weight, begin, end, **more)


def _linear(x_s, w_s, x_t, w_t, bias_s, bias_t, weight, labels=None, mass_ids=None) -> Call:
    operands = {"x_s": x_s, "w_s": w_s, "bias_s": bias_s, "x_t": x_t, "w_t": w_t, "bias_t": bias_t}
    return Call(_c.LINEAR, operands, weight, labels=labels, mass_ids=mass_ids)


@show_options(_c.ATTENTION)
def attention_kl(
    q_s: Array,
    k_s: Array,
    q_t: Array,
    k_t: Array,
    *,
    weight: Optional[Array] = None,
    begin: Optional[Array] = None,
    end: Optional[Array] = None,
    cu_seqlens_q: Optional[Array] = None,
    cu_seqlens_k: Optional[Array] = None,
    lse_t: Optional[Array] = None,
    head_map: Optional[Array] = None,
    support: Optional[Array] = None,
    sink_s: Optional[Array] = None,
    sink_t: Optional[Array] = None,
    sink: str = "column",
    details: Sequence[str] = (),
    return_lse: bool = False,
    grads: Sequence[str] = (),
    **options: Unpack[AttentionOptions],
) -> Result:
    """streamkl.attention_kl for arrays: a float, or with reduction "none" an array [B, H, N], packed [total_q, H]. With
    details, the result is (loss, dict), or with grads ((loss, dict), gradients).

    grads: names of operands, such as ("q_s", "k_s"): the result is then (result, {"q_s": gradient, "k_s": gradient})
        with the gradients, float32, of the sum of the returned loss.
    """
    if details and return_lse:
        raise bad("return_lse", True, "with details, ask for 'lse_s' and 'lse_t' there")
    sinks = sinks_that_count(sink_s, sink_t, sink)
    more = dict(lse_t=lse_t, head_map=head_map, support=support, sinks=sinks)
    more.update(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    call = _attention(q_s, k_s, q_t, k_t, weight, begin, end, **more)
    return _divergence(call, _c.ATTENTION, options, return_lse, grads, details, sinks=sinks[0] is not None)


def pooled_attention_kl(
    q_s: Array,
    k_s: Array,
    q_t: Array,
    k_t: Array,
    *,
    block: int,
    pool: str = "max",
    weight: Optional[Array] = None,
    begin: Optional[Array] = None,
    end: Optional[Array] = None,
    grads: Sequence[str] = (),
    **options: Unpack[AttentionOptions],
) -> Result:
    """streamkl.pooled_attention_kl for arrays. grads: of "q_s" and "k_s"."""
    call = _attention(q_s, k_s, q_t, k_t, weight, begin, end)
    return _divergence(call, _c.ATTENTION, options, False, grads, fields=pooling(block, pool))


@show_options(_c.INDEXER, "scale_s")
def indexer_kl(
    q_i: Array,
    k_i: Array,
    w_i: Array,
    q_t: Array,
    k_t: Array,
    *,
    scale_i: float = 1.0,
    causal: bool = True,
    weight: Optional[Array] = None,
    begin: Optional[Array] = None,
    end: Optional[Array] = None,
    cu_seqlens_q: Optional[Array] = None,
    cu_seqlens_k: Optional[Array] = None,
    lse_t: Optional[Array] = None,
    support: Optional[Array] = None,
    sink_t: Optional[Array] = None,
    details: Sequence[str] = (),
    grads: Sequence[str] = (),
    **options: Unpack[IndexerOptions],
) -> Result:
    """streamkl.indexer_kl for arrays. grads: of "q_i", "k_i" and "w_i"."""
    given: Dict[str, Any] = {"q_i": q_i, "k_i": k_i, "w_i": w_i, "q_t": q_t, "k_t": k_t}
    packed = cu_seqlens_q is not None or cu_seqlens_k is not None
    operands = _indexer(given, packed)
    if packed:
        lse_t = None if lse_t is None else np.asarray(lse_t).T[None]
        support = None if support is None else np.asarray(support)[None]
    more = dict(
        lse_t=lse_t, support=support, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, sinks=(None, sink_t)
    )
    call = Call(_c.INDEXER, {**operands, "bias_t": None}, weight, begin, end, **more)
    numbers = {"scale_s": scale_i, "causal": causal, **options}
    result: Any = _divergence(call, _c.INDEXER, numbers, False, grads, details)
    found = result[1] if grads else {}
    for name, g in found.items():
        g = g.swapaxes(1, 2) if packed and name == "q_i" else g
        found[name] = np.ascontiguousarray(g).reshape(np.shape(given[name]))
    return _of_one_batch(result, bool(details), bool(grads)) if packed else result


def indexer_topk(
    q_i: Array,
    k_i: Array,
    w_i: Array,
    k: int,
    *,
    relu: bool = True,
    scale_i: float = 1.0,
    causal: bool = True,
    begin: Optional[Array] = None,
    end: Optional[Array] = None,
    window: Optional[Tuple[int, int]] = None,
    cu_seqlens_q: Optional[Array] = None,
    cu_seqlens_k: Optional[Array] = None,
) -> Array:
    """streamkl.indexer_topk for arrays: int32 [B, N, k], packed [total_q, k]."""
    count, options = check_count(k), indexer_options(relu, scale_i, causal, window)
    packed = cu_seqlens_q is not None or cu_seqlens_k is not None
    operands = {**_indexer({"q_i": q_i, "k_i": k_i, "w_i": w_i}, packed), "q_t": None, "k_t": None, "bias_t": None}
    more = dict(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, alone=True)
    call = Call(_c.INDEXER, operands, None, begin, end, **more)
    lists = np.empty((*call.rows, count), np.int32)
    _call.topk(call.views, call.work, options, 0, row_views({"topk_ids": lists}))
    return lists[0] if packed else lists


def _indexer(given: Mapping[str, Any], packed: bool) -> Dict[str, Any]:
    """An indexer's operands as C takes them: one head of keys, and packed sequences in a batch of one."""
    dims = {"q_i": 4, "k_i": 3, "w_i": 3, "q_t": 4, "k_t": 4}
    made = {name: np.asarray(x) for name, x in given.items()}
    for name, x in made.items():
        if x.ndim != dims[name] - packed:
            raise bad(f"{name}.shape", x.shape, f"it must have {dims[name] - packed} dimensions")
        if packed:
            made[name] = (x if name in ("k_i", "w_i") else x.swapaxes(0, 1))[None]
    made["k_i"] = made["k_i"][:, None]
    return made


def _of_one_batch(result: Any, details: bool, grads: bool) -> Any:
    """What rows say, without the batch."""
    value, found = result if grads else (result, None)
    loss, told = value if details else (value, {})
    rows = {name: x[0] if np.ndim(x) == 2 else x for name, x in {"loss": loss, **told}.items()}
    value = (rows.pop("loss"), {name: rows[name] for name in told}) if details else rows["loss"]
    return (value, found) if grads else value


@show_options(_c.LINEAR)
def linear_kl(
    x_s: Array,
    w_s: Array,
    x_t: Optional[Array] = None,
    w_t: Optional[Array] = None,
    *,
    teachers: Optional[Sequence[Tuple[Any, Array, Array]]] = None,
    weight: Optional[Array] = None,
    bias_s: Optional[Array] = None,
    bias_t: Optional[Array] = None,
    labels: Optional[Array] = None,
    details: Sequence[str] = (),
    mass_ids: Optional[Array] = None,
    return_lse: bool = False,
    grads: Sequence[str] = (),
    **options: Unpack[LinearOptions],
) -> Result:
    """streamkl.linear_kl for arrays: a float, or with reduction "none" an array of x_s.shape[:-1]. grads as above. With
    details, the result is (loss, dict), or with grads ((loss, dict), gradients). With teachers, grads may be those of x_s,
    w_s and bias_s."""
    if labels is None:
        refuse_without_labels(options)
    if details and return_lse:
        raise bad("return_lse", True, "with details, ask for 'lse_s' and 'lse_t' there")
    if teachers is not None:
        refuse_beside(x_t=x_t, w_t=w_t, bias_t=bias_t)
        tensors = dict(weight=weight, labels=labels, mass_ids=mass_ids)
        told = (bias_s, details, return_lse, grads, options)
        return _array_teachers.by_teacher(linear_kl, x_s, w_s, teachers, tensors, *told)
    call = _linear(x_s, w_s, x_t, w_t, bias_s, bias_t, weight, labels, mass_ids)
    return _divergence(call, _c.LINEAR, options, return_lse, grads, details)


@show_options(_c.LISTED)
def linear_topk_kl(
    x_s: Array,
    w_s: Array,
    ids: Array,
    logprobs: Array,
    *,
    weight: Optional[Array] = None,
    bias_s: Optional[Array] = None,
    tail_logprob: Optional[Array] = None,
    labels: Optional[Array] = None,
    details: Sequence[str] = (),
    mass_ids: Optional[Array] = None,
    grads: Sequence[str] = (),
    **options: Unpack[ListedOptions],
) -> Result:
    """streamkl.linear_topk_kl for arrays. grads: of "x_s", "w_s" and "bias_s"."""
    if labels is None:
        refuse_without_labels(options)
    operands = {"x_s": x_s, "w_s": w_s, "bias_s": bias_s, "x_t": None, "w_t": None, "bias_t": None}
    call = Call(_c.LINEAR, operands, weight, labels=labels, mass_ids=mass_ids, listed=(ids, logprobs, tail_logprob))
    return _divergence(call, _c.LISTED, options, False, grads, details, teacher=False, listed=True)


def topk_of(
    x_t: Array,
    w_t: Array,
    k: int,
    *,
    temperature: float = 1.0,
    bias: Optional[Array] = None,
    scale: Optional[float] = None,
    softcap: Optional[float] = None,
    columns: Optional[int] = None,
) -> Lists:
    """streamkl.topk_of for arrays: (ids, logprobs, tail_logprob)."""
    return _array_lists.topk_of(x_t, w_t, k, temperature, bias, scale, softcap, columns)


@show_options(_c.CROSS_ENTROPY)
def linear_cross_entropy(
    x: Array,
    w: Array,
    labels: Array,
    *,
    bias: Optional[Array] = None,
    weight: Optional[Array] = None,
    details: Sequence[str] = (),
    mass_ids: Optional[Array] = None,
    grads: Sequence[str] = (),
    **options: Unpack[CrossEntropyOptions],
) -> Result:
    """streamkl.linear_cross_entropy for arrays. grads: of "x", "w" and "bias"."""
    call = _linear(x, w, None, None, bias, None, weight, labels, mass_ids)
    return _one_side(call, _c.CROSS_ENTROPY, options, grads, details, fields={"label_weight": 1.0})


def linear_logsumexp(
    x: Array,
    w: Array,
    *,
    bias: Optional[Array] = None,
    scale: Optional[float] = None,
    softcap: Optional[float] = None,
    columns: Optional[int] = None,
    threads: int = 0,
    grads: Sequence[str] = (),
) -> Result:
    """streamkl.linear_logsumexp for arrays: x.shape[:-1]. grads: of "x", "w" and "bias"; those of the sum of all."""
    call = _linear(x, w, None, None, bias, None, None, np.zeros(np.shape(x)[:-1], np.int64))
    numbers = dict(scale_s=scale, softcap_s=softcap, columns=columns, threads=threads)
    return _one_side(call, _c.LINEAR, dict(lse_weight=1.0, reduction="none", **numbers), grads)


def _one_side(call: Call, use: int, given: Mapping[str, Any], grads: Sequence[str], *args: Any, **more: Any) -> Result:
    """_divergence of a student alone, whose operands have no side in their names."""
    names = {"x": "x_s", "w": "w_s", "bias": "bias_s"}
    check_grads(grads, {name: call.operands[own] for name, own in names.items()})
    own = [names[name] for name in grads]
    result: Any = _divergence(call, use, given, False, own, *args, teacher=False, **more)
    return (result[0], {name: result[1][names[name]] for name in grads}) if grads else result


def _divergence(
    call: Call,
    use: int,
    given: Mapping[str, Any],
    return_lse: bool,
    grads: Sequence[str],
    details: Sequence[str] = (),
    teacher: bool = True,
    listed: bool = False,
    fields: Mapping[str, float] = {},
    sinks: bool = False,
) -> Result:
    options = make_options(use, given, **fields)
    check_grads(grads, call.operands)
    told = (
        ("lse_s", "lse_t")
        if return_lse
        else wanted_rows(details, call.labels is not None, teacher, call.mass_ids is not None, listed, sinks)
    )
    rows = row_arrays(("loss", *[name for name in told if name != "loss"]), call.flat)
    made = call.gradients(grads)
    if grads:
        places = [view(g) for g in made]
        value: Any = _call.value_and_grad(call.views, call.work, options, 0, row_views(rows), places)
    else:
        value = _call.value(call.views, call.work, options, 0, row_views(rows))
    if given.get("reduction") == "none":
        value = call.shaped(rows["loss"] if call.weight is None else rows["loss"] * call.weight)
    if details:
        ignored = None if call.labels is None else call.labels == options[IGNORE_INDEX]
        shaped = make_details(details, rows, call.weight, ignored)
        value = (value, {name: call.shaped(x) if np.ndim(x) else x for name, x in shaped.items()})
    if return_lse:
        value = (value, call.shaped(rows["lse_s"]), call.shaped(rows["lse_t"]))
    return (value, call.by_name(made)) if grads else value


@show_options(_c.ATTENTION)
def attention_partial(
    q_s: Array,
    k_s: Array,
    q_t: Array,
    k_t: Array,
    *,
    weight: Optional[Array] = None,
    begin: Optional[Array] = None,
    end: Optional[Array] = None,
    saved: Optional[Finished] = None,
    **options: Unpack[AttentionOptions],
) -> Array:
    """streamkl.attention_partial for arrays: float64 [B, H, N, 6]."""
    return _partial(_attention(q_s, k_s, q_t, k_t, weight, begin, end), _c.ATTENTION, options, saved)


@show_options(_c.LINEAR)
def linear_partial(
    x_s: Array,
    w_s: Array,
    x_t: Array,
    w_t: Array,
    *,
    weight: Optional[Array] = None,
    bias_s: Optional[Array] = None,
    bias_t: Optional[Array] = None,
    saved: Optional[Finished] = None,
    **options: Unpack[LinearOptions],
) -> Array:
    """streamkl.linear_partial for arrays: float64 [..., 6]."""
    return _partial(_linear(x_s, w_s, x_t, w_t, bias_s, bias_t, weight), _c.LINEAR, options, saved)


def _partial(call: Call, use: int, given: Mapping[str, Any], saved: Optional[Finished]) -> Array:
    options = make_options(use, given)
    states = np.empty((*call.flat, _c.STATE))
    kept = {} if saved is None else _saved(call, options, saved)
    _call.partial(call.views, call.work, options, 0, row_views(kept) if kept else (), states.ctypes.data)
    return states.reshape(*call.rows, _c.STATE)


def _saved(call: Call, options: Options, saved: Any) -> Dict[str, Array]:
    """Rows that C takes: what is known, and the LSEs in parts, from their states."""
    check_saved(saved, call.rows)
    found = {name: getattr(saved, name) for name in ("loss", "kl_s", "kl_t")}
    parts, states = row_arrays(PARTS, call.flat), np.ascontiguousarray(saved.states)
    widths = [call.arrays[i].shape[-1] for i in (0, 3)]
    _call.finish(options, call.flat, widths, states.ctypes.data, None, row_views(parts))
    return {**{name: np.ascontiguousarray(x.reshape(call.flat)) for name, x in found.items() if x is not None}, **parts}


def merge(*states: Array) -> Array:
    """streamkl.merge for arrays."""
    if not states:
        raise bad("states", (), "there must be at least one")
    _check_states(states[0])
    for x in states[1:]:
        _check_states(x, states[0].shape)
    into = np.array(states[0], order="C")
    for other in map(np.ascontiguousarray, states[1:]):
        _call.merge(into.size // _c.STATE, into.ctypes.data, other.ctypes.data)
    return into


def _check_states(states: Any, shape: Optional[Tuple[int, ...]] = None) -> None:
    if not isinstance(states, np.ndarray) or states.dtype != np.float64:
        raise bad("states", type(states).__name__, "it must be a float64 array that a partial call returned", TypeError)
    if states.ndim == 0 or states.shape[-1] != _c.STATE:
        raise bad("states.shape", states.shape, f"its last dimension must be {_c.STATE}")
    if shape is not None and states.shape != shape:
        raise bad("states.shape", states.shape, f"it must be that of the others, {shape}")


def finish(
    states: Array,
    *,
    weight: Optional[Array] = None,
    divergence: str = "forward",
    beta: Optional[float] = None,
    skew: Optional[float] = None,
    alpha: Optional[float] = None,
    reduction: str = "mean",
    saved: Optional[Finished] = None,
) -> Finished:
    """streamkl.finish for arrays."""
    numbers = {"beta": beta, "skew": skew, "alpha": alpha}
    options = make_options(_c.LINEAR, {"divergence": divergence, "reduction": reduction, **numbers})
    _check_states(states)
    shape = states.shape[:-1]
    if saved is not None:
        check_saved(saved, shape)
    states = np.ascontiguousarray(states)
    if weight is not None:
        weight = np.ascontiguousarray(weight, np.float32)
        if weight.shape != shape:
            raise bad("weight.shape", weight.shape, f"it must be that of the rows, {shape}")
        weight = weight.reshape(-1)
    flat, total = (states.size // _c.STATE,), np.empty(())  # C takes three dimensions of rows, not more
    rows = row_arrays(rows_of_finish(options[DIVERGENCE], saved), flat)
    _call.finish(options, flat, (1, 1), states.ctypes.data, view(weight), row_views(rows), total.ctypes.data)
    value: Any = float(total)
    if reduction == "none" and "loss" in rows:
        value = (rows["loss"] if weight is None else rows["loss"] * weight).reshape(shape)
    return finished(value, {name: x.reshape(shape) for name, x in rows.items()}, states, saved)


@show_options(_c.ATTENTION)
def attention_backward(
    q_s: Array,
    k_s: Array,
    q_t: Array,
    k_t: Array,
    saved: Finished,
    *,
    grads: Sequence[str],
    weight: Optional[Array] = None,
    begin: Optional[Array] = None,
    end: Optional[Array] = None,
    **options: Unpack[AttentionOptions],
) -> Gradients:
    """streamkl.attention_backward for arrays."""
    return _backward(_attention(q_s, k_s, q_t, k_t, weight, begin, end), _c.ATTENTION, options, saved, grads)


@show_options(_c.LINEAR)
def linear_backward(
    x_s: Array,
    w_s: Array,
    x_t: Array,
    w_t: Array,
    saved: Finished,
    *,
    grads: Sequence[str],
    weight: Optional[Array] = None,
    bias_s: Optional[Array] = None,
    bias_t: Optional[Array] = None,
    **options: Unpack[LinearOptions],
) -> Gradients:
    """streamkl.linear_backward for arrays."""
    return _backward(_linear(x_s, w_s, x_t, w_t, bias_s, bias_t, weight), _c.LINEAR, options, saved, grads)


def _backward(call: Call, use: int, given: Mapping[str, Any], saved: object, grads: Sequence[str]) -> Gradients:
    options = make_options(use, given)
    check_grads(grads, call.operands)
    kept = _saved(call, options, saved)
    made = call.gradients(grads)
    _call.backward(call.views, call.work, options, 0, row_views(kept), [view(g) for g in made])
    return call.by_name(made)


def ranges_from_mask(mask: Array) -> Tuple[Array, Array]:
    """streamkl.ranges_from_mask for arrays."""
    if not isinstance(mask, np.ndarray) or mask.dtype != bool or mask.ndim < 2:
        what = type(mask).__name__ if not isinstance(mask, np.ndarray) else (mask.dtype.name, mask.shape)
        raise bad("mask", what, "it must be a bool array [.., queries, keys], True where a key is seen", TypeError)
    begin, end = ranges_of_mask(mask, np, np.arange(mask.shape[-1]))
    return begin.astype(np.int32), end.astype(np.int32)


def cu_seqlens_from_position_ids(position_ids: Array) -> Array:
    """streamkl.cu_seqlens_from_position_ids for arrays."""
    if not isinstance(position_ids, np.ndarray) or position_ids.dtype.kind not in "iu" or position_ids.ndim < 1:
        raise bad("position_ids", type(position_ids).__name__, "it must be an array of integers", TypeError)
    first = np.flatnonzero(starts_of_positions(position_ids))
    return np.append(first, position_ids.size).astype(np.int32)
