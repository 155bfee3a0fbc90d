# SPDX-License-Identifier: Apache-2.0
"""Packed sequences against float64 of the sequences one by one; masks and position ids from other libraries."""

import numpy as np
import pytest
import torch

import reference
import streamkl
import streamkl.numpy
from streamkl import _c, _ops
from streamkl._inputs import attention_inputs
from streamkl._options import make_options

QUERIES, KEYS = [5, 0, 1, 70, 0, 9], [9, 3, 1, 70, 0, 4]
NAMES = ("q_s", "k_s", "q_t", "k_t")


def offsets(lengths):
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


CU = dict(cu_seqlens_q=offsets(QUERIES), cu_seqlens_k=offsets(KEYS))


def operands(dtype=torch.float32, heads=4, heads_s=2, heads_t=1):
    n, m = sum(QUERIES), sum(KEYS)
    shapes = ((n, heads, 24), (m, heads_s, 24), (n, heads, 16), (m, heads_t, 16))
    return {name: torch.randn(shape).to(dtype) for name, shape in zip(NAMES, shapes)}


def one_by_one(q_s, k_s, q_t, k_t, cu_seqlens_q, cu_seqlens_k, weight=None, reduction="mean", **options):
    """The definition: a call for each sequence, and the reduction over all of them."""
    by_row = []
    for i in range(len(QUERIES)):
        rows = slice(cu_seqlens_q[i], cu_seqlens_q[i + 1])
        keys = slice(cu_seqlens_k[i], cu_seqlens_k[i + 1])
        if rows.start == rows.stop:
            continue
        x = [t[s].transpose(0, 1)[None] for t, s in ((q_s, rows), (k_s, keys), (q_t, rows), (k_t, keys))]
        own = {k: v[rows].reshape(1, 1, -1) if k in ("begin", "end") else v for k, v in options.items()}
        by_row.append(reference.attention_kl(*x, reduction="none", **own)[0].transpose(0, 1))
    loss = torch.cat(by_row)
    wide = None if weight is None else weight[:, None] if weight.dim() == 1 else weight
    return reference.reduce(loss, wide, reduction)


def check(x, named=("q_s", "k_s"), **options):
    reference.compare(
        lambda **x: streamkl.attention_kl(**x, **CU, **options), lambda **x: one_by_one(**x, **CU, **options), x, named
    )


TOTAL = sum(QUERIES)
OPTIONS = {
    "plain": {},
    "causal": dict(causal=True),
    "window": dict(window=(3, 1)),
    "left window, causal": dict(causal=True, window=(6, -1)),
    "weight": dict(weight=torch.rand(TOTAL).masked_fill(torch.rand(TOTAL) < 0.3, 0)),
    "weight by head": dict(causal=True, weight=torch.rand(TOTAL, 4)),
    "ranges": dict(begin=torch.randint(0, 3, (TOTAL,)), end=torch.randint(2, 60, (TOTAL,))),
    "softcap": dict(softcap_s=5.0, softcap_t=3.0, causal=True),
}


@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
@pytest.mark.parametrize("name", OPTIONS)
def test_options(name, reduction):
    check(operands(), reduction=reduction, **OPTIONS[name])


@pytest.mark.parametrize("divergence", ("reverse", "jsd", "skew_forward", "tv"))
def test_divergences(divergence):
    check(operands(), NAMES, divergence=divergence, causal=True)


@pytest.mark.parametrize("dtype", reference.DTYPES)
@pytest.mark.parametrize("reduction", ("none", "mean"))
def test_dtypes(dtype, reduction):
    check(operands(dtype), NAMES, reduction=reduction, causal=True)


def test_rows_and_lses():
    x = operands()
    loss, lse_s, lse_t = streamkl.attention_kl(**x, **CU, causal=True, reduction="none", return_lse=True)
    assert loss.shape == lse_s.shape == lse_t.shape == (TOTAL, 4)
    z = torch.einsum("nhd,mhd->hnm", x["q_s"][:5].double(), x["k_s"][:9].double().repeat_interleave(2, 1)) / 24**0.5
    seen = torch.arange(9)[None, :] <= torch.arange(5)[:, None] + 4
    reference.close(lse_s[:5].T, z.masked_fill(~seen, -torch.inf).logsumexp(-1), 2e-5)


def test_identical_sides_give_zeros():
    x = operands()
    x["q_t"], x["k_t"] = x["q_s"].clone(), x["k_s"].clone()
    for t in x.values():
        t.requires_grad_()
    loss = streamkl.attention_kl(**x, **CU, causal=True)
    assert loss == 0
    assert all((g == 0).all() for g in torch.autograd.grad(loss, list(x.values())))


def test_threads_give_the_same_bits():
    x = operands()
    for t in x.values():
        t.requires_grad_()
    one, three = (streamkl.attention_kl(**x, **CU, causal=True, threads=n, reduction="sum") for n in (1, 3))
    assert torch.equal(one, three)
    for a, b in zip(torch.autograd.grad(one, list(x.values())), torch.autograd.grad(three, list(x.values()))):
        assert torch.equal(a, b)


@pytest.mark.parametrize("reduction", ("none", "mean"))
def test_numpy(reduction):
    x = operands()
    weight, begin = torch.rand(TOTAL), torch.randint(0, 3, (TOTAL, 4))
    options = dict(causal=True, reduction=reduction)
    arrays = {name: t.numpy() for name, t in x.items()}
    cu = {name: t.numpy() for name, t in CU.items()}
    got, grads = streamkl.numpy.attention_kl(
        **arrays, **cu, weight=weight.numpy(), begin=begin.numpy(), grads=NAMES, **options
    )
    for t in x.values():
        t.requires_grad_()
    want = streamkl.attention_kl(**x, **CU, weight=weight, begin=begin, **options)
    assert np.allclose(got, want.detach().numpy(), rtol=1e-5, atol=1e-7)
    for name, g in zip(NAMES, torch.autograd.grad(want.sum(), [x[name] for name in NAMES])):
        assert grads[name].shape == g.shape and np.allclose(grads[name], g, atol=1e-6)


def test_module_and_compile():
    x = operands()
    x["q_s"].requires_grad_()
    loss = streamkl.AttentionKLLoss(causal=True)

    def f(q_s):
        return loss(q_s * 2, x["k_s"], x["q_t"], x["k_t"], **CU)

    got, want = torch.compile(f, fullgraph=True, backend="aot_eager")(x["q_s"]), f(x["q_s"])
    assert torch.equal(got, want)
    assert torch.equal(*(torch.autograd.grad(one, x["q_s"])[0] for one in (got, want)))


def test_opcheck():
    options = make_options(_c.ATTENTION, dict(causal=True, reduction="sum"))
    args = (*attention_inputs(*operands().values(), None, None, None, **CU), *options)
    torch.library.opcheck(_ops.value, (*args, 1))
    torch.library.opcheck(_ops.value_and_grad, (*args, 0, 0b011011))


def test_mixed_heads_and_given_lses():
    """Packed beside the other losses of attention: as the sequences one by one."""
    x = operands()
    x["q_t"] = torch.randn(TOTAL, 8, 16)
    lse_t = torch.randn(TOTAL, 8) + 5
    for more in (dict(mix_t=2), dict(mix_t=2, lse_t=lse_t)):
        got = streamkl.attention_kl(**x, **CU, **more, causal=True, reduction="none")
        for n, m, rows, keys in ((5, 9, slice(0, 5), slice(0, 9)), (70, 70, slice(6, 76), slice(13, 83))):
            one = [x[name][s].transpose(0, 1)[None] for name, s in zip(NAMES, (rows, keys, rows, keys))]
            own = {k: v[rows].T[None] if k == "lse_t" else v for k, v in more.items()}
            want = streamkl.attention_kl(*one, **own, causal=True, reduction="none")
            assert torch.allclose(got[rows], want[0].T, atol=1e-6) and (n, m) == tuple(t.shape[2] for t in one[:2])


def test_refused():
    x, kl = operands(), streamkl.attention_kl
    with pytest.raises(ValueError, match=r"cu_seqlens_k = None: packed sequences need both"):
        kl(**x, cu_seqlens_q=CU["cu_seqlens_q"])
    with pytest.raises(TypeError, match=r"cu_seqlens_q.dtype = torch.int64: it must be int32"):
        kl(**x, cu_seqlens_q=CU["cu_seqlens_q"].long(), cu_seqlens_k=CU["cu_seqlens_k"])
    bad = CU["cu_seqlens_q"].clone()
    bad[3] = 4
    with pytest.raises(ValueError, match=r"cu_seqlens_q\[3\] = 4: it must not be below the one before, 5"):
        kl(**x, cu_seqlens_q=bad, cu_seqlens_k=CU["cu_seqlens_k"])
    bad[3] = 1000
    with pytest.raises(ValueError, match=r"cu_seqlens_q\[3\] = 1000: it is beyond the end of the rows, 85"):
        kl(**x, cu_seqlens_q=bad, cu_seqlens_k=CU["cu_seqlens_k"])
    with pytest.raises(ValueError, match=r"q_s.shape = \(1, 85, 4, 24\): with cu_seqlens_q it must be \[total"):
        kl(**{**x, "q_s": x["q_s"][None]}, **CU)
    with pytest.raises(ValueError, match=r"weight.shape = \(4,\): with packed sequences it must be \[total\]"):
        kl(**x, **CU, weight=torch.ones(4))
    with pytest.raises(ValueError, match="spread over processes"):
        kl(**x, **CU, rows="split")
    with pytest.raises(TypeError, match="cu_seqlens_q.dtype = 'int64'"):
        cu = {name: t.numpy().astype(np.int64) for name, t in CU.items()}
        streamkl.numpy.attention_kl(*[t.numpy() for t in x.values()], **cu)


# ---- words of other libraries


def test_offsets_of_position_ids():
    positions = torch.cat([torch.arange(n) for n in (4, 1, 1, 6)])
    want = offsets((4, 1, 1, 6))
    for given in (positions, positions[None], positions.view(2, 6)):
        got = streamkl.cu_seqlens_from_position_ids(given)
        assert got.dtype is torch.int32
        assert got.tolist() == want.tolist()
        assert streamkl.numpy.cu_seqlens_from_position_ids(given.numpy()).tolist() == want.tolist()
    two_rows = torch.arange(8).view(2, 4)  # a row is a beginning, whatever it holds
    assert streamkl.cu_seqlens_from_position_ids(two_rows).tolist() == [0, 4, 8]
    assert streamkl.cu_seqlens_from_position_ids(torch.zeros(0, dtype=torch.long)).tolist() == [0]
    with pytest.raises(TypeError, match="integers"):
        streamkl.cu_seqlens_from_position_ids(torch.rand(4))


def test_ranges_of_masks():
    n, m = 7, 9
    i, j = torch.arange(n)[:, None], torch.arange(m)[None, :]
    mask = (j <= i + 2) & (j >= i - 1)
    mask = torch.stack([mask, mask & (j < 4)])[:, None]
    mask[1, 0, 6] = False
    begin, end = streamkl.ranges_from_mask(mask)
    assert begin.dtype is end.dtype is torch.int32
    assert begin.shape == end.shape == (2, 1, n)
    assert ((j >= begin[..., None]) & (j < end[..., None]) == mask).all()
    assert begin[1, 0, 6] == end[1, 0, 6] == 0
    for a, b in zip(streamkl.numpy.ranges_from_mask(mask.numpy()), (begin, end)):
        assert a.dtype == np.int32 and (a == b.numpy()).all()
    x = [torch.randn(2, 3, size, 8) for size in (n, m, n, m)]
    got = streamkl.attention_kl(*x, begin=begin, end=end, reduction="none")
    reference.close(got, reference.attention_kl(*x, begin=begin, end=end, reduction="none"), 2e-5)


@pytest.mark.parametrize("kind", ("torch", "numpy"))
def test_masks_with_gaps_are_refused(kind):
    mask = torch.ones(2, 1, 5, 6, dtype=torch.bool)
    mask[1, 0, 3, 2] = False
    call = streamkl.ranges_from_mask if kind == "torch" else streamkl.numpy.ranges_from_mask
    with pytest.raises(
        ValueError, match=r"cannot use mask\[1, 0, 3\] = 'a row with gaps': a row must be one run of True"
    ):
        call(mask if kind == "torch" else mask.numpy())
    with pytest.raises(TypeError, match="bool"):
        call(mask.float() if kind == "torch" else mask.float().numpy())
