# SPDX-License-Identifier: Apache-2.0
"""Several teachers in one batch."""

import pytest
import torch

import reference
import streamkl
import streamkl.numpy

V, IGNORED = 211, -100


def batch(rows=(4, 6)):
    x_s, w_s = torch.randn(*rows, 12), torch.randn(V, 12) * 0.5
    heads = [torch.randn(V, width) * 0.5 for width in (20, 9, 16)]
    return x_s, w_s, heads


def teachers_of(x_s, heads, which):
    """The rows in every way to say them. Those of the last batch, or some of them, have no teacher."""
    ways = {
        "slices": [slice(0, 1), slice(1, 2), slice(2, 3)],
        "masks": [torch.arange(24).reshape(4, 6) % 4 == k for k in range(3)],
        "batches": [torch.tensor([2]), torch.tensor([-4, 1], dtype=torch.int32), [3]],
    }[which]
    made = []
    for rows, w_t in zip(ways, heads):
        made.append((rows, torch.randn(*x_s[index(rows)].shape[:-1], w_t.shape[1]), w_t))
    return made


def index(rows):
    """As torch takes it."""
    rows = torch.as_tensor(rows) if isinstance(rows, list) else rows
    return rows.long() if isinstance(rows, torch.Tensor) and rows.dtype is torch.int32 else rows


def expected(x_s, w_s, teachers, labels=None, weight=None, reduction="mean", label_weight=0.0, **more):
    """One loss a row, by the definition; a row without a teacher has weight 0."""
    shape = x_s.shape[:-1]
    loss, counts = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
    for rows, x_t, w_t in teachers:
        rows = index(rows)
        part = reference.linear_kl(x_s[rows], w_s, x_t, w_t, reduction="none", **more)
        if labels is not None:
            z = reference.linear_logits(x_s[rows], w_s)
            part = part + label_weight * torch.nn.functional.cross_entropy(
                z.flatten(0, -2), labels[rows].flatten(), reduction="none"
            ).reshape(part.shape)
        spread = torch.zeros(shape, dtype=torch.float64)
        spread[rows] = part
        loss = loss + spread
        counts[rows] = 1.0
    counts = counts * (1 if labels is None else labels != IGNORED) if weight is None else counts * weight
    if reduction == "none":
        return loss * counts
    return (loss * counts).sum() / (counts.sum() if reduction == "mean" else 1)


@pytest.mark.parametrize("which", ("slices", "masks", "batches"))
@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
@pytest.mark.parametrize("labelled", (False, True))
def test_against_the_definition(which, reduction, labelled):
    x_s, w_s, heads = batch()
    teachers = teachers_of(x_s, heads, which)
    more = dict(reduction=reduction, temperature=2.0, divergence="reverse")
    if labelled:
        labels = torch.randint(V, (4, 6))
        labels[:, 2] = IGNORED
        more.update(labels=labels, label_weight=0.5)
    else:
        more.update(weight=torch.rand(4, 1).round(decimals=1))
    ours = lambda x_s, w_s: streamkl.linear_kl(x_s, w_s, teachers=teachers, **more)  # noqa: E731
    theirs = lambda x_s, w_s: expected(x_s, w_s, teachers, **more)  # noqa: E731
    reference.compare(ours, theirs, dict(x_s=x_s, w_s=w_s), ("x_s", "w_s"))


def test_teachers_may_learn_too():
    x_s, w_s, heads = batch()
    teachers = teachers_of(x_s, heads, "masks")
    leaves = [t.requires_grad_() for _, x_t, w_t in teachers for t in (x_t, w_t)]
    got = torch.autograd.grad(streamkl.linear_kl(x_s, w_s, teachers=teachers), leaves)
    want = torch.autograd.grad(expected(x_s, w_s, teachers), leaves)
    for a, b in zip(got, want):
        reference.close(a, b, 2e-5)


def test_details_of_all_rows():
    x_s, w_s, heads = batch()
    teachers = teachers_of(x_s, heads, "slices")
    names = ("kl", "lse_s", "entropy_t", "top1_t", "agree", "mass_t", "sum", "count")
    more = dict(details=names, mass_ids=torch.tensor([3, 8]))
    loss, told = streamkl.linear_kl(x_s, w_s, teachers=teachers, **more)
    assert tuple(told) == names
    for rows, x_t, w_t in teachers:
        _, own = streamkl.linear_kl(x_s[rows], w_s, x_t, w_t, **more)
        for name in names[:-2]:
            assert torch.equal(told[name][rows], own[name]), name
    assert told["kl"][3].eq(0).all() and told["lse_s"][3].eq(-torch.inf).all() and not told["agree"][3].any()
    assert told["count"] == 18
    torch.testing.assert_close(told["sum"] / 18, loss)
    loss, lse_s, _ = streamkl.linear_kl(x_s, w_s, teachers=teachers, return_lse=True)
    torch.testing.assert_close(lse_s, told["lse_s"], rtol=3e-7, atol=0)  # summed under other references
    module = streamkl.LinearKLLoss()
    assert torch.equal(module(x_s, w_s, teachers=teachers), loss)


def test_one_teacher_for_all_is_linear_kl():
    x_s, w_s, heads = batch((17,))
    x_t = torch.randn(17, 20)
    got = streamkl.linear_kl(x_s, w_s, teachers=[(slice(None), x_t, heads[0])], num_items=5)
    torch.testing.assert_close(got, streamkl.linear_kl(x_s, w_s, x_t, heads[0], num_items=5))


def test_nobody_has_a_teacher():
    x_s, w_s, heads = batch()
    x_s.requires_grad_(), w_s.requires_grad_()
    nobody = torch.zeros(4, 6, dtype=torch.bool)
    loss = streamkl.linear_kl(x_s, w_s, teachers=[(nobody, torch.randn(0, 20), heads[0])])
    loss.backward()
    assert loss == 0 and x_s.grad.eq(0).all() and w_s.grad.eq(0).all()


def test_in_one_graph():
    x_s, w_s, heads = batch()
    teachers = teachers_of(x_s, heads, "slices")
    call = lambda x, w: streamkl.linear_kl(x, w, teachers=teachers, temperature=2.0)  # noqa: E731
    run = torch.compile(call, fullgraph=True, backend="aot_eager")
    w_s.requires_grad_()
    got, want = run(x_s, w_s), streamkl.linear_kl(x_s, w_s, teachers=teachers, temperature=2.0)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.autograd.grad(got, w_s), torch.autograd.grad(want, w_s))


BAD = [
    ([], ValueError, "there must be at least one"),
    ([(slice(0, 2), 0), (slice(1, 2), 0)], ValueError, r"rows \[1, 0\] twice': a row may have one teacher"),
    ([(torch.tensor([1, 1]), 0)], ValueError, "a row may have one teacher"),
    ([(torch.ones(4, 5, dtype=torch.bool), 0)], ValueError, "a mask must be of the rows"),
    ([(torch.ones(4, 6), 0)], TypeError, "a slice, a bool mask or integers"),
    ([(3, 0)], TypeError, "a slice, a bool mask or integers"),
    ([(slice(0, 1), torch.randn(2, 6, 20))], ValueError, "x_t.shape"),
]


@pytest.mark.parametrize("given, kind, sentence", BAD, ids=[case[2] for case in BAD])
def test_refused(given, kind, sentence):
    x_s, w_s, heads = batch()
    teachers = []
    for rows, x_t in given:
        teachers.append((rows, x_t if isinstance(x_t, torch.Tensor) else torch.randn(1, 6, 20), heads[0]))
    with pytest.raises(kind, match=sentence):
        streamkl.linear_kl(x_s, w_s, teachers=teachers)


def test_a_teacher_beside_teachers_is_refused():
    x_s, w_s, heads = batch()
    with pytest.raises(TypeError, match="with teachers= each of them brings its x_t and w_t"):
        streamkl.linear_kl(x_s, w_s, torch.randn(4, 6, 20), heads[0], teachers=[(slice(None), x_s, w_s)])


@pytest.mark.parametrize("which", ("slices", "masks", "batches"))
@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
def test_arrays_are_as_tensors(which, reduction):
    """streamkl.numpy's call: loss, details and gradients against torch's, with labels or weights."""
    x_s, w_s, heads = batch()
    teachers = teachers_of(x_s, heads, which)
    bias_s = torch.randn(V)
    leaves = {"x_s": x_s, "w_s": w_s, "bias_s": bias_s}
    labels = torch.randint(V, (4, 6))
    labels[:, 2] = IGNORED
    names = ("kl", "ce", "lse_s", "top1_t", "agree", "mass_t", "sum", "count")
    more = dict(labels=labels, label_weight=0.5, mass_ids=torch.tensor([3, 8]), reduction=reduction)
    arrays = [(r if isinstance(r, (slice, list)) else r.numpy(), x.numpy(), w.numpy()) for r, x, w in teachers]
    as_arrays = {name: t.numpy() if isinstance(t, torch.Tensor) else t for name, t in more.items()}
    for t in leaves.values():
        t.requires_grad_()
    loss, told = streamkl.linear_kl(x_s, w_s, teachers=teachers, bias_s=bias_s, details=names, **more)
    want = dict(zip(leaves, torch.autograd.grad(loss.sum(), list(leaves.values()))))
    numbers = {name: t.detach().numpy() for name, t in leaves.items()}
    bias = numbers.pop("bias_s")
    (value, rows), grads = streamkl.numpy.linear_kl(
        **numbers, bias_s=bias, teachers=arrays, details=names, grads=tuple(leaves), **as_arrays
    )
    torch.testing.assert_close(torch.as_tensor(value, dtype=torch.float32), loss.detach(), rtol=1e-6, atol=0)
    assert tuple(rows) == names
    for name, t in told.items():
        assert torch.allclose(torch.as_tensor(rows[name]).to(t.dtype), t, rtol=1e-6), name
    for name, g in want.items():
        torch.testing.assert_close(torch.from_numpy(grads[name]), g, rtol=1e-5, atol=1e-7)
    del as_arrays["labels"], as_arrays["label_weight"], as_arrays["mass_ids"]
    value, lse_s, _ = streamkl.numpy.linear_kl(
        **numbers, teachers=arrays, weight=torch.ones(6).numpy(), num_items=7, return_lse=True, **as_arrays
    )
    with torch.no_grad():  # the same call of C, so the same bits
        loss, lse, _ = streamkl.linear_kl(
            x_s, w_s, teachers=teachers, num_items=7, return_lse=True, reduction=reduction
        )
    torch.testing.assert_close(torch.as_tensor(value, dtype=torch.float32), loss, rtol=1e-6, atol=0)
    assert torch.equal(torch.from_numpy(lse_s), lse)


@pytest.mark.parametrize("given, kind, sentence", BAD, ids=[case[2] for case in BAD])
def test_arrays_refused(given, kind, sentence):
    x_s, w_s, heads = batch()
    teachers = []
    for rows, x_t in given:
        rows = rows.numpy() if isinstance(rows, torch.Tensor) else rows
        teachers.append(
            (rows, (x_t if isinstance(x_t, torch.Tensor) else torch.randn(1, 6, 20)).numpy(), heads[0].numpy())
        )
    with pytest.raises(kind, match=sentence):
        streamkl.numpy.linear_kl(x_s.numpy(), w_s.numpy(), teachers=teachers)


def test_arrays_refuse_gradients_of_teachers():
    x_s, w_s, heads = (t.numpy() if isinstance(t, torch.Tensor) else t for t in batch())
    one = [(slice(0, 1), x_s[:1], w_s)]
    with pytest.raises(ValueError, match=r"grads = \('w_t',\): with teachers= it may hold 'x_s', 'w_s', 'bias_s'"):
        streamkl.numpy.linear_kl(x_s, w_s, teachers=one, grads=("w_t",))
    with pytest.raises(ValueError, match="bias_s"):
        streamkl.numpy.linear_kl(x_s, w_s, teachers=one, grads=("bias_s",))
    with pytest.raises(TypeError, match="with teachers= each of them brings its x_t and w_t"):
        streamkl.numpy.linear_kl(x_s, w_s, x_s, w_s, teachers=one)
    with pytest.raises(ValueError, match=r"labels.shape = \(4, 1\)"):
        streamkl.numpy.linear_kl(x_s, w_s, teachers=one, labels=[[1], [2], [3], [4]])
    with pytest.raises(ValueError, match="they must index the rows"):
        streamkl.numpy.linear_kl(x_s, w_s, teachers=[([7], x_s[:1], w_s)])
