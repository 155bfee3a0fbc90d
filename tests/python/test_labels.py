# SPDX-License-Identifier: Apache-2.0
"""Cross-entropy beside the divergence and alone, log-sum-exps, and what rows tell."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import reference
import streamkl
import streamkl.numpy

IGNORED = -100


def problem(rows=(5, 7), v=333, dtype=torch.float32):
    x_s, x_t = torch.randn(*rows, 24).to(dtype), torch.randn(*rows, 40).to(dtype)
    w_s, w_t = (torch.randn(v, 24) * 0.5).to(dtype), (torch.randn(v, 40) * 0.4).to(dtype)
    labels = torch.randint(0, v, rows)
    labels.view(-1)[:3] = IGNORED
    return dict(x_s=x_s, w_s=w_s, x_t=x_t, w_t=w_t), labels


def cross_entropy(x, w, labels, bias=None, scale=None, softcap=None, columns=None, smoothing=0.0, z_loss=0.0):
    """One number a row, in float64."""
    z = reference.linear_logits(x, w, bias, scale, softcap, 1.0, columns)
    flat = z.reshape(-1, z.shape[-1])
    ce = F.cross_entropy(flat, labels.reshape(-1).long(), label_smoothing=smoothing, reduction="none")
    return (ce + z_loss * flat.logsumexp(-1) ** 2 * (labels.reshape(-1) != IGNORED)).reshape(labels.shape)


def definition(
    x_s, w_s, x_t, w_t, labels, label_weight, kl_weight, weight=None, reduction="mean", num_items=None, **more
):
    student = {name[:-2]: more[name] for name in ("bias_s", "scale_s", "softcap_s") if name in more}
    kl = reference.linear_kl(x_s, w_s, x_t, w_t, reduction="none", **more)
    ce = cross_entropy(x_s, w_s, labels, **student, columns=more.get("columns"))
    row = kl_weight * kl + label_weight * ce
    w = (labels != IGNORED).double() if weight is None else weight.double()
    if reduction == "none":
        return row * w
    return (row * w).sum() / (1 if reduction == "sum" else w.sum() if num_items is None else num_items)


@pytest.mark.parametrize("temperature", (1.0, 2.0))
@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
@pytest.mark.parametrize("divergence", ("forward", "reverse", "jsd", "tv"))
@pytest.mark.parametrize("weighted", (False, True))
def test_beside_a_divergence(temperature, reduction, divergence, weighted):
    x, labels = problem()
    more = dict(
        labels=labels,
        label_weight=0.3,
        kl_weight=0.7,
        temperature=temperature,
        divergence=divergence,
        reduction=reduction,
        weight=torch.rand(5, 7).round(decimals=1) if weighted else None,
    )
    ours, theirs = (lambda **t: streamkl.linear_kl(**t, **more)), (lambda **t: definition(**t, **more))
    reference.compare(ours, theirs, x, ("x_s", "w_s", "x_t", "w_t"))


@pytest.mark.parametrize("temperature", (1.0, 2.0))
@pytest.mark.parametrize("reduction", ("mean", "none"))
def test_logits_of_any_shape(temperature, reduction):
    x, labels = problem()
    x["w_s"], x["w_t"] = F.pad(x["w_s"], (0, 0, 0, 3)), F.pad(x["w_t"], (0, 0, 0, 9))
    more = dict(labels=labels.to(torch.int32), label_weight=1.0, kl_weight=0.5, temperature=temperature, columns=333)
    more.update(bias_s=torch.randn(336), scale_s=0.8, softcap_s=6.0, reduction=reduction)
    ours, theirs = (lambda **t: streamkl.linear_kl(**t, **more)), (lambda **t: definition(**t, **more))
    reference.compare(ours, theirs, x, ("x_s", "w_s"))


@pytest.mark.parametrize("dtype", reference.DTYPES)
def test_dtypes(dtype):
    x, labels = problem(dtype=dtype)
    exact = {name: t.double().requires_grad_() for name, t in x.items()}  # whose gradients are not rounded
    x = {name: t.requires_grad_() for name, t in x.items()}
    more = dict(labels=labels, label_weight=0.5, kl_weight=0.5)
    got, want = streamkl.linear_kl(**x, **more), definition(**exact, **more)
    reference.close(got, want, 2e-5)
    grads = zip(torch.autograd.grad(got, list(x.values())), torch.autograd.grad(want, list(exact.values())))
    for name, (a, b) in zip(x, grads):
        reference.close(a, b, reference.TOLERANCE[dtype], name)


def test_a_weight_of_zero_takes_its_part_away():
    x, labels = problem()
    for t in x.values():
        t.requires_grad_()
    weight = (labels != IGNORED).float()
    for numbers, alone in (
        (dict(label_weight=0.0), lambda: streamkl.linear_kl(**x, weight=weight)),
        (
            dict(kl_weight=0.0, label_weight=1.0),
            lambda: streamkl.linear_cross_entropy(x["x_s"], x["w_s"], labels) + 0 * x["x_t"].sum() + 0 * x["w_t"].sum(),
        ),
    ):
        got = torch.autograd.grad(streamkl.linear_kl(**x, labels=labels, **numbers), list(x.values()))
        want = torch.autograd.grad(alone(), list(x.values()))
        for a, b in zip(got, want):
            assert torch.equal(a == 0, b == 0)
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6 * b.abs().max().item())  # other references


def test_num_items_is_the_denominator():
    x, labels = problem()
    mean = streamkl.linear_kl(**x, labels=labels, label_weight=0.5, num_items=torch.tensor(70))
    total = streamkl.linear_kl(**x, labels=labels, label_weight=0.5, reduction="sum")
    torch.testing.assert_close(mean, total / 70)


@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
@pytest.mark.parametrize("smoothing, z_loss", ((0.0, 0.0), (0.1, 0.0), (0.1, 1e-2)))
def test_cross_entropy(reduction, smoothing, z_loss):
    x, labels = problem()

    def ours(x_s, w_s):
        return streamkl.linear_cross_entropy(
            x_s, w_s, labels, label_smoothing=smoothing, z_loss=z_loss, reduction=reduction, softcap=9.0
        )

    def theirs(x_s, w_s):
        row = cross_entropy(x_s, w_s, labels, softcap=9.0, smoothing=smoothing, z_loss=z_loss)
        return row if reduction == "none" else row.sum() / (1 if reduction == "sum" else (labels != IGNORED).sum())

    reference.compare(ours, theirs, {"x_s": x["x_s"], "w_s": x["w_s"]}, ("x_s", "w_s"))


def test_logsumexp():
    x, _ = problem()
    ours = lambda x_s, w_s: streamkl.linear_logsumexp(x_s, w_s, scale=1.3)  # noqa: E731
    theirs = lambda x_s, w_s: reference.linear_logits(x_s, w_s, scale=1.3).logsumexp(-1)  # noqa: E731
    reference.compare(ours, theirs, {"x_s": x["x_s"], "w_s": x["w_s"]}, ("x_s", "w_s"))


def test_logsumexp_everywhere():
    """Of arrays, in one graph, under autocast: the same numbers."""
    x, _ = problem()
    leaves = [t.requires_grad_() for t in (x["x_s"], x["w_s"], torch.randn(333))]
    more = dict(softcap=7.0, columns=300)
    f = lambda x, w, bias: streamkl.linear_logsumexp(x, w, bias=bias, **more)  # noqa: E731
    want = f(*leaves)
    grads = torch.autograd.grad(want.sum(), leaves)
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", torch.bfloat16):
        cast = f(*leaves)
    for got in (compiled(*leaves), cast):
        assert got.dtype is torch.float32 and torch.equal(got, want)
        assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(got.sum(), leaves), grads))
    x, w, bias = (t.detach().numpy() for t in leaves)
    lse, found = streamkl.numpy.linear_logsumexp(x, w, bias=bias, grads=("x", "w", "bias"), **more)
    for one in (lse, streamkl.numpy.linear_logsumexp(x, w, bias=bias, **more)):
        assert one.shape == want.shape
        np.testing.assert_allclose(one, want.detach().numpy(), rtol=5e-7)
    for name, grad in zip(("x", "w", "bias"), grads):
        reference.close(torch.from_numpy(found[name]), grad, 1e-5, name)


@pytest.mark.parametrize("temperature", (1.0, 3.0))
@pytest.mark.parametrize("grads", (False, True))
def test_details(temperature, grads):
    x, labels = problem()
    if grads:
        x["w_s"].requires_grad_()
    names = ("kl", "ce", "lse_s", "lse_t", "entropy_s", "entropy_t", "logprob_s", "logprob_t", "top1_s", "top1_t")
    names += ("agree", "reverse", "jsd", "tv", "sum", "count", "rank_s", "rank_t")
    loss, told = streamkl.linear_kl(**x, labels=labels, temperature=temperature, details=names)
    assert tuple(told) == names and not any(t.requires_grad for t in told.values())
    seen, safe = labels != IGNORED, labels.clamp(min=0)[..., None]
    z_s, z_t = (reference.linear_logits(x[f"x_{side}"], x[f"w_{side}"]).detach() for side in "st")
    s, t = (z / temperature for z in (z_s, z_t))
    log_s, log_t = s.log_softmax(-1), t.log_softmax(-1)
    want = {
        "kl": reference.divergence_of(s, t, "forward", None),
        "ce": cross_entropy(x["x_s"], x["w_s"], labels).detach(),
        "lse_s": s.logsumexp(-1),
        "lse_t": t.logsumexp(-1),
        "entropy_s": -(log_s.exp() * log_s).sum(-1),
        "entropy_t": -(log_t.exp() * log_t).sum(-1),
        "logprob_s": z_s.log_softmax(-1).gather(-1, safe)[..., 0],
        "logprob_t": z_t.log_softmax(-1).gather(-1, safe)[..., 0],
        "reverse": reference.divergence_of(s, t, "reverse", None),
        "jsd": reference.divergence_of(s, t, "jsd", 0.5),
        "tv": reference.divergence_of(s, t, "tv", None),
    }
    for name, full in want.items():
        reference.close(told[name][seen], full[seen], 2e-6, name)
    assert torch.equal(told["top1_s"][seen].long(), z_s.argmax(-1)[seen])
    assert torch.equal(told["top1_t"][seen].long(), z_t.argmax(-1)[seen])
    assert torch.equal(told["agree"], told["top1_s"] == told["top1_t"])
    for name, own, other in (("rank_s", z_s, z_t), ("rank_t", z_t, z_s)):
        rank = (own > own.gather(-1, other.argmax(-1, keepdim=True))).sum(-1)
        assert torch.equal(told[name][seen].long(), rank[seen]) and not told[name][~seen].any()
    assert told["count"] == seen.sum()
    torch.testing.assert_close(told["sum"] / told["count"], loss.detach())


def test_the_first_of_equal_logits_is_the_top():
    x, w = torch.ones(3, 8), torch.zeros(700, 8)
    w[[300, 500, 650]] = 1.0
    _, told = streamkl.linear_kl(x, w, x, torch.zeros(700, 8), details=("top1_s", "top1_t"))
    assert told["top1_s"].tolist() == [300] * 3 and told["top1_t"].tolist() == [0] * 3


BAD = [
    (dict(labels=torch.full((5, 7), 333)), ValueError, r"labels\[0\] = 333: it must be a column, 0 to 332, or -100"),
    (dict(labels=torch.full((5, 7), -1)), ValueError, r"labels\[0\] = -1: it must be a column"),
    (dict(labels=torch.zeros(5)), TypeError, "labels.dtype"),
    (dict(labels=torch.zeros(5, 6, dtype=torch.long)), ValueError, r"labels.shape = \(5, 6\)"),
    (dict(label_weight=0.5), ValueError, "label_weight = 0.5: there are no labels"),
    (dict(kl_weight=0.5), ValueError, "kl_weight = 0.5: there are no labels"),
    (dict(details=("ce",)), ValueError, "'ce' needs labels"),
    (dict(details=("loss",)), ValueError, "'loss' is none of kl, ce"),
    (dict(details="kl"), TypeError, "it must hold names"),
    (dict(details=("mass_s",)), ValueError, "'mass_s' needs mass_ids"),
    (dict(details=("kl",), mass_ids=torch.tensor([1])), ValueError, "neither 'mass_s' nor 'mass_t'"),
    (
        dict(details=("mass_t",), mass_ids=torch.tensor([4, 333])),
        ValueError,
        r"mass_ids\[0, 1\] = 333: it must be a col",
    ),
    (dict(details=("mass_t",), mass_ids=torch.tensor([-2])), ValueError, r"mass_ids\[0, 0\] = -2"),
    (dict(details=("mass_t",), mass_ids=torch.zeros(7)), TypeError, "mass_ids.dtype"),
    (dict(details=("mass_t",), mass_ids=torch.zeros(4, 7, 2, dtype=torch.long)), ValueError, "mass_ids.shape"),
    (dict(details=("kl",), return_lse=True), ValueError, "return_lse = True: with details"),
]


@pytest.mark.parametrize("options, kind, sentence", BAD, ids=[case[2] for case in BAD])
def test_refused(options, kind, sentence):
    x, _ = problem()
    with pytest.raises(kind, match=sentence):
        streamkl.linear_kl(**x, **options)


def test_weights_of_classes_are_refused():
    x, labels = problem()
    with pytest.raises(ValueError, match="weights of classes are not supported"):
        streamkl.linear_cross_entropy(x["x_s"], x["w_s"], labels, weight=torch.rand(333))


def test_no_room_for_logits():
    """The recomputing way, in the least memory."""
    x, labels = problem()
    for t in x.values():
        t.requires_grad_()
    grads = []
    for limit in (None, 5 << 17):  # on AVX-512 it takes more than 1 << 19
        loss = streamkl.linear_kl(
            **x, labels=labels, label_weight=0.5, temperature=2.0, divergence="jsd", workspace_limit=limit
        )
        grads.append(torch.autograd.grad(loss, list(x.values())))
    for a, b in zip(*grads):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-8)


def test_numpy():
    x, labels = problem()
    names = ("kl", "ce", "entropy_s", "top1_t", "agree", "sum", "count")
    more = dict(label_weight=0.5, temperature=2.0, details=names)
    for t in x.values():
        t.requires_grad_()
    loss, told = streamkl.linear_kl(**x, labels=labels, **more)
    grads = torch.autograd.grad(loss, (x["x_s"], x["w_s"]))
    arrays = {name: t.detach().numpy() for name, t in x.items()}
    (value, array_told), found = streamkl.numpy.linear_kl(**arrays, labels=labels.numpy(), grads=("x_s", "w_s"), **more)
    assert np.float32(value) == loss.item()
    for name in names[:5]:
        np.testing.assert_array_equal(array_told[name], told[name].numpy())
    assert array_told["count"] == told["count"]
    for name, grad in zip(("x_s", "w_s"), grads):
        np.testing.assert_array_equal(found[name], grad.numpy())
    alone, by_name = streamkl.numpy.linear_cross_entropy(arrays["x_s"], arrays["w_s"], labels.numpy(), grads=("x", "w"))
    loss = streamkl.linear_cross_entropy(x["x_s"], x["w_s"], labels)
    assert np.float32(alone) == loss.item()
    np.testing.assert_array_equal(by_name["w"], torch.autograd.grad(loss, x["w_s"])[0].numpy())


def test_compiled():
    x, labels = problem()
    run = torch.compile(streamkl.linear_kl, fullgraph=True, backend="aot_eager")
    for more in (dict(label_weight=0.5), dict(label_weight=0.5, temperature=2.0, reduction="none")):
        assert torch.equal(run(**x, labels=labels, **more), streamkl.linear_kl(**x, labels=labels, **more))


@pytest.mark.parametrize("temperature", (1.0, 3.0))
@pytest.mark.parametrize("rows", ((11,), (5, 7), (2, 2, 2, 3)))
def test_mass_of_ids(temperature, rows):
    x, _ = problem(rows)
    x["w_s"].requires_grad_()
    ids = torch.randint(-1, 333, (*rows, 9), dtype=torch.int32)
    _, told = streamkl.linear_kl(**x, temperature=temperature, details=("mass_s", "mass_t"), mass_ids=ids)
    for side in "st":
        p = reference.linear_logits(x[f"x_{side}"], x[f"w_{side}"], temperature=temperature).softmax(-1)
        want = p.gather(-1, ids.clamp(min=0).long()) * (ids >= 0)
        reference.close(told[f"mass_{side}"], want.sum(-1), 2e-6)
    arrays = {name: t.detach().numpy() for name, t in x.items()}
    more = dict(temperature=temperature, details=("mass_s", "mass_t"), mass_ids=ids.numpy())
    (_, same), _ = streamkl.numpy.linear_kl(**arrays, grads=("w_s",), **more)  # the same call of C, so the same bits
    np.testing.assert_array_equal(same["mass_t"], told["mass_t"].numpy())


def test_mass_of_a_few_words():
    """One list of ids for all tokens; everything, and nothing."""
    x, labels = problem()
    mass = lambda ids: streamkl.linear_kl(**x, details=("mass_s",), mass_ids=ids)[1]["mass_s"]  # noqa: E731
    torch.testing.assert_close(mass(torch.arange(333)), torch.ones(5, 7), rtol=0, atol=2e-6)
    assert mass(torch.empty(0, dtype=torch.long)).eq(0).all() and mass(torch.tensor([-1, -1])).eq(0).all()
    torch.testing.assert_close(mass(torch.tensor([7, 7])), 2 * mass(torch.tensor([7])))
    _, told = streamkl.linear_cross_entropy(
        x["x_s"], x["w_s"], labels, details=("mass_s",), mass_ids=torch.tensor([3, 4])
    )
    reference.close(told["mass_s"][labels >= 0], mass(torch.tensor([3, 4]))[labels >= 0], 2e-6)
    assert told["mass_s"][labels < 0].eq(0).all()


def test_modules():
    x, labels = problem()
    numbers = dict(label_weight=0.3, kl_weight=0.7, temperature=2.0)
    module = streamkl.LinearKLLoss(**numbers)
    for more in (dict(), dict(details=("ce", "mass_s"), mass_ids=torch.tensor([3])), dict(num_items=50)):
        got, want = module(**x, labels=labels, **more), streamkl.linear_kl(**x, labels=labels, **numbers, **more)
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    alone = streamkl.LinearCrossEntropyLoss(z_loss=1e-3, softcap=9.0)
    assert repr(alone) == "LinearCrossEntropyLoss(z_loss=0.001, softcap=9.0)"
    want = streamkl.linear_cross_entropy(x["x_s"], x["w_s"], labels, z_loss=1e-3, softcap=9.0, num_items=50)
    assert torch.equal(alone(x["x_s"], x["w_s"], labels, num_items=50), want)
    with pytest.raises(ValueError, match="label_smoothing = 2.0"):
        streamkl.LinearCrossEntropyLoss(label_smoothing=2.0)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_autocast(dtype):
    """Operands of any dtypes, as they come out of layers under autocast; the loss is f32, gradients are the layers' own."""
    layer, w = torch.nn.Linear(24, 24), torch.nn.Parameter(torch.randn(333, 24) * 0.5)
    x, labels = problem()
    module, alone = streamkl.LinearKLLoss(label_weight=0.5, temperature=2.0), streamkl.LinearCrossEntropyLoss()
    with torch.autocast("cpu", dtype):
        hidden = layer(x["x_s"])
        assert hidden.dtype is dtype
        loss = module(hidden, w, x["x_t"], x["w_t"], labels=labels) + alone(hidden, w, labels)
    assert loss.dtype is torch.float32
    loss.backward()
    want = definition(hidden.double(), w, x["x_t"], x["w_t"], labels, 0.5, 1.0, temperature=2.0)
    want = want + cross_entropy(hidden.double(), w, labels).sum() / (labels != IGNORED).sum()
    reference.close(loss, want, 2e-5)
    assert layer.weight.grad.dtype is w.grad.dtype is torch.float32
