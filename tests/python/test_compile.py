# SPDX-License-Identifier: Apache-2.0
"""The operators belong in torch: opcheck, torch.compile, meta tensors, export."""

import pytest
import torch

import reference
import streamkl
from streamkl import _c, _ops
from streamkl._autograd import saved_rows
from streamkl._options import make_options


def tensors(n=9, v=30, d=8, dtype=torch.float32):
    return [torch.randn(n if i % 2 == 0 else v, d).to(dtype) for i in range(4)]


def arguments(divergence="forward", dtype=torch.float32):
    x_s, w_s, x_t, w_t = tensors(dtype=dtype)
    options = make_options(_c.LINEAR, dict(divergence=divergence, reduction="sum"))
    inputs = _c.named_inputs(a_s=x_s, b_s=w_s, bias_s=torch.randn(30), a_t=x_t, b_t=w_t, weight=torch.rand(9))
    return [*inputs, *options]


@pytest.mark.parametrize("divergence", reference.DIVERGENCES)
def test_opcheck(divergence):
    for dtype in (torch.float32, torch.bfloat16):
        args = arguments(divergence, dtype)
        kept = saved_rows(args[_ops.INPUTS :])
        for rows in (kept, 0):
            torch.library.opcheck(_ops.value, (*args, rows))
            torch.library.opcheck(_ops.value_and_grad, (*args, rows, 0b011011))
        saved = _ops.value(*args, kept)[1:]
        torch.library.opcheck(_ops.backward, (*args, saved, kept, 0b000111, 0b000010))
        torch.library.opcheck(_ops.partial, (*args, [], 0))
        states = _ops.partial(*args, [], 0)
        torch.library.opcheck(_ops.merge, (states, states))
        torch.library.opcheck(_ops.finish, (states, args[6], *args[_ops.INPUTS :], 8, 8, _ops.row_bits("lse_s", "m_t")))


def test_fullgraph_dynamic():
    """One graph for every length, value and gradients as in eager."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def f(x_s, w_s, x_t, w_t):
        h = torch.nn.functional.relu(x_s)
        return (
            streamkl.linear_kl(h, w_s, x_t, w_t, temperature=2.0)
            + streamkl.linear_kl(h, w_s, x_t, w_t, reduction="none").sum()
        )

    compiled = torch.compile(f, fullgraph=True, dynamic=True, backend=backend)
    for n in (9, 14, 23):
        x = tensors(n)
        x[1].requires_grad_()
        loss = compiled(*x)
        assert torch.equal(loss, f(*x))
        got = torch.autograd.grad(loss, x[1])[0]
        assert torch.allclose(got, torch.autograd.grad(f(*x), x[1])[0], atol=1e-6)
    assert len(graphs) == 1


@pytest.mark.parametrize("reduction", ("none", pytest.param("mean", marks=pytest.mark.long)))
def test_inductor(reduction):
    def f(q, k, q_t, k_t, mask):
        q = q * torch.sigmoid(q)
        return streamkl.attention_kl(
            q, k, q_t, k_t, causal=True, divergence="jsd", reduction=reduction, weight=mask
        ).sum()

    def alone(*x):
        return streamkl.attention_kl(*x, causal=True, divergence="jsd")

    compiled = torch.compile(f, fullgraph=True, dynamic=True)
    for n in (7, 12):
        x = [torch.randn(2, 2, n, 8) for _ in range(4)]
        mask = torch.rand(2, 1, n) > 0.2
        x[0].requires_grad_(), x[1].requires_grad_()
        loss = compiled(*x, mask)
        want = f(*x, mask)
        assert torch.allclose(loss, want, rtol=1e-5)
        for a, b in zip(torch.autograd.grad(loss, x[:2]), torch.autograd.grad(want, x[:2])):
            assert torch.allclose(a, b, rtol=1e-4, atol=1e-6)
    with torch.no_grad():  # another graph; without operators of torch in it there is no C++ to compile once more
        assert torch.allclose(torch.compile(alone, fullgraph=True)(*x), alone(*x), rtol=1e-5)


def test_modules_compile():
    loss = torch.compile(
        streamkl.LinearKLLoss(temperature=2.0, divergence="reverse"), fullgraph=True, backend="aot_eager"
    )
    x = tensors()
    x[0].requires_grad_()
    got, want = loss(*x), streamkl.linear_kl(*x, temperature=2.0, divergence="reverse")
    assert torch.equal(got, want)
    assert torch.equal(*(torch.autograd.grad(loss, x[0])[0] for loss in (got, want)))


def test_meta():
    x = [t.to("meta").requires_grad_() for t in tensors()]
    assert streamkl.linear_kl(*x, reduction="none").shape == (9,)
    loss = streamkl.linear_kl(*x)
    assert loss.shape == () and loss.device.type == "meta"
    assert [g.shape for g in torch.autograd.grad(loss, x)] == [t.shape for t in x]


def test_export():
    class Loss(torch.nn.Module):
        def forward(self, x_s, w_s, x_t, w_t):
            return streamkl.linear_kl(x_s, w_s, x_t, w_t, reduction="none")

    x = tensors()
    program = torch.export.export(Loss(), tuple(x))
    assert torch.equal(program.module()(*x), Loss()(*x))


def labelled(**more):
    x_s, w_s, x_t, w_t = tensors()
    options = make_options(_c.LINEAR, dict(label_weight=0.5, reduction="sum", **more))
    labels, ids = torch.randint(30, (9,)), torch.randint(-1, 30, (9, 4))
    operands = dict(a_s=x_s, b_s=w_s, bias_s=torch.randn(30), a_t=x_t, b_t=w_t)
    return [*_c.named_inputs(**operands, weight=torch.rand(9), labels=labels, mass_ids=ids), *options]


@pytest.mark.parametrize("temperature", (1.0, 2.0))
def test_opcheck_with_labels(temperature):
    args = labelled(temperature=temperature)
    kept = saved_rows(args[_ops.INPUTS :], True, True)
    told = _ops.row_bits("ce", "entropy_s", "top1_t", "mass_s", "mass_t", "jsd")
    torch.library.opcheck(_ops.value, (*args, kept | told))
    torch.library.opcheck(_ops.value_and_grad, (*args, told, 0b000111))
    saved = _ops.value(*args, kept)[1:]
    torch.library.opcheck(_ops.backward, (*args, saved, kept, 0b000111, 0b000010))


def test_modules_with_labels_in_one_graph():
    x = tensors()
    x[0].requires_grad_(), x[1].requires_grad_()
    labels = torch.randint(30, (9,))
    both = streamkl.LinearKLLoss(label_weight=0.5, kl_weight=2.0, temperature=2.0)
    alone = streamkl.LinearCrossEntropyLoss(label_smoothing=0.1)

    def step(x_s, w_s, x_t, w_t, labels, items):
        loss, told = both(
            x_s, w_s, x_t, w_t, labels=labels, details=("ce", "agree", "mass_s"), mass_ids=labels[:, None]
        )
        return loss + alone(x_s, w_s, labels), told["mass_s"].sum() + told["agree"].sum()

    got, want = torch.compile(step, fullgraph=True, backend="aot_eager")(*x, labels, 30), step(*x, labels, 30)
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b)
    for a, b in zip(torch.autograd.grad(got[0], x[:2]), torch.autograd.grad(want[0], x[:2])):
        torch.testing.assert_close(a, b)
