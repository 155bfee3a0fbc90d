# SPDX-License-Identifier: Apache-2.0
"""Lists of keys in attention_kl and indexer_kl, and packed sequences in the latter, against float64 with everything stored."""

import numpy as np
import pytest
import torch

import reference
import streamkl
import streamkl.numpy
import test_indexer as dense
from streamkl import _c, _ops
from streamkl._autograd import saved_rows
from streamkl._inputs import attention_inputs, indexer_inputs
from streamkl._options import make_options

STUDENT = ("q_s", "k_s")
ALL = ("q_s", "k_s", "q_t", "k_t")
INDEXER = dense.INDEXER


def operands(b=2, h=6, h_s=3, h_t=1, n=23, m=61, d=16, dtype=torch.float32):
    shapes = ((b, h, n, d), (b, h_s, m, d), (b, h, n, 24), (b, h_t, m, 24))
    return {name: torch.randn(shape).to(dtype) for name, shape in zip(ALL, shapes)}


def lists(b=2, n=23, last=60, k=12):
    """Keys in any order, some twice, some slots empty, some lists empty."""
    support = torch.randint(-1, last + 1, (b, n, k), dtype=torch.int32)
    support[:, 3] = -1
    support[:, 5] = support[:, 5, :1]
    return support


def check(x, named=STUDENT, **options):
    theirs = reference.mixed_kl if "mix_t" in options or "lse_t" in options else reference.attention_kl
    reference.compare(lambda **x: streamkl.attention_kl(**x, **options), lambda **x: theirs(**x, **options), x, named)


@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
@pytest.mark.parametrize("causal", (True, False))
def test_reductions(reduction, causal):
    check(operands(), support=lists(), reduction=reduction, causal=causal)


@pytest.mark.parametrize("dtype", reference.DTYPES)
def test_dtypes(dtype):
    check(operands(dtype=dtype), ALL, support=lists(), causal=True)


@pytest.mark.parametrize("divergence", ("reverse", "jsd", "skew_forward", "tv"))
def test_divergences(divergence):
    check(operands(), ALL, support=lists(), divergence=divergence)


@pytest.mark.parametrize("heads", ((1, 1, 1), (32, 1, 1), (16, 2, 1), (6, 6, 6), (40, 1, 2)))
def test_heads(heads):
    check(operands(h=heads[0], h_s=heads[1], h_t=heads[2]), support=lists(), causal=True, reduction="none")


def test_masks():
    x = operands()
    begin, end = torch.randint(0, 30, (2, 1, 23)), torch.randint(20, 61, (2, 6, 23))
    check(x, support=lists(), begin=begin, end=end, reduction="none")
    check(x, support=lists(), window=(20, 3))
    check(x, support=lists(), causal=True, weight=(torch.rand(2, 6, 23) > 0.4).float(), reduction="sum")


@pytest.mark.parametrize("block", (1, 7, 64))
def test_blocks(block):
    support = lists(last=-(-61 // block) - 1, k=3)
    check(operands(), support=support, support_block=block, causal=True)


def test_mixed_heads():
    x = operands(h=2, h_s=1)
    x["q_t"], x["k_t"] = torch.randn(2, 6, 23, 24), torch.randn(2, 3, 61, 24)
    check(x, support=lists(), mix_t=3, causal=True)
    lse = reference.head_logits(x["q_t"], x["k_t"]).logsumexp(-1).float()
    check(x, support=lists(), mix_t=3, lse_t=lse, causal=True)
    check(x, support=lists(), mix_t=3, lse_t=lse, normalise_t=False, causal=True, reduction="none")


def test_packed():
    """A list counts from the first key of its sequence."""
    queries, keys = [5, 0, 30, 9], [9, 3, 30, 20]
    x = {name: torch.randn(sum(n), h, 16) for name, n, h in zip(ALL, (queries, keys) * 2, (4, 2, 4, 1))}
    cu_q, cu_k = (torch.tensor([0, *n]).cumsum(0).int() for n in (queries, keys))
    support = torch.cat([torch.randint(-1, m, (n, 6)) for n, m in zip(queries, keys)]).int()
    got = streamkl.attention_kl(
        **x, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, support=support, causal=True, reduction="none"
    )
    for i in range(len(queries)):
        rows, columns = slice(cu_q[i], cu_q[i + 1]), slice(cu_k[i], cu_k[i + 1])
        own = {k: t[rows if k[0] == "q" else columns].transpose(0, 1)[None] for k, t in x.items()}
        if queries[i]:
            want = reference.attention_kl(**own, support=support[rows][None], causal=True, reduction="none")
            reference.close(got[rows], want[0].T, 2e-5)


def test_everything_listed_is_dense():
    x = operands()
    everything = torch.arange(61, dtype=torch.int32).flip(0).expand(2, 23, 61)
    dense = streamkl.attention_kl(**x, causal=True)
    assert abs(streamkl.attention_kl(**x, causal=True, support=everything) - dense) < 1e-6
    assert abs(streamkl.attention_kl(**x, causal=True, support=everything[:, :, -8:], support_block=8) - dense) < 1e-6


def test_identical_sides_give_zeros():
    x = operands()
    x["q_t"], x["k_t"] = x["q_s"].clone(), x["k_s"].clone()
    for t in x.values():
        t.requires_grad_()
    loss = streamkl.attention_kl(**x, support=lists(), causal=True)
    assert loss == 0
    assert not any(g.any() for g in torch.autograd.grad(loss, list(x.values())))


@pytest.mark.parametrize("reduction", ("none", "mean"))
def test_numpy(reduction):
    x, support = operands(), lists()
    options = dict(causal=True, reduction=reduction)
    leaves = [x[name].requires_grad_() for name in STUDENT]
    loss = streamkl.attention_kl(**x, support=support, **options)
    want = torch.autograd.grad(loss.sum(), leaves)
    arrays = {name: t.detach().numpy() for name, t in x.items()}
    for given in (support.numpy(), support.long().numpy()):
        got, grads = streamkl.numpy.attention_kl(**arrays, support=given, grads=STUDENT, **options)
        np.testing.assert_allclose(got, loss.detach().numpy(), rtol=1e-6, atol=1e-6)
        for name, g in zip(STUDENT, want):
            np.testing.assert_allclose(grads[name], g.numpy(), rtol=1e-5, atol=1e-6)


def test_module_and_compile():
    x, support = operands(), lists()
    module = streamkl.AttentionKLLoss(causal=True, support_block=2)
    given = support // 2
    assert torch.equal(
        module(**x, support=given), streamkl.attention_kl(**x, support=given, causal=True, support_block=2)
    )
    compiled = torch.compile(lambda **x: streamkl.attention_kl(**x, causal=True), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(**x, support=support), streamkl.attention_kl(**x, support=support, causal=True))


@pytest.mark.parametrize("indexer", (False, True))
def test_opcheck(indexer):
    if indexer:
        inputs = indexer_inputs(dense.operands(n=5), support=lists(n=5 + 1, last=36)[:, :5])
        options = make_options(_c.INDEXER, dict(causal=True))
    else:
        inputs = attention_inputs(*operands(n=5).values(), None, None, None, support=lists(n=6)[:, :5])
        options = make_options(_c.ATTENTION, dict(causal=True))
    rows, need = saved_rows(options), 3
    torch.library.opcheck(torch.ops.streamkl.value_and_grad.default, (*inputs, *options, rows, need))
    saved = list(_ops.value(*inputs, *options, rows))[1:]
    torch.library.opcheck(torch.ops.streamkl.backward.default, (*inputs, *options, saved, rows, need, 0))


@pytest.mark.parametrize(
    ("support", "options", "sentence"),
    (
        (torch.full((2, 23, 3), 61), {}, r"support\[0, 0, 0\] = 61: it must be a key, 0 to 60, or -1"),
        (torch.full((2, 23, 3), 2**40), {}, r"support\[0, 0, 0\] = 2147483647"),
        (torch.full((2, 23, 3), -(2**40)), {}, r"support\[0, 0, 0\] = -2"),
        (torch.zeros(2, 23, 3), {}, "support.dtype = torch.float32: it must hold integers"),
        (torch.zeros(23, 3).int(), {}, r"support.shape = \(23, 3\): it must be \[B, N, K\]"),
        (torch.zeros(2, 22, 3).int(), {}, r"support.shape\[1\] = 22: it must be 23"),
        (torch.zeros(2, 23, 3).int(), dict(support_block=0), "support_block = 0: it must be at least 1"),
        (None, dict(support_block=4), "support_block = 4: there is no support"),
    ),
)
def test_refused(support, options, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        streamkl.attention_kl(**operands(), support=support, **options)


# ---- indexers


def check_indexer(x, **options):
    reference.compare(
        lambda **x: streamkl.indexer_kl(**x, **options), lambda **x: dense.materialised(**x, **options), x, INDEXER
    )


@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
def test_indexer(reduction):
    x, support = dense.operands(), lists(n=19, last=36)
    check_indexer(x, support=support, reduction=reduction)
    check_indexer(x, support=lists(n=19, last=5, k=2), support_block=7, reduction=reduction, relu=False)


@pytest.mark.parametrize("normalise", (True, False))
def test_indexer_with_lses(normalise):
    x = dense.operands()
    lse = reference.head_logits(x["q_t"], x["k_t"]).logsumexp(-1).float()
    check_indexer(x, support=lists(n=19, last=36), lse_t=lse, normalise_t=normalise, reduction="none")


def packed_indexer(queries=(4, 0, 17, 9), keys=(4, 5, 20, 9)):
    n, m = sum(queries), sum(keys)
    shapes = dict(q_i=(n, 4, 16), k_i=(m, 16), w_i=(n, 4), q_t=(n, 6, 24), k_t=(m, 3, 24))
    cu_q, cu_k = (torch.tensor([0, *x]).cumsum(0).int() for x in (queries, keys))
    support = torch.cat([torch.randint(-1, m, (n, 6)) for n, m in zip(queries, keys)]).int()
    return {k: torch.randn(s) for k, s in shapes.items()}, dict(cu_seqlens_q=cu_q, cu_seqlens_k=cu_k), support


def one_by_one(x, cu_seqlens_q, cu_seqlens_k, weight=None, reduction="mean", support=None, lse_t=None, **options):
    """The definition: each sequence by itself."""
    losses = []
    for i in range(len(cu_seqlens_q) - 1):
        rows = slice(cu_seqlens_q[i], cu_seqlens_q[i + 1])
        columns = slice(cu_seqlens_k[i], cu_seqlens_k[i + 1])
        if rows.start == rows.stop:
            continue
        own = {k: t[columns if k[0] == "k" else rows] for k, t in x.items()}
        own = {k: (t if k in ("k_i", "w_i") else t.transpose(0, 1))[None] for k, t in own.items()}
        more = {} if support is None else dict(support=support[rows][None])
        if lse_t is not None:
            more["lse_t"] = lse_t[rows].T[None]
        losses.append(dense.materialised(**own, reduction="none", **more, **options)[0])
    return reference.reduce(torch.cat(losses), weight, reduction)


@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
@pytest.mark.parametrize("listed", (False, True))
def test_packed_indexer(reduction, listed):
    x, cu, support = packed_indexer()
    more = dict(weight=torch.rand(30), reduction=reduction)
    if listed:
        more.update(support=support, lse_t=torch.rand(30, 6) + 3)
    reference.compare(
        lambda **x: streamkl.indexer_kl(**x, **cu, **more), lambda **x: one_by_one(x, **cu, **more), x, INDEXER
    )


def test_packed_indexer_details():
    x, cu, _ = packed_indexer()
    loss, told = streamkl.indexer_kl(**x, **cu, reduction="none", details=("lse_s", "top1_s", "sum", "count"))
    assert loss.shape == told["lse_s"].shape == told["top1_s"].shape == (30,)
    assert told["count"] == 30


@pytest.mark.parametrize("reduction", ("none", "mean"))
def test_indexer_numpy(reduction):
    x, cu, support = packed_indexer()
    for packed in (True, False):
        if not packed:
            x, cu, support = dense.operands(), {}, lists(n=19, last=36)
        leaves = [x[name].requires_grad_() for name in INDEXER]
        loss = streamkl.indexer_kl(**x, **cu, support=support, reduction=reduction)
        want = torch.autograd.grad(loss.sum(), leaves)
        arrays = {name: t.detach().numpy() for name, t in (*x.items(), *cu.items())}
        got, grads = streamkl.numpy.indexer_kl(**arrays, support=support.numpy(), grads=INDEXER, reduction=reduction)
        np.testing.assert_allclose(got, loss.detach().numpy(), rtol=1e-6, atol=1e-6)
        for name, g in zip(INDEXER, want):
            np.testing.assert_allclose(grads[name], g.numpy(), rtol=1e-5, atol=1e-6)
