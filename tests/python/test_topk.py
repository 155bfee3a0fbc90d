# SPDX-License-Identifier: Apache-2.0
"""Listed teachers: linear_topk_kl against its definition in float64."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import reference
import streamkl
import streamkl.numpy

V, K = 333, 9
KINDS = [(tail, "forward") for tail in ("bucket", "renormalise", "zero", "teacher")]
KINDS += [("bucket", "reverse"), ("renormalise", "reverse")]
kinds = pytest.mark.parametrize("tail, divergence", KINDS)


def problem(rows=(4, 7), v=V, k=K, dim=24, dtype=torch.float32):
    """A student, and the lists of a teacher with -1 among them; the list of the last row has one entry."""
    x = {"x_s": torch.randn(*rows, dim).to(dtype), "w_s": (torch.randn(v, dim) * 0.4).to(dtype)}
    full = torch.randn(*rows, v, dtype=torch.float64).mul(2).log_softmax(-1)
    logprobs, ids = full.topk(k, -1)
    shuffled = torch.randperm(k)
    ids, logprobs = ids[..., shuffled].clone(), logprobs[..., shuffled].float()
    ids.view(-1, k)[len(ids) // 2, k // 2] = -1
    ids.view(-1, k)[-1, 1:] = -1
    return x, dict(ids=ids, logprobs=logprobs)


def masses(ids, logprobs, columns, tail, power, tail_logprob):
    """p [..., V] and p_rest of the lists, as the tail wants them."""
    p = torch.zeros(*ids.shape[:-1], columns + 1, dtype=torch.float64)
    p = p.scatter_add(-1, torch.where(ids < 0, columns, ids).long(), logprobs.double().exp())[..., :columns]
    on = torch.zeros(p.shape, dtype=torch.bool)
    on = F.pad(on, (0, 1)).scatter(-1, torch.where(ids < 0, columns, ids).long(), True)[..., :columns]
    rest = 1 - p.sum(-1) if tail_logprob is None else tail_logprob.double().exp()
    rest = rest.clamp(min=0) * ~on.all(-1)
    if tail in ("renormalise", "teacher"):
        rest = torch.zeros_like(rest)
    if power != 1 or tail in ("renormalise", "teacher"):
        p, rest = torch.where(on, p**power, 0.0), torch.where(rest > 0, rest**power, 0.0)
        total = p.sum(-1) + rest
        p, rest = p / total[..., None], rest / total
    return p, (rest if tail == "bucket" else torch.zeros_like(rest)), on


def definition(
    x_s, w_s, ids, logprobs, tail="bucket", divergence="forward", temperature=1.0, stored_temperature=1.0,
    tail_logprob=None, weight=None, reduction="mean", labels=None, label_weight=0.0, kl_weight=1.0, num_items=None,
    columns=None, bias_s=None, scale_s=None, softcap_s=None, workspace_limit=None, skip_below=0.0,
):  # fmt: skip
    z1 = reference.linear_logits(x_s, w_s, bias_s, scale_s, softcap_s, 1.0, columns)
    z = z1 / temperature
    p, rest, on = masses(ids, logprobs, z.shape[-1], tail, stored_temperature / temperature, tail_logprob)
    shown = z.masked_fill(~on, -math.inf) if tail == "renormalise" else z
    log_q = torch.where(on, shown - shown.logsumexp(-1, keepdim=True), 0.0)
    off = z.masked_fill(on, -math.inf).logsumexp(-1) - z.logsumexp(-1)
    off = torch.where(on.all(-1), 0.0, off)
    bucket = (tail == "bucket") & ~on.all(-1)
    if divergence == "forward":
        row = torch.xlogy(p, p).sum(-1) - (p * log_q).sum(-1)
        row = row + torch.where(bucket, torch.xlogy(rest, rest) - rest * off, 0.0)
    else:
        log_p = torch.where(on, p.log(), 0.0)
        row = (torch.where(on, log_q.exp(), 0.0) * (log_q - log_p)).sum(-1)
        row = row + torch.where(bucket, off.exp() * (off - torch.where(bucket, rest, 1.0).log()), 0.0)
    row = torch.where(on.any(-1), row, 0.0) * kl_weight
    counted = torch.ones(row.shape, dtype=torch.float64)
    if labels is not None:
        flat = z1.reshape(-1, z1.shape[-1])
        row = row + label_weight * F.cross_entropy(flat, labels.reshape(-1), reduction="none").reshape(row.shape)
        counted = (labels != -100).double()
    w = counted if weight is None else weight.double()
    if reduction == "none":
        return row * w
    return (row * w).sum() / (1 if reduction == "sum" else num_items or w.sum())


def agree(x, lists, names=("x_s", "w_s"), **more):
    ours = lambda **t: streamkl.linear_topk_kl(**t, **lists, **more)  # noqa: E731
    theirs = lambda **t: definition(**t, **lists, **more)  # noqa: E731
    reference.compare(ours, theirs, x, names)


@kinds
@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
@pytest.mark.parametrize("temperature, stored", ((1.0, 1.0), (2.0, 2.0), (2.0, 1.0)))
def test_the_definition(tail, divergence, reduction, temperature, stored):
    x, lists = problem()
    agree(
        x, lists, tail=tail, divergence=divergence, reduction=reduction, temperature=temperature,
        stored_temperature=stored,
    )  # fmt: skip


@kinds
@pytest.mark.parametrize("reduction", ("mean", "none"))
def test_everything_at_once(tail, divergence, reduction):
    x, lists = problem()
    x["w_s"], x["bias_s"] = F.pad(x["w_s"], (0, 0, 0, 5)), torch.randn(V + 5)
    more = dict(scale_s=-0.8, softcap_s=None, columns=V, weight=torch.rand(4, 7).round(decimals=1), temperature=1.5)
    agree(x, lists, ("x_s", "w_s", "bias_s"), tail=tail, divergence=divergence, reduction=reduction, **more)
    more.update(softcap_s=3.0, num_items=11.0 if reduction == "mean" else None, tail_logprob=torch.full((4, 7), -3.0))
    agree(x, lists, ("x_s", "w_s", "bias_s"), tail=tail, divergence=divergence, reduction=reduction, **more)


@kinds
@pytest.mark.parametrize("temperature", (1.0, 2.0))
@pytest.mark.parametrize("reduction", ("mean", "none"))
def test_labels_in_the_same_pass(tail, divergence, temperature, reduction):
    x, lists = problem()
    labels = torch.randint(0, V, (4, 7))
    labels[0, :3] = -100
    labels[1] = lists["ids"][1, :, 0]  # a label that is listed
    more = dict(labels=labels, label_weight=0.3, kl_weight=0.7, temperature=temperature, softcap_s=5.0)
    agree(x, lists, tail=tail, divergence=divergence, reduction=reduction, **more)


@pytest.mark.parametrize("weights", (dict(kl_weight=0.0, label_weight=1.0), dict(label_weight=0.0)))
@pytest.mark.parametrize("tail", ("bucket", "renormalise"))
def test_a_weight_of_zero_takes_its_part_away(weights, tail):
    x, lists = problem()
    labels = torch.randint(0, V, (4, 7))
    agree(x, lists, tail=tail, labels=labels, **weights)


@kinds
@pytest.mark.parametrize("dtype", reference.DTYPES)
@pytest.mark.parametrize("reduction", ("sum", "none"))
def test_dtypes(tail, divergence, dtype, reduction):
    x, lists = problem(dtype=dtype)
    lists["logprobs"] = lists["logprobs"].to(dtype)
    exact = {name: t.double().requires_grad_() for name, t in x.items()}  # whose gradients are not rounded
    x = {name: t.requires_grad_() for name, t in x.items()}
    more = dict(lists, tail=tail, divergence=divergence, reduction=reduction)
    got, want = streamkl.linear_topk_kl(**x, **more), definition(**exact, **more)
    reference.close(got, want, 2e-5)
    got, want = got.sum(), want.sum()
    grads = zip(torch.autograd.grad(got, list(x.values())), torch.autograd.grad(want, list(exact.values())))
    for name, (a, b) in zip(x, grads):
        reference.close(a, b, reference.TOLERANCE[dtype], name)


@kinds
@pytest.mark.parametrize("shape", ((3, 300, 600, 5), (70, 1000, 513, 40), (1, 5, 3, 2), (600, 200, 17, 3)))
def test_shapes(tail, divergence, shape):
    """Long and short vectors, few rows and more than a block."""
    rows, v, dim, k = shape
    x, lists = problem((rows,), v, k, dim)
    x["w_s"] *= (24 / dim) ** 0.5
    agree(x, lists, tail=tail, divergence=divergence)


@kinds
def test_rows_of_any_number_of_dimensions(tail, divergence):
    for rows in ((), (2, 2, 2, 2)):
        x, lists = problem((7,))
        n = math.prod(rows)
        x["x_s"] = x["x_s"][:1].expand(n, -1).reshape(*rows, -1).contiguous()
        lists = {name: t[:1].expand(n, -1).reshape(*rows, -1) for name, t in lists.items()}
        agree(x, lists, tail=tail, divergence=divergence, reduction="none")


@kinds
def test_an_id_that_comes_twice_has_the_sum_of_its_masses(tail, divergence):
    x, lists = problem()
    ids, logprobs = lists["ids"], lists["logprobs"] - math.log(2)
    doubled = dict(ids=torch.cat((ids, ids.flip(-1)), -1), logprobs=torch.cat((logprobs, logprobs.flip(-1)), -1))
    agree(x, doubled, tail=tail, divergence=divergence, temperature=2.0)
    for stored in (1.0, 2.0):
        more = dict(tail=tail, divergence=divergence, temperature=2.0, stored_temperature=stored, reduction="none")
        once, twice = (streamkl.linear_topk_kl(**x, **one, **more) for one in (lists, doubled))
        torch.testing.assert_close(once, twice, rtol=1e-5, atol=1e-6)


@kinds
@pytest.mark.parametrize("missing", (0, 1))
def test_all_columns_listed_are_a_live_teacher(missing, tail, divergence):
    x, _ = problem()
    x_t, w_t = torch.randn(4, 7, 40), torch.randn(V, 40) * 0.4
    full = (x_t.double() @ w_t.double().T).log_softmax(-1)
    logprobs, ids = full.topk(V - missing, -1)  # without one column, the bucket is that column
    lists, more = dict(ids=ids, logprobs=logprobs.float()), dict(tail=tail, divergence=divergence)
    if missing:
        more["tail_logprob"] = full.topk(V, -1)[0][..., -1]
        if tail != "bucket":
            return
    agree(x, lists, **more)
    for t in x.values():
        t.requires_grad_()
    listed, live = (
        streamkl.linear_topk_kl(**x, **lists, **more),
        streamkl.linear_kl(**x, x_t=x_t, w_t=w_t, divergence=divergence),
    )
    torch.testing.assert_close(listed, live, rtol=1e-5, atol=1e-6)
    for a, b in zip(torch.autograd.grad(listed, list(x.values())), torch.autograd.grad(live, list(x.values()))):
        reference.close(a, b, 1e-4)


@kinds
@pytest.mark.parametrize("reduction", ("mean", "none"))
def test_an_empty_list_is_a_row_without_columns(tail, divergence, reduction):
    x, lists = problem()
    lists["ids"][2] = -1
    lists["ids"][0, 1] = -1
    x["w_s"].requires_grad_()
    x["x_s"].requires_grad_()
    more = dict(
        tail=tail, divergence=divergence, reduction=reduction, labels=torch.randint(0, V, (4, 7)), label_weight=1.0
    )
    loss, told = streamkl.linear_topk_kl(**x, **lists, **more, details=("lse_s", "kl"))
    assert told["lse_s"][2].eq(-math.inf).all() and told["kl"][2].eq(0).all() and told["lse_s"][1].isfinite().all()
    grads = torch.autograd.grad(loss.sum(), (x["x_s"], x["w_s"]))
    assert grads[0][2].eq(0).all() and grads[0][0, 1].eq(0).all() and grads[0][1].ne(0).any()
    loss = streamkl.linear_topk_kl(**x, ids=lists["ids"][..., :0], logprobs=lists["logprobs"][..., :0], **more)
    assert loss.eq(0).all() and all(g.eq(0).all() for g in torch.autograd.grad(loss.sum(), (x["x_s"], x["w_s"])))


def test_a_sum_above_one_within_rounding_has_no_rest():
    x, lists = problem((5,), k=3)
    lists["ids"] = torch.tensor([[3, 7, 11]]).repeat(5, 1)
    lists["logprobs"] = torch.tensor([0.5, 0.3, 0.2]).log().add(2e-6).repeat(5, 1)
    assert (lists["logprobs"].double().exp().sum(-1) > 1).all()
    agree(x, lists)
    loss = streamkl.linear_topk_kl(**x, **lists, reduction="none")
    zero = streamkl.linear_topk_kl(**x, **lists, reduction="none", tail="zero")
    assert torch.equal(loss, zero)
    assert streamkl.linear_topk_kl(**x, **lists, divergence="reverse", reduction="none").eq(math.inf).all()


def test_the_mass_off_the_list_is_never_a_difference():
    """A student almost all of whose mass is listed: 1 - sum would be 0 in f32, and the loss infinite."""
    x, w = torch.tensor([[1.0]]), torch.zeros(50, 1)
    w[:2] = 30.0
    ids, logprobs = torch.tensor([[0, 1]]), torch.full((1, 2), math.log(0.5))
    for divergence in ("forward", "reverse"):
        agree(
            {"x_s": x, "w_s": w},
            dict(ids=ids, logprobs=logprobs),
            divergence=divergence,
            tail_logprob=torch.tensor([-40.0]),
        )
    # Forward, with a rest that the student lacks: -p_rest/q_rest would be beyond f32, dz itself is not.
    w = w.detach().clone()
    w[:2] = 200.0
    agree({"x_s": x, "w_s": w}, dict(ids=ids, logprobs=logprobs - 1), tail="bucket")


def test_renormalise_reads_the_listed_columns_alone():
    x, lists = problem()
    for reduction in ("mean", "none"):
        for divergence in ("forward", "reverse"):
            more = dict(tail="renormalise", divergence=divergence, reduction=reduction)
            for t in x.values():
                t.requires_grad_()
            want = streamkl.linear_topk_kl(**x, **lists, **more)
            grads = torch.autograd.grad(want.sum(), list(x.values()))
            unused = torch.ones(V, dtype=torch.bool).index_fill(0, lists["ids"].clamp(min=0).flatten(), False)
            poisoned = {
                "x_s": x["x_s"],
                "w_s": x["w_s"].detach().masked_fill(unused[:, None], math.nan).requires_grad_(),
            }
            got = streamkl.linear_topk_kl(**poisoned, **lists, **more)
            assert torch.equal(got, want)
            for a, b in zip(torch.autograd.grad(got.sum(), list(poisoned.values())), grads):
                assert torch.equal(a, b)


@kinds
@pytest.mark.parametrize("where", ("x", "logprobs"))
def test_nan_stays_in_its_row(tail, divergence, where):
    x, lists = problem()
    if where == "x":
        x["x_s"][1, 2, 5] = math.nan
    else:
        lists["logprobs"][1, 2, 0] = math.nan
    x["x_s"].requires_grad_()
    loss = streamkl.linear_topk_kl(**x, **lists, tail=tail, divergence=divergence, reduction="none")
    grad = torch.autograd.grad(loss.sum(), x["x_s"])[0].isnan().any(-1)
    bad = torch.zeros(4, 7, dtype=torch.bool)
    bad[1, 2] = True
    assert torch.equal(loss.isnan(), bad) and torch.equal(grad, bad)
    assert not streamkl.linear_topk_kl(**x, **lists, tail=tail, divergence=divergence, weight=~bad).isnan()


@kinds
@pytest.mark.parametrize("labelled", (False, True))
def test_bits_do_not_depend_on_threads(tail, divergence, labelled):
    x, lists = problem((300,), 2000, 30, 40)
    more = dict(
        tail=tail, divergence=divergence, **(dict(labels=torch.arange(300), label_weight=0.5) if labelled else {})
    )
    for t in x.values():
        t.requires_grad_()
    found = []
    for threads in (1, 2, 5):
        loss = streamkl.linear_topk_kl(**x, **lists, **more, threads=threads)
        found.append((loss, *torch.autograd.grad(loss, list(x.values()))))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other))


@kinds
def test_little_memory(tail, divergence):
    x, lists = problem((300,), 2000, 30, 40)
    agree(x, lists, tail=tail, divergence=divergence, workspace_limit=1 << 20)


@kinds
def test_skip_below(tail, divergence):
    x, lists = problem((40,))
    agree(x, lists, tail=tail, divergence=divergence, skip_below=1e-9)


def test_details():
    x, lists = problem()
    labels = torch.randint(0, V, (4, 7))
    z = reference.linear_logits(x["x_s"], x["w_s"])
    s = z / 2
    names = ("kl", "ce", "lse_s", "entropy_s", "logprob_s", "top1_s", "sum", "count")
    for tail, divergence in KINDS:
        more = dict(tail=tail, divergence=divergence, temperature=2.0)
        loss, told = streamkl.linear_topk_kl(**x, **lists, **more, labels=labels, kl_weight=0.4, details=names)
        log_s, log_p = s.log_softmax(-1), z.log_softmax(-1).gather(-1, labels[..., None])[..., 0]
        want = dict(kl=definition(**x, **lists, **more, reduction="none"), ce=-log_p, lse_s=s.logsumexp(-1))
        want.update(entropy_s=-(log_s.exp() * log_s).sum(-1), logprob_s=log_p)
        for name, full in want.items():
            reference.close(told[name], full, 2e-6, name)
        assert torch.equal(told["top1_s"].long(), z.argmax(-1)) and told["count"] == 28
        torch.testing.assert_close(told["sum"] / told["count"], loss)
        _, told = streamkl.linear_topk_kl(**x, **lists, **more, details=("lse_s", "entropy_s"))
        reference.close(told["entropy_s"], want["entropy_s"], 2e-6)
        assert torch.equal(told["lse_s"], streamkl.linear_topk_kl(**x, **lists, **more, details=("lse_s",))[1]["lse_s"])


@kinds
def test_numpy(tail, divergence):
    x, lists = problem()
    for t in x.values():
        t.requires_grad_()
    more = dict(tail=tail, divergence=divergence, temperature=2.0)
    rest = torch.full((4, 7), -4.0)
    loss = streamkl.linear_topk_kl(**x, **lists, **more, tail_logprob=rest)
    arrays = {name: t.detach().numpy() for name, t in {**x, **lists, "tail_logprob": rest}.items()}
    value, grads = streamkl.numpy.linear_topk_kl(**arrays, **more, grads=("x_s", "w_s"))
    assert np.float32(value) == loss.item()
    for name, grad in zip(x, torch.autograd.grad(loss, list(x.values()))):
        np.testing.assert_array_equal(grads[name], grad.numpy())
    value, told = streamkl.numpy.linear_topk_kl(**arrays, **more, reduction="none", details=("kl",))
    np.testing.assert_array_equal(value, told["kl"])


def test_module_and_compiled():
    x, lists = problem()
    module = streamkl.LinearTopKKLLoss(tail="renormalise", temperature=2.0)
    assert torch.equal(module(**x, **lists), streamkl.linear_topk_kl(**x, **lists, tail="renormalise", temperature=2.0))
    assert repr(module) == "LinearTopKKLLoss(tail='renormalise', temperature=2.0)"
    with pytest.raises(TypeError, match="options go to the constructor"):
        module(**x, **lists, tail="zero")
    with pytest.raises(ValueError, match="tail = 'none'"):
        streamkl.LinearTopKKLLoss(tail="none")
    for t in x.values():
        t.requires_grad_()
    run = torch.compile(streamkl.linear_topk_kl, fullgraph=True, backend="aot_eager")
    for more in (dict(), dict(tail="renormalise", reduction="none"), dict(reduction="none", divergence="reverse")):
        got, want = (f(**x, **lists, **more).sum() for f in (run, streamkl.linear_topk_kl))
        assert torch.equal(got, want)
        for a, b in zip(*(torch.autograd.grad(loss, list(x.values())) for loss in (got, want))):
            assert torch.equal(a, b)


def test_autocast():
    x, lists = problem()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = streamkl.linear_topk_kl(**x, **lists)
    assert torch.equal(loss, streamkl.linear_topk_kl(**x, **lists))


def bad_id(row, k, value):
    _, lists = problem()
    lists["ids"].view(-1, K)[row, k] = value
    return lists


BAD = [
    (bad_id(3, 1, V), ValueError, r"ids\[3\]\[1\] = 333: it must be a column, 0 to 332, or -1 \(empty\)"),
    (bad_id(0, 8, -2), ValueError, r"ids\[0\]\[8\] = -2: it must be a column"),
    (dict(ids=torch.zeros(4, 7, K)), TypeError, "ids.dtype = torch.float32: it must hold integers"),
    (dict(logprobs=torch.zeros(4, 7, K, dtype=torch.long)), TypeError, "logprobs.dtype = torch.int64"),
    (dict(ids=torch.zeros(4, 6, K, dtype=torch.long)), ValueError, r"ids.shape = \(4, 6, 9\)"),
    (dict(logprobs=torch.zeros(4, 7, 2)), ValueError, r"logprobs.shape = \(4, 7, 2\): it must be that of ids"),
    (dict(tail_logprob=torch.zeros(4)), ValueError, r"tail_logprob.shape = \(4,\)"),
    (dict(tail_logprob=torch.ones(4, 7)), ValueError, r"tail_logprob\[0\] = 1: the logarithm of a probability"),
    (dict(logprobs=torch.zeros(4, 7, K)), ValueError, r"logprobs\[0\] with a sum of 9: probabilities sum to at most 1"),
    (dict(logprobs=torch.zeros(4, 7, K, requires_grad=True)), ValueError, "logprobs.requires_grad = True"),
    (dict(tail="none"), ValueError, "tail = 'none': it must be one of 'bucket', 'renormalise', 'zero', 'teacher'"),
    (dict(divergence="jsd"), ValueError, "divergence = 'jsd': it must be one of 'forward', 'reverse'"),
    (dict(divergence="reverse", tail="zero"), ValueError, "tail='zero' makes a reverse KL infinite"),
    (dict(stored_temperature=0), ValueError, "stored_temperature = 0: it must be positive"),
    (dict(label_weight=0.5), ValueError, "label_weight = 0.5: there are no labels"),
    (dict(details=("lse_t",)), ValueError, "'lse_t' needs a live teacher"),
    (dict(details=("agree",)), ValueError, "'agree' needs a live teacher"),
    (dict(details=("ce",)), ValueError, "'ce' needs labels"),
    (dict(scale_t=2.0), TypeError, "linear_topk_kl has no such argument"),
    (dict(bias_s=torch.zeros(3)), ValueError, "bias_s"),
]


@pytest.mark.parametrize("changed, kind, sentence", BAD, ids=[case[2] for case in BAD])
def test_refused(changed, kind, sentence):
    x, lists = problem()
    with pytest.raises(kind, match=sentence):
        streamkl.linear_topk_kl(**{**x, **lists, **changed})


def test_raw_logits_where_they_are_renormalised():
    x, lists = problem()
    raw = dict(lists, logprobs=lists["logprobs"] + 7)
    for tail in ("renormalise", "teacher"):
        got, want = (streamkl.linear_topk_kl(**x, **one, tail=tail) for one in (raw, lists))
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


@kinds
def test_operators(tail, divergence):
    from streamkl import _c, _ops
    from streamkl._autograd import saved_rows_of
    from streamkl._inputs import linear_inputs
    from streamkl._options import make_options

    x, lists = problem((5,))
    options = make_options(_c.LISTED, dict(tail=tail, divergence=divergence))
    inputs = linear_inputs(
        x["x_s"], x["w_s"], None, None, None, None, None, listed=(lists["ids"], lists["logprobs"], None)
    )
    torch.library.opcheck(_ops.value, (*inputs, *options, _ops.row_bits("loss", "m_rest", "l_rest")))
    torch.library.opcheck(_ops.value_and_grad, (*inputs, *options, _ops.row_bits("loss"), 3))
    kept = saved_rows_of(options, inputs)
    saved = _ops.value(*inputs, *options, kept)[1:]
    torch.library.opcheck(_ops.backward, (*inputs, *options, saved, kept, 3, 0))
