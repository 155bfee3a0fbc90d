# SPDX-License-Identifier: Apache-2.0
"""linear_kl against float64 autograd."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
import streamkl

STUDENT = ("x_s", "w_s")
EVERY = ("x_s", "w_s", "x_t", "w_t")


def operands(rows=(23,), v=101, d_s=24, d_t=40, dtype_s=torch.float32, dtype_t=torch.float32):
    return {
        "x_s": torch.randn(*rows, d_s).to(dtype_s),
        "w_s": (torch.randn(v, d_s) / 4).to(dtype_s),
        "x_t": torch.randn(*rows, d_t).to(dtype_t),
        "w_t": (torch.randn(v, d_t) / 4).to(dtype_t),
    }


def check(x, named=STUDENT, **options):
    reference.compare(partial(streamkl.linear_kl, **options), partial(reference.linear_kl, **options), x, named)


@pytest.mark.parametrize("divergence", reference.DIVERGENCES)
@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
@pytest.mark.parametrize("dtype_s", reference.DTYPES)
@pytest.mark.parametrize("dtype_t", (torch.float32, torch.float16))
def test_dtypes(divergence, reduction, dtype_s, dtype_t):
    check(
        operands(dtype_s=dtype_s, dtype_t=dtype_t),
        divergence=divergence,
        reduction=reduction,
        beta=reference.only_jsd(divergence, 0.2),
        temperature=1.7,
    )


def test_activations_and_weights_of_different_dtypes():
    x = operands()
    x["x_s"], x["w_t"] = x["x_s"].bfloat16(), x["w_t"].half()
    check(x, EVERY)


@pytest.mark.parametrize("rows", [(), (1,), (5,), (2, 7), (2, 3, 4), (2, 1, 3, 2), (2, 1, 2, 1, 3)])
@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
def test_leading_dimensions(rows, reduction):
    weight = torch.rand(rows)
    check(operands(rows), EVERY, reduction=reduction, weight=weight)
    _, lse_s, lse_t = streamkl.linear_kl(**operands(rows), reduction=reduction, return_lse=True)
    assert lse_s.shape == lse_t.shape == rows


@pytest.mark.parametrize("divergence", reference.DIVERGENCES)
@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
def test_options(divergence, reduction):
    x = {**operands((2, 9)), "bias_s": torch.randn(101), "bias_t": torch.randn(101).half()}
    check(
        x,
        (*EVERY, "bias_s", "bias_t"),
        divergence=divergence,
        reduction=reduction,
        temperature=2.0,
        weight=torch.rand(1, 9),
        scale_s=0.5,
        scale_t=0.7,
        softcap_s=3.0,
        softcap_t=30.0,
    )


@pytest.mark.parametrize("divergence", reference.DIVERGENCES)
def test_padded_vocabulary(divergence):
    """Heads of different sizes: the padding has no mass and a gradient of exactly 0."""
    x = operands()
    x["w_t"] = torch.cat([x["w_t"], torch.full((27, 40), 9.0)])
    x["w_s"] = torch.cat([x["w_s"], torch.randn(3, 24)])
    check(x, EVERY, divergence=divergence, columns=101)
    (g,) = torch.autograd.grad(streamkl.linear_kl(**x, columns=101, divergence=divergence), x["w_t"])
    assert g[:101].any() and not g[101:].any()


def test_strides():
    x = operands((4, 6))
    x["x_s"] = torch.randn(6, 4, 48).transpose(0, 1)[..., 10:34]
    x["w_s"] = torch.randn(101, 30)[:, :24]
    x["x_t"] = torch.randn(1, 1, 40).expand(4, 6, 40)
    x["w_t"] = torch.randn(40, 101).T / 4
    for reduction in ("none", "mean"):
        check(x, ("x_s", "w_s", "w_t"), reduction=reduction)


def test_temperature_and_gradient_agree():
    """Central differences at T = 2: no factor is in the loss that is not in the gradient."""
    x = operands((3,), v=11)
    x = {name: t.requires_grad_(name == "w_s") for name, t in x.items()}
    (g,) = torch.autograd.grad(streamkl.linear_kl(**x, temperature=2.0, reduction="sum"), x["w_s"])
    direction = torch.randn_like(g)
    with torch.no_grad():
        at = [
            streamkl.linear_kl(**{**x, "w_s": x["w_s"] + h * direction}, temperature=2.0, reduction="sum")
            for h in (-1e-2, 1e-2)
        ]
    assert ((at[1] - at[0]) / 2e-2).item() == pytest.approx((g * direction).sum().item(), rel=2e-2)


def test_hand_case():
    """Two tokens, 0.1 / 0.9 against 0.9 / 0.1."""
    p = torch.tensor([0.1, 0.9]).log()
    x = torch.ones(1, 1)
    kl = 0.8 * torch.tensor(9.0).log()
    for divergence in ("forward", "reverse"):
        got = streamkl.linear_kl(x, p[:, None], x, p.flip(0)[:, None], divergence=divergence)
        assert got.item() == pytest.approx(kl.item(), rel=1e-6)


def test_no_mass_is_not_nan():
    """Both sides far below the smallest number, and a bias of -inf on both sides."""
    x = operands((5,))
    x["w_s"][7:], x["w_t"][7:] = 0, 0
    far = torch.zeros(101)
    far[7:] = -1000
    gone = torch.zeros(101)
    gone[7:] = -torch.inf
    for divergence in reference.DIVERGENCES:
        cut = streamkl.linear_kl(**x, columns=7, divergence=divergence)
        for bias in (far, gone):
            leaf = x["w_s"].clone().requires_grad_()
            loss = streamkl.linear_kl(**{**x, "w_s": leaf}, bias_s=bias, bias_t=bias, divergence=divergence)
            assert loss.item() == pytest.approx(cut.item(), rel=1e-5)
            assert torch.isfinite(torch.autograd.grad(loss, leaf)[0]).all()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data())
def test_random(data):
    pick = lambda *choices: data.draw(st.sampled_from(choices))  # noqa: E731
    number = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    torch.manual_seed(number(0, 2**31))
    rows = data.draw(st.lists(st.integers(1, 9), max_size=4))
    x = operands(
        tuple(rows), number(1, 300), number(1, 40), number(1, 90), pick(*reference.DTYPES), pick(*reference.DTYPES)
    )
    divergence = pick(*reference.DIVERGENCES)
    check(
        x,
        pick(STUDENT, EVERY, ("x_s",), ("w_s",), ("w_t",)),
        divergence=divergence,
        beta=reference.only_jsd(divergence, pick(0.1, 0.5, 0.9)),
        temperature=pick(0.7, 1.0, 3.0),
        reduction=pick(*reference.REDUCTIONS),
        weight=torch.rand(rows) if pick(True, False) else None,
    )
