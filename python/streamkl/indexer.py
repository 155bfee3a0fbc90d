# SPDX-License-Identifier: Apache-2.0
"""The losses that train the scorers of sparse attention, for torch tensors: indexers, and gates over blocks of keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from . import _c
from ._details import make_details, wanted_rows
from ._inputs import attention_inputs, indexer_inputs, refuse_teacher_gradient
from ._ops import OPERANDS, topk
from ._options import AttentionOptions, IndexerOptions, make_options, pooling, show_options
from ._topk import check_count, indexer_options
from .functional import Details, divergence_of

if TYPE_CHECKING:
    from typing_extensions import Unpack


@show_options(_c.INDEXER, "scale_s")
def indexer_kl(
    q_i: Tensor,
    k_i: Tensor,
    w_i: Tensor,
    q_t: Tensor,
    k_t: Tensor,
    *,
    scale_i: float = 1.0,
    causal: bool = True,
    weight: Optional[Tensor] = None,
    begin: Optional[Tensor] = None,
    end: Optional[Tensor] = None,
    cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k: Optional[Tensor] = None,
    lse_t: Optional[Tensor] = None,
    support: Optional[Tensor] = None,
    sink_t: Optional[Tensor] = None,
    details: Sequence[str] = (),
    **options: Unpack[IndexerOptions],
) -> Union[Tensor, Tuple[Tensor, Details]]:
    """KL from the mean of a teacher's attention heads to an indexer (DeepSeek's lightning indexer, GLM-5), per (batch, query).

    The indexer's logits are z[i, j] = scale_i sum_h w_i[i, h] act(<q_i[h, i], k_i[j]>), act being ReLU (relu=False: the
    identity); the target is the mean of the softmaxes of all heads of the teacher. [B, heads, N, M] is never stored.

    q_i [B, Hi, N, Di], k_i [B, M, Di], w_i [B, N, Hi]: the indexer, f32, bf16 or f16, each its own; they get gradients,
        where ReLU's derivative at 0 is 0.
    q_t [B, H, N, D], k_t [B, Hkv, M, D]: the teacher, Hkv divides H. It gets no gradient: pass it detached.
    scale_i, scale_t: factors of the logits; scale_t None is 1/sqrt(D).
    causal, window: as in attention_kl, but causal is the default. begin, end, weight: over the queries, [N] or [B, N].
    lse_t [B, H, N], normalise_t: log-denominators of the teacher's heads, as in attention_kl.
    sink_t [H]: a logit in the denominator of each of the teacher's heads, without gradient. The indexer has none, so that it
        is no category: the target is the mean of exp(z - lse) over the keys, divided by its sum unless normalise_t=False: a
        head counts as much as it gives to keys. Not with lse_t, which has the sinks in it already, nor with support.
    reduction: "mean" is over the queries, "none" is [B, N].
    details: names as in linear_kl that need no labels, such as ("entropy_s", "top1_t"): the result is (loss, dict).
    cu_seqlens_q, cu_seqlens_k: int32 [sequences + 1]: packed sequences as in attention_kl, q_i [total_q, Hi, Di], k_i
        [total_k, Di], w_i [total_q, Hi], q_t [total_q, H, D], k_t [total_k, Hkv, D], rows [total_q], lse_t [total_q, H].
    support, support_block: lists of keys [B, N, K], or of blocks of keys, as in attention_kl: the indexer's softmax and those
        of the teacher's heads are over what is listed (with lse_t given, the heads' are what it says). indexer_topk()
        makes them.
    threads, isa, workspace_limit and the other options: as in attention_kl. On CUDA without sink_t; right there, and slow.

    A query that sees no key, or has weight 0, has loss 0 and gradients of 0 (not None).
    """
    made = make_options(_c.INDEXER, {"scale_s": scale_i, "causal": causal, **options})
    operands = dict(q_i=q_i, k_i=k_i, w_i=w_i, q_t=q_t, k_t=k_t)
    inputs = indexer_inputs(operands, weight, begin, end, lse_t, cu_seqlens_q, cu_seqlens_k, support, sink_t)
    refuse_teacher_gradient(q_t, k_t, sink_t)
    loss, told = divergence_of(inputs, made, options.get("reduction") == "none", wanted_rows(details, False))
    if cu_seqlens_q is not None:  # the rows of the one batch
        loss, told = loss[0] if loss.dim() else loss, {name: t[0] for name, t in told.items()}
        inputs = tuple(t if t is None or i != OPERANDS else t[0] for i, t in enumerate(inputs))
    return (loss, make_details(details, told, inputs[OPERANDS], None)) if details else loss


@torch.no_grad()
def indexer_topk(
    q_i: Tensor,
    k_i: Tensor,
    w_i: Tensor,
    k: int,
    *,
    relu: bool = True,
    scale_i: float = 1.0,
    causal: bool = True,
    begin: Optional[Tensor] = None,
    end: Optional[Tensor] = None,
    window: Optional[Tuple[int, int]] = None,
    cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k: Optional[Tensor] = None,
) -> Tensor:
    """The k keys with the largest logits of an indexer, for each query: int32 [B, N, k], packed [total_q, k].

    What indexer_kl and attention_kl take as support. The largest comes first, of equal logits (ReLU makes many zeros) the lower
    key; a query that sees fewer than k keys has -1 behind them. A logit that is NaN counts as +inf. [N, M] is never
    stored, only tiles of it.

    q_i, k_i, w_i, relu, scale_i, causal, begin, end, window, cu_seqlens_q, cu_seqlens_k: as in indexer_kl; with packed
    sequences keys count from the first of their sequence. No gradient goes through a choice. On CUDA right, and slow, as
    indexer_kl is.
    """
    count, options = check_count(k), indexer_options(relu, scale_i, causal, window)
    inputs = indexer_inputs(dict(q_i=q_i, k_i=k_i, w_i=w_i), None, begin, end, None, cu_seqlens_q, cu_seqlens_k)
    (lists,) = topk(*inputs, *options, count, False)
    return lists if cu_seqlens_q is None else lists[0]


def pooled_attention_kl(
    q_s: Tensor,
    k_s: Tensor,
    q_t: Tensor,
    k_t: Tensor,
    *,
    block: int,
    pool: str = "max",
    weight: Optional[Tensor] = None,
    begin: Optional[Tensor] = None,
    end: Optional[Tensor] = None,
    **options: Unpack[AttentionOptions],
) -> Tensor:
    """Divergence from a teacher's attention, pooled over blocks of keys, to a student whose keys are these blocks
    (SeerAttention's gates), per (batch, head, query).

    q_s [B, H, N, Ds], k_s [B, Hs, ceil(M / block), Ds]: the student, one key for each block of 'block' keys of the teacher;
        the last may be shorter. q_t [B, H, N, Dt], k_t [B, Ht, M, Dt]: the teacher, which gets no gradient: pass it detached.
    pool: the teacher's logit of a block is the largest of its keys' logits ("max"), or their log-sum-exp ("sum"): the softmax
        over the blocks is then the block's largest probability, or its sum, divided by the sum over the blocks.
    causal, window, begin, end: as in attention_kl, and they count the teacher's keys. A query sees the blocks that hold a
        key that it sees; keys of them that it does not see are left out.
    weight, divergence, reduction, scale_s, scale_t, softcap_s, softcap_t, threads, ..: as in attention_kl; not columns,
        mix_t and normalise_t. On the CPU; CUDA tensors are refused.
    """
    made = make_options(_c.ATTENTION, options, **pooling(block, pool))
    inputs = attention_inputs(q_s, k_s, q_t, k_t, weight, begin, end)
    refuse_teacher_gradient(q_t, k_t)
    return divergence_of(inputs, made, options.get("reduction") == "none", ())[0]
