# SPDX-License-Identifier: Apache-2.0
"""attention_kl with teachers that are mixtures of heads, or have LSEs of their own, against float64."""

from functools import partial

import numpy as np
import pytest
import torch

import reference
import streamkl
from streamkl import _c, _ops
from streamkl._autograd import saved_rows
from streamkl._options import make_options

STUDENT = ("q_s", "k_s")


def operands(b=2, h=3, g=4, n=19, m=37, d_s=24, d_t=40, h_s=3, h_t=6, dtype_s=torch.float32, dtype_t=torch.float32):
    return {
        "q_s": torch.randn(b, h, n, d_s).to(dtype_s),
        "k_s": torch.randn(b, h_s, m, d_s).to(dtype_s),
        "q_t": torch.randn(b, h * g, n, d_t).to(dtype_t),
        "k_t": torch.randn(b, h_t, m, d_t).to(dtype_t),
    }


def lses(x, more=0.5, **mask):
    """LSEs over the keys that are seen, and over something else."""
    z = reference.head_logits(x["q_t"], x["k_t"])
    seen = reference.visible_keys(*z.shape[-2:], z.shape[:-1], **mask)
    return (z.masked_fill(~seen, -torch.inf).logsumexp(-1) + more * torch.rand(z.shape[:-1])).float()


def check(x, **options):
    reference.compare(partial(streamkl.attention_kl, **options), partial(reference.mixed_kl, **options), x, STUDENT)


MASKS = {
    "none": {},
    "causal": dict(causal=True),
    "window": dict(window=(5, 2)),
    "padding": dict(end=torch.tensor([37, 0])[:, None, None]),
}


@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
@pytest.mark.parametrize("mask", MASKS)
def test_masks(reduction, mask):
    check(operands(), mix_t=4, reduction=reduction, **MASKS[mask])


@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
@pytest.mark.parametrize("normalise", (True, False))
def test_given_lses(reduction, normalise):
    x = operands()
    check(x, mix_t=4, lse_t=lses(x, causal=True), normalise_t=normalise, reduction=reduction, causal=True)


def test_single_head():
    """Without a mixture the LSE still counts where t is not divided by its sum."""
    x = operands(g=1, h_t=3)
    check(x, lse_t=lses(x), normalise_t=False)
    plain = {name: t.detach() for name, t in x.items()}
    assert torch.equal(streamkl.attention_kl(**plain, lse_t=lses(x)), streamkl.attention_kl(**plain))


@pytest.mark.parametrize("shape", ((3,), (3, 2)))
def test_head_map(shape):
    x = operands()
    head_map = torch.randint(0, 12, shape)
    check(x, head_map=head_map, causal=True)
    given = {name: t.detach() for name, t in x.items()}
    listed = streamkl.attention_kl(**given, head_map=head_map.tolist(), causal=True)
    assert torch.equal(listed, streamkl.attention_kl(**given, head_map=head_map, causal=True))


@pytest.mark.parametrize("dtype", reference.DTYPES)
def test_dtypes(dtype):
    check(operands(dtype_s=dtype, dtype_t=dtype), mix_t=4, causal=True, reduction="none")


def test_options():
    weight = torch.rand(2, 1, 19) * (torch.rand(2, 1, 19) > 0.3)
    options = dict(scale_s=-0.3, scale_t=0.4, softcap_s=3.0, softcap_t=5.0, weight=weight, reduction="sum")
    check(operands(), mix_t=4, causal=True, **options)


def test_given_lse_equals_two_sweeps():
    x = operands()
    z = reference.head_logits(x["q_t"], x["k_t"])
    found = streamkl.attention_kl(**x, mix_t=4, reduction="none")
    given = streamkl.attention_kl(**x, mix_t=4, lse_t=z.logsumexp(-1), reduction="none", normalise_t=False)
    assert torch.allclose(found, given, atol=1e-5)


@pytest.mark.parametrize("divergence", ("jsd", "skew_forward", "skew_reverse", "tv"))
def test_divergences(divergence):
    """The others are of the mixture as it would be of one head with those probabilities."""
    x = operands()
    z = reference.head_logits(x["q_t"], x["k_t"])
    t = z.softmax(-1).reshape(2, 3, 4, 19, 37).mean(2).log()
    got = streamkl.attention_kl(**x, mix_t=4, divergence=divergence, reduction="none")
    want = reference.divergence_of(reference.head_logits(x["q_s"], x["k_s"]), t, divergence, None)
    reference.close(got, want, 2e-5)


def test_threads_and_limits():
    x = operands(n=300, m=500)
    x["q_s"].requires_grad_(), x["k_s"].requires_grad_()
    made = []
    for more in (dict(threads=1), dict(threads=3), dict(threads=1, workspace_limit=2**21)):
        loss = streamkl.attention_kl(**x, mix_t=4, **more)
        made.append((loss, *torch.autograd.grad(loss, (x["q_s"], x["k_s"]))))
    assert all(torch.equal(a, b) for a, b in zip(made[0], made[1]))
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-7) for a, b in zip(made[0], made[2]))


def test_numpy():
    import streamkl.numpy

    x = operands()
    arrays = {name: t.numpy() for name, t in x.items()}
    lse = lses(x)
    more = dict(mix_t=4, normalise_t=False, causal=True)
    value, grads = streamkl.numpy.attention_kl(**arrays, lse_t=lse.numpy(), grads=STUDENT, **more)
    x["q_s"].requires_grad_()
    loss = streamkl.attention_kl(**x, lse_t=lse, **more)
    assert np.float32(value) == loss.detach().numpy()
    assert np.array_equal(grads["q_s"], torch.autograd.grad(loss, x["q_s"])[0].numpy())
    mapped = streamkl.numpy.attention_kl(**arrays, head_map=np.array([[1, 2], [5, 7], [0, 0]]))
    want = streamkl.attention_kl(**{n: t.detach() for n, t in x.items()}, head_map=[[1, 2], [5, 7], [0, 0]])
    assert np.float32(mapped) == want.numpy()


def test_module_and_compile():
    x = operands()
    lse = lses(x)
    loss = streamkl.AttentionKLLoss(mix_t=4, causal=True)
    want = streamkl.attention_kl(**x, mix_t=4, causal=True, lse_t=lse)
    assert torch.equal(loss(**x, lse_t=lse), want)
    for reduction in ("none", "mean"):

        def f(q_s, reduction=reduction):
            rest = {name: x[name] for name in ("k_s", "q_t", "k_t")}
            return streamkl.attention_kl(q_s * 2, **rest, mix_t=4, lse_t=lse, reduction=reduction).sum()

        q = x["q_s"].clone().requires_grad_()
        got, want = torch.compile(f, fullgraph=True, backend="aot_eager")(q), f(q)
        assert torch.allclose(got, want)
        assert torch.allclose(*(torch.autograd.grad(y, q)[0] for y in (got, want)), atol=1e-7)


def test_opcheck():
    x = operands()
    options = make_options(_c.ATTENTION, dict(mix_t=4, reduction="sum"))
    given = dict(a_s=x["q_s"], b_s=x["k_s"], a_t=x["q_t"], b_t=x["k_t"], lse_t=lses(x))
    args = [*[given.get(name) for name in _c.INPUTS], *options]
    kept = saved_rows(options)
    torch.library.opcheck(_ops.value, (*args, kept))
    torch.library.opcheck(_ops.value_and_grad, (*args, 0, 0b11))
    torch.library.opcheck(_ops.backward, (*args, _ops.value(*args, kept)[1:], kept, 0b11, 0))


@pytest.mark.parametrize(
    "given, sentence",
    [
        (dict(mix_t=3), "q_t.shape[1] = 12 heads: it must be 9"),
        (dict(mix_t=0), "mix_t = 0"),
        (dict(mix_t=4, divergence="reverse"), "reverse"),
        (dict(mix_t=4, normalise_t=False), "normalise_t = False without lse_t"),
        (dict(mix_t=4, lse_t=torch.zeros(2, 3, 19)), "lse_t.shape[1] = 3"),
        (dict(head_map=[[0, 1], [2, 3], [4, 12]]), "head_map[2, 1] = 12"),
        (dict(mix_t=4, lse_t=torch.zeros(2, 12, 19, requires_grad=True)), "lse_t.requires_grad"),
    ],
)
def test_errors(given, sentence):
    with pytest.raises(ValueError, match="streamkl: cannot use") as error:
        streamkl.attention_kl(**operands(), **given)
    assert sentence in str(error.value)


def test_teacher_gets_no_gradient():
    x = operands()
    x["k_t"].requires_grad_()
    with pytest.raises(ValueError, match="k_t.requires_grad"):
        streamkl.attention_kl(**x, mix_t=4)
    with torch.no_grad():
        streamkl.attention_kl(**x, mix_t=4)
