# SPDX-License-Identifier: Apache-2.0
"""streamkl.hf inside of DDP and FSDP2, on two processes."""

import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = pytest.mark.long  # two processes that import transformers

PROGRAM = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
sys.path.insert(0, sys.argv[3])
from hf_models import make, make_batch
from streamkl import hf

rank, store = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)


def check(way):
    torch.manual_seed(0)
    sizes = dict(num_hidden_layers=1, tie_word_embeddings=way.endswith("tied"))
    student, teacher = make("Granite", "sdpa", **sizes), make("Granite", "sdpa", **sizes)
    batches = [make_batch(labels=True) for _ in range(2)]
    parts = dict(kl=1.0, ce=0.5, attention=1.0)

    # The mean of the gradients of both processes' losses, from one process.
    losses = [hf.distillation_loss(student, teacher, b, **parts).loss for b in batches]
    (sum(losses) / 2).backward()
    want = {name: p.grad.clone() for name, p in student.named_parameters()}

    student.zero_grad()
    wrapped = student
    if way == "ddp":
        wrapped = DistributedDataParallel(student)
    else:
        for module in (*student.model.layers, *([student.lm_head] if way == "fsdp head" else []), student):
            fully_shard(module)
    for turn in range(2):  # what the first leaves behind must not disturb the second
        for p in student.parameters():
            p.grad = None
        got = hf.distillation_loss(wrapped, teacher, batches[rank], **parts).loss
        assert abs(got.item() - losses[rank].item()) <= 1e-5 * losses[rank].item(), (way, turn, got, losses[rank])
        got.backward()
        for name, p in student.named_parameters():
            grad = p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad
            error = (grad - want[name]).abs().max() / want[name].abs().max().clamp_min(1e-6)
            assert error <= 1e-4, (way, turn, name, error.item())


for way in ("ddp", "fsdp", "fsdp head", "fsdp tied"):
    check(way)
print("equal")
dist.destroy_process_group()
"""


def test_two_processes(tmp_path):
    """The gradients are those that one process has for both batches; a head that is sharded is gathered."""
    here = pathlib.Path(__file__).parent
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), str(tmp_path / "store"), str(here)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        done = [process.communicate(timeout=300) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (out, error) in zip(started, done):
        assert process.returncode == 0 and out.strip() == "equal", error[-3000:]
