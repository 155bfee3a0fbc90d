# SPDX-License-Identifier: Apache-2.0
"""attention_kl against float64 autograd."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
import streamkl

STUDENT = ("q_s", "k_s")
EVERY = ("q_s", "k_s", "q_t", "k_t")


def operands(b=2, h=4, n=19, m=37, d_s=24, d_t=40, h_s=4, h_t=4, dtype_s=torch.float32, dtype_t=torch.float32):
    return {
        "q_s": torch.randn(b, h, n, d_s).to(dtype_s),
        "k_s": torch.randn(b, h_s, m, d_s).to(dtype_s),
        "q_t": torch.randn(b, h, n, d_t).to(dtype_t),
        "k_t": torch.randn(b, h_t, m, d_t).to(dtype_t),
    }


def check(x, named=STUDENT, **options):
    reference.compare(partial(streamkl.attention_kl, **options), partial(reference.attention_kl, **options), x, named)


MASKS = {
    "none": {},
    "causal": dict(causal=True),
    "window": dict(window=(5, 2)),
    "left window, causal": dict(window=(7, -1), causal=True),
    "ranges": dict(begin=torch.randint(0, 12, (2, 1, 19)), end=torch.randint(10, 38, (2, 1, 19))),
    "padding": dict(end=torch.tensor([37, 20])[:, None, None]),
    "columns": dict(columns=29),
    "causal columns": dict(columns=29, causal=True),
}


@pytest.mark.parametrize("divergence", reference.DIVERGENCES)
@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
@pytest.mark.parametrize("mask", MASKS)
def test_masks(divergence, reduction, mask):
    beta = reference.only_jsd(divergence, 0.3)
    check(operands(), divergence=divergence, reduction=reduction, beta=beta, **MASKS[mask])


@pytest.mark.parametrize("divergence", reference.DIVERGENCES)
@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
@pytest.mark.parametrize("dtype_s", reference.DTYPES)
@pytest.mark.parametrize("dtype_t", (torch.float32, torch.bfloat16))
def test_dtypes(divergence, reduction, dtype_s, dtype_t):
    check(operands(dtype_s=dtype_s, dtype_t=dtype_t), divergence=divergence, reduction=reduction, causal=True)


@pytest.mark.parametrize("divergence", reference.DIVERGENCES)
@pytest.mark.parametrize("reduction", ("none", "mean"))
def test_teacher_gradient(divergence, reduction):
    beta = reference.only_jsd(divergence, 0.7)
    check(operands(), EVERY, divergence=divergence, reduction=reduction, beta=beta, causal=True)


@pytest.mark.parametrize("heads", [(8, 2, 4), (6, 6, 1), (6, 3, 6)])
@pytest.mark.parametrize("reduction", ("none", "mean"))
def test_grouped_heads(heads, reduction):
    h, h_s, h_t = heads
    check(operands(h=h, h_s=h_s, h_t=h_t), EVERY, reduction=reduction, causal=True)


@pytest.mark.parametrize("divergence", reference.DIVERGENCES)
def test_options(divergence):
    weight = torch.rand(2, 1, 19) * (torch.rand(2, 1, 19) > 0.3)
    for reduction in reference.REDUCTIONS:
        check(
            operands(),
            divergence=divergence,
            reduction=reduction,
            weight=weight,
            scale_s=0.3,
            scale_t=0.11,
            softcap_s=2.0,
            softcap_t=30.0,
        )


def test_bool_mask_is_a_weight():
    x, mask = operands(), torch.rand(2, 4, 19) > 0.5
    got = streamkl.attention_kl(**x, weight=mask)
    rows = reference.attention_kl(**x, reduction="none")
    reference.close(got, rows[mask].mean(), 1e-5)


@pytest.mark.parametrize("reduction", ("none", "sum"))
def test_strides(reduction):
    """Views of packed projections, [B, N, H, D] and one with a last dimension that is not contiguous."""
    qkv = torch.randn(2, 21, 3, 4, 16)
    swapped = torch.randn(2, 4, 16, 21).transpose(-1, -2)
    x = {
        "q_s": qkv[:, :, 0].transpose(1, 2).detach(),
        "k_s": qkv[:, :, 1].transpose(1, 2).detach(),
        "q_t": swapped,
        "k_t": torch.randn(4, 21, 16).expand(2, 4, 21, 16),
    }
    assert not any(t.is_contiguous() for t in x.values())
    check(x, ("q_s", "k_s", "q_t"), reduction=reduction, causal=True)


def test_views_are_not_copied(monkeypatch):
    packed = torch.randn(2, 21, 4, 48)
    x = {name: packed.transpose(1, 2)[..., i * 12 : i * 12 + 12] for i, name in enumerate(EVERY)}
    monkeypatch.setattr(torch.Tensor, "contiguous", None)
    streamkl.attention_kl(**x)


def test_lse():
    x = operands()
    want = torch.stack(
        [
            (
                x[f"q_{side}"].double() @ x[f"k_{side}"].double().transpose(-1, -2) * x[f"q_{side}"].shape[-1] ** -0.5
            ).logsumexp(-1)
            for side in "st"
        ]
    )
    x["q_s"].requires_grad_()
    for reduction in reference.REDUCTIONS:
        for on in (True, False):
            with torch.set_grad_enabled(on):
                loss, lse_s, lse_t = streamkl.attention_kl(**x, reduction=reduction, return_lse=True)
            assert loss.requires_grad is on and not lse_s.requires_grad and not lse_t.requires_grad
            reference.close(torch.stack([lse_s, lse_t]), want, 1e-6)


def test_identical_is_exactly_zero():
    q, k = torch.randn(1, 2, 30, 16, requires_grad=True), torch.randn(1, 2, 40, 16, requires_grad=True)
    for divergence in reference.DIVERGENCES:
        loss = streamkl.attention_kl(q, k, q.detach(), k.detach(), divergence=divergence)
        assert loss.item() == 0
        assert all(not g.any() for g in torch.autograd.grad(loss, [q, k]))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data())
def test_random(data):
    pick = lambda *choices: data.draw(st.sampled_from(choices))  # noqa: E731
    number = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    torch.manual_seed(number(0, 2**31))
    h_s, h_t = pick(1, 2, 3, 6), pick(1, 2, 3, 6)
    x = operands(
        number(1, 3),
        6,
        number(1, 40),
        number(1, 70),
        number(1, 33),
        number(1, 70),
        h_s,
        h_t,
        pick(*reference.DTYPES),
        pick(*reference.DTYPES),
    )
    divergence = pick(*reference.DIVERGENCES)
    check(
        x,
        pick(STUDENT, EVERY, ("q_s",), ("k_s",), ("q_t", "k_s")),
        divergence=divergence,
        beta=reference.only_jsd(divergence, pick(0.1, 0.5, 0.9)),
        reduction=pick(*reference.REDUCTIONS),
        causal=pick(True, False),
        window=pick(None, (3, -1), (-1, 4), (0, 0), (9, 1)),
        softcap_s=pick(None, 1.5),
        softcap_t=pick(None, 20.0),
    )
