# SPDX-License-Identifier: Apache-2.0
"""streamkl.liger beside the installed Liger.

Its chunked losses are plain torch and run here. LigerFusedLinearJSD needs Triton and a GPU: it is compared with the
formula of its documentation, written out in torch below."""

import inspect

import pytest
import torch
import torch.nn.functional as F

import streamkl.liger as ours

IGNORE = -100
N, V = 37, 61
chunked = pytest.importorskip("liger_kernel.chunked_loss", reason="liger-kernel is not installed")


def operands(bias=False, ignored=9, v_t=V):
    x = [torch.randn(N, 16), torch.randn(V, 16) / 4, torch.randn(N, 24), torch.randn(v_t, 24) / 5]
    labels = torch.randint(0, V, (N,))
    labels[torch.randperm(N)[:ignored]] = IGNORE
    biases = [torch.randn(V), torch.randn(v_t)] if bias else []
    for t in (*x, *biases):
        t.requires_grad_()
    return [*x, labels, *biases]


def gradients(loss, args):
    leaves = [t for t in args if t.requires_grad]
    return torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=True)


def same(mine, theirs, args, atol=2e-6):
    torch.testing.assert_close(mine, theirs, atol=atol, rtol=1e-5)
    for g, want in zip(gradients(3 * mine, args), gradients(3 * theirs, args)):
        assert (g is None) == (want is None), "gradients go to the student only"
        if g is not None:
            torch.testing.assert_close(g, want, atol=atol, rtol=1e-4)


@pytest.mark.parametrize("beta", (0, 0.2, 0.5, 1))
@pytest.mark.parametrize("temperature", (0.5, 1.0, 2.0))
@pytest.mark.parametrize("bias", (False, True))
@pytest.mark.parametrize("weights", ((0.0, 1.0), (0.5, 0.5), (1.0, 0.0), (0.3, 2.0)))
def test_chunked_jsd(beta, temperature, bias, weights):
    options = dict(weight_hard_loss=weights[0], weight_soft_loss=weights[1], beta=beta, temperature=temperature)
    args = operands(bias)
    theirs = chunked.LigerFusedLinearJSDLoss(**options, compiled=False, chunk_size=8)(*args)
    same(ours.LigerFusedLinearJSDLoss(**options, compiled=False, chunk_size=8)(*args), theirs, args)


def test_defaults_and_parts():
    args = operands(True)
    theirs = chunked.LigerFusedLinearJSDLoss(compiled=False, return_soft_hard_loss=True)(*args)
    mine = ours.LigerFusedLinearJSDLoss(return_soft_hard_loss=True)(*args)
    assert len(mine) == 3
    for a, b in zip(mine, theirs):
        torch.testing.assert_close(a, b, atol=2e-6, rtol=1e-5)
    same(mine[0], theirs[0], args)


def test_one_pass(monkeypatch):
    """Both losses from one call, and no second one where a weight is 0."""
    calls = []
    for name in ("linear_kl", "linear_cross_entropy"):
        real = getattr(ours, name)
        monkeypatch.setattr(ours, name, lambda *a, real=real, name=name, **k: calls.append(name) or real(*a, **k))
    args = operands(True)
    for weights, want in (((0.5, 0.5), "linear_kl"), ((0.0, 1.0), "linear_kl"), ((1.0, 0.0), "linear_cross_entropy")):
        ours.LigerFusedLinearJSDLoss(*weights)(*args).backward()
        assert calls == [want]
        calls.clear()
    ours.LigerFusedLinearJSDLoss(return_soft_hard_loss=True)(*args)
    assert calls == ["linear_kl"]


def test_another_ignore_index():
    args = operands()
    args[4] = torch.where(args[4] == IGNORE, 42, args[4])
    options = dict(ignore_index=42, compiled=False)
    same(ours.LigerFusedLinearJSDLoss(**options)(*args), chunked.LigerFusedLinearJSDLoss(**options)(*args), args)


def formula(x_s, w_s, x_t, w_t, labels, beta, temperature):
    """beta KL(p || m) + (1 - beta) KL(q || m), m = beta p + (1 - beta) q; KL(p || q) at 0 and KL(q || p) at 1."""
    p, q = ((x @ w.T / temperature).double().log_softmax(-1) for x, w in ((x_t.detach(), w_t.detach()), (x_s, w_s)))
    kl = lambda a, b: F.kl_div(b, a, reduction="none", log_target=True).sum(-1)  # noqa: E731
    m = (beta * p.exp() + (1 - beta) * q.exp()).log()
    rows = kl(p, q) if beta == 0 else kl(q, p) if beta == 1 else beta * kl(p, m) + (1 - beta) * kl(q, m)
    return rows[labels != IGNORE].mean().float()


@pytest.mark.parametrize("temperature, beta", [(1.0, 0.5), (2.0, 0.1), (1.0, 0), (1.0, 1)])
def test_fused_jsd(temperature, beta):
    args = operands()
    theirs = formula(*args, beta, temperature)
    same(ours.LigerFusedLinearJSD(beta, IGNORE, temperature)(*args), theirs, args)
    same(ours.liger_fused_linear_jsd(*args, beta, IGNORE, temperature, torch.float32), theirs, args)
    args[4] = torch.zeros(N, dtype=torch.long)
    same(
        ours.liger_fused_linear_jsd(*args[:4], None, beta, temperature=temperature),
        formula(*args, beta, temperature),
        args,
    )


def test_all_ignored():
    args = operands(ignored=N)
    for loss in (ours.LigerFusedLinearJSDLoss()(*args), ours.LigerFusedLinearJSD()(*args)):
        assert loss.item() == 0 and not any(g.any() for g in gradients(loss, args) if g is not None)


def test_padded_teacher():
    """The rows that only the teacher has are padding: no mass. Liger gives the student mass there."""
    args = operands(True, v_t=V + 3)
    cut = [*args[:3], args[3][:V], *args[4:6], args[6][:V]]
    loss = ours.LigerFusedLinearJSDLoss(compiled=False)
    same(loss(*args), chunked.LigerFusedLinearJSDLoss(compiled=False)(*cut), args[:3])
    with pytest.raises(ValueError, match=r"student_weight.shape = \(61, 16\): the teacher has only 60 rows"):
        ours.LigerFusedLinearJSDLoss()(*args[:3], args[3][:60], args[4])


def test_three_dimensions():
    args = operands()
    tall = [t[:36].view(4, 9, -1) if i in (0, 2) else t[:36].view(4, 9) if i == 4 else t for i, t in enumerate(args)]
    flat = [t[:36] if i in (0, 2, 4) else t for i, t in enumerate(args)]
    same(ours.LigerFusedLinearJSDLoss()(*tall), ours.LigerFusedLinearJSDLoss()(*flat), args)


def test_signatures():
    """The names and defaults are those of the installed Liger."""
    from liger_kernel.transformers import LigerFusedLinearJSD
    from liger_kernel.transformers.functional import liger_fused_linear_jsd

    def parameters(f):
        return [(p.name, p.default) for p in inspect.signature(f).parameters.values() if p.name != "self"]

    assert parameters(ours.liger_fused_linear_jsd) == parameters(liger_fused_linear_jsd)
    for mine, theirs in (
        (ours.LigerFusedLinearJSD, LigerFusedLinearJSD),
        (ours.LigerFusedLinearJSDLoss, chunked.LigerFusedLinearJSDLoss),
    ):
        assert parameters(mine.__init__) == parameters(theirs.__init__)
        assert [p[0] for p in parameters(mine.forward)] == [p[0] for p in parameters(theirs.forward)]


def test_refusals():
    with pytest.raises(ImportError, match="cannot use LigerFusedLinearCosineSimilarityLoss: it is no divergence"):
        from streamkl.liger import LigerFusedLinearCosineSimilarityLoss  # noqa: F401
    for name in ("LigerJSD", "LigerKLDIVLoss", "LigerTVDLoss", "LigerFusedCETVDLoss", "LigerFusedLinearKLDivLoss"):
        with pytest.raises(ImportError, match=f"cannot use {name}: "):
            getattr(ours, name)
    with pytest.raises(AttributeError):
        ours.LigerNothing  # noqa: B018
    for make, message in (
        (lambda: ours.LigerFusedLinearJSD(jsd_beta=1.5), "jsd_beta = 1.5"),
        (lambda: ours.LigerFusedLinearJSDLoss(beta=-0.1), "beta = -0.1"),
        (lambda: ours.LigerFusedLinearJSDLoss(temperature=0.0), "temperature = 0.0"),
        (lambda: ours.LigerFusedLinearJSD(accum_dtype=torch.bfloat16), "accum_dtype = torch.bfloat16"),
        (lambda: ours.LigerFusedLinearJSDLoss()(*operands()[:4], torch.zeros(5)), r"true_labels.shape = \(5,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
    with pytest.raises(TypeError, match="true_labels = None"):
        ours.LigerFusedLinearJSDLoss()(*operands()[:4], None)
