# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors, where there is no GPU: what would be handed to the C library, and what it says. The tensors of these
tests are on the CPU, and the package is made to believe otherwise."""

import ctypes
from struct import Struct
from types import SimpleNamespace

import pytest
import torch

import reference
import streamkl
from streamkl import _c, _call, _ops
from streamkl._errors import error_of

STREAM, INDEX, WORKSPACE = 0x77, 2, 12345


@pytest.fixture
def believe(monkeypatch):
    """Every tensor is on cuda:2, whose current stream is 0x77."""
    monkeypatch.setattr(_ops, "_cuda_index", lambda t: INDEX)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=STREAM))


def tensors(*structures):
    """(offset, fields) of every tensor given in packed structures."""
    in_problem = [_c.PROBLEM.offset(name) for name in _c.INPUTS if name in _c.PROBLEM.names]
    in_outputs = [_c.OUTPUTS.offset(name) for name in (*_c.ROWS, *_c.OPERANDS)]
    for k, structure in enumerate(structures):
        for at in in_problem if k == 0 else in_outputs:
            yield k, at, _c.TENSOR.unpack_from(structure, at)


# The fields of struct skl_problem that are for a GPU.
GPU, GPU_AT = Struct("@PPN2i"), _c.PROBLEM.offset("stream")


class Library:
    """The C library, with everything moved from the device to the CPU on the way, after a look at it."""

    def __init__(self, real):
        self.real, self.calls, self.skl_last_error = real, [], real.skl_last_error
        self.any_order, self.skl_merge = 0, real.skl_merge

    def _moved(self, structures):
        structures = [bytearray(s) for s in structures]
        for k, at, (data, dtype, device, ndim, index, *rest) in list(tensors(*structures)):
            if data:
                assert (device, index) == (_c.CUDA, INDEX)
                _c.TENSOR.pack_into(structures[k], at, data, dtype, _c.CPU, ndim, 0, *rest)
        gpu = GPU.unpack_from(structures[0], GPU_AT)
        GPU.pack_into(structures[0], GPU_AT, 0, 0, 0, 0, 0)
        return gpu, [bytes(s) for s in structures]

    def skl_workspace_size(self, call, problem, out, size):
        gpu, (problem, *out) = self._moved([problem] if out is None else [problem, out])
        out = out[0] if out else None
        assert gpu == (STREAM, 0, 0, self.any_order, 0) and (out is None) == (call == _c.PARTIAL)
        assert self.real.skl_workspace_size(call, problem, out, size) == _c.OK
        ctypes.cast(size, ctypes.POINTER(ctypes.c_size_t))[0] = WORKSPACE
        return _c.OK

    def _run(self, name, *structures):
        (stream, workspace, size, any_order, reserved), moved = self._moved(structures)
        assert (stream, size, any_order, reserved) == (STREAM, WORKSPACE, self.any_order, 0) and workspace
        ctypes.memset(workspace, 1, size)  # it is there
        self.calls.append(name)
        return getattr(self.real, name)(*moved)

    def skl_value(self, *structures):
        return self._run("skl_value", *structures)

    def skl_value_and_grad(self, *structures):
        return self._run("skl_value_and_grad", *structures)

    def skl_backward(self, *structures):
        return self._run("skl_backward", *structures)

    def skl_topk(self, *structures):
        return self._run("skl_topk", *structures)

    def skl_partial(self, problem, saved, states):
        gpu, moved = self._moved([problem] if saved is None else [problem, saved])
        assert gpu[0] == STREAM and gpu[2] == WORKSPACE
        self.calls.append("skl_partial")
        return self.real.skl_partial(moved[0], moved[1] if saved else None, states)

    def skl_finish(self, problem, states, out):
        gpu, (problem, out) = self._moved([problem, out])
        assert gpu == (STREAM, 0, 0, 0, 0)
        self.calls.append("skl_finish")
        return self.real.skl_finish(problem, states, out)


@pytest.fixture
def library(monkeypatch):
    moved = Library(_c.lib)
    monkeypatch.setattr(_c, "lib", moved)
    return moved


def linear():
    torch.manual_seed(1)
    x_s, w_s = torch.randn(2, 5, 8, requires_grad=True), torch.randn(7, 8, dtype=torch.bfloat16, requires_grad=True)
    bias = torch.randn(7, requires_grad=True)
    return (x_s, w_s, torch.randn(2, 5, 6), torch.randn(7, 6)), dict(bias_s=bias, weight=torch.rand(5))


def attention():
    torch.manual_seed(1)
    q, k = torch.randn(2, 4, 3, 8, requires_grad=True), torch.randn(2, 2, 5, 8, requires_grad=True)
    return (q, k, torch.randn(2, 4, 3, 6), torch.randn(2, 4, 5, 6)), dict(causal=True, begin=torch.tensor([0, 1, 0]))


def indexer():
    torch.manual_seed(2)
    q, k, w = torch.randn(2, 4, 3, 8), torch.randn(2, 5, 8), torch.randn(2, 3, 4)
    teacher = torch.randn(2, 4, 3, 6), torch.randn(2, 2, 5, 6)
    return (*(t.requires_grad_() for t in (q, k, w)), *teacher), {}


def listed(make):
    """The same with lists of keys."""

    def made():
        args, more = make()
        return args, dict(more, support=torch.tensor([[0, 2, -1], [1, 1, 3], [4, 2, 0]]).expand(2, 3, 3))

    return made


@pytest.mark.parametrize(
    "make, run",
    [(linear, streamkl.linear_kl), (attention, streamkl.attention_kl), (listed(attention), streamkl.attention_kl)],
)
@pytest.mark.parametrize("divergence", reference.DIVERGENCES)
@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
def test_as_on_the_cpu(request, make, run, divergence, reduction):
    """All operators end to end: views, stream, workspace and value on the device; the numbers are the CPU's."""

    def results():
        args, more = make()
        loss, lse_s, lse_t = run(*args, **more, divergence=divergence, reduction=reduction, return_lse=True)
        loss.sum().backward()
        with torch.no_grad():
            value = run(*args, **more, divergence=divergence, reduction=reduction)
        return [loss, lse_s, lse_t, value, args[0].grad, args[1].grad]

    want = results()
    request.getfixturevalue("believe")
    library = request.getfixturevalue("library")
    got = results()
    forward = ["skl_value", "skl_backward"] if reduction == "none" else ["skl_value_and_grad"]
    assert library.calls == [*forward, "skl_value"]
    for x, y in zip(got, want):
        assert x.dtype == y.dtype and torch.equal(x, y)


@pytest.mark.parametrize("make, run", [(linear, streamkl.linear_kl), (attention, streamkl.attention_kl)])
def test_details_as_on_the_cpu(request, make, run):
    names = ("kl", "entropy_s", "top1_t", "agree", "reverse", "jsd", "tv", "sum", "count")

    def results():
        args, more = make()
        loss, told = run(*args, **more, details=names)
        return [loss, *told.values()]

    want = results()
    request.getfixturevalue("believe")
    library = request.getfixturevalue("library")
    assert all(torch.equal(x, y) for x, y in zip(results(), want))
    assert library.calls == ["skl_value_and_grad"]


def lists():
    """Of a head, and of an indexer."""
    torch.manual_seed(3)
    x, w, bias = torch.randn(2, 5, 8), torch.randn(40, 8, dtype=torch.bfloat16), torch.randn(40)
    (q_i, k_i, w_i, _, _), _ = indexer()
    heads = [streamkl.topk_of(x, w, k, bias=bias, temperature=2.0, softcap=3.0) for k in (1, 7, 40)]
    return [*(t for made in heads for t in made), streamkl.indexer_topk(q_i, k_i, w_i, 4, relu=False)]


def test_lists_as_on_the_cpu(request):
    want = lists()
    request.getfixturevalue("believe")
    library = request.getfixturevalue("library")
    got = lists()
    assert library.calls == ["skl_topk"] * 4
    assert all(x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(got, want))


def test_any_order(believe, library):
    """It arrives, in the question for the workspace as in the call."""
    library.any_order = 1
    args, more = linear()
    for reduction in reference.REDUCTIONS:
        streamkl.linear_kl(*args, **more, reduction=reduction, any_order=True).sum().backward()
    library.any_order = 0
    streamkl.linear_kl(*args, **more)


@pytest.mark.parametrize("divergence", reference.DIVERGENCES)
def test_partial_as_on_the_cpu(request, divergence):
    """Columns in pieces: problem, states and what was saved go to the device, merge to the host."""

    def results():
        (x_s, w_s, x_t, w_t), _ = linear()
        weight, saved = torch.rand(2, 5, generator=torch.Generator().manual_seed(0)), None
        pieces = [(x_s, w_s[part], x_t, w_t[part]) for part in (slice(0, 3), slice(3, 7))]
        options = dict(divergence=divergence, weight=weight)
        for _ in range(2 if divergence == "jsd" else 1):
            states = streamkl.merge(*[streamkl.linear_partial(*p, **options, saved=saved) for p in pieces])
            saved = streamkl.finish(states, **options, saved=saved)
        grads = [streamkl.linear_backward(*p, saved, grads=("x_s", "w_s"), **options) for p in pieces]
        return [states, *[t for t in saved if t is not None], *[g for d in grads for g in d.values()]]

    want = results()
    request.getfixturevalue("believe")
    library = request.getfixturevalue("library")
    got = results()
    sweep = ["skl_partial", "skl_partial", "skl_finish"]
    again = ["skl_finish", "skl_partial", "skl_finish", "skl_partial", "skl_finish"] if divergence == "jsd" else []
    assert library.calls == sweep + again + ["skl_finish", "skl_backward"] * 2
    assert len(got) == len(want) and all(torch.equal(x, y) for x, y in zip(got, want))


def test_the_library_says_what_is_missing(believe):
    """This machine has no GPU, or this library no CUDA: the sentence arrives, whatever is called."""
    if _c.lib.skl_cuda_devices():
        pytest.skip("there is a CUDA device")
    args, more = linear()
    for reduction in reference.REDUCTIONS:
        with pytest.raises(RuntimeError, match="streamkl: (no CUDA device|cannot use CUDA tensors)"):
            streamkl.linear_kl(*args, **more, reduction=reduction)
    with torch.no_grad(), pytest.raises(RuntimeError, match="CUDA"):
        streamkl.linear_kl(*args, **more)


@pytest.mark.parametrize(
    "where, sentence", [(1, "w_s on cuda:3: x_s"), (3, "w_t on cpu: x_s"), (6, "weight on cuda:0: x_s")]
)
def test_mixed_devices(monkeypatch, believe, where, sentence):
    args, more = linear()
    place = {1: (args[1], 3), 3: (args[3], -1), 6: (None, 0)}[where]
    odd = place[0].data_ptr() if place[0] is not None else None

    def index(t):
        if odd is None:
            return place[1] if t.shape == (2, 5) and t.stride(0) == 0 else INDEX
        return place[1] if t.data_ptr() == odd else INDEX

    monkeypatch.setattr(_ops, "_cuda_index", index)
    with pytest.raises(ValueError, match=f"cannot use {sentence}.* is on cuda:2"):
        streamkl.linear_kl(*args, **more)


def test_on_the_cpu_first(monkeypatch):
    args, more = linear()
    monkeypatch.setattr(_ops, "_cuda_index", lambda t: 0 if t.data_ptr() == args[1].data_ptr() else -1)
    with pytest.raises(ValueError, match="cannot use w_s on cuda:0: x_s is on cpu"):
        streamkl.linear_kl(*args, **more)


def test_view():
    packed = _call.view(4096, _c.BF16, (2, 3), (3, 1), 5)
    assert _c.TENSOR.unpack(packed) == (4096, _c.BF16, _c.CUDA, 2, 5, 2, 3, 0, 0, 3, 1, 0, 0)
    assert _c.TENSOR.unpack(_call.view(4096, _c.F32, (2,), (1,)))[2:5] == (_c.CPU, 1, 0)
    assert _c.TENSOR.unpack(_call.view(0, _c.F32, (1,) * 5, (1,) * 5, 5))[2:5] == (_c.CUDA, 5, 5)


def test_no_workspace_needed(monkeypatch, believe):
    """A call that takes no memory gets none."""
    seen = []

    def size_of(call, problem, out, size):
        return _c.OK

    def value(problem, out):
        seen.append(GPU.unpack_from(problem, GPU_AT))
        return _c.OK

    calls = dict(skl_value=value, skl_value_and_grad=None, skl_backward=None)
    monkeypatch.setattr(_c, "lib", SimpleNamespace(skl_workspace_size=size_of, **calls))
    args, more = linear()
    with torch.no_grad():
        streamkl.linear_kl(*args, **more)
    assert seen == [(STREAM, 0, 0, 0, 0)]


@pytest.mark.parametrize(
    "status, kind",
    [
        (_c.BAD_ARGUMENT, ValueError),
        (_c.UNSUPPORTED, RuntimeError),
        (_c.OUT_OF_MEMORY, MemoryError),
        (_c.NO_DEVICE, RuntimeError),
        (_c.DEVICE_FAILED, RuntimeError),
        (_c.NO_LIBRARY, ImportError),
    ],
)
def test_exceptions(monkeypatch, status, kind):
    sentence = b"cudaLaunchKernel failed: out of resources"
    monkeypatch.setattr(_c, "lib", SimpleNamespace(skl_last_error=lambda: sentence))
    error = error_of(status, _c.ATTENTION)
    assert type(error) is kind and str(error) == "streamkl: " + sentence.decode()


@pytest.mark.parametrize("device", ["cuda", "meta"])
def test_shapes_of_fake_tensors(device):
    """What torch.compile sees of a CUDA tensor."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x, w = torch.empty(2, 5, 8, device=device), torch.empty(7, 8, device=device)
        loss, lse, _ = streamkl.linear_kl(x, w, x, w, reduction="none", return_lse=True)
    assert loss.shape == lse.shape == (2, 5) and loss.device.type == device


@pytest.mark.skipif(not torch.cuda.is_available() or not _c.lib.skl_cuda_devices(), reason="no CUDA device")
@pytest.mark.parametrize(
    "make, run",
    [
        (linear, streamkl.linear_kl),
        (attention, streamkl.attention_kl),
        (listed(attention), streamkl.attention_kl),
        (indexer, streamkl.indexer_kl),
        (listed(indexer), streamkl.indexer_kl),
    ],
)
@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
def test_on_a_gpu(make, run, reduction):
    """Never run by those who wrote it."""
    args, more = make()
    want = run(*args, **more, reduction=reduction)
    want.sum().backward()
    grads = [t.grad for t in args[:2]]
    there = [t.detach().cuda().requires_grad_(t.requires_grad) for t in args]
    more = {name: x.detach().cuda() if isinstance(x, torch.Tensor) else x for name, x in more.items()}
    got = run(*there, **more, reduction=reduction)
    got.sum().backward()
    torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-5)
    for t, grad in zip(there, grads):
        torch.testing.assert_close(t.grad.cpu(), grad, rtol=2e-2, atol=2e-3)


@pytest.mark.skipif(not torch.cuda.is_available() or not _c.lib.skl_cuda_devices(), reason="no CUDA device")
def test_lists_on_a_gpu():
    """Never run by those who wrote it. Small whole numbers: the ids have one right order."""
    x, w = torch.randint(-2, 3, (70, 24)).float(), torch.randint(-2, 3, (3000, 24)).float()
    for dtype in reference.DTYPES:
        want = streamkl.topk_of(x.to(dtype), w.to(dtype), 50)
        got = streamkl.topk_of(x.to(dtype).cuda(), w.to(dtype).cuda(), 50)
        assert torch.equal(got.ids.cpu(), want.ids)
        torch.testing.assert_close(got.logprobs.cpu(), want.logprobs, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(got.tail_logprob.cpu(), want.tail_logprob, rtol=1e-5, atol=1e-5)


def test_labels_of_a_device_are_looked_at_if_asked():
    """What STREAMKL_CHECK_LABELS=1 runs; the device is not needed for it."""
    from streamkl._inputs import check_labels, refuse_wrong

    labels = torch.tensor([[0, -100], [6, 7]])
    refuse_wrong(labels[:1], 7, -100)
    with pytest.raises(ValueError, match=r"labels\[3\] = 7: it must be a column, 0 to 6, or -100"):
        refuse_wrong(labels, 7, -100)
    with pytest.raises(ValueError, match=r"labels\[1\] = -100"):
        refuse_wrong(labels, 8, -1)
    check_labels(labels, torch.zeros(7, 2), 0, -100)  # on the CPU that is C's to say
