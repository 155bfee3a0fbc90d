# SPDX-License-Identifier: Apache-2.0
"""The two losses for torch tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Tuple, Union

from torch import Tensor

from . import _c, _ops
from ._autograd import Reduced, Rows, saved_rows
from ._inputs import Inputs, attention_inputs, gradients_wanted, linear_inputs
from ._ops import OPERANDS, row_bits
from ._options import AttentionOptions, LinearOptions, Options, make_options, show_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

Result = Union[Tensor, Tuple[Tensor, Tensor, Tensor]]

_LOSS, _LSES = row_bits("loss"), row_bits("lse_s", "lse_t")


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
    return_lse: bool = False,
    **options: Unpack[AttentionOptions],
) -> Result:
    """Divergence between the attention distributions of a student and a teacher, per (batch, head, query).

    q_s [B, H, N, Ds], k_s [B, Hs, M, Ds]: student; q_t [B, H, N, Dt], k_t [B, Ht, M, Dt]: teacher. f32, bf16 or f16,
        each its own. Hs and Ht divide H (grouped heads). Any strides; only a last dimension that is not contiguous is
        copied.
    weight: over the queries, [N], [B, N] or what broadcasts to [B, H, N]; numbers or a bool mask. Weight 0 costs
        nothing.
    begin, end: integers over the queries, shaped as weight: a query sees only keys begin .. end - 1 (padding, packed
        sequences).
    return_lse: also return the log-sum-exps of both sides, (loss, lse_s, lse_t), [B, H, N] f32, not differentiable.

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
    threads, isa, workspace_limit, skip_below, any_order: how it is computed; see docs/python.md.

    The loss is f32. Gradients go to each tensor that requires them, in its dtype. With mean and sum they are made in
    the forward call; with none they are recomputed in backward.
    """
    made = make_options(_c.ATTENTION, options)
    inputs = attention_inputs(q_s, k_s, q_t, k_t, weight, begin, end)
    return _divergence(inputs, made, options.get("reduction") == "none", return_lse)


@show_options(_c.LINEAR)
def linear_kl(
    x_s: Tensor,
    w_s: Tensor,
    x_t: Tensor,
    w_t: Tensor,
    *,
    weight: Optional[Tensor] = None,
    bias_s: Optional[Tensor] = None,
    bias_t: Optional[Tensor] = None,
    return_lse: bool = False,
    **options: Unpack[LinearOptions],
) -> Result:
    """Divergence between the next-token distributions of a student and a teacher, from hidden states.

    x_s [..., Ds], w_s [V, Ds]: the student's hidden states and unembedding (lm_head.weight); x_t [..., Dt],
        w_t [V, Dt]: the teacher's. f32, bf16 or f16, each its own. Any strides; only a last dimension that is not
        contiguous is copied.
    weight: over the tokens, broadcast to x_s.shape[:-1]; numbers or a bool mask. Weight 0 costs nothing.
    bias_s, bias_t: [V], added to the product.
    return_lse: also return the log-sum-exps of both sides, (loss, lse_s, lse_t), f32, not differentiable.

    temperature: logits are divided by it. Neither loss nor gradient is multiplied by its square.
    divergence, beta, skew, alpha: as in attention_kl.
    reduction: "mean" is sum(weight loss) / sum(weight), without weight a division by the number of tokens (0, not NaN,
        if that is 0); "sum" is sum(weight loss); "none" is weight loss, x_s.shape[:-1].
    scale_s, scale_t: factor of the product and bias; None is 1.
    softcap_s, softcap_t: c > 0 makes logits c tanh(z / c), after the scale and before the temperature.
    columns: the first so many rows of w_s and w_t are the vocabulary, the others are padding. Needed if their
        numbers of rows differ.
    threads, isa, workspace_limit, skip_below, any_order: how it is computed; see docs/python.md.

    The loss is f32. Gradients go to each tensor that requires them, in its dtype; a bf16 head that accumulates its
    gradient in f32 (w_s.grad_dtype = torch.float32) gets it in f32. With mean and sum they are made in the forward
    call; with none they are recomputed in backward.
    """
    made = make_options(_c.LINEAR, options)
    inputs = linear_inputs(x_s, w_s, x_t, w_t, bias_s, bias_t, weight)
    found = _divergence(inputs, made, options.get("reduction") == "none", return_lse)
    if 2 <= x_s.dim() <= 4:
        return found
    shaped = [t.reshape(x_s.shape[:-1]) if t.dim() else t for t in (found if isinstance(found, tuple) else (found,))]
    return (shaped[0], shaped[1], shaped[2]) if return_lse else shaped[0]


def _divergence(inputs: Inputs, options: Options, by_row: bool, return_lse: bool) -> Result:
    need, wide = gradients_wanted(inputs[:OPERANDS])
    rows = _LSES if return_lse else 0
    if by_row:
        rows |= _LOSS
        if need:
            _, loss, *lse = Rows.apply(*inputs, options, rows | saved_rows(options), need, wide)
        else:
            _, loss, *lse = _ops.value(*inputs, *options, rows)
        weight = inputs[OPERANDS]
        loss = loss if weight is None else loss * weight
    elif need:
        loss, *lse = Reduced.apply(*inputs, options, rows, need, wide)
    else:
        loss, *lse = _ops.value(*inputs, *options, rows)
    return (loss, lse[0], lse[1]) if return_lse else loss
