# SPDX-License-Identifier: Apache-2.0
"""Rows whose columns are not all here: a vocabulary or keys in pieces, on one machine or on many. For torch tensors.

    states = partial of each piece      float64 [rows.., 6], what is known of a row from some of its columns
    states = merge(states, others)      of all pieces, in any order
    whole = finish(states)              value, loss, log-sum-exps
    backward of each piece with 'whole' complete gradients of its columns, and its part of the rows' gradients

Nothing here is seen by autograd; gradients are float32, ready to be summed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor

from . import _c, _ops
from ._checks import bad
from ._finished import PARTS, Finished, check_grads, check_saved, finished, rows_of_finish
from ._inputs import Inputs, attention_inputs, linear_inputs, spread
from ._ops import OPERANDS, row_bits
from ._options import DIVERGENCE, AttentionOptions, LinearOptions, Options, make_options, show_options

if TYPE_CHECKING:
    from typing_extensions import Unpack


@show_options(_c.ATTENTION)
def attention_partial(
    q_s: Tensor,
    k_s: Tensor,
    q_t: Tensor,
    k_t: Tensor,
    *,
    weight: Optional[Tensor] = None,
    begin: Optional[Tensor] = None,
    end: Optional[Tensor] = None,
    saved: Optional[Finished] = None,
    **options: Unpack[AttentionOptions],
) -> Tensor:
    """The states, float64 [B, H, N, 6], of the queries over the keys that are given. Arguments as in attention_kl, and
    columns are counted from the first key that is given here, by causal, window, begin and end too.

    saved: for the second sweep (all but "forward" and "reverse"), what finish() made of the first one.
    """
    return _partial(attention_inputs(q_s, k_s, q_t, k_t, weight, begin, end), q_s, _c.ATTENTION, options, saved)


@show_options(_c.LINEAR)
def linear_partial(
    x_s: Tensor,
    w_s: Tensor,
    x_t: Tensor,
    w_t: Tensor,
    *,
    weight: Optional[Tensor] = None,
    bias_s: Optional[Tensor] = None,
    bias_t: Optional[Tensor] = None,
    saved: Optional[Finished] = None,
    **options: Unpack[LinearOptions],
) -> Tensor:
    """The states, float64 [..., 6], of the tokens over the part of the vocabulary whose rows w_s and w_t hold.
    Arguments as in linear_kl.

    saved: for the second sweep (all but "forward" and "reverse"), what finish() made of the first one.
    """
    return _partial(linear_inputs(x_s, w_s, x_t, w_t, bias_s, bias_t, weight), x_s, _c.LINEAR, options, saved)


def _partial(inputs: Inputs, a: Tensor, use: int, given: Mapping[str, Any], saved: Optional[Finished]) -> Tensor:
    options = make_options(use, given)
    kept, bits = ([], 0) if saved is None else _saved(inputs, a, options, saved)
    states = _ops.partial(*_detached(inputs), *options, kept, bits)
    return states.reshape(*a.shape[:-1], _c.STATE)


def _detached(inputs: Inputs) -> Inputs:
    return tuple(None if t is None else t.detach() for t in inputs)


def _saved(inputs: Inputs, a: Tensor, options: Options, saved: Any) -> Tuple[Sequence[Tensor], int]:
    """Rows that an operator takes, with their bits: what is known, and the LSEs in parts, from their states."""
    check_saved(saved, tuple(a.shape[:-1]))
    shape = inputs[0].shape[:-1]
    known = [name for name in ("loss", "kl_s", "kl_t") if getattr(saved, name) is not None]
    states = saved.states.reshape(*shape, _c.STATE)
    _, *parts = _ops.finish(states, None, *options, inputs[0].shape[-1], inputs[3].shape[-1], row_bits(*PARTS))
    return [*[getattr(saved, name).reshape(shape) for name in known], *parts], row_bits(*known, *PARTS)


def merge(*states: Tensor) -> Tensor:
    """The states of all columns together, from those of parts of them; associative and commutative to rounding. They
    are merged on the host: states of a GPU go there and back."""
    if not states:
        raise bad("states", (), "there must be at least one")
    _check_states(states[0])
    for t in states[1:]:
        _check_states(t, states[0].shape)
    into = states[0].clone()
    for other in states[1:]:
        into = _ops.merge(into, other)
    return into


def _check_states(states: Any, shape: Optional[torch.Size] = None) -> None:
    if not isinstance(states, Tensor) or states.dtype is not torch.float64 or spread(states):
        raise bad(
            "states", type(states).__name__, "it must be a float64 tensor that a partial call returned", TypeError
        )
    if states.dim() == 0 or states.shape[-1] != _c.STATE:
        raise bad("states.shape", tuple(states.shape), f"its last dimension must be {_c.STATE}")
    if shape is not None and states.shape != shape:
        raise bad("states.shape", tuple(states.shape), f"it must be that of the others, {tuple(shape)}")


def finish(
    states: Tensor,
    *,
    weight: Optional[Tensor] = None,
    divergence: str = "forward",
    beta: Optional[float] = None,
    skew: Optional[float] = None,
    alpha: Optional[float] = None,
    reduction: str = "mean",
    saved: Optional[Finished] = None,
) -> Finished:
    """value (the loss as reduction says), and for each row loss, lse_s, lse_t and more, from states of all columns.

    weight: of the rows, with their shape; as it was given to the partial calls.
    saved: for the second sweep (all but "forward" and "reverse"), what this function made of the first one. That has only the log-sum-exps.
    """
    numbers = {"beta": beta, "skew": skew, "alpha": alpha}
    options = make_options(_c.LINEAR, {"divergence": divergence, "reduction": reduction, **numbers})
    _check_states(states)
    if saved is not None:
        check_saved(saved, tuple(states.shape[:-1]))
    if weight is not None:
        if weight.shape != states.shape[:-1]:
            raise bad("weight.shape", tuple(weight.shape), f"it must be that of the rows, {tuple(states.shape[:-1])}")
        weight = weight.detach().to(torch.float32)
    names = rows_of_finish(options[DIVERGENCE], saved)
    flat = None if weight is None else weight.reshape(-1)  # C takes three dimensions of rows, not more
    value, *rows = _ops.finish(states.reshape(-1, _c.STATE), flat, *options, 1, 1, row_bits(*names))
    found = {name: t.reshape(states.shape[:-1]) for name, t in zip(names, rows)}
    if reduction == "none" and "loss" in found:
        value = found["loss"] if weight is None else found["loss"] * weight
    return finished(value, found, states, saved)


@show_options(_c.ATTENTION)
def attention_backward(
    q_s: Tensor,
    k_s: Tensor,
    q_t: Tensor,
    k_t: Tensor,
    saved: Finished,
    *,
    grads: Sequence[str],
    weight: Optional[Tensor] = None,
    begin: Optional[Tensor] = None,
    end: Optional[Tensor] = None,
    **options: Unpack[AttentionOptions],
) -> Dict[str, Tensor]:
    """Gradients of the whole loss from the keys that are given: complete for k_s and k_t, to be summed over the pieces
    for q_s and q_t. saved: what finish() returned. grads: names of operands, such as ("q_s", "k_s").

    They are those of the sum of what reduction makes of the loss; an upstream gradient of the rows is a weight, with
    reduction "sum".
    """
    operands = {"q_s": q_s, "k_s": k_s, "bias_s": None, "q_t": q_t, "k_t": k_t, "bias_t": None}
    inputs = attention_inputs(q_s, k_s, q_t, k_t, weight, begin, end)
    return _backward(inputs, operands, _c.ATTENTION, options, saved, grads)


@show_options(_c.LINEAR)
def linear_backward(
    x_s: Tensor,
    w_s: Tensor,
    x_t: Tensor,
    w_t: Tensor,
    saved: Finished,
    *,
    grads: Sequence[str],
    weight: Optional[Tensor] = None,
    bias_s: Optional[Tensor] = None,
    bias_t: Optional[Tensor] = None,
    **options: Unpack[LinearOptions],
) -> Dict[str, Tensor]:
    """Gradients of the whole loss from the part of the vocabulary that is given: complete for w_s, w_t, bias_s and
    bias_t, to be summed over the pieces for x_s and x_t. saved and grads as in attention_backward."""
    operands = {"x_s": x_s, "w_s": w_s, "bias_s": bias_s, "x_t": x_t, "w_t": w_t, "bias_t": bias_t}
    inputs = linear_inputs(x_s, w_s, x_t, w_t, bias_s, bias_t, weight)
    return _backward(inputs, operands, _c.LINEAR, options, saved, grads)


def _backward(
    inputs: Inputs, operands: Dict[str, Any], use: int, given: Mapping[str, Any], saved: object, grads: Sequence[str]
) -> Dict[str, Tensor]:
    options = make_options(use, given)
    check_grads(grads, operands)
    kept, bits = _saved(inputs, next(iter(operands.values())), options, saved)
    need = sum(1 << i for i, name in enumerate(operands) if name in grads)
    made = _ops.backward(*_detached(inputs), *options, kept, bits, need, (1 << OPERANDS) - 1)
    return {name: g.reshape(operands[name].shape) for name, g in zip([n for n in operands if n in grads], made)}
