# SPDX-License-Identifier: Apache-2.0
"""The other ways in: NumPy arrays, modules, Nitrobrew's names."""

import numpy as np
import pytest
import torch

import reference
import streamkl
import streamkl.numpy
from streamkl import nitrobrew

NAMES = {"attention": ("q_s", "k_s", "q_t", "k_t"), "linear": ("x_s", "w_s", "x_t", "w_t")}
SHAPES = {
    "attention": ((2, 4, 9, 8), (2, 2, 13, 8), (2, 4, 9, 6), (2, 4, 13, 6)),
    "linear": ((2, 9, 8), (31, 8), (2, 9, 6), (31, 6)),
}


def arrays(use, dtype=np.float32):
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in zip(NAMES[use], SHAPES[use])}


@pytest.mark.parametrize("use", NAMES)
@pytest.mark.parametrize("divergence", reference.DIVERGENCES)
@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
@pytest.mark.parametrize("dtype", (np.float32, np.float16))
def test_numpy(use, divergence, reduction, dtype):
    x = arrays(use, dtype)
    options = dict(divergence=divergence, reduction=reduction)
    f, g = getattr(streamkl.numpy, f"{use}_kl"), getattr(streamkl, f"{use}_kl")
    rows = x[NAMES[use][0]].shape[:-1]
    weight = np.random.default_rng(1).random(rows).astype(np.float32)
    tensors = {name: torch.from_numpy(a).requires_grad_() for name, a in x.items()}
    want = g(**tensors, **options, weight=torch.from_numpy(weight))
    value = f(**x, **options, weight=weight)
    both, grads = f(**x, **options, weight=weight, grads=NAMES[use])
    assert np.allclose(value, want.detach().numpy(), rtol=1e-6) and np.allclose(both, value, rtol=1e-5)
    assert isinstance(value, float) or value.shape == rows
    for name, t in zip(NAMES[use], torch.autograd.grad(want.sum(), list(tensors.values()))):
        reference.close(torch.from_numpy(grads[name]), t, 2e-3 if dtype is np.float16 else 1e-5, name)


def test_numpy_views_and_shapes():
    x = arrays("linear")
    want = streamkl.numpy.linear_kl(**x)
    turned = {name: np.asfortranarray(a) for name, a in x.items()}
    assert np.isclose(streamkl.numpy.linear_kl(**turned), want, rtol=1e-6)
    backwards = {name: a[:, ::-1] if name[0] == "x" else a for name, a in x.items()}  # rows in the other order
    assert np.isclose(streamkl.numpy.linear_kl(**backwards), want, rtol=1e-6)
    one, grads = streamkl.numpy.linear_kl(
        x["x_s"][0, 0], x["w_s"], x["x_t"][0, 0], x["w_t"], reduction="none", grads=("x_s",)
    )
    assert one.shape == () and grads["x_s"].shape == (8,)


@pytest.mark.parametrize("use", NAMES)
@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
def test_numpy_lse(use, reduction):
    x = arrays(use)
    f, g = getattr(streamkl.numpy, f"{use}_kl"), getattr(streamkl, f"{use}_kl")
    want = [t.numpy() for t in g(*map(torch.from_numpy, x.values()), reduction=reduction, return_lse=True)]
    loss, lse_s, lse_t = f(**x, reduction=reduction, return_lse=True)
    (again, *lses), grads = f(**x, reduction=reduction, return_lse=True, grads=NAMES[use][:1])
    assert lse_s.shape == lse_t.shape == x[NAMES[use][0]].shape[:-1] and list(grads) == [NAMES[use][0]]
    for got in ((loss, lse_s, lse_t), (again, *lses)):
        assert all(np.allclose(a, b, rtol=1e-5) for a, b in zip(got, want))
    one, lse, _ = streamkl.numpy.linear_kl(*[np.ones(s, np.float32) for s in ((4,), (5, 4)) * 2], return_lse=True)
    assert one == 0 and lse.shape == ()


def test_numpy_takes_lists_over_rows():
    x = arrays("linear")
    weight = [[1, 0, 2, 1, 1, 1, 1, 0, 1]]
    assert streamkl.numpy.linear_kl(**x, weight=weight) == streamkl.numpy.linear_kl(**x, weight=np.array(weight))


def test_numpy_errors():
    x = arrays("linear")
    with pytest.raises(TypeError, match=r"x_s.dtype = 'float64': .*: x.astype\(numpy.float32\)"):
        streamkl.numpy.linear_kl(**{**x, "x_s": x["x_s"].astype(np.float64)})
    for grads in (True, "x_s", 3, None):
        with pytest.raises(TypeError, match=rf"grads = {grads!r}: it must hold names of operands, such as \('x_s',\)"):
            streamkl.numpy.linear_kl(**x, grads=grads)
    with pytest.raises(ValueError, match="x_s"):
        streamkl.numpy.linear_kl(**{**x, "x_s": [1.0]})
    with pytest.raises(ValueError, match=r"w_t.shape\[1\] = 5: it must be 6"):
        streamkl.numpy.linear_kl(**{**x, "w_t": x["w_t"][:, :5]})
    with pytest.raises(ValueError, match="'q_s' is not an operand"):
        streamkl.numpy.linear_kl(**x, grads=("q_s",))
    with pytest.raises(ValueError, match="weight.shape"):
        streamkl.numpy.linear_kl(**x, weight=np.ones(4))


@pytest.mark.parametrize("use", NAMES)
def test_modules(use):
    x = {name: torch.from_numpy(a) for name, a in arrays(use).items()}
    kind = streamkl.AttentionKLLoss if use == "attention" else streamkl.LinearKLLoss
    options = dict(divergence="jsd", beta=0.3, reduction="none")
    options.update(dict(causal=True, window=(3, -1)) if use == "attention" else dict(temperature=2.0))
    loss = kind(**options)
    weight = torch.rand(x[NAMES[use][0]].shape[:-1])
    want = getattr(streamkl, f"{use}_kl")(**x, **options, weight=weight)
    assert torch.equal(loss(*x.values(), weight=weight), want)
    assert "divergence='jsd'" in repr(loss) and not list(loss.parameters())


def test_nitrobrew_readme():
    """Its README's example, smaller: the teacher gets no gradient even if it could."""
    xs, xt = torch.randn(1, 40, 36, requires_grad=True), torch.randn(1, 40, 52, requires_grad=True)
    ws, wt = torch.randn(152, 36, requires_grad=True), torch.randn(152, 52, requires_grad=True)
    forward = nitrobrew.forward_kl(xs, xt, ws, wt, temperature=1.0)
    reverse = nitrobrew.reverse_kl(xs, xt, ws, wt, temperature=1.0)
    assert forward.shape == reverse.shape == (1, 40)
    reference.close(forward, reference.linear_kl(xs, ws, xt, wt, reduction="none"), 1e-5)
    reference.close(reverse, reference.linear_kl(xs, ws, xt, wt, reduction="none", divergence="reverse"), 1e-5)
    nitrobrew.forward_kl(xs, xt, ws, wt, reduction="mean", chunk_V=2048).backward()
    want = torch.autograd.grad(reference.linear_kl(xs, ws, xt, wt), [xs, ws])
    assert xt.grad is None and wt.grad is None
    reference.close(xs.grad, want[0], 1e-5)
    reference.close(ws.grad, want[1], 1e-5)
