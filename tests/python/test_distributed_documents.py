# SPDX-License-Identifier: Apache-2.0
"""docs/distributed.md runs, on two ranks; the examples for torchrun run, as their first lines say."""

import re
import subprocess
import sys

import pytest
from test_package import ROOT, blocks


def run_document(group):
    space = {}
    for code in blocks((ROOT / "docs/distributed.md").read_text()):
        exec(code, space)
    return space["loss"].item()


def test_document(tmp_path):
    from ranks import Ranks

    two = Ranks(2, tmp_path)  # its blocks are about the whole world
    try:
        first, second = two.run(run_document)
        assert first == second
    finally:
        two.end()


def torchrun(ranks, name, *arguments):
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone"]
    out = subprocess.run([*run, ROOT / "examples" / name, *arguments], capture_output=True, text=True, timeout=170)
    assert out.returncode == 0, out.stderr[-3000:]
    return out.stdout


def test_tensor_parallel_example():
    out = torchrun(2, "tensor_parallel.py", "--teacher-steps", "1", "--steps", "3")
    assert float(re.search(r"distance of the curves: (\S+)", out)[1]) <= 1e-6


@pytest.mark.parametrize("rank, bytes_a_token", [(0, 192), (48, 96)])
def test_remote_teacher_example(rank, bytes_a_token):
    arguments = ["--teacher-steps", "1", "--steps", "3", "--low-rank", str(rank)]
    out = torchrun(2, "remote_teacher.py", *arguments)
    assert f"{bytes_a_token} bytes a token as hidden states, 8192 as logits" in out
    first, near = (float(x) for x in re.search(r"first loss (\S+), with the teacher beside it (\S+)", out).groups())
    assert rank or abs(first - near) <= 1e-3 * near
