# SPDX-License-Identifier: Apache-2.0
"""The two losses for torch tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, Sequence, Tuple, Union

from torch import Tensor

from . import _c, _ops
from ._autograd import Reduced, Rows, saved_rows
from ._inputs import Inputs, attention_inputs, gradients_wanted, linear_inputs, spread
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
    begin, end: integers over the queries, shaped as weight: a query sees only keys begin .. end - 1 (padding, packed
        sequences).
    return_lse: also return the log-sum-exps of both sides, (loss, lse_s, lse_t), [B, H, N] f32, not differentiable.

    divergence: "forward" KL(teacher || student), "reverse" KL(student || teacher), or
        "jsd": beta KL(t || m) + (1 - beta) KL(s || m), m = beta t + (1 - beta) s.
    beta: for "jsd" only, 0 < beta < 1; None is 0.5.
    reduction: "mean" is sum(weight loss) / sum(weight), without weight a division by B H N (0, not NaN, if that is 0);
        "sum" is sum(weight loss); "none" is weight loss, [B, H, N].
    scale_s, scale_t: factor of the logits; None is 1/sqrt(D) of that side.
    softcap_s, softcap_t: c > 0 makes logits c tanh(z / c), after the scale.
    causal: query i sees keys j <= i + M - N (aligned bottom right).
    window: (left, right), query i sees keys i + M - N - left .. i + M - N + right; -1 is no limit.
    columns: only the first so many keys exist, the others are padding.
    threads, isa, workspace_limit, skip_below, any_order: how it is computed; see docs/python.md.
    group: a process group whose ranks hold the keys in parts; with rows, key_offset, key_positions and check in
        docs/distributed.md.

    The loss is f32. Gradients go to each tensor that requires them, in its dtype. With mean and sum they are made in
    the forward call; with none they are recomputed in backward.
    """
    where = (group, rows, check, key_offset, key_positions)
    if any(one is not None for one in where) or spread(q_s, k_s, q_t, k_t, weight, begin, end):
        from . import distributed

        tensors = dict(q_s=q_s, k_s=k_s, q_t=q_t, k_t=k_t, weight=weight, begin=begin, end=end)
        return distributed.attention(tensors, options, return_lse, distributed.Place(*where))
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
    group: Any = None,
    rows: Optional[str] = None,
    check: Optional[bool] = None,
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
    divergence, beta: as in attention_kl.
    reduction: "mean" is sum(weight loss) / sum(weight), without weight a division by the number of tokens (0, not NaN,
        if that is 0); "sum" is sum(weight loss); "none" is weight loss, x_s.shape[:-1].
    scale_s, scale_t: factor of the product and bias; None is 1.
    softcap_s, softcap_t: c > 0 makes logits c tanh(z / c), after the scale and before the temperature.
    columns: the first so many rows of w_s and w_t are the vocabulary, the others are padding. Needed if their
        numbers of rows differ.
    threads, isa, workspace_limit, skip_below, any_order: how it is computed; see docs/python.md.
    group: a process group whose ranks hold the vocabulary in parts; with rows and check in docs/distributed.md. DTensors
        bring theirs.

    The loss is f32. Gradients go to each tensor that requires them, in its dtype; a bf16 head that accumulates its
    gradient in f32 (w_s.grad_dtype = torch.float32) gets it in f32. With mean and sum they are made in the forward
    call; with none they are recomputed in backward.
    """
    if group is not None or rows is not None or check is not None or spread(x_s, w_s, x_t, w_t, weight, bias_s, bias_t):
        from . import distributed

        tensors = dict(x_s=x_s, w_s=w_s, x_t=x_t, w_t=w_t, weight=weight, bias_s=bias_s, bias_t=bias_t)
        return distributed.linear(tensors, options, return_lse, distributed.Place(group, rows, check))
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
