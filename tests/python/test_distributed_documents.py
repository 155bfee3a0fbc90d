# SPDX-License-Identifier: Apache-2.0
"""docs/distributed.md runs, on four ranks; the examples for torchrun run, as their first lines say."""

import re
import subprocess
import sys

import pytest

import documents
from documents import ROOT


def run_document(group):
    return documents.run("docs/distributed.md")["loss"].item()


def test_document(ranks):
    assert len(set(ranks.run(run_document))) == 1


def torchrun(ranks, name, *arguments):
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone"]
    out = subprocess.run([*run, ROOT / "examples" / name, *arguments], capture_output=True, text=True, timeout=170)
    assert out.returncode == 0, out.stderr[-3000:]
    return out.stdout


@pytest.mark.long
def test_tensor_parallel_example():
    out = torchrun(2, "tensor_parallel.py", "--teacher-steps", "1", "--steps", "3")
    assert float(re.search(r"distance of the curves: (\S+)", out)[1]) <= 1e-6


@pytest.mark.long
def test_remote_teacher_example():
    """Through a head of its own rank, so that nothing but bf16 is lost."""
    out = torchrun(2, "remote_teacher.py", "--teacher-steps", "1", "--steps", "3", "--low-rank", "96")
    assert "192 bytes a token as hidden states, 8192 as logits" in out
    first, near = (float(x) for x in re.search(r"first loss (\S+), with the teacher beside it (\S+)", out).groups())
    assert abs(first - near) <= 1e-3 * near
