# SPDX-License-Identifier: Apache-2.0
"""streamkl.hf.head and hidden_states: together they are the logits that the model itself returns."""

import copy
import threading

import pytest
import torch

import streamkl
from hf_models import KINDS, VOCABULARY, make, make_batch, transformers
from streamkl import hf


def check(model, batch=None, rtol=1e-5):
    batch = make_batch() if batch is None else batch
    want = model(**batch).logits
    found = hf.head(model)
    got = found.logits(hf.hidden_states(model, {**batch, "labels": batch["input_ids"]}))
    assert got.shape == want.shape and got.shape[-1] == found.columns
    assert want.std() > 0.1
    assert (got - want).abs().max() <= rtol * want.abs().max()
    return found


@pytest.mark.parametrize("tied", (False, True))
@pytest.mark.parametrize("kind", KINDS)
def test_logits(kind, tied):
    found = check(make(kind, tie_word_embeddings=tied))
    assert found.columns == VOCABULARY
    wanted = {"Granite": 1 / 2, "Cohere": 0.25}
    assert found.scale == wanted.get(kind, 1.0) and found.softcap == (2.0 if "Gemma" in kind else None)
    assert (found.bias is not None) == (kind == "Phi")


@pytest.mark.parametrize("kind", ("Bart", "T5", "BertLMHead"))
def test_logits_of_other_families(kind):
    """A bias beside the head, hidden states scaled before it, a head behind a transformation."""
    sizes = dict(vocab_size=VOCABULARY, d_model=32, d_ff=32, d_kv=8, num_heads=4, num_layers=1, pad_token_id=0)
    sides = {
        f"{s}_{n}": v for s in ("encoder", "decoder") for n, v in dict(layers=1, ffn_dim=32, attention_heads=4).items()
    }
    if kind == "Bart":
        model = transformers.BartForConditionalGeneration(transformers.BartConfig(**sizes, **sides))
        model.final_logits_bias.normal_()
    elif kind == "T5":
        model = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, tie_word_embeddings=True))
    else:
        sizes = dict(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, is_decoder=True)
        model = transformers.BertLMHeadModel(transformers.BertConfig(**sizes, intermediate_size=32))
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3)
    batch = make_batch()
    check(model.eval(), batch if kind == "BertLMHead" else {**batch, "decoder_input_ids": batch["input_ids"]})


def test_head_is_the_parameter():
    model = make("Phi")
    found = hf.head(model)
    assert found.weight is model.lm_head.weight and found.bias is model.lm_head.bias


@pytest.mark.parametrize("kind", ("Gemma2", "Granite", "Phi"))
def test_kl_of_two_models(kind):
    """linear_kl of the heads, its gradient too, is what the models' own logits give."""
    student, teacher, batch = make(kind), make("Cohere"), make_batch()
    real = batch["attention_mask"].bool()
    logits = student(**batch).logits.log_softmax(-1), teacher(**batch).logits.log_softmax(-1)
    want = (logits[1].exp() * (logits[1] - logits[0])).sum(-1)[real].mean()
    weight = student.get_output_embeddings().weight
    (slope,) = torch.autograd.grad(want, weight)
    heads = hf.head(student), hf.head(teacher)
    x_s, x_t = (hf.hidden_states(m, batch) for m in (student, teacher))
    for got in (
        hf.linear_kl(x_s, heads[0], x_t, heads[1], weight=real),
        streamkl.linear_kl(**heads[0].student(x_s), **heads[1].teacher(x_t), weight=real),
    ):
        torch.testing.assert_close(got, want.detach(), rtol=1e-5, atol=1e-6)
    got.backward()
    torch.testing.assert_close(weight.grad, slope, rtol=1e-4, atol=1e-6)
    assert all(p.grad is None for p in teacher.parameters())


def test_vocabularies_of_different_sizes():
    student, teacher, batch = make("Llama"), make("Llama", vocab_size=VOCABULARY + 16), make_batch()
    x_s, x_t = (hf.hidden_states(m, batch) for m in (student, teacher))
    got = hf.linear_kl(x_s, hf.head(student), x_t, hf.head(teacher))
    z_s, z_t = student(**batch).logits.log_softmax(-1), teacher(**batch).logits[..., :VOCABULARY].log_softmax(-1)
    torch.testing.assert_close(got, (z_t.exp() * (z_t - z_s)).sum(-1).mean(), rtol=1e-5, atol=1e-6)
    assert hf.linear_kl(x_s, hf.head(student), x_t, hf.head(teacher), columns=50) != got
    assert hf.head(student).first(50).logits(x_s).shape[-1] == 50
    with pytest.raises(ValueError, match="columns = 65: the head has 64"):
        hf.head(student).first(65)
    with pytest.raises(TypeError, match="head_t = 'Parameter': it must be what streamkl.hf.head"):
        hf.linear_kl(x_s, hf.head(student), x_t, hf.head(teacher).weight)


# ---- adapters


def lora(model, **settings):
    peft = pytest.importorskip("peft", reason="peft is not installed")
    settings = {"target_modules": ["q_proj", "lm_head"], **settings}
    model = peft.get_peft_model(model, peft.LoraConfig(r=3, lora_alpha=6, **settings)).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora" in name:
                p.normal_()
    return model


@pytest.mark.parametrize("settings", ({}, {"lora_bias": True}, {"lora_dropout": 0.5}))
def test_lora_on_the_head(settings):
    """Merged, and the gradient of A and B is the one that the model's own logits give."""
    model = lora(make("Gemma2" if not settings else "Llama", tie_word_embeddings=False), **settings)
    check(model)
    layer, batch = model.get_base_model().lm_head, make_batch()
    factors = [layer.lora_A["default"].weight, layer.lora_B["default"].weight]
    want = torch.autograd.grad(model(**batch).logits.logsumexp(-1).sum(), factors)
    x = hf.hidden_states(model, batch)
    got = torch.autograd.grad(hf.head(model).logits(x).logsumexp(-1).sum(), factors)
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_states_of_adapters():
    model = lora(make("Llama"))
    merged = hf.head(model).weight
    with model.disable_adapter():
        assert hf.head(model).weight is model.get_base_model().lm_head.base_layer.weight
        check(model)
    model.merge_adapter()
    torch.testing.assert_close(hf.head(model).weight, merged)
    check(model)
    saved = lora(make("Llama"), target_modules=["q_proj"], modules_to_save=["lm_head"])
    with torch.no_grad():
        hf.head(saved).weight.mul_(2)
    check(saved)


def test_adapters_that_cannot_be_merged():
    model = lora(make("Llama"), lora_dropout=0.5).train()
    with pytest.raises(ValueError, match="lora_dropout = 0.5 on its head"):
        hf.head(model)
    with pytest.raises(ValueError, match="a variant of LoRA"):
        hf.head(lora(make("Llama"), use_dora=True))
    peft = pytest.importorskip("peft")
    loha = peft.get_peft_model(make("Llama"), peft.LoHaConfig(r=2, target_modules=["lm_head"]))
    with pytest.raises(ValueError, match="that is not LoRA"):
        hf.head(loha)


def test_prompt_tuning():
    """The head sees the virtual tokens too, as it does in the model's own logits."""
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(make("Llama"), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
    check(model.eval())


# ---- what is handed over


@pytest.mark.parametrize("thing", ("tokenizer", 3, None, torch.nn.Linear(2, 2), torch.nn.Linear))
@pytest.mark.parametrize("call", (hf.head, lambda m: hf.hidden_states(m, {})))
def test_no_model(thing, call):
    with pytest.raises(TypeError, match="cannot use model = .*: it must be a model of transformers"):
        call(thing)


def test_no_head():
    for model in (make("Llama").model, transformers.BertModel(transformers.BertConfig(**small_bert()))):
        with pytest.raises(
            ValueError, match="Model': it has no head that gives logits: load it with AutoModelForCausal"
        ):
            hf.head(model)
        with pytest.raises(ValueError, match="it has no head that gives logits"):
            hf.hidden_states(model, make_batch())


def small_bert():
    return dict(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)


def test_no_batch():
    with pytest.raises(TypeError, match="batch = 'Tensor': it must be a dict"):
        hf.hidden_states(make("Llama"), torch.ones(1, 2, dtype=torch.long))


def test_quantised_heads():
    class Int8(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(VOCABULARY, 32, dtype=torch.int8), requires_grad=False)

    class Packed(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x)

    for quantised in (Int8(), Packed(32, VOCABULARY), torch.nn.Linear(32, 8).to(torch.float8_e4m3fn)):
        model = make("Llama")
        model.set_output_embeddings(quantised)
        with pytest.raises(ValueError, match="LlamaForCausalLM': its head .* leave lm_head out of the quantisation"):
            hf.head(model)


def test_unknown_scale():
    """A model that does something else to its logits is refused, and not answered wrongly."""

    class Other(transformers.LlamaForCausalLM):
        logits_temperature_scale = 3.0

        def forward(self, **inputs):
            made = super().forward(**inputs)
            made.logits = made.logits * self.logits_temperature_scale
            return made

    with pytest.raises(ValueError, match="its forward uses logits_temperature_scale"):
        hf.head(Other(make("Llama").config))


class Cap(torch.nn.Module):
    def __init__(self, **numbers):
        super().__init__()
        vars(self).update(numbers)

    def forward(self, z):
        return self.softcap * torch.tanh(z / self.softcap)


def test_a_module_that_caps():
    """As Inkling has it. A module of which one cannot tell the number is refused."""

    class Capped(transformers.LlamaForCausalLM):
        def forward(self, **inputs):
            made = super().forward(**inputs)
            made.logits = self.logit_softcap(made.logits)
            return made

    model = make("Llama")
    model.__class__ = Capped
    model.logit_softcap = Cap(softcap=1.5)
    assert check(model).softcap == 1.5
    model.logit_softcap = Cap(softcap=1.5, other=2.0)
    with pytest.raises(ValueError, match="its forward calls logit_softcap, a Cap that streamkl does not know"):
        hf.head(model)


# ---- the model stays as it was


def test_exception_in_the_model():
    model = make("Llama")
    with pytest.raises(IndexError):
        hf.hidden_states(model, {"input_ids": torch.full((1, 3), VOCABULARY)})
    assert "forward" not in vars(model.lm_head)
    check(copy.deepcopy(model))


def test_threads():
    """While one thread takes hidden states, others use the same model for logits or for hidden states."""
    model, batches = make("Llama"), [make_batch() for _ in range(8)]
    with torch.no_grad():
        want = [model(**b).logits for b in batches]
        states = [hf.hidden_states(model, b) for b in batches]
    wrong = []

    def work(turn):
        with torch.no_grad():
            for i in range(40):
                k = (i + turn) % len(batches)
                if turn % 2:
                    got, right = model(**batches[k]).logits, want[k]
                else:
                    got, right = hf.hidden_states(model, batches[k]), states[k]
                if got.shape != right.shape or not torch.allclose(got, right, atol=1e-5):
                    wrong.append((turn, i))

    threads = [threading.Thread(target=work, args=(turn,)) for turn in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and "forward" not in vars(model.lm_head)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_half(dtype):
    model = make("Gemma2").to(dtype)
    found = check(model, rtol=2e-2)
    assert found.weight.dtype == dtype and hf.hidden_states(model, make_batch()).dtype == dtype


def test_meta():
    model = make("Granite").to("meta")
    x = hf.hidden_states(model, {name: t.to("meta") for name, t in make_batch().items()})
    assert x.is_meta and hf.head(model).weight.is_meta and hf.head(model).scale == 1 / 2
    assert hf.linear_kl(x, hf.head(model), x, hf.head(model)).shape == ()


def test_compile():
    """Compiled once for logits and once for hidden states, not anew for each call."""
    model, batch = make("Llama", "sdpa", num_hidden_layers=1), {"input_ids": make_batch()["input_ids"]}
    want = model(**batch).logits
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for _ in range(2):
        compiled(**batch, use_cache=False)
        with torch.compiler.set_stance("eager_on_recompile") if _ else torch.no_grad():
            x = hf.hidden_states(compiled, batch)
        torch.testing.assert_close(hf.head(compiled).logits(x), want, rtol=1e-5, atol=1e-5)
