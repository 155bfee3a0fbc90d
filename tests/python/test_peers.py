# SPDX-License-Identifier: Apache-2.0
"""The peers' own cases, with their tolerances: Liger's chunked JSD and TRL's ChunkedDivergenceFunction.

Their beta 0 is our "forward" and their beta 1 our "reverse"; in between all three agree on m = beta t + (1 - beta) s.
Both divide by the tokens that are not ignored, and neither multiplies by the temperature squared.

In bf16 Liger rounds logits and log-probabilities to bf16 before the softmax, TRL keeps f32. So there Liger is compared
at its own bound (at T 2, beta 0.1 its loss is 45 % below the float64 one), and our error must be below Liger's.
"""

import pytest
import torch

import reference
import streamkl

IGNORE = -100


def ours(beta):
    return dict(divergence={0: "forward", 1: "reverse"}.get(beta, "jsd"), beta=beta if 0 < beta < 1 else None)


def operands(n, h, v, dtype=torch.float32, bias=False):
    """Liger's tests: the student has half the width of the teacher."""
    x = {
        "x_s": torch.randn(n, h // 2),
        "w_s": torch.randn(v, h // 2),
        "x_t": torch.randn(n, h),
        "w_t": torch.randn(v, h),
    }
    x = {name: (t / t.shape[-1] ** 0.5 if name[0] == "w" else t) for name, t in x.items()}
    if bias:
        x.update(bias_s=torch.randn(v), bias_t=torch.randn(v))
    return {name: t.to(dtype).requires_grad_(name.endswith("_s")) for name, t in x.items()}


def gradients(loss, x):
    return dict(
        zip(
            (n for n in x if n.endswith("_s")), torch.autograd.grad(loss, [t for n, t in x.items() if n.endswith("_s")])
        )
    )


def liger(x, labels, beta, temperature):
    jsd = pytest.importorskip(
        "liger_kernel.chunked_loss", reason="liger-kernel is not installed"
    ).LigerFusedLinearJSDLoss
    loss = jsd(
        weight_hard_loss=0.0,
        weight_soft_loss=1.0,
        beta=beta,
        temperature=temperature,
        compiled=False,
        chunk_size=64,
        ignore_index=IGNORE,
    )
    return loss(x["x_s"], x["w_s"], x["x_t"], x["w_t"], labels, x.get("bias_s"), x.get("bias_t"))


def trl(x, labels, beta, temperature):
    module = pytest.importorskip("trl.kernels.chunked_divergence", reason="trl is not installed")
    rows, _ = module.ChunkedDivergenceFunction.apply(
        x["x_s"], x["w_s"], x.get("bias_s"), x["x_t"], x["w_t"], x.get("bias_t"), beta, temperature
    )
    kept = labels != IGNORE
    return (rows * kept).sum() / kept.sum()


SHAPES = [(8 * 16, 128, 512), (4 * 23, 167, 423), (2 * 2, 8, 8), (9 * 7, 41, 41)]  # Liger's, the first two smaller
SETTINGS = [(1.0, 0.5), (2.0, 0.1), (1.0, 0), (1.0, 1), (0.5, 0.2), (2.0, 0.8)]  # temperature, beta


@pytest.mark.parametrize("peer", (liger, trl), ids=("liger", "trl"))
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("temperature, beta", SETTINGS)
@pytest.mark.parametrize("bias", (False, True))
def test_f32(peer, shape, temperature, beta, bias):
    x = operands(*shape, bias=bias)
    labels = torch.randint(0, shape[2], shape[:1])
    labels[torch.randperm(shape[0])[: shape[0] // 5]] = IGNORE
    mine = streamkl.linear_kl(**x, temperature=temperature, weight=labels != IGNORE, **ours(beta))
    theirs = peer(x, labels, beta, temperature)
    torch.testing.assert_close(mine, theirs.float(), atol=1e-5, rtol=5e-4)
    for name, g in gradients(mine, x).items():
        torch.testing.assert_close(g, gradients(peer(x, labels, beta, temperature), x)[name], atol=1e-5, rtol=5e-4)


@pytest.mark.parametrize("peer", (liger, trl), ids=("liger", "trl"))
@pytest.mark.parametrize("temperature, beta", SETTINGS)
def test_bf16(peer, temperature, beta):
    x = operands(128, 128, 512, torch.bfloat16)
    labels = torch.randint(0, 512, (128,))
    mine = streamkl.linear_kl(**x, temperature=temperature, **ours(beta))
    theirs = peer(x, labels, beta, temperature)
    bound = dict(atol=5e-2, rtol=5e-1) if peer is liger else dict(atol=5e-3, rtol=5e-2)  # their own
    torch.testing.assert_close(mine, theirs.float(), **bound)
    exact = {name: t.detach().double().requires_grad_(t.requires_grad) for name, t in x.items()}
    value = reference.linear_kl(**exact, temperature=temperature, **ours(beta))
    reference.close(mine, value, 1e-5)
    want = gradients(value, exact)
    got, other = gradients(mine, x), gradients(theirs, x)
    for name in want:
        error, their_error = ((g[name].double() - want[name]).norm() / want[name].norm() for g in (got, other))
        assert error < 4e-3 and error < 1.1 * their_error, (name, error, their_error)


def test_all_ignored():
    """Liger divides 0 by 0 here; we give 0 and zero gradients."""
    x = operands(16, 32, 64)
    loss = streamkl.linear_kl(**x, weight=torch.zeros(16, dtype=torch.bool))
    assert loss.item() == 0 and not any(g.any() for g in gradients(loss, x).values())


def test_bf16_gradient_of_a_large_vocabulary():
    """Liger #1432: BT 256, H 1024, V 32000, bf16, where rounded logits cost 4 to 23 % of the gradient."""
    x = operands(64, 1024, 8000, torch.bfloat16)
    got = gradients(streamkl.linear_kl(**x, divergence="jsd"), x)
    exact = {name: t.detach().double().requires_grad_(t.requires_grad) for name, t in x.items()}
    want = gradients(reference.linear_kl(**exact, divergence="jsd"), exact)
    for name in want:
        assert (got[name].double() - want[name]).norm() / want[name].norm() < 3e-3


def test_both_sides_underflow():
    """Liger #1453: where both probabilities are below e^-104, an interior beta must not give NaN."""
    x = operands(8, 32, 64)
    push = torch.zeros(64)
    push[32:] = -300.0
    for beta in (0.1, 0.5, 0.9):
        loss = streamkl.linear_kl(**x, bias_s=push, bias_t=push, divergence="jsd", beta=beta)
        assert loss.isfinite() and all(g.isfinite().all() for g in gradients(loss, x).values())


def test_uneven_upstream_gradient():
    """Liger #1298: the gradient of unreduced losses honours what comes from above."""
    x = operands(16, 32, 64)
    upstream = torch.randn(16)
    mine = gradients((streamkl.linear_kl(**x, reduction="none") * upstream).sum(), x)
    want = gradients((reference.linear_kl(**x, reduction="none") * upstream).sum(), x)
    for name in want:
        torch.testing.assert_close(mine[name], want[name], atol=1e-5, rtol=5e-4)


@pytest.mark.parametrize("shape", [(256, 512, 128), (252, 507, 128), (252, 507, 123)])
@pytest.mark.parametrize("softcap", (None, 20.0))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_apple_cce_shapes(shape, softcap, dtype):
    """Cut cross-entropy's rule: no worse than torch in the same dtype, plus a tolerance."""
    n, v, d = shape
    x = {
        "x_s": torch.randn(n, d),
        "w_s": torch.randn(v, d) / d**0.5,
        "x_t": torch.randn(n, d),
        "w_t": torch.randn(v, d) / d**0.5,
    }
    x = {name: t.to(dtype).requires_grad_(name.endswith("_s")) for name, t in x.items()}
    weight = torch.rand(n) > 0.2
    exact = {name: t.detach().double().requires_grad_(t.requires_grad) for name, t in x.items()}
    options = dict(softcap_s=softcap, softcap_t=softcap, weight=weight)
    want = gradients(reference.linear_kl(**exact, **options), exact)
    got = gradients(streamkl.linear_kl(**x, **options), x)

    def torch_loss():
        z_s, z_t = (reference.cap(x[f"x_{i}"] @ x[f"w_{i}"].T, softcap).float().log_softmax(-1) for i in "st")
        rows = torch.nn.functional.kl_div(z_s, z_t, reduction="none", log_target=True).sum(-1)
        return (rows * weight).sum() / weight.sum()

    plain = gradients(torch_loss(), x)
    for name in want:
        error, torch_error = ((g[name].double() - want[name]).abs().max() for g in (got, plain))
        assert error <= torch_error + 1e-6
