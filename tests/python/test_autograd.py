# SPDX-License-Identifier: Apache-2.0
"""Gradient only where asked, in the right dtype, once."""

import time

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import reference
import streamkl
from streamkl import _call, _ops

NAMES = ("x_s", "w_s", "x_t", "w_t")


def operands(dtype=torch.float32, n=12, v=50, d=16):
    return {name: torch.randn(n if name[0] == "x" else v, d).to(dtype) / 2 for name in NAMES}


@pytest.fixture
def calls(monkeypatch):
    """Which C calls were made, and how many gradients they were asked for."""
    made = []
    for name in ("value", "value_and_grad", "backward"):
        real = getattr(_call, name)

        def spy(*args, name=name, real=real):
            grads = args[5] if name != "value" else ()
            made.append((name, [i for i, g in enumerate(grads) if g is not None]))
            return real(*args)

        monkeypatch.setattr(_call, name, spy)
    return made


@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
@pytest.mark.parametrize("which", [("x_s",), ("w_s",), ("x_s", "w_s"), ("x_t",), NAMES])
def test_only_what_requires_grad(calls, reduction, which):
    x = {name: t.requires_grad_(name in which) for name, t in operands().items()}
    streamkl.linear_kl(**x, reduction=reduction).sum().backward()
    places = [(0, 1, 3, 4)[NAMES.index(name)] for name in which]
    if reduction == "none":
        assert calls == [("value", []), ("backward", places)]
    else:
        assert calls == [("value_and_grad", places)]
    assert [name for name in NAMES if x[name].grad is not None] == [name for name in NAMES if name in which]


@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
def test_no_gradients_when_nobody_wants_them(calls, reduction):
    x = operands()
    streamkl.linear_kl(**x, reduction=reduction)
    x["x_s"].requires_grad_()
    with torch.no_grad():
        streamkl.linear_kl(**x, reduction=reduction)
    with torch.inference_mode():
        streamkl.linear_kl(**x, reduction=reduction)
    assert calls == [("value", [])] * 3


def test_frozen_head_takes_less_time():
    """Its product is really skipped: three products, not four. Processor time: a busy machine does not matter."""
    torch.set_num_threads(1)
    x = operands(n=256, v=3000, d=256)
    x["x_s"].requires_grad_()
    best = {}
    for frozen in (False, True) * 4:
        x["w_s"].requires_grad_(not frozen)
        start = time.process_time()
        streamkl.linear_kl(**x)
        best[frozen] = min(best.get(frozen, 1e9), time.process_time() - start)
    assert best[True] < 0.93 * best[False], best


@pytest.mark.parametrize("reduction", ("none", "mean"))
def test_double_backward_raises_a_sentence(reduction):
    x = operands()
    x["x_s"].requires_grad_()
    loss = streamkl.linear_kl(**x, reduction=reduction).sum()
    (g,) = torch.autograd.grad(loss, x["x_s"], create_graph=True)
    with pytest.raises(NotImplementedError, match="double backward"):
        torch.autograd.grad((g**2).sum(), x["x_s"])
    (g,) = torch.autograd.grad(streamkl.linear_kl(**x, reduction=reduction).sum() ** 2, x["x_s"], create_graph=True)
    with pytest.raises(NotImplementedError, match="double backward"):
        torch.autograd.grad(g.sum(), x["x_s"])


@pytest.mark.parametrize("reduction", ("none", "mean"))
def test_retain_graph(reduction):
    x = operands()
    x["w_s"].requires_grad_()
    loss = streamkl.linear_kl(**x, reduction=reduction).sum() * 3
    first, second = (torch.autograd.grad(loss, x["w_s"], retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    loss.backward(retain_graph=True)
    loss.backward()
    assert torch.allclose(x["w_s"].grad, 2 * first)


@pytest.mark.parametrize("scale", [1, 0.5, -3])
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("size", [8, 1500])  # gradients of less and of more than 2^20 numbers
def test_gradients_are_given_away_only_once(scale, kept, size):
    """Where the graph ends, what the forward made is the gradient itself; where it stays, the next one needs it again."""
    x = operands(n=6, v=size, d=768)
    x["w_s"].requires_grad_()
    loss = streamkl.linear_kl(**x)
    made = loss.grad_fn.saved_tensors[0]
    expected, place = made * scale, made.data_ptr()
    (scale * loss).backward(retain_graph=kept)
    grad = x["w_s"].grad
    assert torch.equal(grad, expected) and not grad._is_view() and not grad.requires_grad
    assert (grad.data_ptr() == place) == (not kept)
    if kept:
        grad.zero_()  # is not what was saved
        (scale * loss).backward()
        assert torch.equal(grad, expected)


def test_several_upstream_gradients_at_once():
    """As torch.autograd.functional's vectorize=True has them."""
    x = operands()
    x["w_s"].requires_grad_()
    loss = streamkl.linear_kl(**x)
    (one,) = torch.autograd.grad(loss, x["w_s"], retain_graph=True)
    (two,) = torch.autograd.grad(loss, x["w_s"], torch.tensor([1.0, -2.0]), is_grads_batched=True)
    assert torch.equal(two, torch.stack([one, -2 * one]))


def test_loss_scaling_does_not_underflow():
    """f16 gradients around 1e-9 would all be zero before the scale: here none is lost."""
    x = operands(torch.float16, n=4096, v=64)
    x["x_s"] = x["x_s"] / 32
    x["x_t"], x["w_t"] = x["x_s"] * 1.01, x["w_s"]
    x["x_s"].requires_grad_()
    (unscaled,) = torch.autograd.grad(streamkl.linear_kl(**x), x["x_s"])
    (scaled,) = torch.autograd.grad(streamkl.linear_kl(**x) * 65536, x["x_s"])
    wide = {name: t.detach().float() for name, t in x.items()}
    wide["x_s"].requires_grad_()
    (want,) = torch.autograd.grad(streamkl.linear_kl(**wide), wide["x_s"])
    assert (unscaled == 0).float().mean() > 0.9
    assert ((scaled == 0) & (want != 0)).float().mean() < 0.05
    reference.close(scaled, want * 65536, 1e-3)


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="this torch has no Tensor.grad_dtype")
@pytest.mark.parametrize("reduction", ("none", "mean"))
def test_f32_gradient_of_a_bf16_head(reduction):
    x = operands(torch.bfloat16)
    x["w_s"].requires_grad_()
    x["w_s"].grad_dtype = torch.float32
    for _ in range(2):
        streamkl.linear_kl(**x, reduction=reduction).sum().backward()
    got, x["w_s"] = x["w_s"].grad, x["w_s"].detach().double().requires_grad_()
    reference.linear_kl(**x, reduction=reduction).sum().backward()
    assert got.dtype is torch.float32
    reference.close(got, 2 * x["w_s"].grad, 1e-5)


@pytest.mark.parametrize("reduction", ("none", "mean"))
def test_checkpoint(reduction):
    x = operands()
    layer = torch.nn.Linear(16, 16)
    f = lambda h: streamkl.linear_kl(layer(h), x["w_s"], x["x_t"], x["w_t"], reduction=reduction).sum()  # noqa: E731
    plain = torch.autograd.grad(f(x["x_s"]), layer.weight)[0]
    again = torch.autograd.grad(checkpoint(f, x["x_s"], use_reentrant=False), layer.weight)[0]
    assert torch.equal(plain, again)


def test_func_grad():
    x = operands()
    f = lambda w: streamkl.linear_kl(x["x_s"], w, x["x_t"], x["w_t"])  # noqa: E731
    leaf = x["w_s"].clone().requires_grad_()
    assert torch.equal(torch.func.grad(f)(x["w_s"]), torch.autograd.grad(f(leaf), leaf)[0])


TANGENT = r"streamkl: forward-mode differentiation \(jvp\) is not supported"


@pytest.mark.parametrize("reduction", ("none", "mean"))
@pytest.mark.parametrize("which", NAMES)
def test_forward_mode_raises(reduction, which):
    """No silent zeros, whatever the way and whether or not something requires grad."""
    from torch.autograd import forward_ad

    x = operands()
    f = lambda t: streamkl.linear_kl(**{**x, which: t}, reduction=reduction).sum()  # noqa: E731
    t, direction = x[which], torch.randn_like(x[which])
    with pytest.raises(NotImplementedError, match=TANGENT):
        torch.func.jvp(f, (t,), (direction,))
    with pytest.raises(NotImplementedError, match=TANGENT):
        torch.func.jacfwd(f)(t)
    for leaf in (t.clone(), t.clone().requires_grad_()):
        with forward_ad.dual_level(), pytest.raises(NotImplementedError, match=TANGENT):
            f(forward_ad.make_dual(leaf, direction))
    with pytest.raises(NotImplementedError, match="forward mode AD"):  # torch's own words
        torch.func.jvp(torch.func.grad(f), (t,), (direction,))
    with forward_ad.dual_level():  # that others are followed does not matter
        assert torch.equal(f(t), f(t.clone()))


def test_forward_mode_of_a_weight_raises():
    x = operands()
    with pytest.raises(NotImplementedError, match=TANGENT):
        torch.func.jvp(lambda w: streamkl.linear_kl(**x, weight=w), (torch.ones(12),), (torch.ones(12),))


@pytest.mark.parametrize("reduction", ("none", "mean"))
def test_vmap_raises(reduction):
    x = operands()
    f = lambda t: streamkl.linear_kl(t[None], x["w_s"], x["x_t"][:1], x["w_t"], reduction=reduction).sum()  # noqa: E731
    for run in (torch.func.vmap(f), torch.func.vmap(torch.func.grad(f))):
        with pytest.raises(NotImplementedError, match="streamkl: vmap is not supported"):
            run(x["x_s"])
    rows = lambda t: streamkl.linear_kl(t, x["w_s"], x["x_t"], x["w_t"], reduction=reduction)  # noqa: E731
    with pytest.raises(NotImplementedError, match="streamkl: vmap is not supported"):
        torch.func.jacrev(rows)(x["x_s"])


@pytest.mark.parametrize("divergence", reference.DIVERGENCES)
def test_what_is_saved(divergence):
    """LSEs in two parts, and what the divergence needs besides; no LSE itself, and nothing of N x V."""
    x = {name: t.requires_grad_() for name, t in operands().items()}
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        streamkl.linear_kl(**x, divergence=divergence, reduction="none", return_lse=True)
    rows = [t for t in saved if t.shape == (12,)]
    assert len(rows) == (6 if divergence == "jsd" else 5)
    assert all(any(t.data_ptr() == one.data_ptr() for one in x.values()) for t in saved if t.dim() == 2)


def test_autocast_takes_operands_as_they_come():
    x = operands()
    x["w_s"].requires_grad_()
    layer = torch.nn.Linear(16, 16)
    with torch.autocast("cpu", torch.bfloat16):
        hidden = layer(x["x_s"])
        loss = streamkl.linear_kl(hidden, x["w_s"], x["x_t"], x["w_t"])
    assert hidden.dtype is torch.bfloat16 and loss.dtype is torch.float32
    loss.backward()
    assert x["w_s"].grad.dtype is torch.float32 and layer.weight.grad.dtype is torch.float32
    wide = reference.linear_kl(hidden.detach(), x["w_s"].detach(), x["x_t"], x["w_t"])
    reference.close(loss, wide, 1e-5)


def test_tied_weights_add():
    x = operands()
    x["w_s"].requires_grad_()
    both = torch.autograd.grad(streamkl.linear_kl(x["w_s"][:12], x["w_s"], x["x_t"], x["w_t"]), x["w_s"])[0]
    w = x["w_s"].detach().double().requires_grad_()
    want = torch.autograd.grad(reference.linear_kl(w[:12], w, x["x_t"], x["w_t"]), w)[0]
    reference.close(both, want, 1e-5)


def test_raw_operators_are_private():
    assert not hasattr(streamkl, "value") and _ops.value is torch.ops.streamkl.value.default
