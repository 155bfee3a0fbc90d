# SPDX-License-Identifier: Apache-2.0
"""Threads, forks, signals, memory and imports: what happens around a call. Mostly in child processes."""

import os
import subprocess
import sys
import threading

import pytest
import torch

import streamkl

NAMES = ("x_s", "w_s", "x_t", "w_t")


def operands(n=200, v=700, d=48):
    return {name: torch.randn(n if name[0] == "x" else v, d) for name in NAMES}


def value_and_grads(x, **options):
    leaves = [t.detach().clone().requires_grad_() for t in x.values()]
    loss = streamkl.linear_kl(*leaves, **options)
    return [loss.detach(), *torch.autograd.grad(loss.sum(), leaves)]


@pytest.mark.parametrize("reduction", ("none", "mean"))
@pytest.mark.parametrize("divergence", ("forward", "jsd"))
def test_threads_give_the_same_bits(reduction, divergence):
    x = operands()
    results = []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        results.append(value_and_grads(x, reduction=reduction, divergence=divergence))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))


def test_set_num_threads_is_respected(monkeypatch):
    from streamkl import _call

    seen = []
    real = _call._problem
    monkeypatch.setattr(
        _call, "_problem", lambda v, o, threads, p, **kw: seen.append(threads) or real(v, o, threads, p, **kw)
    )
    for threads in (1, 2):
        torch.set_num_threads(threads)
        streamkl.linear_kl(**operands(3, 5, 2))
    assert seen == [1, 2]


def test_two_python_threads():
    x = [operands(), operands(150, 900, 32)]
    want = [value_and_grads(one) for one in x]
    got = [[], []]

    def work(i):
        for _ in range(5):
            got[i].append(value_and_grads(x[i]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    [t.start() for t in threads], [t.join() for t in threads]
    for i in range(2):
        assert len(got[i]) == 5
        assert all(torch.equal(a, b) for run in got[i] for a, b in zip(run, want[i]))


FORK = """
import os, sys, torch, streamkl
torch.manual_seed(0); torch.set_num_threads(2)
x = [torch.randn(200, 32), torch.randn(900, 32), torch.randn(200, 32), torch.randn(900, 32)]
before = streamkl.linear_kl(*x).item()
child = os.fork()
if child == 0:
    alone = len(os.listdir("/proc/self/task"))
    same = streamkl.linear_kl(*x).item() == before
    os._exit(3 if not same else 4 if (alone, len(os.listdir("/proc/self/task"))) != (1, 2) else 0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), streamkl.linear_kl(*x).item() == before)
"""


def test_fork_after_use(child):
    assert child(FORK, timeout=60, in_warm=True).split() == ["0", "True"]


INTERRUPT = """
import os, signal, sys, threading, time, torch, streamkl
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with Ctrl-C ignored
torch.set_num_threads(2)
make = lambda n: torch.randn(n, 512)
x = [make(16384).requires_grad_(sys.argv[1] != "no grad"), make(20000), make(16384), make(20000)]
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
start = time.perf_counter()
try:
    loss = streamkl.linear_kl(*x, reduction="none" if sys.argv[1] == "none" else "mean")
    if sys.argv[1] == "none":
        loss.sum().backward()
    print("not interrupted")
except KeyboardInterrupt:
    print("interrupted", time.perf_counter() - start)
small = [t[:100].detach() for t in x]
print(torch.isfinite(streamkl.linear_kl(*small)).item(), (small[0] @ small[1].T).sum().isfinite().item())
"""


@pytest.mark.parametrize("what", ("mean", pytest.param("no grad", marks=pytest.mark.long), "none"))
def test_keyboard_interrupt(child, what):
    word, seconds, *usable = child(INTERRUPT, what, in_warm=True).split()
    assert word == "interrupted" and usable == ["True", "True"]
    assert 0.4 < float(seconds) < 5


MEMORY = """
import resource, sys, torch, streamkl
torch.set_num_threads(2)
n, reduction, attention = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "attention"
make = lambda n: torch.randn(*((1, 1) if attention else ()), n, 64)
x = [make(n).requires_grad_(), make(2000).requires_grad_(), make(n), make(2000)]
small = [t[..., :8, :].detach().requires_grad_() for t in x]
loss = streamkl.attention_kl if attention else streamkl.linear_kl
def run(x):
    loss(*x, reduction=reduction).sum().backward()
run(small)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak(); run(x); after = peak()
own = sum(t.numel() for t in x if t.requires_grad) * 4 * 2 + n * 4 * 8  # gradients, before and after scaling; rows
print(after - before - own // 1024)
"""


@pytest.mark.parametrize(
    "use, reduction",
    [
        ("linear", "mean"),
        ("attention", "none"),
        pytest.param("linear", "none", marks=pytest.mark.long),
        pytest.param("attention", "mean", marks=pytest.mark.long),
    ],
)
def test_memory_is_flat_in_rows(child, use, reduction):
    """Beyond the gradients, 16 times the rows take no more. Both logits of the larger would be 0.5 GB."""
    few, many = (int(child(MEMORY, n, reduction, use, in_warm=True)) for n in (2048, 32768))
    assert many < few + 8 * 1024 and many < 64 * 1024, (few, many)


def test_no_torch_needed(child):
    program = """
import sys
sys.modules["torch"] = None
import numpy as np, streamkl, streamkl.numpy
x = np.ones((3, 4), np.float32)
print(streamkl.numpy.linear_kl(x, x, x, x), streamkl.__version__)
try:
    streamkl.linear_kl
except ImportError as error:
    print(error)
"""
    out = child(program)
    assert out.startswith("0.0 0.") and "needs torch" in out


LATE = """
import sys, streamkl, streamkl.numpy, streamkl.trl
there = lambda *names: [name for name in names if name in sys.modules]
streamkl.trl.patch
assert "hf" in dir(streamkl) and {"compare", "DriftMetric"} <= {*streamkl.__all__}
print(there("torch", "transformers", "safetensors", "peft", "trl"))
streamkl.hf.head
print(there("transformers", "safetensors", "peft", "trl"))
import streamkl.compare as compare
print(callable(compare) and compare is streamkl.compare)
"""


def test_imports_are_late(child):
    """streamkl, and what is there after 'import streamkl', import what is needed when it is needed; in one new Python."""
    assert child(LATE).split() == ["[]", "[]", "True"]


def test_no_openmp(child):
    """No runtime of ours beside torch's, or in a program without torch."""
    program = """
import sys
sys.modules["torch"] = None
import numpy as np, streamkl.numpy
x = np.ones((300, 40), np.float32)
streamkl.numpy.linear_kl(x, x, x, x, threads=2)
print({line.split()[-1] for line in open("/proc/self/maps") if "gomp" in line or "libomp" in line or "iomp" in line})
"""
    assert eval(child(program)) == set()


DDP = """
import copy, os, torch, torch.distributed as dist, streamkl
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
torch.manual_seed(0)
x, w_s, x_t, w_t = torch.randn(4, 6, 8), torch.randn(30, 8), torch.randn(4, 6, 12), torch.randn(30, 12)
class Student(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(8, 8), torch.nn.Parameter(w_s.clone())
    def forward(self, x, x_t):
        return streamkl.linear_kl(self.body(x), self.head, x_t, w_t)
torch.manual_seed(1)
model = Student()
whole = copy.deepcopy(model)
half = slice(2 * rank, 2 * rank + 2)
ddp = torch.nn.parallel.DistributedDataParallel(model)
ddp(x[half], x_t[half]).backward()
whole(x, x_t).backward()
assert torch.allclose(model.head.grad, whole.head.grad, atol=1e-6)
assert torch.allclose(model.body.weight.grad, whole.body.weight.grad, atol=1e-6)
if rank == 0: print("equal")
dist.destroy_process_group()
"""


@pytest.mark.long  # two processes that import torch; test_distributed_training.py has groups too
def test_ddp(tmp_path):
    script = tmp_path / "ddp.py"
    script.write_text(DDP)
    store = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getpid() % 20000), WORLD_SIZE="2")
    ranks = [
        subprocess.Popen([sys.executable, script], env=dict(store, RANK=str(i)), stdout=subprocess.PIPE, text=True)
        for i in range(2)
    ]
    try:
        assert ranks[0].communicate(timeout=600)[0].strip() == "equal"
        assert ranks[1].wait(timeout=600) == 0
    finally:
        for rank in ranks:
            rank.kill()  # one that fails leaves the other waiting
