# SPDX-License-Identifier: Apache-2.0
"""The two losses for torch tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from . import _c, _ops
from ._autograd import Reduced, Rows, saved_rows_of
from ._checks import bad
from ._details import make_details, refuse_without_labels, wanted_rows
from ._groups import refuse_beside
from ._inputs import (
    Inputs,
    attention_inputs,
    check_labels,
    gradients_wanted,
    linear_inputs,
    refuse_teacher_gradient,
    spread,
    unpacked,
)
from ._ops import OPERANDS, row_bits
from ._options import (
    COLUMNS,
    IGNORE_INDEX,
    AttentionOptions,
    CrossEntropyOptions,
    LinearOptions,
    ListedOptions,
    Options,
    cross_entropy_as_linear,
    make_options,
    show_options,
)
from ._sinks import sinks_that_count
from ._teachers import by_teacher

if TYPE_CHECKING:
    from typing_extensions import Unpack

Details = Dict[str, Tensor]
Result = Union[Tensor, Tuple[Tensor, Tensor, Tensor], Tuple[Tensor, Details]]


@show_options(_c.ATTENTION)
def attention_kl(
    q_s: Tensor,
    k_s: Tensor,
    q_t: Tensor,
    k_t: Tensor,
    *,
    weight: Optional[Tensor] = None,
    begin: Optional[Tensor] = None,
    end: Optional[Tensor] = None,
    cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k: Optional[Tensor] = None,
    lse_t: Optional[Tensor] = None,
    head_map: Union[Tensor, Sequence[Any], None] = None,
    support: Optional[Tensor] = None,
    sink_s: Optional[Tensor] = None,
    sink_t: Optional[Tensor] = None,
    sink: str = "column",
    details: Sequence[str] = (),
    return_lse: bool = False,
    group: Any = None,
    rows: Optional[str] = None,
    key_offset: Optional[int] = None,
    key_positions: Union[Tensor, Sequence[int], None] = None,
    check: Optional[bool] = None,
    **options: Unpack[AttentionOptions],
) -> Result:
    """Divergence between the attention distributions of a student and a teacher, per (batch, head, query).

    q_s [B, H, N, Ds], k_s [B, Hs, M, Ds]: student; q_t [B, H, N, Dt], k_t [B, Ht, M, Dt]: teacher. f32, bf16 or f16,
        each its own. Hs and Ht divide H (grouped heads). Any strides; only a last dimension that is not contiguous is
        copied.
    weight: over the queries, [N], [B, N] or what broadcasts to [B, H, N]; numbers or a bool mask. Weight 0 costs
        nothing.
    begin, end: integers over the queries, shaped as weight: a query sees only keys begin .. end - 1 (padding).
    cu_seqlens_q, cu_seqlens_k: int32 [sequences + 1], as flash-attn has them: the sequences are packed, q_s
        [total_q, H, Ds], k_s [total_k, Hs, Ds] and so on, and nothing of one sequence sees another; causal and window
        are aligned bottom right in each. Rows and results are [total_q, H], weight, begin and end [total_q] or
        [total_q, H], begin and end counted from the sequence's first key. On CUDA
        nobody looks at the offsets before the call: bad ones make the loss NaN.
    support: integers [B, N, K], packed [total_q, K]: each query, with all its heads, sees only the keys of its list, in any
        order; -1 is an empty slot, and a key that comes twice counts once. Keys that causal, window, begin and end hide stay
        hidden; both softmaxes are over the rest, and a query without any has loss 0. support_block: the lists name blocks of
        so many keys. On CUDA it is slow, and lists are not looked at before the call.
    return_lse: also return the log-sum-exps of both sides, (loss, lse_s, lse_t), [B, H, N] f32, not differentiable.
    mix_t: g teacher heads for each of the student's: q_t has H g heads, and student head h is compared with the mean of
        the softmaxes of heads h g .. h g + g - 1. head_map [H] or [H, g] names the teacher's heads instead. The teacher
        then gets no gradient. Not for "reverse" and "alpha_beta". docs/attention.md has a picture.
    lse_t: [B, heads of q_t, N], log-denominators of the teacher's heads that are known already: of these keys, or of more
        (a window, a sink, compressed keys). The target is then t = mean of exp(z - lse), and its heads are gone through
        once instead of twice.
    normalise_t: divide t by its own sum over the keys. False: the loss is sum t (log t - log s) as it stands ("forward"
        and lse_t only).
    sink_s [H], sink_t [heads of q_t]: a logit for each head, as gpt-oss learns them: one more column of every query, which
        neither scale nor softcap touches, and all that a query sees which sees no key. It is a category of the divergence
        and in the LSEs; each gets a gradient where it requires one (with mix_t, head_map or lse_t the student's alone).
        sink="conditional": both distributions are compared over the keys alone, as if no sink were given, and sinks get no
        gradient; needed where only one side has them.
    details: names of what is to be told of each query, without gradient: the result is then (loss, dict) of tensors
        [B, H, N], packed [total_q, H]. kl, lse_s, lse_t, entropy_s, entropy_t, top1_s, top1_t (the key; 0 where there is
        none), agree, rank_s, rank_t, reverse, jsd, tv as in linear_kl, sink_mass_s, sink_mass_t; and sum and count. On
        CUDA those of mixed heads are refused by name, where there is no kernel for them.

    divergence: with t the teacher's and s the student's distribution,
        "forward" KL(t || s), "reverse" KL(s || t),
        "jsd" beta KL(t || m) + (1 - beta) KL(s || m), m = beta t + (1 - beta) s; beta 0 is "forward", beta 1 "reverse",
        "skew_forward" KL(t || skew t + (1 - skew) s), "skew_reverse" KL(s || (1 - skew) t + skew s),
        "tv" total variation, half the sum of |t - s|,
        "alpha_beta" (alpha/(alpha+beta) sum t^(alpha+beta) + beta/(alpha+beta) sum s^(alpha+beta)
        - sum t^alpha s^beta) / (alpha beta), or its limit where one of them is 0.
    beta: for "jsd" (None is 0.5) and "alpha_beta". skew: for the skewed ones; None is 0.1. alpha: for "alpha_beta".
    reduction: "mean" is sum(weight loss) / sum(weight), without weight a division by B H N (0, not NaN, if that is 0);
        "sum" is sum(weight loss); "none" is weight loss, [B, H, N].
    scale_s, scale_t: factor of the logits; None is 1/sqrt(D) of that side.
    softcap_s, softcap_t: c > 0 makes logits c tanh(z / c), after the scale.
    causal: query i sees keys j <= i + M - N (aligned bottom right).
    window: (left, right), query i sees keys i + M - N - left .. i + M - N + right; -1 is no limit.
    columns: only the first so many keys exist, the others are padding.
    threads, isa, workspace_limit, skip_below, any_order, round_dz, split_f32: how it is computed; see docs/python.md.
    group: a process group whose ranks hold the keys in parts; with rows, key_offset, key_positions and check in
        docs/distributed.md.

    The loss is f32. Gradients go to each tensor that requires them, in its dtype. With mean and sum they are made in
    the forward call; with none they are recomputed in backward.
    """
    where = (group, rows, check, key_offset, key_positions)
    packed = cu_seqlens_q is not None or cu_seqlens_k is not None
    if any(one is not None for one in where) or spread(q_s, k_s, q_t, k_t, weight, begin, end):
        from . import distributed

        if packed:
            raise bad("cu_seqlens_q", "given", "packed sequences cannot be spread over processes: begin= and end= can")
        tensors = dict(q_s=q_s, k_s=k_s, q_t=q_t, k_t=k_t, weight=weight, begin=begin, end=end)
        if support is not None:
            raise bad("support", type(support).__name__, "lists of keys are not spread over processes")
        for name, given in (("lse_t", lse_t), ("head_map", head_map), ("mix_t", options.get("mix_t"))):
            if given is not None:
                raise bad(name, type(given).__name__, "a teacher of mixed heads is not spread over processes yet")
        for name, given in (("sink_s", sink_s), ("sink_t", sink_t), ("details", details or None)):
            if given is not None:
                raise bad(name, type(given).__name__, "it is not spread over processes yet")
        return distributed.attention(tensors, options, return_lse, distributed.Place(*where))
    if details and return_lse:
        raise bad("return_lse", True, "with details, ask for 'lse_s' and 'lse_t' there")
    made = make_options(_c.ATTENTION, options)
    sinks = sinks_that_count(sink_s, sink_t, sink)
    of_heads, of_keys = (lse_t, head_map), (cu_seqlens_q, cu_seqlens_k, support)
    inputs = attention_inputs(q_s, k_s, q_t, k_t, weight, begin, end, *of_heads, *of_keys, sinks)
    if lse_t is not None or head_map is not None or options.get("mix_t") is not None:
        refuse_teacher_gradient(q_t, k_t, sinks[1])
    names = ("lse_s", "lse_t") if return_lse else wanted_rows(details, False, sinks=sinks[0] is not None)
    loss, told = divergence_of(inputs, made, options.get("reduction") == "none", names)
    over = inputs[OPERANDS]
    if packed:
        loss, told = unpacked(loss) if loss.dim() else loss, {name: unpacked(t) for name, t in told.items()}
        over = None if over is None else unpacked(over)
    if details:
        return loss, make_details(details, told, over, None)
    return (loss, told["lse_s"], told["lse_t"]) if return_lse else loss


@show_options(_c.LINEAR)
def linear_kl(
    x_s: Tensor,
    w_s: Tensor,
    x_t: Optional[Tensor] = None,
    w_t: Optional[Tensor] = None,
    *,
    teachers: Optional[Sequence[Tuple[Any, Tensor, Tensor]]] = None,
    weight: Optional[Tensor] = None,
    bias_s: Optional[Tensor] = None,
    bias_t: Optional[Tensor] = None,
    labels: Optional[Tensor] = None,
    details: Sequence[str] = (),
    mass_ids: Optional[Tensor] = None,
    return_lse: bool = False,
    group: Any = None,
    rows: Optional[str] = None,
    check: Optional[bool] = None,
    **options: Unpack[LinearOptions],
) -> Result:
    """Divergence between the next-token distributions of a student and a teacher, from hidden states.

    x_s [..., Ds], w_s [V, Ds]: the student's hidden states and unembedding (lm_head.weight); x_t [..., Dt],
        w_t [V, Dt]: the teacher's. f32, bf16 or f16, each its own. Any strides; only a last dimension that is not
        contiguous is copied.
    teachers: instead of x_t and w_t, [(rows, x_t, w_t), ...]: each teacher has rows of its own, x_s[rows], and x_t has
        their shape but for the last dimension. rows is a slice, a bool mask or integers. Tokens that no teacher has take no
        part, as those of weight 0; a token that two have is refused. A mean is over all tokens that have a teacher.
    weight: over the tokens, broadcast to x_s.shape[:-1]; numbers or a bool mask. Weight 0 costs nothing.
    bias_s, bias_t: [V], added to the product.
    labels: integers over the tokens, x_s.shape[:-1]: the row's loss is kl_weight divergence + label_weight CE, with the
        cross-entropy of the student's logits at temperature 1. A token whose label is ignore_index takes no part; with
        a weight, that decides, and an ignored label only has no CE.
    details: names of what is to be told of each token, without gradient: the result is then (loss, dict). kl, ce, lse_s,
        lse_t, entropy_s, entropy_t, logprob_s, logprob_t (of the label, at temperature 1), top1_s, top1_t (ids), agree,
        rank_s, rank_t (places of the other side's top1), reverse (KL the other way), jsd, tv, mass_s, mass_t (of
        mass_ids); and sum and count, of weight loss and of the weights, over all tokens.
    mass_ids: integers [..., K], broadcast to the tokens: the ids whose probability the details mass_s and mass_t are.
        -1 is an empty slot; an id that is named twice counts twice.
    return_lse: also return the log-sum-exps of both sides, (loss, lse_s, lse_t), f32, not differentiable.

    label_weight, kl_weight, ignore_index: see labels. T^2 of the usual recipe is kl_weight=T**2.
    num_items: the denominator of a mean (Hugging Face's num_items_in_batch); None is the sum of the weights.
    label_smoothing, z_loss: CE as torch's with label_smoothing, plus z_loss LSE^2. lse_weight: LSE itself, added.
    temperature: logits are divided by it. Neither loss nor gradient is multiplied by its square.
    divergence, beta, skew, alpha: as in attention_kl.
    reduction: "mean" is sum(weight loss) / sum(weight), without weight a division by the number of tokens (0, not NaN,
        if that is 0); "sum" is sum(weight loss); "none" is weight loss, x_s.shape[:-1].
    scale_s, scale_t: factor of the product and bias; None is 1.
    softcap_s, softcap_t: c > 0 makes logits c tanh(z / c), after the scale and before the temperature.
    columns: the first so many rows of w_s and w_t are the vocabulary, the others are padding. Needed if their
        numbers of rows differ.
    threads, isa, workspace_limit, skip_below, any_order, round_dz, split_f32: how it is computed; see docs/python.md.
    group: a process group whose ranks hold the vocabulary in parts; with rows and check in docs/distributed.md. DTensors
        bring theirs.

    The loss is f32. Gradients go to each tensor that requires them, in its dtype; a bf16 head that accumulates its
    gradient in f32 (w_s.grad_dtype = torch.float32) gets it in f32. With mean and sum they are made in the forward
    call; with none they are recomputed in backward.
    """
    if group is not None or rows is not None or check is not None or spread(x_s, w_s, x_t, w_t, weight, bias_s, bias_t):
        from . import distributed

        tensors = dict(x_s=x_s, w_s=w_s, x_t=x_t, w_t=w_t, bias_s=bias_s, bias_t=bias_t)
        tensors.update(weight=weight, labels=labels, mass_ids=mass_ids)
        place = distributed.Place(group, rows, check)
        if teachers is not None:
            return distributed.by_teacher(linear_kl, tensors, teachers, details, return_lse, place, options)
        return distributed.linear(tensors, options, return_lse, place, details)
    if labels is None:
        refuse_without_labels(options)
    if details and return_lse:
        raise bad("return_lse", True, "with details, ask for 'lse_s' and 'lse_t' there")
    made = make_options(_c.LINEAR, options)
    if teachers is not None:
        refuse_beside(x_t=x_t, w_t=w_t, bias_t=bias_t)
        over_rows = dict(weight=weight, labels=labels, mass_ids=mass_ids)
        return by_teacher(linear_kl, x_s, w_s, teachers, over_rows, bias_s, details, return_lse, options)
    if x_t is None or w_t is None:
        rule = "there must be a teacher, x_t and w_t or teachers= (without one: linear_cross_entropy)"
        raise bad("x_t" if x_t is None else "w_t", None, rule, TypeError)
    inputs = linear_inputs(x_s, w_s, x_t, w_t, bias_s, bias_t, weight, labels, mass_ids)
    told_of = wanted_rows(details, labels is not None, mass_ids=mass_ids is not None)
    names = ("lse_s", "lse_t") if return_lse else told_of
    loss, told = _shaped(x_s, *divergence_of(inputs, made, options.get("reduction") == "none", names))
    if details:
        return loss, _told(details, told, inputs, made)
    return (loss, told["lse_s"], told["lse_t"]) if return_lse else loss


@show_options(_c.LISTED)
def linear_topk_kl(
    x_s: Tensor,
    w_s: Tensor,
    ids: Tensor,
    logprobs: Tensor,
    *,
    weight: Optional[Tensor] = None,
    bias_s: Optional[Tensor] = None,
    tail_logprob: Optional[Tensor] = None,
    labels: Optional[Tensor] = None,
    details: Sequence[str] = (),
    mass_ids: Optional[Tensor] = None,
    **options: Unpack[ListedOptions],
) -> Union[Tensor, Tuple[Tensor, Details]]:
    """Divergence between a student's next-token distribution and a teacher that is known by lists: ids and log-probs.

    x_s [..., D], w_s [V, D]: the student's hidden states and unembedding, as in linear_kl.
    ids [..., K]: integers, columns in any order; -1 is an empty slot, and an id that comes twice has the sum of its masses.
    logprobs [..., K]: logarithms of the teacher's probabilities there. K up to V; a token whose list is empty is as a
        token without vocabulary: loss 0, no gradient.
    tail_logprob [...]: logarithm of the mass that is not listed; None is log(1 - sum).
    tail: what becomes of the ids that are not listed. "bucket": they are one more category, of the mass that is missing to
        1 (none if the listed masses sum to 1 or a little more); "renormalise": they do not exist, both distributions are
        over the list alone, and only K dot products a token are needed; "zero": sum of p log(p / q) over the list, p as it
        is and q over all of V; "teacher": the same with p made to sum to 1.
    divergence: "forward" KL(t || s); "reverse" KL(s || t) with tail "bucket" and "renormalise". A reverse KL is infinite
        where the bucket has no mass: give tail_logprob, which does not round to none.
    temperature, stored_temperature: of the student's logits, and the one at which the lists were made. Where they differ,
        listed masses and the rest are raised to stored_temperature / temperature and made to sum to 1 again.
    labels, label_weight, kl_weight, ...: cross-entropy in the same pass, as in linear_kl.
    details: kl, ce, lse_s, entropy_s, logprob_s, top1_s, mass_s (of mass_ids), sum, count, as in linear_kl. With
        "renormalise", lse_s, entropy_s, top1_s and mass_s are over all of V, and cost a sweep of it.
    weight, bias_s, scale_s, softcap_s, columns, reduction, num_items, threads, isa, workspace_limit, skip_below,
        round_dz, split_f32: as in linear_kl.

    The lists get no gradient. On CUDA they are not looked at: an id that is neither a column nor -1 makes its token NaN.
    """
    if labels is None:
        refuse_without_labels(options)
    made = make_options(_c.LISTED, options)
    inputs = linear_inputs(x_s, w_s, None, None, bias_s, None, weight, labels, mass_ids, (ids, logprobs, tail_logprob))
    names = wanted_rows(details, labels is not None, False, mass_ids is not None, listed=True)
    loss, rows = _shaped(x_s, *divergence_of(inputs, made, options.get("reduction") == "none", names))
    return (loss, _told(details, rows, inputs, made)) if details else loss


@show_options(_c.CROSS_ENTROPY)
def linear_cross_entropy(
    x: Tensor,
    w: Tensor,
    labels: Tensor,
    *,
    bias: Optional[Tensor] = None,
    weight: Optional[Tensor] = None,
    details: Sequence[str] = (),
    mass_ids: Optional[Tensor] = None,
    group: Any = None,
    rows: Optional[str] = None,
    check: Optional[bool] = None,
    **options: Unpack[CrossEntropyOptions],
) -> Union[Tensor, Tuple[Tensor, Details]]:
    """Cross-entropy of softmax(x w^T) with labels, straight from hidden states: no [tokens, vocabulary] is stored.

    x [..., D], w [V, D] (lm_head.weight), labels [...]: integers; a token with label ignore_index takes no part, or,
        where a weight is given, has no cross-entropy.
    weight: over the tokens, as in linear_kl. Weights of classes are refused.
    label_smoothing: as in torch.nn.functional.cross_entropy. z_loss: adds z_loss LSE^2 to a token's loss.
    bias, scale, softcap, columns, reduction, num_items, details, mass_ids: as in linear_kl; details are those of a
        student.
    group, rows, check: as in linear_kl, w and bias being this rank's part of the vocabulary; labels count all of it.
    threads, isa, workspace_limit, skip_below, round_dz, split_f32: how it is computed; see docs/python.md.
    """
    _refuse_other_shapes(x, w, labels, weight)
    if group is not None or rows is not None or check is not None or spread(x, w, weight, bias):
        from . import distributed

        tensors = dict(x_s=x, w_s=w, x_t=None, w_t=None, bias_s=bias, bias_t=None)
        tensors.update(weight=weight, labels=labels, mass_ids=mass_ids)
        place, given = distributed.Place(group, rows, check), cross_entropy_as_linear(options)
        return distributed.linear(tensors, given, False, place, details)
    made = make_options(_c.CROSS_ENTROPY, options, label_weight=1.0)
    inputs = linear_inputs(x, w, None, None, bias, None, weight, labels, mass_ids)
    names = wanted_rows(details, True, False, mass_ids is not None)
    loss, told = _shaped(x, *divergence_of(inputs, made, options.get("reduction") == "none", names))
    return (loss, _told(details, told, inputs, made)) if details else loss


def _refuse_other_shapes(x: Any, w: Any, labels: Any, weight: Any) -> None:
    """What other libraries' cross-entropies take: weights of classes, and Liger's order of arguments."""
    if labels is None:
        raise bad("labels", None, "a cross-entropy needs them: integers over the tokens", TypeError)
    if not all(isinstance(t, Tensor) for t in (x, w, labels)):
        return  # which is told of them soon
    if isinstance(weight, Tensor) and weight.shape == w.shape[:1] and weight.shape != labels.shape:
        raise bad(
            "weight.shape", tuple(weight.shape), "weights of classes are not supported: weight is over the tokens"
        )
    if labels.shape == w.shape[:-1] != x.shape[:-1]:
        rule = f"it must be that of the rows, {tuple(x.shape[:-1])} (the order of the arguments is x, w, labels)"
        raise bad("labels.shape", tuple(labels.shape), rule)


def linear_logsumexp(
    x: Tensor,
    w: Tensor,
    *,
    bias: Optional[Tensor] = None,
    scale: Optional[float] = None,
    softcap: Optional[float] = None,
    columns: Optional[int] = None,
    threads: int = 0,
) -> Tensor:
    """log sum_j exp z[i,j] of z = x w^T, one number a token, x.shape[:-1], differentiable; nothing is stored."""
    labels = torch.zeros(x.shape[:-1], dtype=torch.int64, device=x.device)
    numbers = dict(scale_s=scale, softcap_s=softcap, columns=columns, threads=threads)
    made = make_options(_c.LINEAR, dict(lse_weight=1.0, reduction="sum", **numbers))
    inputs = linear_inputs(x, w, None, None, bias, None, None, labels)
    return _shaped(x, *divergence_of(inputs, made, True, ()))[0]


def _told(details: Sequence[str], rows: Details, inputs: Inputs, options: Options) -> Details:
    weight, labels = inputs[OPERANDS], inputs[_c.LABELS_AT]
    shape = next(iter(rows.values())).shape
    ignored = None if labels is None else (labels == options[IGNORE_INDEX]).reshape(shape)
    return make_details(details, rows, None if weight is None else weight.reshape(shape), ignored)


def _shaped(x: Tensor, loss: Tensor, rows: Details) -> Tuple[Tensor, Details]:
    """C takes one to three leading dimensions of rows; here they are those of x again."""
    if 2 <= x.dim() <= 4:
        return loss, rows
    shape = x.shape[:-1]
    return loss.reshape(shape) if loss.dim() else loss, {name: t.reshape(shape) for name, t in rows.items()}


def divergence_of(inputs: Inputs, options: Options, by_row: bool, names: Sequence[str]) -> Tuple[Tensor, Details]:
    """The loss, reduced or not, and the row results of these names."""
    check_labels(inputs[_c.LABELS_AT], inputs[1], options[COLUMNS], options[IGNORE_INDEX])
    need, wide = gradients_wanted(inputs[:OPERANDS])
    bits = row_bits(*names)
    if by_row:
        bits |= row_bits("loss")
        if need:
            bits |= saved_rows_of(options, inputs)
            _, *rows = Rows.apply(*inputs, options, bits, need, wide)
        else:
            _, *rows = _ops.value(*inputs, *options, bits)
    elif need:
        loss, *rows = Reduced.apply(*inputs, options, bits, need, wide)
    else:
        loss, *rows = _ops.value(*inputs, *options, bits)
    found = dict(zip([name for i, name in enumerate(_c.ROWS) if bits >> i & 1], rows))
    if by_row:
        weight = inputs[OPERANDS]
        loss = found["loss"] if weight is None else found["loss"] * weight
    return loss, {name: found[name].detach() for name in names}
