# SPDX-License-Identifier: Apache-2.0
"""Every block of Python in docs/frameworks.md runs, and gives what the packages that it replaces give."""

import sys

import pytest
import torch

import documents
import streamkl

BLOCKS = documents.blocks("docs/frameworks.md")
RUN = set()


def block(word):
    """The one block that has the word."""
    (code,) = [b for b in BLOCKS if word in b]
    RUN.add(code)
    return code


def test_trl():
    trainers = pytest.importorskip("trl.trainer.distillation_trainer", reason="trl is not installed")
    own = trainers.DistillationTrainer._compute_loss
    try:
        exec(block("patch()"), {})
        assert trainers.DistillationTrainer._compute_loss is not own
    finally:
        streamkl.trl.unpatch()
    assert trainers.DistillationTrainer._compute_loss is own
    space = {}
    exec(block("import DistillationTrainer"), space)
    assert issubclass(space["DistillationTrainer"], trainers.DistillationTrainer)
    assert issubclass(space["GKDTrainer"], sys.modules["trl.experimental.gkd.gkd_trainer"].GKDTrainer)


@pytest.mark.parametrize("word", ("chunked_loss", "liger_kernel.transformers"))
def test_liger(word):
    chunked = pytest.importorskip("liger_kernel.chunked_loss", reason="liger-kernel is not installed")
    labels = torch.randint(0, 40, (9,))
    labels[2] = -100
    x = dict(x_s=torch.randn(9, 8), w_s=torch.randn(40, 8), x_t=torch.randn(9, 6), w_t=torch.randn(40, 6))
    space = {"labels": labels, **x}
    exec(block(word), space)
    options = dict(beta=0.0) if word == "chunked_loss" else dict(beta=0.1, weight_hard_loss=0.0, weight_soft_loss=1.0)
    theirs = chunked.LigerFusedLinearJSDLoss(**options, temperature=2.0, compiled=False)(*x.values(), labels)
    torch.testing.assert_close(space["loss"], theirs, rtol=1e-5, atol=1e-6)


def test_a_loop_of_ones_own():
    models = pytest.importorskip("hf_models")
    student, teacher = models.make("Gemma2"), models.make("Llama")
    batch = models.make_batch(labels=True)
    space = {"torch": torch, "student": student, "teacher": teacher, "batch": batch}
    exec(block("streamkl.hf.head(student)"), space)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    q, p = (m(**inputs).logits[:, :-1].double().log_softmax(-1) for m in (student, teacher))
    want = (p.exp() * (p - q)).sum(-1)[batch["labels"][:, 1:] != -100].mean()
    torch.testing.assert_close(space["loss"], want.float(), rtol=1e-5, atol=0)
    assert all(p.grad is not None for p in student.parameters()) and all(p.grad is None for p in teacher.parameters())


def test_no_block_was_left_out():
    """Of those above; it runs after them."""
    if len(RUN) < len(BLOCKS):
        missing = [b for b in BLOCKS if b not in RUN]
        packages = {"trl": "streamkl.trl", "liger_kernel": "streamkl.liger", "transformers": "streamkl.hf"}
        for name, word in packages.items():
            if name not in sys.modules:
                missing = [b for b in missing if word not in b]
        assert not missing, missing
