# SPDX-License-Identifier: Apache-2.0
"""streamkl.hf.distillation_loss against the same recipe with stored logits and attentions."""

import pytest
import torch

from hf_models import make, make_batch
from streamkl import hf


def eager_parts(student, teacher, batch, temperature=1.0):
    out = student(**batch, output_attentions=True)
    with torch.no_grad():
        fixed = teacher(**batch, output_attentions=True)
    z_s, z_t = ((o.logits / temperature).log_softmax(-1)[:, :-1] for o in (out, fixed))
    kept = batch["labels"][:, 1:] != -100
    real = batch["attention_mask"].bool()
    maps = [
        (t * (t.clamp_min(1e-30) / s.clamp_min(1e-30)).log()).sum(-1).transpose(1, 2)[real].mean()
        for s, t in zip(out.attentions, fixed.attentions)
    ]
    return {
        "kl": (z_t.exp() * (z_t - z_s)).sum(-1)[kept].mean(),
        "ce": out.loss,
        "attention": sum(maps) / len(maps),
    }


@pytest.mark.parametrize("kind", ("Qwen3", "Gemma2"))
def test_whole_recipe(kind):
    """Value, parts and gradient."""
    student, teacher, batch = make(kind), make(kind), make_batch(labels=True)
    batch["labels"][:, :3] = -100
    want = eager_parts(student, teacher, batch, 2.0)
    total = 0.7 * want["kl"] + 0.3 * want["ce"] + 2.0 * want["attention"]
    names, parameters = zip(*student.named_parameters())
    slopes = torch.autograd.grad(total, parameters)
    got = hf.distillation_loss(student, teacher, batch, kl=dict(factor=0.7, temperature=2.0), ce=0.3, attention=2.0)
    assert set(got.parts) == {"kl", "ce", "attention"} and not any(p.requires_grad for p in got.parts.values())
    for name, part in got.parts.items():
        assert want[name] > 1e-2 and part.item() == pytest.approx(want[name].item(), rel=1e-5), name
    assert got.loss.item() == pytest.approx(total.item(), rel=1e-5)
    got.loss.backward()
    for name, p, slope in zip(names, parameters, slopes):
        assert (p.grad - slope).abs().max() <= 1e-3 * slope.abs().max() + 1e-6, name
    assert all(p.grad is None for p in teacher.parameters())


def test_parts():
    student, teacher, batch = make("Llama"), make("Llama"), make_batch(labels=True)
    loss, parts = hf.distillation_loss(student, teacher, batch)
    assert set(parts) == {"kl"} and loss.item() == parts["kl"].item()
    assert set(hf.distillation_loss(student, teacher, batch, kl=0, ce=1).parts) == {"ce"}
    options = dict(layers={0: 1}, divergence="reverse")
    got = hf.distillation_loss(student, teacher, batch, kl=0, attention=options)
    captures = []
    for model in (student, teacher):
        with hf.capture(model) as c:
            model(**batch)
        captures.append(c)
    assert got.loss.item() == pytest.approx(hf.attention_kl(*captures, **options).item(), rel=1e-6)


def test_labels():
    """Shifted here, or by the loader; without labels every real token counts."""
    student, teacher, batch = make("Llama"), make("Llama"), make_batch(labels=True)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    want = hf.distillation_loss(student, teacher, batch, ce=1.0).loss.item()
    shifted = torch.nn.functional.pad(batch["labels"][:, 1:], (0, 1), value=-100)
    got = hf.distillation_loss(student, teacher, {**inputs, "shift_labels": shifted}, ce=1.0).loss.item()
    assert got == pytest.approx(want, rel=1e-6)
    x = [hf.hidden_states(m, inputs) for m in (student, teacher)]
    every = hf.linear_kl(x[0], hf.head(student), x[1], hf.head(teacher), weight=batch["attention_mask"])
    assert hf.distillation_loss(student, teacher, inputs).loss.item() == pytest.approx(every.item(), rel=1e-6)
    nothing = {**batch, "labels": torch.full_like(batch["labels"], -100)}
    got = hf.distillation_loss(student, teacher, nothing, ce=1.0)
    got.loss.backward()
    assert got.loss.item() == 0 and not any(p.grad.any() for p in student.parameters() if p.grad is not None)


def test_errors():
    student, batch = make("Llama"), make_batch()
    with pytest.raises(ValueError, match="ce = 1.0: batch has no labels"):
        hf.distillation_loss(student, student, batch, ce=1.0)
    with pytest.raises(ValueError, match="at least one factor must not be 0"):
        hf.distillation_loss(student, student, batch, kl=0)
    with pytest.raises(ValueError, match="hidden states have no attention"):
        hf.distillation_loss(student, (torch.zeros(4, 11, 32), hf.head(student)), batch, attention=1.0)
    with pytest.raises(TypeError, match="kl = '1'"):
        hf.distillation_loss(student, student, batch, kl="1")
    for name in ("labels", "attention_mask", "temperature"):
        with pytest.raises(
            TypeError, match=f"cannot use {name}=: .* masks and labels are in batch, options in the dicts"
        ):
            hf.distillation_loss(student, student, batch, **{name: 1})
    with pytest.raises(TypeError, match="linear_kl has no such argument"):
        hf.distillation_loss(student, student, batch, kl=dict(temp=2))
    with pytest.raises(ValueError, match="it has no options but its factor"):
        hf.distillation_loss(student, student, {**batch, "labels": batch["input_ids"]}, ce=dict(smoothing=0.1))


def test_adapter_as_student():
    """The base model is the teacher of its own adapter: one model, no second copy."""
    peft = pytest.importorskip("peft", reason="peft is not installed")
    model = peft.get_peft_model(make("Llama"), peft.LoraConfig(target_modules=["q_proj", "lm_head"])).eval()
    batch = make_batch()
    with model.disable_adapter(), torch.no_grad():
        x_t, head_t = hf.hidden_states(model, batch), hf.head(model)
    assert hf.distillation_loss(model, (x_t, head_t), batch).loss.item() == 0  # B begins with zeros
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.normal_()
    got = hf.distillation_loss(model, (x_t, head_t), batch)
    got.loss.backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert got.loss > 1e-2 and all("lora" in name for name in grads) and any("lm_head" in name for name in grads)
