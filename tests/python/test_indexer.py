# SPDX-License-Identifier: Apache-2.0
"""indexer_kl against the definition in float64, with everything stored."""

import numpy as np
import pytest
import torch

import reference
import streamkl
import streamkl.numpy
from streamkl import _c, _ops
from streamkl._autograd import saved_rows
from streamkl._inputs import indexer_inputs
from streamkl._options import make_options

INDEXER = ("q_i", "k_i", "w_i")


def operands(b=2, hi=4, n=19, m=37, di=16, h=6, h_t=3, d=24, dtype=torch.float32):
    return {
        "q_i": torch.randn(b, hi, n, di).to(dtype),
        "k_i": torch.randn(b, m, di).to(dtype),
        "w_i": (torch.randn(b, n, hi) / 2).to(dtype),
        "q_t": torch.randn(b, h, n, d).to(dtype),
        "k_t": torch.randn(b, h_t, m, d).to(dtype),
    }


def index_logits(q_i, k_i, w_i, relu=True, scale_i=1.0):
    x = torch.einsum("bhnd,bmd->bhnm", q_i.double(), k_i.double())
    return scale_i * torch.einsum("bnh,bhnm->bnm", w_i.double(), torch.relu(x) if relu else x)


def materialised(
    q_i, k_i, w_i, q_t, k_t, *, relu=True, scale_i=1.0, scale_t=None, causal=True, lse_t=None, normalise_t=True,
    sink_t=None, weight=None, reduction="mean", **mask,
):  # fmt: skip
    b, _, n, _ = q_i.shape
    seen = reference.visible_keys(n, k_i.shape[1], (b, n), causal=causal, **mask)
    z_t = reference.head_logits(q_t, k_t, scale_t)
    if sink_t is not None:
        lse_t = z_t.masked_fill(~seen[:, None], -torch.inf).logsumexp(-1).logaddexp(sink_t.double()[:, None])
    heads = reference.head_target(z_t, seen[:, None], lse_t)
    z = index_logits(q_i, k_i, w_i, relu, scale_i)
    return reference.reduce(reference.target_kl(z, heads.mean(1), seen, normalise_t), weight, reduction)


def check(x, **options):
    def ours(**x):
        return streamkl.indexer_kl(**x, **options)

    def theirs(**x):
        return materialised(**x, **options)

    reference.compare(ours, theirs, x, INDEXER)


@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
@pytest.mark.parametrize("relu", (True, False))
def test_reductions(reduction, relu):
    check(operands(), reduction=reduction, relu=relu, scale_i=0.4)


@pytest.mark.parametrize(
    "mask",
    (dict(causal=False), dict(window=(5, -1)), dict(end=torch.tensor([[30], [0]])), dict(begin=torch.arange(19))),
)
def test_masks(mask):
    check(operands(), reduction="none", **mask)


@pytest.mark.parametrize("dtype", reference.DTYPES)
def test_dtypes(dtype):
    check(operands(dtype=dtype), scale_i=-0.3, scale_t=0.3)


@pytest.mark.parametrize("heads", ((1, 1), (8, 1), (4, 4)))
def test_heads(heads):
    check(operands(h=heads[0], h_t=heads[1]), reduction="sum")


@pytest.mark.parametrize("normalise", (True, False))
def test_given_lses(normalise):
    x = operands()
    z = reference.head_logits(x["q_t"], x["k_t"])
    lse = (z.logsumexp(-1) + torch.rand(z.shape[:-1])).float()
    check(x, lse_t=lse, normalise_t=normalise, reduction="none")


def test_weight():
    weight = torch.rand(2, 19) * (torch.rand(2, 19) > 0.4)
    for reduction in reference.REDUCTIONS:
        check(operands(), weight=weight, reduction=reduction)


@pytest.mark.parametrize("reduction", ("none", "mean"))
def test_zero_gives_zeros(reduction):
    """Weight or upstream gradient 0: gradients are zeros, and not None."""
    for weight, upstream in ((torch.zeros(2, 19), 1.0), (None, 0.0)):
        x = operands()
        leaves = [x[name].requires_grad_() for name in INDEXER]
        loss = streamkl.indexer_kl(**x, weight=weight, reduction=reduction)
        (loss * upstream).sum().backward()
        assert all(t.grad is not None and not t.grad.any() for t in leaves)


def test_relu_at_0():
    """Where a product is exactly 0 its derivative is 0, as torch has it."""
    x = operands()
    x["q_i"][:, 1] = 0
    check(x)
    assert not torch.autograd.grad(streamkl.indexer_kl(**x), x["q_i"])[0][:, 1].any()


def test_details():
    x = operands()
    loss, told = streamkl.indexer_kl(**x, details=("kl", "lse_s", "entropy_s", "top1_t", "sum", "count"), causal=False)
    z = index_logits(x["q_i"], x["k_i"], x["w_i"])
    t = reference.head_logits(x["q_t"], x["k_t"]).softmax(-1).mean(1)
    reference.close(told["lse_s"], z.logsumexp(-1), 1e-5)
    reference.close(told["entropy_s"], torch.distributions.Categorical(logits=z).entropy(), 1e-5)
    assert torch.equal(told["top1_t"].long(), t.argmax(-1))
    assert told["kl"].shape == (2, 19) and told["count"] == 38
    reference.close(told["sum"] / told["count"], loss, 1e-5)


def test_threads_and_limits():
    x = operands(n=300, m=500)
    leaves = [x[name].requires_grad_() for name in INDEXER]
    made = []
    for more in (dict(threads=1), dict(threads=3), dict(threads=1, workspace_limit=3 * 2**20)):
        loss = streamkl.indexer_kl(**x, **more)
        made.append((loss, *torch.autograd.grad(loss, leaves)))
    assert all(torch.equal(a, b) for a, b in zip(made[0], made[1]))
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-7) for a, b in zip(made[0], made[2]))


def test_numpy():
    import streamkl.numpy

    x = operands()
    value, grads = streamkl.numpy.indexer_kl(**{name: t.numpy() for name, t in x.items()}, scale_i=0.5, grads=INDEXER)
    leaves = [x[name].requires_grad_() for name in INDEXER]
    loss = streamkl.indexer_kl(**x, scale_i=0.5)
    assert np.float32(value) == loss.detach().numpy()
    for name, g in zip(INDEXER, torch.autograd.grad(loss, leaves)):
        assert np.array_equal(grads[name], g.numpy())
    rows = streamkl.numpy.indexer_kl(**{name: t.detach().numpy() for name, t in x.items()}, reduction="none")
    assert rows.shape == (2, 19)


def test_compile():
    x = operands()
    for reduction in ("none", "mean"):

        def f(q, k, w, reduction=reduction):
            return streamkl.indexer_kl(q * 2, k, w, x["q_t"], x["k_t"], reduction=reduction).sum()

        leaves = [x[name].clone().requires_grad_() for name in INDEXER]
        got, want = torch.compile(f, fullgraph=True, backend="aot_eager")(*leaves), f(*leaves)
        assert torch.allclose(got, want)
        for a, b in zip(torch.autograd.grad(got, leaves), torch.autograd.grad(want, leaves)):
            assert torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("normalise", (True, False))
def test_sink(normalise):
    """A head that gives most of its attention to the sink counts less: the target is not the mean over the keys alone."""
    x = operands()
    sink_t = torch.tensor([6.0, -2.0, 4.0, 0.0, 1.0, 5.0])
    check(x, sink_t=sink_t, normalise_t=normalise, reduction="none")
    x = {name: t.detach() for name, t in x.items()}
    if normalise:
        assert not torch.allclose(streamkl.indexer_kl(**x, sink_t=sink_t), streamkl.indexer_kl(**x), rtol=1e-3)
    value = streamkl.numpy.indexer_kl(**{n: t.numpy() for n, t in x.items()}, sink_t=sink_t.numpy())
    assert np.float32(value) == streamkl.indexer_kl(**x, sink_t=sink_t).numpy()


def test_sink_of_two_heads():
    """By hand: two heads and two keys; the head without a sink decides."""
    q_t, k_t = torch.tensor([[[[1.0]], [[1.0]]]]), torch.tensor([[[[1.0], [0.0]], [[0.0], [2.0]]]])
    q_i, k_i, w_i = torch.ones(1, 1, 1, 1), torch.tensor([[[1.0], [1.0]]]), torch.ones(1, 1, 1)
    sink_t = torch.tensor([-torch.inf, 30.0])
    loss = streamkl.indexer_kl(q_i, k_i, w_i, q_t, k_t, sink_t=sink_t, scale_t=1.0, causal=False)
    t = torch.tensor([1.0, 0.0]).softmax(0)
    assert torch.allclose(loss, (t * (2 * t).log()).sum(), atol=1e-6)


def test_opcheck():
    x = operands()
    options = make_options(_c.INDEXER, dict(scale_s=1.0, reduction="sum"))
    args = [*indexer_inputs(x), *options]
    kept = saved_rows(options)
    torch.library.opcheck(_ops.value, (*args, kept))
    torch.library.opcheck(_ops.value_and_grad, (*args, 0, 0b111))
    torch.library.opcheck(_ops.backward, (*args, _ops.value(*args, kept)[1:], kept, 0b111, 0))


@pytest.mark.parametrize(
    "given, sentence",
    [
        (dict(k_i=torch.zeros(2, 1, 37, 16)), "k_i.shape"),
        (dict(w_i=torch.zeros(2, 4, 19)), "w_i.shape"),
        (dict(w_i=torch.zeros(2, 19, 3)), "w_i.shape[2] = 3"),
        (dict(weight=torch.zeros(2, 4, 19)), "weight.shape"),
        (dict(scale_i=0.0), "scale_s"),
        (dict(sink_t=torch.zeros(5)), "sink_t.shape[0] = 5"),
        (dict(sink_t=torch.zeros(6), lse_t=torch.zeros(2, 6, 19)), "with lse_t"),
        (dict(sink_t=torch.zeros(6, requires_grad=True)), "sink_t.requires_grad"),
        (dict(sink_t=torch.zeros(6), details=("sink_mass_t",)), "needs the sinks of both sides"),
        (dict(support=torch.full((2, 19, 4), 37)), "support[0, 0, 0] = 37"),
        (dict(cu_seqlens_q=torch.zeros(3)), "cu_seqlens_q"),
        (dict(normalise_t=False), "normalise_t = False without lse_t"),
        (dict(details=("ce",)), "needs labels"),
    ],
)
def test_errors(given, sentence):
    with pytest.raises(ValueError, match="streamkl: cannot use") as error:
        streamkl.indexer_kl(**{**operands(), **given})
    assert sentence.replace("scale_s", "scale") in str(error.value)


def test_teacher_gets_no_gradient():
    x = operands()
    x["q_t"].requires_grad_()
    with pytest.raises(ValueError, match="q_t.requires_grad"):
        streamkl.indexer_kl(**x)
