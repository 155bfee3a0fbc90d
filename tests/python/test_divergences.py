# SPDX-License-Identifier: Apache-2.0
"""Skewed KL, total variation and alpha-beta, in every face; and JSD's ends, which are KLs."""

import numpy as np
import pytest
import torch

import reference
import streamkl
import streamkl.numpy
from reference import compare

CASES = [
    dict(divergence="skew_forward"),
    dict(divergence="skew_forward", skew=0.7),
    dict(divergence="skew_reverse"),
    dict(divergence="skew_reverse", skew=0.02),
    dict(divergence="tv"),
    dict(divergence="alpha_beta", alpha=0.2, beta=0.7),
    dict(divergence="alpha_beta", alpha=1, beta=1),
    dict(divergence="alpha_beta", alpha=0, beta=0.5),
    dict(divergence="alpha_beta", alpha=2, beta=0),
]
each = pytest.mark.parametrize("options", CASES, ids=lambda options: "-".join(map(str, options.values())))


def linear(rows=(3, 5), v=211, d=(24, 40), dtype=torch.float32):
    x_s, x_t = (torch.randn(*rows, n).to(dtype) for n in d)
    w_s, w_t = ((torch.randn(v, n) * 1.5 / n**0.5).to(dtype) for n in d)
    return dict(x_s=x_s, w_s=w_s, x_t=x_t, w_t=w_t)


def attention(n=37, m=61):
    q_s, q_t = torch.randn(2, 4, n, 24), torch.randn(2, 4, n, 40)
    k_s, k_t = torch.randn(2, 2, m, 24), torch.randn(2, 4, m, 40)
    return dict(q_s=q_s, k_s=k_s, q_t=q_t, k_t=k_t)


@each
@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
def test_linear(options, reduction):
    weight = torch.rand(3, 5).round(decimals=1)
    more = dict(options, reduction=reduction, weight=weight, temperature=1.5)
    compare(
        lambda **x: streamkl.linear_kl(**x, **more),
        lambda **x: reference.linear_kl(**x, **more),
        linear(),
        ("x_s", "w_s", "x_t", "w_t"),
    )


@each
@pytest.mark.parametrize("reduction", ("none", "mean"))
def test_attention(options, reduction):
    more = dict(options, reduction=reduction, causal=True, softcap_s=8.0)
    compare(
        lambda **x: streamkl.attention_kl(**x, **more),
        lambda **x: reference.attention_kl(**x, **more),
        attention(),
        ("q_s", "k_s", "q_t", "k_t"),
    )


@each
def test_half(options):
    compare(
        lambda **x: streamkl.linear_kl(**x, **options),
        lambda **x: reference.linear_kl(**x, **options),
        linear(dtype=torch.bfloat16),
        ("x_s", "w_s"),
    )


@each
@pytest.mark.parametrize("reduction", ("none", "sum"))
def test_identical_sides_give_exact_zeros(options, reduction):
    x = linear(d=(24, 24))
    x["x_t"], x["w_t"] = x["x_s"].clone(), x["w_s"].clone()
    for t in x.values():
        t.requires_grad_()
    loss = streamkl.linear_kl(**x, **options, reduction=reduction)
    loss.sum().backward()
    assert loss.abs().max() == 0
    assert all(t.grad.abs().max() == 0 for t in x.values())


@each
@pytest.mark.parametrize("reduction", ("none", "sum"))
def test_one_column_gives_exact_zeros(options, reduction):
    x = attention(m=1)
    for t in x.values():
        t.requires_grad_()
    loss = streamkl.attention_kl(**x, **options, reduction=reduction)
    loss.sum().backward()
    assert loss.abs().max() == 0
    assert all(t.grad.abs().max() == 0 for t in x.values())


@each
def test_columns_in_pieces(options):
    x, numbers = linear(), dict(options)
    whole = streamkl.linear_kl(**x, **options, reduction="none")

    def states(saved=None):
        pieces = [slice(0, 80), slice(80, 211)]
        cut = [dict(x, w_s=x["w_s"][piece], w_t=x["w_t"][piece]) for piece in pieces]
        return streamkl.merge(*[streamkl.linear_partial(**one, **options, saved=saved) for one in cut])

    first = streamkl.finish(states(), **numbers)
    assert first.loss is None
    second = streamkl.finish(states(first), **numbers, saved=first)
    torch.testing.assert_close(second.loss, whole, rtol=2e-6, atol=1e-6)


@each
def test_numpy(options):
    x = linear()
    for t in (x["x_s"], x["w_s"]):
        t.requires_grad_()
    loss = streamkl.linear_kl(**x, **options)
    loss.backward()
    arrays = {name: t.detach().numpy() for name, t in x.items()}
    value, grads = streamkl.numpy.linear_kl(**arrays, **options, grads=("x_s", "w_s"))
    assert np.float32(value) == loss.item()
    for name in ("x_s", "w_s"):
        np.testing.assert_array_equal(grads[name], x[name].grad.numpy())


@pytest.mark.parametrize("beta, name", ((0, "forward"), (1, "reverse"), (0.0, "forward")))
@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
def test_the_ends_of_jsd_are_kls(beta, name, reduction):
    x = linear()
    got = streamkl.linear_kl(**x, divergence="jsd", beta=beta, reduction=reduction)
    assert torch.equal(got, streamkl.linear_kl(**x, divergence=name, reduction=reduction))
    arrays = {key: t.numpy() for key, t in x.items()}
    value = streamkl.numpy.linear_kl(**arrays, divergence="jsd", beta=beta)
    assert value == streamkl.numpy.linear_kl(**arrays, divergence=name)


def test_alpha_beta_contains_both_kls():
    """(1, 0) is forward KL and (0, 1) reverse KL."""
    x = linear()
    for alpha, beta, name in ((1, 0, "forward"), (0, 1, "reverse")):
        got = streamkl.linear_kl(**x, divergence="alpha_beta", alpha=alpha, beta=beta, reduction="none")
        torch.testing.assert_close(
            got, streamkl.linear_kl(**x, divergence=name, reduction="none"), rtol=3e-6, atol=1e-6
        )


def test_compiled():
    x, run = linear(), torch.compile(streamkl.linear_kl, fullgraph=True, backend="aot_eager")
    for options in CASES[:1] + CASES[5:6]:
        assert torch.equal(run(**x, **options), streamkl.linear_kl(**x, **options))
