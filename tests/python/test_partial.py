# SPDX-License-Identifier: Apache-2.0
"""Columns in pieces: value and gradients of one call, whatever the pieces."""

import re
from functools import partial as partial_of

import numpy as np
import pytest
import torch

import reference
import streamkl
import streamkl.numpy


def problem(use, rows=(2, 19), columns=211):
    if use == "linear":
        x = {"x_s": torch.randn(*rows, 24), "w_s": torch.randn(columns, 24) / 4, "bias_s": torch.randn(columns)}
        return {**x, "x_t": torch.randn(*rows, 40), "w_t": torch.randn(columns, 40) / 4}
    x = {"q_s": torch.randn(2, 4, 19, 24), "k_s": torch.randn(2, 2, columns, 24)}
    return {**x, "q_t": torch.randn(2, 4, 19, 40), "k_t": torch.randn(2, 4, columns, 40)}


AXIS = {"w_s": 0, "w_t": 0, "bias_s": 0, "bias_t": 0, "k_s": 2, "k_t": 2}  # of the columns
PARTS = ((0, 100), (100, 1), (101, 110))


def cut(x, first, count):
    """The operands with those columns only."""
    return {name: t.narrow(AXIS[name], first, count) if name in AXIS else t for name, t in x.items()}


def in_pieces(face, use, x, weight, wanted, divergence="forward", beta=None, reduction="mean", **options):
    """What one call would give, from partial, merge, finish and backward."""
    as_given = (lambda t: t.numpy()) if face is streamkl.numpy else lambda t: t
    pieces = [{name: as_given(t) for name, t in cut(x, *part).items()} for part in PARTS]
    weight = None if weight is None else as_given(weight)
    partial, backward = getattr(face, f"{use}_partial"), getattr(face, f"{use}_backward")
    kind = dict(divergence=divergence, beta=beta, reduction=reduction)
    saved = None
    for _ in range(2 if divergence == "jsd" else 1):
        states = face.merge(*[partial(**p, **kind, **options, weight=weight, saved=saved) for p in pieces])
        saved = face.finish(states, **kind, weight=weight, saved=saved)
    grads = [backward(**p, saved=saved, grads=wanted, **kind, **options, weight=weight) for p in pieces]
    join = np.concatenate if face is streamkl.numpy else torch.cat
    parts = {name: [g[name] for g in grads] for name in wanted}
    return saved, {name: join(p, AXIS[name]) if name in AXIS else sum(p) for name, p in parts.items()}


@pytest.mark.parametrize("face", (streamkl, streamkl.numpy))
@pytest.mark.parametrize("use", ("linear", "attention"))
@pytest.mark.parametrize("divergence", reference.DIVERGENCES)
@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
@pytest.mark.parametrize("weighted", (False, True))
def test_as_one_call(face, use, divergence, reduction, weighted):
    x = problem(use)
    rows = next(iter(x.values())).shape[:-1]
    weight = torch.rand(rows) * (torch.rand(rows) > 0.2) if weighted else None
    options = dict(divergence=divergence, beta=reference.only_jsd(divergence, 0.3), reduction=reduction)
    options.update(dict(temperature=1.7) if use == "linear" else dict(softcap_s=20.0))
    saved, grads = in_pieces(face, use, x, weight, tuple(x), **options)
    leaves = {name: t.clone().requires_grad_() for name, t in x.items()}
    loss, lse_s, lse_t = getattr(streamkl, f"{use}_kl")(**leaves, weight=weight, **options, return_lse=True)
    reference.close(torch.as_tensor(saved.value, dtype=torch.float32), loss, 1e-5)
    for name, want in (("lse_s", lse_s), ("lse_t", lse_t)):
        got = torch.as_tensor(getattr(saved, name))
        assert torch.equal(got.isinf(), want.isinf())
        reference.close(got.nan_to_num(neginf=0), want.nan_to_num(neginf=0), 1e-6, name)
    for name, want in zip(leaves, torch.autograd.grad(loss.sum(), list(leaves.values()))):
        assert str(grads[name].dtype).endswith("float32")
        reference.close(torch.as_tensor(grads[name]), want, 2e-5, name)


@pytest.mark.parametrize("rows", [(), (5,), (2, 1, 3, 2)])
def test_leading_dimensions(rows):
    x = problem("linear", rows)
    saved, grads = in_pieces(streamkl, "linear", x, None, ("x_s", "w_t"), reduction="none")
    assert saved.value.shape == saved.loss.shape == saved.lse_s.shape == rows
    leaves = {name: t.clone().requires_grad_() for name, t in x.items()}
    loss = streamkl.linear_kl(**leaves, reduction="none")
    reference.close(saved.value, loss, 1e-5)
    for name, want in zip(("x_s", "w_t"), torch.autograd.grad(loss.sum(), [leaves["x_s"], leaves["w_t"]])):
        reference.close(grads[name], want, 2e-5, name)


def test_upstream_gradient():
    """A weight with reduction "sum" is the gradient that comes from above."""
    x = problem("linear")
    upstream = torch.randn(2, 19)
    saved = streamkl.finish(streamkl.linear_partial(**x))
    got = streamkl.linear_backward(**x, saved=saved, grads=("w_s",), reduction="sum", weight=upstream)["w_s"]
    w = x["w_s"].clone().requires_grad_()
    loss = streamkl.linear_kl(**{**x, "w_s": w}, reduction="none")
    reference.close(got, torch.autograd.grad(loss, w, upstream)[0], 1e-5, upstream=upstream.norm().item())


@pytest.mark.parametrize("face", (streamkl, streamkl.numpy))
@pytest.mark.parametrize("use", ("linear", "attention"))
@pytest.mark.parametrize("divergence", reference.DIVERGENCES)
def test_identical_sides_give_exactly_zero(face, use, divergence):
    """The pieces' gradients too, with scales and caps that change the units of what was saved."""
    x = problem(use)
    if use == "linear":
        x.update(x_t=x["x_s"], w_t=x["w_s"], bias_t=x["bias_s"])
    else:
        x.update(q_t=x["q_s"], k_t=x["k_s"])
    both = dict(divergence=divergence, scale_s=0.7, scale_t=0.7)
    for options in (
        {},
        both,
        dict(both, softcap_s=9.0, softcap_t=9.0),
        dict(temperature=1.7) if use == "linear" else {},
    ):
        saved, grads = in_pieces(face, use, x, None, tuple(x), **{"divergence": divergence, **options})
        assert not saved.loss.any() and not any(g.any() for g in grads.values())


def test_states():
    x = problem("linear")
    states = streamkl.linear_partial(**x)
    assert states.shape == (2, 19, 6) and states.dtype is torch.float64 and not states.requires_grad
    parts = [streamkl.linear_partial(**cut(x, *part)) for part in PARTS]
    before = [p.clone() for p in parts]
    a, b = streamkl.merge(*parts), streamkl.merge(*reversed(parts))
    assert all(torch.equal(x, y) for x, y in zip(parts, before))
    torch.testing.assert_close(streamkl.finish(a).loss, streamkl.finish(b).loss)
    assert torch.equal(streamkl.merge(states), states)
    turned = states.transpose(0, 1)
    assert torch.equal(streamkl.finish(turned).loss, streamkl.finish(states).loss.T)
    assert torch.equal(streamkl.merge(turned, turned), streamkl.merge(states, states).transpose(0, 1))


def test_no_rows():
    x = problem("linear", (2, 0))
    saved, grads = in_pieces(streamkl, "linear", x, None, ("x_s", "w_s"))
    assert saved.value.item() == 0 and saved.loss.shape == (2, 0)
    assert grads["x_s"].shape == (2, 0, 24) and not grads["w_s"].any()


def test_autograd_is_kept_out():
    x = {name: t.requires_grad_() for name, t in problem("linear").items()}
    states = streamkl.linear_partial(**x)
    saved = streamkl.finish(states)
    assert not states.requires_grad and not saved.loss.requires_grad
    assert not streamkl.linear_backward(**x, saved=saved, grads=("x_s",))["x_s"].requires_grad


def test_compile():
    x = problem("linear")

    def f(x_s, w_s, x_t, w_t):
        half = [streamkl.linear_partial(x_s, w_s[part], x_t, w_t[part]) for part in (slice(0, 99), slice(99, None))]
        return streamkl.finish(streamkl.merge(*half)).value

    args = [x[name] for name in ("x_s", "w_s", "x_t", "w_t")]
    assert torch.equal(torch.compile(f, fullgraph=True, backend="aot_eager")(*args), f(*args))


@pytest.mark.parametrize("face", (streamkl, streamkl.numpy))
def test_sentences(face):
    array = (lambda t: t.numpy()) if face is streamkl.numpy else (lambda t: t)
    x = {name: array(t) for name, t in problem("linear").items()}
    states = face.linear_partial(**x)
    saved = face.finish(states)
    partial, finish, merge = partial_of(face.linear_partial, **x), partial_of(face.finish), face.merge
    backward = partial_of(face.linear_backward, **x, grads=("x_t",), saved=saved)
    one, five = array(torch.ones(19)), array(torch.ones(3, 5).double())
    bad = [
        (lambda: merge(), ValueError, "states = (): there must be at least one"),
        (lambda: merge(states, states[:1]), ValueError, "states.shape = (1, 19, 6): it must be that of the others"),
        (lambda: merge(array(torch.ones(3, 6))), TypeError, "states = '"),
        (lambda: finish(five), ValueError, "states.shape = (3, 5): its last dimension must be 6"),
        (lambda: finish(states, weight=one), ValueError, "weight.shape = (19,): it must be that of the rows, (2, 19)"),
        (lambda: finish(states, saved=1), TypeError, "saved = 'int': it must be what finish() returned"),
        (lambda: finish(states, beta=0.5), ValueError, "beta = 0.5: only divergence='jsd' and 'alpha_beta'"),
        (lambda: partial(saved=states), TypeError, "saved = '"),
        (lambda: partial(saved=saved), ValueError, "forward KL has no second sweep"),
        (lambda: backward(grads="x_s"), TypeError, "grads = 'x_s': it must hold names"),
        (lambda: backward(grads=True), TypeError, "grads = True: it must hold names"),
        (lambda: backward(grads=("bias_t",)), ValueError, "'bias_t' is not an operand"),
        (
            lambda: backward(saved=saved._replace(loss=one)),
            ValueError,
            "saved.loss.shape = (19,): its rows must be (2, 19)",
        ),
        (lambda: backward(saved=saved._replace(loss=None)), ValueError, "saved.loss"),
        (lambda: backward(labels=1), TypeError, "cannot use labels="),
    ]
    for call, kind, sentence in bad:
        with pytest.raises(kind, match=re.escape(sentence)):
            call()
