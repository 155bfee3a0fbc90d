# SPDX-License-Identifier: Apache-2.0
"""Tensors over the rows (weight, begin, end): every dtype, and what two dimensions mean."""

import numpy as np
import pytest
import torch

import streamkl
import streamkl.numpy

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64)
NAMES = ("q_s", "k_s", "q_t", "k_t")


def operands(b=2, h=3, n=5, m=7):
    return [torch.randn(b, h, n if i % 2 == 0 else m, 4) for i in range(4)]


def on_both(x, **bounds):
    """The rows of torch, which must be those of NumPy."""
    rows = streamkl.attention_kl(*x, reduction="none", **bounds)
    given = {name: t.numpy() for name, t in bounds.items()}
    same = streamkl.numpy.attention_kl(*[t.numpy() for t in x], reduction="none", **given)
    assert torch.equal(rows, torch.from_numpy(same))
    return rows


@pytest.mark.parametrize("dtype", INTEGERS)
def test_bounds_of_every_integer(dtype):
    """From the smallest to the largest number of the dtype: the columns that are there, never a wrapped number."""
    x, limits = operands(), torch.iinfo(dtype)
    values = {limits.min, 0, 1, 3, 7, 8, limits.max - 1, limits.max, *(2**k for k in (31, 32, 63)), 2**32 + 2}
    for value in values - {v for v in values if not limits.min <= v <= limits.max}:
        one = torch.from_numpy(np.array(value, str(dtype).split(".")[1]))
        assert one.dtype is dtype
        clamped = torch.tensor(min(max(value, 0), 7), dtype=torch.int32)
        for name in ("begin", "end"):
            assert torch.equal(on_both(x, **{name: one}), on_both(x, **{name: clamped})), (name, value)


def test_no_end():
    """The sentinels that people write for it."""
    x = operands()
    want = streamkl.attention_kl(*x)
    for end in (2**63 - 1, 2**32 + 2, 2**31, 2**31 - 1, 7):
        assert torch.equal(streamkl.attention_kl(*x, end=torch.tensor(end)), want)
        assert streamkl.numpy.attention_kl(*[t.numpy() for t in x], end=end) == pytest.approx(want.item(), rel=1e-6)
    assert torch.equal(streamkl.attention_kl(*x, begin=torch.tensor(-(2**63))), want)
    assert streamkl.attention_kl(*x, end=torch.tensor(-(2**33))) == 0


def test_bounds_compile():
    x = operands()
    end = torch.tensor([2**63 - 1, 2**32 + 2, 3, 2, 0])
    f = lambda end: streamkl.attention_kl(*x, end=end, reduction="none")  # noqa: E731
    assert torch.equal(torch.compile(f, fullgraph=True, backend="aot_eager")(end), f(end))


@pytest.mark.parametrize("face", (streamkl, streamkl.numpy))
def test_bounds_are_integers(face):
    x = operands() if face is streamkl else [t.numpy() for t in operands()]
    for dtype in ("float32", "float64", "bool"):
        bound = torch.ones(5, dtype=getattr(torch, dtype))
        for name in ("begin", "end"):
            with pytest.raises(TypeError, match=rf"cannot use {name}.dtype = .*{dtype}.*: it must hold integers"):
                face.attention_kl(*x, **{name: bound if face is streamkl else bound.numpy()})
    if face is streamkl.numpy:
        with pytest.raises(TypeError, match="end.dtype = 'object': it must hold integers"):
            face.attention_kl(*x, end=2**70)


@pytest.mark.parametrize("b, h", [(3, 3), (2, 3), (1, 3), (3, 1)])
def test_two_dimensions_are_batch_and_query(b, h):
    """[B, N], whatever B and H are. Heads are [1, H, N]."""
    x = operands(b, h)
    mask = torch.rand(b, 5) > 0.4
    bounds = dict(begin=torch.randint(0, 3, (b, 5)), end=torch.randint(2, 8, (b, 5)))
    for given in (dict(weight=mask), dict(weight=torch.rand(b, 5)), bounds, dict(weight=mask, **bounds)):
        want = on_both(x, **{name: t[:, None].expand(b, h, 5).contiguous() for name, t in given.items()})
        assert torch.equal(on_both(x, **given), want)
    heads = torch.rand(1, h, 5)
    assert torch.equal(on_both(x, weight=heads), on_both(x, weight=heads.expand(b, h, 5).contiguous()))
    queries = torch.rand(5)
    assert torch.equal(on_both(x, weight=queries), on_both(x, weight=queries.expand(b, h, 5).contiguous()))
    for one in (torch.rand(b, 1), torch.rand(1, 5), torch.rand(1, 1), torch.rand(())):
        on_both(x, weight=one)


@pytest.mark.parametrize("face", (streamkl, streamkl.numpy))
def test_heads_in_two_dimensions_are_refused(face):
    array = (lambda t: t) if face is streamkl else (lambda t: t.numpy())
    x = [array(t) for t in operands()]
    for name, t in (("weight", torch.rand(3, 5)), ("begin", torch.ones(3, 5).int()), ("end", torch.ones(3, 5).int())):
        with pytest.raises(
            ValueError, match=rf"{name}.shape = \(3, 5\).*batch and query; heads are written \[1, H, N\]"
        ):
            face.attention_kl(*x, **{name: array(t)})


def test_padding_mask():
    """A tokenizer's attention_mask, B == H: as if each batch were called with its own tokens."""
    b = h = 3
    x, length = operands(b, h, 6, 6), torch.tensor([6, 4, 2])
    mask = torch.arange(6) < length[:, None]
    got = streamkl.attention_kl(*x, weight=mask, end=length[:, None], causal=True, reduction="sum")
    each = [
        streamkl.attention_kl(*[t[i : i + 1, :, :n] for t in x], causal=True, reduction="sum")
        for i, n in enumerate(length)
    ]
    torch.testing.assert_close(got, sum(each))
