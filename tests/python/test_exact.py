# SPDX-License-Identifier: Apache-2.0
"""What is exactly 0: loss and gradients of identical sides, of rows with one column and of flat rows. In every call."""

import numpy as np
import pytest
import torch

import reference
import streamkl
import streamkl.numpy

NAMES = {"attention": ("q_s", "k_s", "q_t", "k_t"), "linear": ("x_s", "w_s", "x_t", "w_t")}


def operands(use, columns, d_s=24, d_t=40):
    lead, d = ((2, 3), (d_s, d_t)) if use == "attention" else ((), (d_s, d_t))
    make = lambda n, d: torch.randn(*lead, n, d) * 3  # noqa: E731
    return [make(37, d[0]), make(columns, d[0]), make(37, d[1]), make(columns, d[1])]


def identical(use):
    """Nothing but the same: with a spread that leaves many small probabilities."""
    a, b, _, _ = operands(use, 203)
    return [a, b, a.clone(), b.clone()]


def one_column(use):
    """One column has probability 1 on both sides, whatever the logits are."""
    x = operands(use, 1)
    x[1] += 20
    return x


def flat(use):
    """Columns that are all the same, another vector on each side: both sides are uniform."""
    x = operands(use, 1)
    columns = [slice(None)] * (x[0].dim() - 2)
    return [t if i % 2 == 0 else t[(*columns, [0] * 203)] for i, t in enumerate(x)]


ROWS = (identical, one_column, flat)


@pytest.mark.parametrize("use", NAMES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("divergence", reference.DIVERGENCES)
@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
def test_torch(use, rows, divergence, reduction):
    for dtype in reference.DTYPES:
        x = [t.to(dtype).requires_grad_() for t in rows(use)]
        loss = getattr(streamkl, f"{use}_kl")(*x, divergence=divergence, reduction=reduction)
        assert not loss.any(), loss.abs().max()
        upstream = torch.rand_like(loss) + 0.5
        for name, g in zip(NAMES[use], torch.autograd.grad(loss, x, upstream)):
            assert not g.any(), (name, dtype, g.abs().max())


@pytest.mark.parametrize("use", NAMES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("divergence", reference.DIVERGENCES)
@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
def test_numpy(use, rows, divergence, reduction):
    x = [t.numpy() for t in rows(use)]
    options = dict(divergence=divergence, reduction=reduction)
    call = getattr(streamkl.numpy, f"{use}_kl")
    loss, grads = call(*x, **options, grads=NAMES[use])
    assert not np.any(loss) and not np.any(call(*x, **options))
    for name, g in grads.items():
        assert not g.any(), (name, np.abs(g).max())


@pytest.mark.parametrize("use", NAMES)
@pytest.mark.parametrize("rows", (identical, flat))
@pytest.mark.parametrize("divergence", reference.DIVERGENCES)
def test_options_keep_it(use, rows, divergence):
    """Weights, masks, scales, caps, a temperature: the sides stay what they were."""
    x = [t.requires_grad_() for t in rows(use)]
    options = dict(softcap_s=30.0, softcap_t=30.0, scale_s=0.7, scale_t=0.7, columns=150)
    if use == "linear":
        options.update(temperature=1.3, weight=torch.rand(37))
    else:
        options.update(causal=True, window=(90, -1), weight=torch.rand(2, 37), begin=torch.randint(0, 30, (2, 37)))
    for reduction in reference.REDUCTIONS:
        loss = getattr(streamkl, f"{use}_kl")(*x, divergence=divergence, reduction=reduction, **options)
        assert not loss.any()
        assert not any(g.any() for g in torch.autograd.grad(loss.sum(), x))


@pytest.mark.parametrize(
    "rows, divergence",
    [
        pytest.param(rows, divergence, marks=[pytest.mark.long] if i != k else [])
        for i, rows in enumerate(ROWS)
        for k, divergence in enumerate(reference.DIVERGENCES)
    ],
)
def test_checkpoint_and_compile(rows, divergence):
    x = [t.requires_grad_() for t in rows("linear")]
    f = lambda *x: streamkl.linear_kl(*x, divergence=divergence, reduction="none")  # noqa: E731
    for run in (torch.compile(f, backend="aot_eager", fullgraph=True), lambda *x: checkpointed(f, *x)):
        loss = run(*x)
        assert not loss.any() and not any(g.any() for g in torch.autograd.grad(loss.sum(), x))


def checkpointed(f, *x):
    return torch.utils.checkpoint.checkpoint(f, *x, use_reentrant=False)
