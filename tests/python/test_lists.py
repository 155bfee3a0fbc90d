# SPDX-License-Identifier: Apache-2.0
"""Lists of a live teacher: topk_of against float64, and files of them."""

import importlib.util
import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import documents
import reference
import streamkl
import streamkl.numpy

V, K = 333, 9
SHAPES = [  # of a logit
    dict(),
    dict(temperature=2.0),
    dict(bias=True),
    dict(scale=-0.7),
    dict(softcap=3.0, scale=-1.5, temperature=0.5),
    dict(columns=300, bias=True, scale=0.3, softcap=5.0, temperature=1.5),
]


def teacher(rows=(4, 7), v=V, dim=24, dtype=torch.float32):
    return torch.randn(*rows, dim).to(dtype), (torch.randn(v, dim) * 0.4).to(dtype)


def definition(x, w, k, **shape):
    """ids, logprobs and tail_logprob in float64; and how far each listed logit is from the next one."""
    z = reference.linear_logits(x, w, **shape)
    values, ids = z.sort(dim=-1, descending=True, stable=True)
    lse = z.logsumexp(-1)
    tail = values[..., k:].logsumexp(-1) - lse if k < z.shape[-1] else torch.full(lse.shape, -math.inf).double()
    next_one = torch.nn.functional.pad(values, (0, 1), value=-math.inf)
    return ids[..., :k], values[..., :k] - lse[..., None], tail, (next_one[..., :-1] - next_one[..., 1:])[..., :k]


def agree(x, w, k, got, **shape):
    ids, logprobs, tail, gap = definition(x, w, k, **shape)
    assert got.ids.dtype is torch.int32 and got.ids.shape == ids.shape
    clear = gap > 1e-5
    clear[..., 1:] &= clear[..., :-1].clone()
    assert clear.double().mean() > 0.9 and torch.equal(got.ids[clear].long(), ids[clear])
    for mine, want in ((got.logprobs, logprobs), (got.tail_logprob, tail)):
        assert mine.dtype is torch.float32 and mine.shape == want.shape and (mine <= 0).all()
        torch.testing.assert_close(mine.double(), want, rtol=5e-7, atol=3e-6)


@pytest.mark.parametrize("dtype", reference.DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_definition(shape, dtype):
    x, w = teacher(dtype=dtype)
    if shape.get("bias"):
        shape = {**shape, "bias": torch.randn(V).to(dtype)}
    agree(x, w, K, streamkl.topk_of(x, w, K, **shape), **shape)


@pytest.mark.parametrize("k", (1, 82, 83, 84, V - 1, V))
def test_any_number_of_ids(k):
    x, w = teacher()
    got = streamkl.topk_of(x, w, k)
    agree(x, w, k, got)
    assert (got.tail_logprob == -math.inf).all() == (k == V)
    assert (got.ids.sort(-1).values.diff(dim=-1) > 0).all()  # nothing twice


@pytest.mark.parametrize("rows", ((), (5,), (2, 3, 4, 2), (0,), (3, 0)))
def test_leading_dimensions(rows):
    x, w = teacher(rows)
    got = streamkl.topk_of(x, w, K)
    flat = streamkl.topk_of(x.reshape(-1, 24), w, K)
    assert got.ids.shape == got.logprobs.shape == (*rows, K) and got.tail_logprob.shape == rows
    assert all(torch.equal(a.reshape(b.shape), b) for a, b in zip(got, flat))


@pytest.mark.parametrize("k", (1, 3, 50, 120, 200))
def test_equal_logits_take_the_lower_id(k):
    """Small integers: products are exact, and nearly all logits have equals, in their slice and in others."""
    x, w = torch.randint(-1, 2, (40, 6)).float(), torch.randint(-1, 2, (V, 6)).float()
    x[7] = 0
    ids = definition(x, w, k)[0]
    got = streamkl.topk_of(x, w, k)
    assert torch.equal(got.ids.long(), ids) and torch.equal(got.ids[7], torch.arange(k).int())


def test_the_rest_is_a_sum_of_its_own():
    """A teacher that is sure: 1 - sum would be 0, the rest is e^-60 and less."""
    x, w = teacher((11,))
    w[200] = x[0] * 0  # one column far above the others, by its bias
    bias = torch.zeros(V)
    bias[200] = 90.0
    got = streamkl.topk_of(x, w, 1, bias=bias)
    want = definition(x, w, 1, bias=bias)[2]
    assert (got.ids == 200).all() and (got.logprobs == 0).all() and want.max() < -60
    torch.testing.assert_close(got.tail_logprob.double(), want, rtol=1e-6, atol=0)


def test_large_logits_that_share_an_offset():
    """The differences count, at the temperature: nothing is rounded at the size of the scaled logits, 1e-4. What C drops
    when, and so the order of its sums, goes by the bits of the scores."""
    x, w = torch.randint(-3, 4, (9, 6)).float(), torch.randint(-3, 4, (V, 6)).float()
    want = streamkl.topk_of(x, w, K, scale=1 / 3)
    got = streamkl.topk_of(x, w, K, scale=1 / 3, bias=torch.full((V,), 4096.0))
    assert torch.equal(got.ids, want.ids)
    for a, b in ((got.logprobs, want.logprobs), (got.tail_logprob, want.tail_logprob)):
        torch.testing.assert_close(a, b, rtol=2e-7, atol=2e-7)


def test_words_that_cannot_be():
    x, w = teacher((3,))
    bias = torch.zeros(V)
    bias[5:] = -math.inf
    got = streamkl.topk_of(x, w, K, bias=bias)
    assert (got.ids[:, 5:] == torch.arange(5, K)).all() and (got.logprobs[:, 5:] == -math.inf).all()
    torch.testing.assert_close(got.logprobs.exp().sum(-1), torch.ones(3))
    assert (got.tail_logprob == -math.inf).all()


def test_nan_stays_in_its_row():
    x, w = teacher((30,))
    want = streamkl.topk_of(x, w, K)
    x[4, 0], x[17, 3] = math.nan, math.inf
    got = streamkl.topk_of(x, w, K)
    good = torch.ones(30, dtype=torch.bool)
    good[[4, 17]] = False
    assert all(torch.equal(a[good], b[good]) for a, b in zip(got, want))
    assert got.logprobs[~good].isnan().all() and got.tail_logprob[~good].isnan().all()
    assert ((got.ids >= 0) & (got.ids < V)).all()


def test_in_torch():
    """The operator, and one graph that makes lists and learns from them."""
    from streamkl import _c, _ops
    from streamkl._options import make_options

    (x_t, w_t), (x_s, w_s) = teacher(), teacher()
    options = make_options(_c.LINEAR, {})
    for sums in (False, True):
        args = (*_c.named_inputs(a_s=x_t.flatten(0, 1), b_s=w_t), *options, K, sums)
        torch.library.opcheck(_ops.topk, args)
    x_s.requires_grad_()
    module = streamkl.LinearTopKKLLoss(temperature=2.0)

    def step(x_s, w_s, x_t, w_t):
        return module(x_s, w_s, **streamkl.topk_of(x_t, w_t, K, temperature=2.0)._asdict())

    got, want = torch.compile(step, fullgraph=True, backend="aot_eager")(x_s, w_s, x_t, w_t), step(x_s, w_s, x_t, w_t)
    assert torch.equal(got, want)
    assert torch.equal(*(torch.autograd.grad(loss, x_s)[0] for loss in (got, want)))


def test_modes_of_torch_change_nothing():
    x, w = teacher()
    want = streamkl.topk_of(x, w, K)
    x.requires_grad_(), w.requires_grad_()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = streamkl.topk_of(x, w, K)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(a, b) and not a.requires_grad for a, b in zip(got, want))


def of_arrays(x, w, k, **shape):
    """streamkl.numpy's lists, as tensors."""
    given = {name: t.float().numpy() if isinstance(t, torch.Tensor) else t for name, t in shape.items()}
    made = streamkl.numpy.topk_of(x.numpy(), w.numpy(), k, **given)
    return streamkl.Lists(*map(torch.from_numpy, made))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_arrays_by_the_definition(shape):
    x, w = teacher()
    if shape.get("bias"):
        shape = {**shape, "bias": torch.randn(V)}
    for k in (1, K, 83, 84, 300):
        agree(x, w, k, of_arrays(x, w, k, **shape), **shape)
    half = of_arrays(x.half(), w.half(), K)
    agree(x.half(), w.half(), K, half)


def test_arrays_with_equals_nan_and_nothing():
    """NumPy's lists are those of torch tensors: of equal logits, of words that cannot be, of rows with NaN."""
    x, w = torch.randint(-1, 2, (40, 6)).float(), torch.randint(-1, 2, (V, 6)).float()
    x[7] = 0
    bias = torch.zeros(V)
    bias[5:] = -math.inf
    for k, more in ((1, {}), (50, {}), (200, {}), (V, {}), (K, dict(bias=bias)), (K, dict(scale=-2.0))):
        got, want = of_arrays(x, w, k, **more), streamkl.topk_of(x, w, k, **more)
        assert torch.equal(got.ids, want.ids), (k, more)
        torch.testing.assert_close(got.logprobs, want.logprobs, rtol=5e-7, atol=1e-6)
        torch.testing.assert_close(got.tail_logprob, want.tail_logprob, rtol=5e-7, atol=1e-6)
    want, x[4, 0], x[17, 3] = of_arrays(x, w, K), math.nan, math.inf
    got = of_arrays(x, w, K)
    good = torch.ones(40, dtype=torch.bool)
    good[[4, 17]] = False
    assert all(torch.equal(a[good], b[good]) for a, b in zip(got, want))
    assert got.logprobs[~good].isnan().all() and got.tail_logprob[~good].isnan().all()


def test_arrays_of_any_shape_make_a_teacher():
    (x_t, w_t), (x_s, w_s) = teacher((2, 3, 4), dim=32), teacher((2, 3, 4))
    made = streamkl.numpy.topk_of(x_t.numpy(), w_t.numpy(), K)
    assert made.ids.shape == (2, 3, 4, K) and made.tail_logprob.shape == (2, 3, 4)
    got = streamkl.numpy.linear_topk_kl(x_s.numpy(), w_s.numpy(), **made._asdict())
    want = streamkl.linear_topk_kl(x_s, w_s, **streamkl.topk_of(x_t, w_t, K)._asdict())
    assert abs(got - want.item()) <= 1e-5 * abs(want.item())
    assert streamkl.numpy.topk_of(x_t.numpy()[:0], w_t.numpy(), K).ids.shape == (0, 3, 4, K)
    for given, sentence in (
        (dict(k=0), "k = 0: it must be at least 1"),
        (dict(k=V + 1), "at most the number of columns"),
        (dict(x_t=x_t.double().numpy()), "x_t.dtype = 'float64'"),
        (dict(w_t=w_t.numpy()[:, 1:]), "w_t.shape"),
        (dict(bias=[1.0, 2.0]), "bias.shape"),
        (dict(columns=V + 1), "w_t has 333 rows"),
        (dict(temperature=0), "temperature = 0"),
    ):
        with pytest.raises((TypeError, ValueError), match=sentence):
            streamkl.numpy.topk_of(**{**dict(x_t=x_t.numpy(), w_t=w_t.numpy(), k=K), **given})


class Largest(TorchDispatchMode):
    """The most bytes of a tensor that anything makes, but for views of the operands."""

    def __init__(self, *operands):
        super().__init__()
        self.bytes, self.known = 0, {t.untyped_storage().data_ptr() for t in operands}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for t in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(t, torch.Tensor) and t.untyped_storage().data_ptr() not in self.known:
                self.bytes = max(self.bytes, t.untyped_storage().nbytes())
        return made


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_nothing_but_the_lists_is_made(dtype):
    """By torch; what C takes besides does not depend on the numbers of rows and columns: tests/test_topk.c."""
    for n, v in ((100, 2000), (800, 2000), (100, 9000)):
        x, w = teacher((n,), v, 32, dtype)
        with Largest(x, w) as largest:
            streamkl.topk_of(x, w, 4)
        assert largest.bytes == n * 4 * 4


# ---- as a teacher, from a file

files = pytest.mark.skipif(importlib.util.find_spec("safetensors") is None, reason="safetensors is not installed")


@files
@pytest.mark.parametrize("temperature", (1.0, 2.0))
@pytest.mark.parametrize("dtype", reference.DTYPES)
def test_a_round_trip_is_the_live_teacher(dtype, temperature, tmp_path):
    (x_t, w_t), (x_s, w_s) = teacher(dim=32), teacher()
    made = streamkl.topk_of(x_t, w_t, K, temperature=temperature)
    streamkl.save_lists(tmp_path / "a.safetensors", made, temperature=temperature, dtype=dtype, model="small", step=3)
    assert [file.name for file in tmp_path.iterdir()] == ["a.safetensors"]
    read = streamkl.load_lists(tmp_path / "a.safetensors")
    assert read.temperature == temperature and read.metadata == {"model": "small", "step": "3"}
    assert torch.equal(read.ids, made.ids) and torch.equal(read.tail_logprob, made.tail_logprob)
    assert torch.equal(read.logprobs, made.logprobs.to(dtype)) and read.logprobs.dtype is dtype
    got = streamkl.linear_topk_kl(
        x_s, w_s, read.ids, read.logprobs, tail_logprob=read.tail_logprob, temperature=temperature,
        stored_temperature=read.temperature,
    )  # fmt: skip
    z_s, z_t = (reference.linear_logits(x, w, temperature=temperature) for x, w in ((x_s, w_s), (x_t, w_t)))
    at = made.ids.long()
    s, t = (_with_bucket(z.log_softmax(-1), at) for z in (z_s, z_t))
    want = (t.exp() * (t - s)).sum(-1).mean()
    bound = {torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    assert abs(got.item() - want.item()) <= bound * want.item()
    if dtype is torch.float32:
        alive = dict(temperature=temperature, stored_temperature=temperature)
        assert torch.equal(got, streamkl.linear_topk_kl(x_s, w_s, **made._asdict(), **alive))


def _with_bucket(log_p, at):
    """The categories of a bucket: what is listed, and the rest."""
    rest = log_p.scatter(-1, at, -math.inf).logsumexp(-1, keepdim=True)
    return torch.cat([log_p.gather(-1, at), rest], -1)


def test_all_columns_listed_are_linear_kl():
    (x_t, w_t), (x_s, w_s) = teacher(dim=32), teacher()
    got = streamkl.linear_topk_kl(x_s, w_s, **streamkl.topk_of(x_t, w_t, V)._asdict())
    torch.testing.assert_close(got, streamkl.linear_kl(x_s, w_s, x_t, w_t), rtol=2e-6, atol=0)


@files
def test_some_rows_of_a_file(tmp_path):
    made = streamkl.topk_of(*teacher(), K)
    streamkl.save_lists(tmp_path / "a", made)
    for rows in (slice(1, 3), slice(None), slice(-1, None), slice(2, 2), slice(2, 99)):
        read = streamkl.load_lists(tmp_path / "a", rows)
        assert all(torch.equal(a, b[rows]) for a, b in zip(read[:3], made)), rows


@files
def test_a_file_can_be_written_again(tmp_path):
    """From what was read from it, which is a memory map of it."""
    made = streamkl.topk_of(*teacher(), K)
    streamkl.save_lists(tmp_path / "a", made)
    read = streamkl.load_lists(tmp_path / "a")
    streamkl.save_lists(tmp_path / "a", read, dtype=torch.float16)
    assert torch.equal(read.logprobs, made.logprobs)
    assert torch.equal(streamkl.load_lists(tmp_path / "a").logprobs, made.logprobs.half())


@files
def test_a_file_is_whole_or_as_before(tmp_path, monkeypatch):
    import safetensors.torch

    made = streamkl.topk_of(*teacher(), K)
    streamkl.save_lists(tmp_path / "a", made)

    def cut(tensors, path, text):
        path.write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(safetensors.torch, "save_file", cut)
    with pytest.raises(OSError, match="no space left"):
        streamkl.save_lists(tmp_path / "a", made, temperature=2.0)
    assert streamkl.load_lists(tmp_path / "a").temperature == 1 and len(list(tmp_path.iterdir())) == 1


@files
def test_bytes_a_token(tmp_path):
    """As the table in docs/vocabulary.md has them: K (4 + 4 or 2) + 4."""
    x, w = teacher((1000,))
    page = (documents.ROOT / "docs/vocabulary.md").read_text(encoding="utf-8")
    for k, dtype in ((64, torch.float32), (64, torch.bfloat16), (256, torch.float32), (256, torch.bfloat16)):
        streamkl.save_lists(tmp_path / "a", streamkl.topk_of(x, w, k), dtype=dtype)
        bytes_a_token = k * (4 + dtype.itemsize) + 4
        assert 0 <= (tmp_path / "a").stat().st_size - 1000 * bytes_a_token < 1000
        assert f"| {k} | {str(dtype)[6:]} | {bytes_a_token:,} |" in page


# ---- what is refused

BAD = [
    (dict(k=0), ValueError, "k = 0: it must be at least 1 and at most the number of columns, 333"),
    (dict(k=V + 1), ValueError, "k = 334"),
    (dict(k=300, columns=299), ValueError, "the number of columns, 299"),
    (dict(k=2.5), TypeError, "k = 2.5: it must be a number of ids"),
    (dict(columns=V + 1), ValueError, "columns = 334: w_t has 333 rows"),
    (dict(columns=0), ValueError, "columns = 0"),
    (dict(temperature=0), ValueError, "temperature = 0: it must be positive"),
    (dict(scale=0.0), ValueError, "scale = 0.0"),
    (dict(softcap=-1.0), ValueError, "softcap = -1.0"),
    (dict(bias=torch.zeros(3)), ValueError, r"bias.shape = \(3,\)"),
    (dict(w_t=torch.zeros(V, 5)), ValueError, r"w_t.shape = \(333, 5\): it must be \[V, D\]"),
    (dict(w_t=torch.zeros(24)), ValueError, "w_t.shape"),
    (dict(x_t=torch.zeros(4, 24, dtype=torch.float64)), TypeError, "x_t.dtype = torch.float64"),
    (dict(w_t=[1.0]), TypeError, "w_t = 'list': it must be a torch.Tensor"),
]


@pytest.mark.parametrize("changed, kind, sentence", BAD, ids=[case[2] for case in BAD])
def test_refused(changed, kind, sentence):
    x, w = teacher()
    with pytest.raises(kind, match=sentence):
        streamkl.topk_of(**{**dict(x_t=x, w_t=w, k=K), **changed})


@files
def test_files_refused(tmp_path):
    from safetensors.torch import save_file

    made = streamkl.topk_of(*teacher(), K)
    path = tmp_path / "a.safetensors"
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        streamkl.load_lists(path)
    path.write_bytes(b"no such file at all")
    with pytest.raises(ValueError, match="it is no whole file of safetensors"):
        streamkl.load_lists(path)
    save_file({"ids": made.ids}, path)
    with pytest.raises(ValueError, match="it holds no lists"):
        streamkl.load_lists(path)
    for wrong, kind, sentence in (
        (made[:2], TypeError, "it must be .ids, logprobs, tail_logprob."),
        (made._replace(tail_logprob=made.logprobs), ValueError, "they must be integers"),
        (made._replace(ids=made.logprobs), ValueError, "they must be integers"),
    ):
        with pytest.raises(kind, match=sentence):
            streamkl.save_lists(path, wrong)
    with pytest.raises(TypeError, match="dtype = torch.int8"):
        streamkl.save_lists(path, made, dtype=torch.int8)
    with pytest.raises(ValueError, match="temperature = 0"):
        streamkl.save_lists(path, made, temperature=0)
    streamkl.save_lists(path, made)
    assert [file.name for file in tmp_path.iterdir()] == ["a.safetensors"]
    for rows in (3, slice(0, 4, 2)):
        with pytest.raises(TypeError, match="it must be a slice without a step"):
            streamkl.load_lists(path, rows)
