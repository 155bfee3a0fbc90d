# SPDX-License-Identifier: Apache-2.0
"""Numbers a token against float64, the file that grows, and attention against whole maps."""

import numpy as np
import pytest
import torch

from streamkl import hf, linear_kl
from streamkl.bench.measure import Peak
from streamkl.compare import attention, rows
from streamkl.compare.rows import Side, not_finite, token_rows, top_tokens
from streamkl.compare.store import Store

V = 5000  # more than a tile's columns; the heads have some rows more


@pytest.fixture(scope="module")
def sides():
    torch.manual_seed(0)
    n, d = 600, 24  # more than a tile's tokens
    x, w = torch.randn(n, d), 0.6 * torch.randn(V + 40, d)
    y, u = x + 0.1 * torch.randn(n, d), w + 0.05 * torch.randn(V + 40, d)
    reference = Side(x, hf.Head(w, None, 0.5, 20.0, V))
    other = Side(y.bfloat16(), hf.Head(u.bfloat16(), 0.3 * torch.randn(V + 40), 1.0, None, V))
    return reference, other, torch.randint(0, V, (n,))


def dense(side):
    x, (w, bias, scale, softcap, columns) = side
    z = x.double() @ w.double().T
    z = scale * (z if bias is None else z + bias.double())[:, :columns]
    return (z if softcap is None else softcap * torch.tanh(z / softcap)).log_softmax(-1)


def test_rows_against_float64(sides):
    reference, other, labels = sides
    rows = token_rows(reference, other, labels)
    lp, lq = dense(reference), dense(other)
    p, q = lp.exp(), lq.exp()
    lm = ((p + q) / 2).log()
    want = {
        "kl": (p * (lp - lq)).sum(-1),
        "reverse": (q * (lq - lp)).sum(-1),
        "jsd": (p * (lp - lm) + q * (lq - lm)).sum(-1) / 2,
        "tv": (p - q).abs().sum(-1) / 2,
        "entropy_ref": -(p * lp).sum(-1),
        "entropy_other": -(q * lq).sum(-1),
        "logprob_ref": lp.gather(1, labels[:, None])[:, 0],
        "logprob_other": lq.gather(1, labels[:, None])[:, 0],
        "logprob_top1_ref": lp.amax(-1),
        "logprob_top1_other": lq.amax(-1),
    }
    for name, value in want.items():
        assert rows[name].dtype == np.float32 and np.abs(rows[name] - value.numpy()).max() < 1e-5, name
    assert (rows["top1_ref"] == lp.argmax(-1).numpy()).all() and (rows["top1_other"] == lq.argmax(-1).numpy()).all()
    for name, of, among in (("rank_ref", lp, lq), ("rank_other", lq, lp)):
        rank = (among > among.gather(1, of.argmax(-1, keepdim=True))).sum(-1).clamp(max=10)
        assert (rows[name] == rank.numpy()).all(), name
        assert rank.max() == 10 and rank.min() == 0  # the case has all of them
    assert (rows["label"] == labels.numpy()).all() and not not_finite(rows)["either"].any()


def test_without_labels(sides):
    rows = token_rows(*sides[:2])
    assert "label" not in rows and "logprob_ref" not in rows and np.isfinite(rows["kl"]).all()


def test_top_tokens(sides):
    ids, logprob = top_tokens(sides[1], 5)
    want = dense(sides[1]).topk(5)
    assert torch.equal(ids.long(), want.indices) and (logprob - want.values).abs().max() < 1e-5


def test_equal_sides_are_exactly_zero(sides):
    rows = token_rows(sides[0], sides[0], sides[2])
    assert not rows["kl"].any() and not rows["reverse"].any() and not rows["tv"].any() and not rows["rank_ref"].any()


@pytest.mark.parametrize("value", (float("nan"), float("inf")))
def test_broken_rows_are_found(sides, value):
    reference, other, labels = sides
    hidden = other.hidden.clone()
    hidden[7] = value
    bad = not_finite(token_rows(reference, other._replace(hidden=hidden), labels))
    assert bad["other"][7] and bad["either"].sum() == 1 and not bad["reference"].any()


def test_one_product_a_side(sides, monkeypatch):
    """Everything that is told of a token comes from one call of linear_kl: topk_of is for what is shown."""
    calls = []
    monkeypatch.setattr(rows, "topk_of", None)
    monkeypatch.setattr(rows, "linear_kl", lambda *a, **k: calls.append(k) or linear_kl(*a, **k))
    token_rows(*sides)
    assert len(calls) == 1


def test_memory_does_not_grow_with_the_number_of_tokens():
    """Beyond hidden states and results, which are told apart from [tokens, V] by their size."""
    d, v = 16, 4096
    w, u = torch.randn(v, d), torch.randn(v, d)
    peaks = []
    for n in (1024, 1024, 16384):  # the first one warms up
        x, labels = torch.randn(n, d), torch.randint(0, v, (n,))
        with Peak() as peak:
            token_rows(Side(x, hf.Head(w, None, None, None, None)), Side(x, hf.Head(u, None, None, None, None)), labels)
        peaks.append(peak.bytes)
    if peaks[0] is None:
        pytest.skip("the system does not tell a peak")
    tokens = 16384 * (2 * 2 * d * 4 + 40 * 8)  # two sides: states and rows of w in f32; the results
    logits = 16384 * v * 4
    assert not peaks[2] > peaks[1] + tokens + (8 << 20) and tokens + (8 << 20) < logits / 10, peaks


def test_no_rows(sides):
    empty = [side._replace(hidden=side.hidden[:0]) for side in sides[:2]]
    assert all(len(column) == 0 for column in token_rows(*empty, sides[2][:0]).values())


def test_store_is_a_safetensors_file_at_every_step(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    store = Store(tmp_path / "a.safetensors", {"key": "k"})
    kept = {"f": torch.randn(3, 5), "b": torch.randn(4).bfloat16(), "i": torch.arange(6), "none": torch.zeros(0, 4)}
    for i, (name, tensor) in enumerate(kept.items()):
        store.add(name, tensor)
        read = safetensors.load_file(tmp_path / "a.safetensors")
        assert list(read) == list(store.names()) and len(read) == i + 1
        assert read[name].dtype == tensor.dtype and torch.equal(read[name], tensor)
        assert torch.equal(Store(tmp_path / "a.safetensors")[name], tensor)


def test_store_goes_on_after_a_cut(tmp_path):
    path = tmp_path / "a.safetensors"
    store = Store(path, {"key": "k"})
    store.add("a", torch.ones(4))
    with open(path, "ab") as file:  # a tensor was being written
        file.write(b"half of something")
    again = Store(path, {"key": "k"}, keep=True)
    assert "a" in again and "b" not in again
    again.add("b", torch.full((2,), 2.0))
    safetensors = pytest.importorskip("safetensors.torch")
    assert set(safetensors.load_file(path)) == {"a", "b"}  # it refuses a file with something behind its tensors
    assert torch.equal(Store(path)["b"], torch.full((2,), 2.0)) and torch.equal(Store(path)["a"], torch.ones(4))
    with pytest.raises(ValueError, match="begun with other models"):
        Store(path, {"key": "other"}, keep=True)


def test_store_refuses_other_files(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"hello, this is no such file at all")
    with pytest.raises(ValueError, match="no file that --save-states has written"):
        Store(tmp_path / "x.safetensors")


@pytest.mark.parametrize("window", (None, 5))
def test_attention_against_whole_maps(window, monkeypatch):
    """Heads, their mean, and the mass on the first key, with grouped heads, a cap and a sliding window."""
    monkeypatch.setattr(attention, "BLOCK", 4 * 23 * 7)  # blocks of seven queries, so that there are some
    torch.manual_seed(0)
    n = 23
    at = torch.arange(n)
    begin = torch.zeros(n, dtype=torch.long) if window is None else (at - window + 1).clamp(min=0)
    layers = [
        attention.Layer(
            torch.randn(1, 4, n, 8), torch.randn(1, 2, n, 8), 0.5, cap, begin[None, None], (at + 1)[None, None]
        )
        for cap in (None, 3.0)
    ]
    found = attention.window_drift(layers[:1], layers[1:])

    def maps(layer):
        z = 0.5 * layer.q[0].double() @ layer.k[0].double().repeat_interleave(2, 0).transpose(-1, -2)
        z = 3.0 * torch.tanh(z / 3.0) if layer.softcap else z
        seen = (at[None] >= begin[:, None]) & (at[None] <= at[:, None])
        return z.masked_fill(~seen, float("-inf")).softmax(-1)

    def kl(p, q):
        return torch.where(p > 0, p * (p / q.clamp_min(1e-300)).log(), 0).sum(-1).mean(-1)

    p, q = map(maps, layers)
    np.testing.assert_allclose(found["kl"][0], kl(p, q).numpy(), rtol=1e-4)
    assert found["head_mean_kl"][0] == pytest.approx(kl(p.mean(0), q.mean(0)).item(), rel=1e-4)
    assert found["sink_reference"][0] == pytest.approx(p[:, 1:, 0].mean().item(), rel=1e-4)
    assert found["sink_other"][0] == pytest.approx(q[:, 1:, 0].mean().item(), rel=1e-4)
    total = attention.summary([found, found])
    assert total["worst"][0]["kl"] == max(found["kl"][0]) and total["windows"] == 2
    short = layers[0]._replace(begin=begin[None, None] + 1)
    assert "other keys" in attention.why_not(layers[:1], [short]) and "layers" in attention.why_not(layers, layers[:1])
