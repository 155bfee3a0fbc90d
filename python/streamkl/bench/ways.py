# SPDX-License-Identifier: Apache-2.0
"""The ways to compute a case: each takes a_s, b_s, a_t, b_t and gives the mean forward KL as a scalar with a graph.

'make' is called in the process that measures, so what it imports and compiles is only there. It travels to that process
by pickle: it has to be a function of a module, or a partial of one.

'memory' is what a way needs beyond its inputs, in bytes, forward and backward: one that would not fit is not started.
The factors are of measured peaks (eager attention 7 times the logits of one side, compiled 2 times), rounded up.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import partial
from typing import Callable, List

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import streamkl

from .case import Case
from .flash import three_flash_calls

CHUNK = 256  # rows, of the chunked loops
ROUNDED = "streamkl, round_dz"  # a way of bf16 operands

Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Way:
    name: str
    make: Callable[[], Loss]
    memory: float
    compiles: bool = False  # the first call is not typical


def kl_of_logits(z_s: Tensor, z_t: Tensor) -> Tensor:
    """Per row."""
    return F.kl_div(z_s.float().log_softmax(-1), z_t.float().log_softmax(-1), reduction="none", log_target=True).sum(-1)


def _vocabulary_eager(x_s, w_s, x_t, w_t) -> Tensor:
    return kl_of_logits(x_s @ w_s.T, x_t @ w_t.T).mean()


def _vocabulary_chunks(x_s, w_s, x_t, w_t) -> Tensor:
    piece = lambda x, y: kl_of_logits(x @ w_s.T, y @ w_t.T).sum()  # noqa: E731
    sums = [checkpoint(piece, x, y, use_reentrant=False) for x, y in zip(x_s.split(CHUNK), x_t.split(CHUNK))]
    return torch.stack(sums).sum() / x_s.shape[0]


def _masked(z: Tensor, first: int, causal: bool) -> Tensor:
    """Rows first, first + 1, .. of the square of logits."""
    if not causal:
        return z
    n, m = z.shape[-2:]
    hidden = torch.arange(m) > torch.arange(first, first + n)[:, None]
    return z.masked_fill(hidden, -1e30)


def _attention(q_s, k_s, q_t, k_t, first: int, causal: bool) -> Tensor:
    z_s = q_s @ k_s.transpose(-1, -2) * q_s.shape[-1] ** -0.5
    z_t = q_t @ k_t.transpose(-1, -2) * q_t.shape[-1] ** -0.5
    return kl_of_logits(_masked(z_s.float(), first, causal), _masked(z_t.float(), first, causal))


def _attention_eager(q_s, k_s, q_t, k_t, causal: bool) -> Tensor:
    return _attention(q_s, k_s, q_t, k_t, 0, causal).mean()


def _attention_chunks(q_s, k_s, q_t, k_t, causal: bool) -> Tensor:
    def piece(a, b, first):
        last = first + a.shape[2] if causal else None
        return _attention(a, k_s[:, :, :last], b, k_t[:, :, :last], first, causal).sum()

    starts = range(0, q_s.shape[2], CHUNK)
    pairs = zip(q_s.split(CHUNK, 2), q_t.split(CHUNK, 2), starts)
    return (
        torch.stack([checkpoint(piece, a, b, i, use_reentrant=False) for a, b, i in pairs]).sum() / q_s[..., 0].numel()
    )


def _as_it_is(loss: Loss) -> Loss:
    return loss


def _compiled(loss: Loss) -> Loss:
    torch.compiler.reset()  # after some eight shapes torch would compile no more, and run eagerly without a word
    return torch.compile(loss, dynamic=False)


def _liger() -> Loss:
    from liger_kernel.chunked_loss import LigerFusedLinearJSDLoss

    loss = LigerFusedLinearJSDLoss(weight_hard_loss=0.0, weight_soft_loss=1.0, beta=0.0)

    def run(x_s, w_s, x_t, w_t):
        return loss(x_s, w_s, x_t, w_t, torch.zeros(x_s.shape[0], dtype=torch.long))

    return run


def _trl() -> Loss:
    from trl.kernels.chunked_divergence import ChunkedDivergenceFunction

    return lambda x_s, w_s, x_t, w_t: ChunkedDivergenceFunction.apply(x_s, w_s, None, x_t, w_t, None, 0.0)[0].mean()


def _has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _ours(loss: Loss, case: Case, memory: float) -> List[Way]:
    ways = [Way("streamkl", partial(_as_it_is, loss), memory)]
    if case.dtype == "bf16":
        ways.append(Way(ROUNDED, partial(_as_it_is, partial(loss, round_dz=True)), memory))
    return ways


def ways_of(case: Case) -> List[Way]:
    one, part = case.logits, case.logits * min(CHUNK, case.length) / max(case.length, 1)
    grads = case.operand_bytes() * 4  # two f32 copies of the student's gradients, whatever the dtype
    if case.attention:
        causal = case.causal
        eager = partial(_attention_eager, causal=causal)
        chunks = partial(_attention_chunks, causal=causal)
        flash = partial(three_flash_calls, causal=causal)
        return [
            *_ours(partial(streamkl.attention_kl, causal=causal), case, grads),
            Way("eager", partial(_as_it_is, eager), 8 * one + grads),
            Way("compile", partial(_compiled, eager), 3 * one + grads, True),
            Way("chunked loop", partial(_as_it_is, chunks), 8 * part + grads),
            Way("three flash calls", partial(_as_it_is, flash), 4 * grads),
        ]
    ways = [
        *_ours(streamkl.linear_kl, case, grads + 256 * 2**20),
        Way("eager", partial(_as_it_is, _vocabulary_eager), 7 * one + grads),
        Way("compile", partial(_compiled, _vocabulary_eager), 3 * one + grads, True),
        Way("chunked loop", partial(_as_it_is, _vocabulary_chunks), 8 * part + 2 * grads),
    ]
    if _has("liger_kernel.chunked_loss"):
        ways.append(Way("Liger", _liger, 8 * min(1024, case.length) * 4 * case.columns + 2 * grads, True))
    if _has("trl.kernels.chunked_divergence"):
        tiles = 4 * 2 * min(4096, case.length) * 32768
        ways.append(Way("TRL", _trl, 4 * tiles + 2 * grads))
    return ways
