# SPDX-License-Identifier: Apache-2.0
"""indexer_topk against a stable sort of all logits."""

import numpy as np
import pytest
import torch

import reference
import streamkl
import streamkl.numpy
import test_indexer as dense


def whole(n, m, b):
    """Numbers of which all sums are exact: ties are ties in any order of summation."""
    return {
        "q_i": torch.randint(-2, 3, (b, 3, n, 4)).float(),
        "k_i": torch.randint(-2, 3, (b, m, 4)).float(),
        "w_i": torch.randint(-2, 3, (b, n, 3)).float(),
    }


def sorted_lists(x, k, relu=True, scale_i=1.0, causal=True, **mask):
    z = dense.index_logits(**x, relu=relu, scale_i=scale_i)
    b, n, m = z.shape
    seen = reference.visible_keys(n, m, (b, n), causal=causal, **mask)
    score = torch.where(seen, z, -torch.inf)
    order = torch.sort(score, dim=-1, descending=True, stable=True).indices
    order = torch.where(seen.gather(-1, order), order, -1)[..., :k]
    return torch.nn.functional.pad(order, (0, max(0, k - m)), value=-1).int()


@pytest.mark.parametrize("k", (1, 7, 37, 50))
@pytest.mark.parametrize(
    "options",
    (
        {},
        dict(causal=False, relu=False),
        dict(scale_i=-0.5),
        dict(window=(5, -1)),
        dict(begin=torch.arange(19), end=torch.tensor([[30], [3]])),
    ),
)
def test_against_a_sort(k, options):
    x = whole(19, 37, 2)
    want = sorted_lists(x, k, **options)
    got = streamkl.indexer_topk(**x, k=k, **options)
    assert got.dtype is torch.int32 and torch.equal(got, want)
    arrays = {name: t.numpy() for name, t in x.items()}
    bounds = {name: t.numpy() if torch.is_tensor(t) else t for name, t in options.items()}
    np.testing.assert_array_equal(streamkl.numpy.indexer_topk(**arrays, k=k, **bounds), want.numpy())


def test_packed():
    queries, keys = (4, 0, 17, 9), (4, 5, 20, 9)
    x = whole(sum(queries), sum(keys), 1)
    flat = {"q_i": x["q_i"][0].transpose(0, 1), "k_i": x["k_i"][0], "w_i": x["w_i"][0]}
    cu_q, cu_k = (torch.tensor([0, *n]).cumsum(0).int() for n in (queries, keys))
    got = streamkl.indexer_topk(**flat, k=6, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
    for i in range(len(queries)):
        rows, columns = slice(cu_q[i], cu_q[i + 1]), slice(cu_k[i], cu_k[i + 1])
        one = {"q_i": x["q_i"][:, :, rows], "k_i": x["k_i"][:, columns], "w_i": x["w_i"][:, rows]}
        if queries[i]:
            assert torch.equal(got[rows], sorted_lists(one, 6)[0])
    arrays = {name: t.numpy() for name, t in flat.items()}
    numbers = streamkl.numpy.indexer_topk(**arrays, k=6, cu_seqlens_q=cu_q.numpy(), cu_seqlens_k=cu_k.numpy())
    np.testing.assert_array_equal(numbers, got.numpy())


def test_dtypes_and_support():
    """What it gives is what support takes; nothing of it is outside of what a query sees."""
    for dtype in reference.DTYPES:
        x = dense.operands(dtype=dtype)
        indexer = {name: x[name] for name in dense.INDEXER}
        support = streamkl.indexer_topk(**indexer, k=8)
        assert support.shape == (2, 19, 8) and (support >= 0).all()  # every query sees 19 keys at least
        assert streamkl.indexer_kl(**x, support=support) > 0


def test_in_one_graph():
    x = whole(19, 37, 2)
    f = lambda **x: streamkl.indexer_topk(**x, k=5)  # noqa: E731
    assert torch.equal(torch.compile(f, fullgraph=True, backend="aot_eager")(**x), f(**x))


def test_nan_counts_as_the_largest():
    x = whole(19, 37, 2)
    x["k_i"][0, 11] = torch.nan
    assert (streamkl.indexer_topk(**x, k=3)[0, :, 0] == 11).all()


@pytest.mark.parametrize(
    ("given", "sentence"),
    (
        (dict(k=0), "k = 0: it must be a number of keys"),
        (dict(k=2.5), "k = 2.5"),
        (dict(w_i=torch.zeros(2, 19, 4)), "w_i.shape"),
        (dict(k_i=torch.zeros(2, 37, 5)), "k_i.shape"),
        (dict(q_i=torch.zeros(2, 19, 4)), "q_i.shape"),
        (dict(scale_i=0.0), "scale_s = 0.0"),
    ),
)
def test_refused(given, sentence):
    with pytest.raises(ValueError, match="cannot use") as error:
        streamkl.indexer_topk(**{**whole(19, 37, 2), "k": 3, **given})
    assert sentence in str(error.value)
