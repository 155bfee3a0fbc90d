# SPDX-License-Identifier: Apache-2.0
"""pooled_attention_kl against the definition in float64, from probabilities."""

import numpy as np
import pytest
import torch

import reference
import streamkl

STUDENT = ("q_s", "k_s")


def operands(b=2, h=4, n=19, m=37, block=8, h_s=2, h_t=4, d_s=24, d_t=40, dtype=torch.float32):
    return {
        "q_s": torch.randn(b, h, n, d_s).to(dtype),
        "k_s": torch.randn(b, h_s, -(-m // block), d_s).to(dtype),
        "q_t": torch.randn(b, h, n, d_t).to(dtype),
        "k_t": torch.randn(b, h_t, m, d_t).to(dtype),
    }


def definition(
    q_s, k_s, q_t, k_t, *, block, pool, divergence="forward", weight=None, reduction="mean", softcap_t=None, **mask
):
    """Probabilities of all keys, pooled, divided by their sum over the blocks."""
    m, blocks = k_t.shape[2], k_s.shape[2]
    seen = reference.visible_keys(q_t.shape[2], m, q_t.shape[:-1], **mask)
    p = reference.head_target(reference.head_logits(q_t, k_t, softcap=softcap_t), seen)
    pad = [0, blocks * block - m]
    p = torch.nn.functional.pad(p, pad).unflatten(-1, (blocks, block))
    p = p.amax(-1) if pool == "max" else p.sum(-1)
    some = torch.nn.functional.pad(seen, pad).unflatten(-1, (blocks, block)).any(-1)
    p = (p / p.sum(-1, keepdim=True).clamp_min(1e-300)).log()
    z = reference.head_logits(q_s, k_s)
    return reference.reduce(reference.divergence_of(z, p, divergence, None, some), weight, reduction)


def check(x, **options):
    def ours(**x):
        return streamkl.pooled_attention_kl(**x, **options)

    def theirs(**x):
        return definition(**x, **options)

    reference.compare(ours, theirs, x, STUDENT)


@pytest.mark.parametrize("pool", ("max", "sum"))
@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
@pytest.mark.parametrize("causal", (False, True))
def test_reductions(pool, reduction, causal):
    check(operands(), block=8, pool=pool, reduction=reduction, causal=causal)


@pytest.mark.parametrize("block", (1, 5, 37, 100))
def test_blocks(block):
    for pool in ("max", "sum"):
        check(operands(block=block), block=block, pool=pool, window=(11, -1), causal=True)


@pytest.mark.parametrize("dtype", reference.DTYPES)
def test_options(dtype):
    weight = torch.rand(2, 1, 19) * (torch.rand(2, 1, 19) > 0.3)
    end = torch.tensor([37, 20])[:, None, None]
    check(operands(dtype=dtype), block=8, pool="sum", softcap_t=4.0, weight=weight, end=end)


@pytest.mark.parametrize("divergence", ("reverse", "jsd", "skew_forward"))
def test_divergences(divergence):
    check(operands(), block=8, pool="max", divergence=divergence)


def test_blocks_of_one_key_are_attention():
    x = operands(block=1)
    for pool in ("max", "sum"):
        got = streamkl.pooled_attention_kl(**x, block=1, pool=pool, causal=True)
        assert torch.allclose(got, streamkl.attention_kl(**x, causal=True), atol=1e-6)


def test_numpy():
    import streamkl.numpy

    x = operands()
    arrays = {name: t.numpy() for name, t in x.items()}
    value, grads = streamkl.numpy.pooled_attention_kl(**arrays, block=8, causal=True, grads=STUDENT)
    x["k_s"].requires_grad_()
    loss = streamkl.pooled_attention_kl(**x, block=8, causal=True)
    assert np.float32(value) == loss.detach().numpy()
    assert np.array_equal(grads["k_s"], torch.autograd.grad(loss, x["k_s"])[0].numpy())


def test_compile():
    x = operands()

    def f(q, k):
        return streamkl.pooled_attention_kl(q * 2, k, x["q_t"], x["k_t"], block=8, causal=True, reduction="none").sum()

    leaves = [x[name].clone().requires_grad_() for name in STUDENT]
    got, want = torch.compile(f, fullgraph=True, backend="aot_eager")(*leaves), f(*leaves)
    assert torch.allclose(got, want)
    for a, b in zip(torch.autograd.grad(got, leaves), torch.autograd.grad(want, leaves)):
        assert torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize(
    "given, sentence",
    [
        (dict(block=7), "k_s.shape[2] = 5: 37 keys of k_t make 6 blocks of 7"),
        (dict(block=0), "block = 0"),
        (dict(block=8, pool="mean"), "pool = 'mean'"),
        (dict(block=8, columns=3), "columns with block = 8"),
        (dict(block=8, mix_t=1), "block = 8 with mixed heads"),
    ],
)
def test_errors(given, sentence):
    with pytest.raises(ValueError, match="streamkl: cannot use") as error:
        streamkl.pooled_attention_kl(**operands(), **given)
    assert sentence in str(error.value)


def test_teacher_gets_no_gradient():
    x = operands()
    x["k_t"].requires_grad_()
    with pytest.raises(ValueError, match="k_t.requires_grad"):
        streamkl.pooled_attention_kl(**x, block=8)
