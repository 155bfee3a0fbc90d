# SPDX-License-Identifier: Apache-2.0
"""streamkl.trl: TRL's trainers with streamkl's loss take the same steps as TRL's own."""

import itertools
import json
import math
import os
import pathlib
import subprocess
import sys
import warnings

import pytest
import torch

pytest.importorskip("trl", reason="trl is not installed")
pytest.importorskip("datasets", reason="datasets is not installed")

from trl.trainer.distillation_trainer import _chunked_divergence_loss  # noqa: E402

import hf_models  # noqa: E402
import streamkl.trl  # noqa: E402
import trl_run  # noqa: E402
from streamkl import _faces  # noqa: E402
from streamkl.trl._distillation import chunked_divergence_loss  # noqa: E402


@pytest.fixture(autouse=True)
def as_it_was():
    torch.set_num_threads(1)  # the models are so small that a second thread is only waited for
    yield
    streamkl.trl.unpatch()


def same_steps(mine, theirs, steps):
    assert len(mine) == len(theirs) == steps
    for a, b in zip(mine, theirs):
        assert a.keys() == b.keys()
        assert math.isclose(a["loss"], b["loss"], rel_tol=1e-6), (a, b)
        assert math.isclose(a["grad_norm"], b["grad_norm"], rel_tol=1e-5), (a, b)
        if "entropy" in b:
            assert b["entropy"] > 1 and math.isclose(a["entropy"], b["entropy"], rel_tol=1e-6), (a, b)


CASES = [
    pytest.param("distillation", dict(beta=1.0), marks=pytest.mark.long),
    pytest.param("distillation", dict(beta=0.0, temperature=2.0), marks=pytest.mark.long),
    ("distillation", dict(beta=0.3, gradient_accumulation_steps=2, gradient_checkpointing=True)),
    ("gkd", dict(beta=0.5)),
    pytest.param("gkd", dict(beta=0.0, lmbda=0.0), marks=pytest.mark.long),
    pytest.param("gkd", dict(beta=1.0, lmbda=0.0), marks=pytest.mark.long),
]


@pytest.mark.parametrize("kind, options", CASES)
def test_ten_steps(kind, options):
    mine, mine_weights = trl_run.train(kind, trl_run.OURS, **options)
    theirs, weights = trl_run.train(kind, trl_run.THEIRS, **options)
    same_steps(mine, theirs, 10)
    assert (mine_weights - weights).norm() <= 1e-5 * weights.norm()
    assert theirs[0]["loss"] > 0.01, "a loss of 0 would compare nothing"


@pytest.mark.parametrize("kind", trl_run.THEIRS)
def test_patch(kind, monkeypatch):
    """After patch() TRL's own class gives what it gave before, and gets it from streamkl; after unpatch() not any more."""
    calls = []
    module = sys.modules[f"streamkl.trl._{kind}"]
    real = module.linear_kl
    monkeypatch.setattr(module, "linear_kl", lambda *a, **k: calls.append(1) or real(*a, **k))
    before, _ = trl_run.train(kind, trl_run.THEIRS, max_steps=2)
    assert not calls
    streamkl.trl.patch()
    streamkl.trl.patch()  # once more changes nothing
    patched, _ = trl_run.train(kind, trl_run.THEIRS, max_steps=2)
    assert len(calls) == 2
    same_steps(patched, before, 2)
    streamkl.trl.unpatch()
    after, _ = trl_run.train(kind, trl_run.THEIRS, max_steps=2)
    assert len(calls) == 2 and after == before


def test_evaluation():
    for kind in trl_run.THEIRS:
        mine, theirs = (trl_run.trainer(kind, c).evaluate()["eval_loss"] for c in (trl_run.OURS, trl_run.THEIRS))
        assert mine > 0.01 and math.isclose(mine, theirs, rel_tol=1e-6)


def hidden(bias):
    x = dict(
        student_hidden_states=torch.randn(3, 7, 12, requires_grad=True),
        teacher_hidden_states=torch.randn(3, 7, 20),
        student_lm_head_weight=torch.randn(90, 12, requires_grad=True),
        teacher_lm_head_weight=torch.randn(90, 20),
        completion_mask=torch.tensor([[1] * 7, [1] * 4 + [0] * 3, [0] * 2 + [1] * 3 + [0] * 2]),
    )
    if bias:
        x.update(student_lm_head_bias=torch.randn(90, requires_grad=True), teacher_lm_head_bias=torch.randn(90))
    return x


def close(mine, theirs, x):
    for a, b in zip(mine, theirs):
        torch.testing.assert_close(a, b, rtol=2e-6, atol=1e-6)
    leaves = [t for t in x.values() if t.requires_grad]
    for g, want in zip(torch.autograd.grad(3 * mine[0], leaves), torch.autograd.grad(3 * theirs[0], leaves)):
        torch.testing.assert_close(g, want, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("beta", (0.0, 0.3, 1.0))
@pytest.mark.parametrize("num_items", (None, 11, torch.tensor(5.5)))
@pytest.mark.parametrize("bias", (False, True))
def test_loss_function(beta, num_items, bias):
    scales = dict(student_logit_scale=0.5, teacher_logit_scale=0.25)
    caps = dict(student_final_logit_softcapping=2.0, teacher_final_logit_softcapping=3.0)
    for more, temperature in itertools.product(({}, scales, caps, {**scales, **caps}), (1.0, 2.0)):
        x = hidden(bias)
        options = dict(beta=beta, num_items_in_batch=num_items, temperature=temperature, **more)
        close(chunked_divergence_loss(**x, **options), _chunked_divergence_loss(**x, **options), x)


def test_masked_tokens_are_not_computed():
    """What is behind the mask may be anything, and gets no gradient."""
    x = hidden(False)
    outside = x["completion_mask"] == 0
    want = chunked_divergence_loss(**x, beta=1.0)
    grads = torch.autograd.grad(want[0], [x["student_lm_head_weight"]])
    with torch.no_grad():
        x["student_hidden_states"][outside] = torch.nan
        x["teacher_hidden_states"][outside] = torch.nan
    got = chunked_divergence_loss(**x, beta=1.0)
    assert all(torch.equal(a, b) for a, b in zip(got, want))
    dx, dw = torch.autograd.grad(got[0], [x["student_hidden_states"], x["student_lm_head_weight"]])
    assert torch.equal(dw, grads[0]) and not dx[outside].any() and dx[~outside].all()


def test_nothing_counts():
    x = hidden(False)
    x["completion_mask"].zero_()
    close(chunked_divergence_loss(**x, beta=0.5), _chunked_divergence_loss(**x, beta=0.5), x)


@pytest.mark.parametrize("kind", ("Gemma2", "Granite", "Cohere", "LoRA"))
def test_gkd_of_other_heads(kind):
    """Softcap, scale, LoRA: the model's own logits, which TRL's GKD compares, say what is right. TRL refuses LoRA on the
    head, so it is on the layers here."""
    sizes = dict(vocab_size=trl_run.VOCABULARY)
    if kind == "LoRA":
        peft = pytest.importorskip("peft", reason="peft is not installed")
        student = peft.get_peft_model(
            trl_run.model(32, 1), peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
        )
    else:
        student = hf_models.make(kind, **sizes)
    made = trl_run.trainer("gkd", trl_run.OURS, student=student, beta=0.5)
    batch = next(iter(made.get_train_dataloader()))
    mine = made.compute_loss(made.model, batch)
    theirs, outputs = made.compute_loss(made.model, batch, return_outputs=True)
    assert outputs.logits.shape[-1] == trl_run.VOCABULARY
    torch.testing.assert_close(mine, theirs, rtol=2e-6, atol=0)
    leaves = [p for p in made.model.parameters() if p.requires_grad]
    for g, want in zip(torch.autograd.grad(mine, leaves), torch.autograd.grad(theirs, leaves)):
        assert (g - want).norm() <= 1e-4 * want.norm() + 1e-7


@pytest.mark.long
def test_two_processes(tmp_path):
    """DDP: both processes have the same weights afterwards, and TRL's losses."""
    path, here = tmp_path / "found.json", pathlib.Path(__file__).parent
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*run, str(here / "trl_run.py"), str(path)], capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(path.read_text())
    for kind in trl_run.THEIRS:
        mine, theirs = found[f"{kind} ours"], found[f"{kind} theirs"]
        same_steps(mine["logged"], theirs["logged"], 4)
        assert mine["spread"] == 0
        assert math.isclose(mine["weights"], theirs["weights"], rel_tol=1e-6)


def test_untested_versions_warn_once(monkeypatch):
    monkeypatch.setattr(_faces, "version", lambda package: "9.0.1")
    monkeypatch.setattr(_faces, "_warned", set())
    with pytest.warns(UserWarning, match="tested with trl from 1.16 to before 1.17, and this is 9.0.1"):
        _faces.warn_untested("trl", ("1.16", "1.17"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _faces.warn_untested("trl", ("1.16", "1.17"))
        monkeypatch.setattr(_faces, "_warned", set())
        for tested in ("1.16", "1.16.0", "1.16.5", "1.16.1.dev0"):
            monkeypatch.setattr(_faces, "version", lambda package, tested=tested: tested)
            _faces.warn_untested("trl", ("1.16", "1.17"))


def test_other_insides_are_refused():
    from streamkl.trl._versions import inside

    with pytest.raises(ImportError, match="cannot use trl = .*: it has no trl.trainer.distillation_trainer.nothing"):
        inside("trl.trainer.distillation_trainer", "nothing")
