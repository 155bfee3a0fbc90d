# SPDX-License-Identifier: Apache-2.0
"""streamkl.hf.capture and attention_kl against the attentions that models report themselves."""

import threading

import pytest
import torch

import streamkl
from hf_models import KINDS, make, make_batch, transformers
from streamkl import hf
from streamkl.hf import masks
from streamkl.hf.attention import layer_pairs


def maps_of(model, batch):
    with torch.no_grad():
        return [m.double() for m in model(**batch, output_attentions=True, use_cache=False).attentions]


def eager_kl(maps_s, maps_t, real, pairs=None):
    """The mean over layers of the mean over heads and real queries, from stored distributions."""
    pairs = pairs or [(i, i) for i in range(len(maps_s))]
    rows = [maps_t[j] * (maps_t[j].clamp_min(1e-300) / maps_s[i].clamp_min(1e-300)).log() for i, j in pairs]
    return sum(r.sum(-1).transpose(1, 2)[real.bool()].mean() for r in rows) / len(rows)


def captured(model, batch):
    with hf.capture(model) as c:
        model(**batch, use_cache=False)
    return c


def check(student, teacher, batch, real=None, **more):
    real = batch["attention_mask"] if real is None else real
    implementations = [m.config._attn_implementation for m in (student, teacher)]
    got = hf.attention_kl(captured(student, batch), captured(teacher, batch), **more)
    for model in (student, teacher):
        model.set_attn_implementation("eager")
    want = eager_kl(maps_of(student, batch), maps_of(teacher, batch), real)
    for model, implementation in zip((student, teacher), implementations):
        model.set_attn_implementation(implementation)
    assert want > 1e-2 and abs(got.item() - want.item()) <= 1e-6 * max(1, want.item()), (got.item(), want.item())


@pytest.mark.parametrize("kind", KINDS)
def test_attention(kind):
    student, teacher = make(kind), make(kind)
    for left in (False, True):
        check(student, teacher, make_batch(left=left))


def test_four_lines():
    """Two models like Qwen3 and a padded batch, as the documents have it."""
    student, teacher, batch = make("Qwen3", "sdpa"), make("Qwen3", "sdpa", hidden_size=48), make_batch()
    with torch.no_grad(), hf.capture(teacher) as t:
        teacher(**batch)
    with hf.capture(student) as s:
        student(**batch)
    got = hf.attention_kl(s, t)
    for model in (student, teacher):
        model.set_attn_implementation("eager")
    want = eager_kl(maps_of(student, batch), maps_of(teacher, batch), batch["attention_mask"])
    assert want > 1e-2 and abs(got.item() - want.item()) <= 1e-6 * max(1, want.item())
    got.backward()
    assert all(p.grad is None for p in teacher.parameters())
    q = [layer.self_attn.q_proj.weight for layer in student.model.layers]
    batch = {name: t.clone() for name, t in batch.items()}
    out = [student(**batch, output_attentions=True).attentions, maps_of(teacher, batch)]
    slopes = torch.autograd.grad(eager_kl(*out, batch["attention_mask"]), q)
    for weight, slope in zip(q, slopes):
        assert slope.abs().max() > 1e-4
        torch.testing.assert_close(weight.grad, slope, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", ("Llama", "Gemma3Text"))
@pytest.mark.parametrize("left", (False, True))
def test_sdpa(kind, left):
    check(make(kind, "sdpa"), make(kind, "eager"), make_batch(left=left))


@pytest.mark.long  # it is compiled by a C++ compiler
@pytest.mark.parametrize("kind", ("Llama", "Gemma3Text"))
def test_flex(kind):
    """Its masks are rules and no tensors. On the CPU it has no gradient."""
    with torch.no_grad():
        check(make(kind, "flex_attention"), make(kind, "eager"), make_batch(left=True))


def test_masks_of_flex(monkeypatch):
    """Evaluated in blocks of rows, they are what the same rule is as a tensor."""
    from torch.nn.attention.flex_attention import create_block_mask, create_mask

    monkeypatch.setattr(masks, "_ROWS_AT_ONCE", 2 * 11 * 3)
    first = torch.tensor([0, 4])

    def rule(b, h, q, k):
        return (k <= q) & (k > q - 5) & (k >= first[b])

    block, full = create_block_mask(rule, 2, None, 11, 11, device="cpu"), create_mask(rule, 2, 1, 11, 11, device="cpu")
    given = masks.Mask(block, True, False, None, None)
    got, want = (masks.ranges(g, 11, 11, torch.device("cpu")) for g in (given, given._replace(mask=full)))
    assert all(torch.equal(a, b) for a, b in zip(got, want)) and not got.real[1, 0, 3] and got.begin[1, 0, 10] == 6


def test_no_mask():
    """sdpa is told nothing but 'causal' then."""
    batch = {"input_ids": make_batch()["input_ids"]}
    check(make("Llama", "sdpa"), make("Llama"), batch, real=torch.ones(4, 11))


@pytest.mark.parametrize("implementation", ("eager", "sdpa"))
@pytest.mark.parametrize("kind", ("Llama", "Gemma2"))
def test_packed(implementation, kind):
    if kind == "Gemma2" and implementation == "sdpa":
        pytest.skip("sdpa knows no softcap")
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3], [0, 1, 0, 1, 2, 3, 4, 5, 0, 1, 2]])
    batch = {"input_ids": torch.randint(3, 64, (2, 11)), "position_ids": positions}
    student, teacher = make(kind, implementation), make(kind, implementation)
    check(student, teacher, batch, real=torch.ones(2, 11))
    begin = captured(student, batch)[1].begin.expand(2, 1, 11)[:, 0]
    assert begin.tolist() == [[0] * 7 + [7] * 4, [0, 0, 2, 2, 2, 2, 2, 2, 8, 8, 8]]


class TestFlash:
    """No flash attention runs here: what transformers hands to one is enough to tell the ranges."""

    @pytest.fixture(autouse=True)
    def register(self):
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import flash_attention_mask

        def stand_in(module, query, key, value, attention_mask, **kw):
            return value.repeat_interleave(query.shape[1] // value.shape[1], 1).transpose(1, 2), None

        AttentionInterface.register("fake_flash", stand_in)
        AttentionMaskInterface.register("fake_flash", flash_attention_mask)
        yield
        del AttentionInterface._global_mapping["fake_flash"], AttentionMaskInterface._global_mapping["fake_flash"]

    @pytest.mark.parametrize("kind", ("Llama", "Gemma3Text"))
    @pytest.mark.parametrize("batch", ("left", "right", "none"))
    def test_ranges(self, kind, batch):
        batch = make_batch(left=batch == "left", padding=(0, 0) if batch == "none" else (0, 3, 5))
        model = make(kind)
        want = captured(model, batch)
        model.config._attn_implementation = "fake_flash"  # the setter would look for a kernel of that name
        got = captured(model, batch)
        for a, b in zip(got, want):
            real = torch.broadcast_to(b.real, (len(batch["input_ids"]), 1, 11))
            assert torch.equal(a.real.expand_as(real), real)
            for x, y in ((a.begin, b.begin), (a.end, b.end)):
                assert torch.equal(x.expand_as(real)[real], y.expand_as(real)[real])


def test_what_is_captured():
    model, batch = make("Gemma2"), make_batch()
    c = captured(model, batch)
    assert len(c) == 2 and [layer.window for layer in c] == [4, None] and c[-1] is c.layers[1]
    layer = c[0]
    assert layer.q.shape == (4, 4, 11, 8) and layer.k.shape == (4, 2, 11, 8)  # grouped heads as they are
    assert layer.softcap == 3.0 and layer.scale == pytest.approx(3**-0.5) and layer.name == "model.layers.0.self_attn"
    assert layer.begin.shape == layer.end.shape == layer.real.shape == (4, 1, 11)
    assert layer.end[0, 0].tolist() == list(range(1, 12)) and layer.begin[0, 0].tolist() == [0, 0, 0, *range(8)]
    assert torch.equal(layer.real[:, 0], batch["attention_mask"].bool())
    assert layer.q.requires_grad and layer.k.requires_grad and "window=4" in repr(layer)


# ---- layers and heads


def test_layers():
    batch = make_batch()
    student, teacher = make("Llama"), make("Llama", num_hidden_layers=4)
    s, t = captured(student, batch), captured(teacher, batch)
    maps_s, maps_t = maps_of(student, batch), maps_of(teacher, batch)
    for layers, pairs in (
        ("uniform", [(0, 1), (1, 3)]),
        ({0: 2, -1: 0}, [(0, 2), (1, 0)]),
        ([(0, 0), (0, 3)], [(0, 0), (0, 3)]),
    ):
        want = eager_kl(maps_s, maps_t, batch["attention_mask"], pairs).item()
        assert hf.attention_kl(s, t, layers=layers).item() == pytest.approx(want, rel=1e-5)
    assert layer_pairs("uniform", 3, 3) == [(0, 0), (1, 1), (2, 2)]
    assert layer_pairs("uniform", 12, 24)[0] == (0, 1) and layer_pairs("uniform", 12, 24)[-1] == (11, 23)
    assert layer_pairs("uniform", 4, 2) == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert layer_pairs("uniform", 2, 3) == [(0, 1), (1, 2)]
    for wrong in ({2: 0}, {0: 4}, {0: -5}):
        with pytest.raises(ValueError, match="the student has 2 layers, the teacher 4"):
            hf.attention_kl(s, t, layers=wrong)
    for wrong in ("all", 3, {"a": 1}, [0, 1]):
        with pytest.raises((TypeError, ValueError), match="it must be 'uniform', or pairs of"):
            hf.attention_kl(s, t, layers=wrong)
    with pytest.raises(ValueError, match="nothing to compare"):
        hf.attention_kl(s, t, layers={})


@pytest.mark.parametrize("fewer", ("student", "teacher"))
def test_heads(fewer):
    batch = make_batch()
    models = [make("Llama", num_attention_heads=4 if fewer == side else 8) for side in ("student", "teacher")]
    s, t = (captured(m, batch) for m in models)
    with pytest.raises(ValueError, match="heads = 'same': the student has . and the teacher .: heads='grouped'"):
        hf.attention_kl(s, t)
    all_maps = [maps_of(m, batch) for m in models]
    wide = [[m.repeat_interleave(8 // m.shape[1], 1) for m in side] for side in all_maps]
    want = eager_kl(*wide, batch["attention_mask"]).item()
    assert hf.attention_kl(s, t, heads="grouped").item() == pytest.approx(want, rel=1e-5)
    chosen = [[m[:, heads] for m in side] for side, heads in zip(all_maps, ([0, 3, 3], [2, 1, 0]))]
    want = eager_kl(*chosen, batch["attention_mask"]).item()
    assert hf.attention_kl(s, t, heads=[(0, 2), (3, 1), (3, 0)]).item() == pytest.approx(want, rel=1e-5)
    with pytest.raises(ValueError, match="it must be 'same', 'grouped', or pairs"):
        hf.attention_kl(s, t, heads="mean")


def test_heads_that_fit_no_group():
    batch = make_batch()
    s, t = captured(make("Llama"), batch), captured(make("Llama", num_attention_heads=6, hidden_size=48), batch)
    with pytest.raises(ValueError, match="4 and 6 do not divide each other"):
        hf.attention_kl(s, t, heads="grouped")


def test_options():
    batch = make_batch()
    s, t = captured(make("Llama"), batch), captured(make("Llama"), batch)
    half = torch.zeros(4, 11)
    half[:, 2:5] = 1
    plain = streamkl.attention_kl(
        s[0].q, s[0].k, t[0].q, t[0].k, causal=True, weight=half * batch["attention_mask"], divergence="reverse"
    )
    got = hf.attention_kl(s, t, layers={0: 0}, weight=half, divergence="reverse")
    assert got.item() == pytest.approx(plain.item(), rel=1e-6)
    for wrong, why in (("causal", "what the layers say"), ("scale_s", "what the layers say"), ("reduction", "a mean")):
        with pytest.raises(TypeError, match=f"{wrong} = 1: .*{why}"):
            hf.attention_kl(s, t, **{wrong: 1})
    with pytest.raises(TypeError, match="no such argument"):
        hf.attention_kl(s, t, nonsense=1)


def test_what_has_no_meaning():
    batch = make_batch()
    wide, narrow = captured(make("Llama"), batch), captured(make("Mistral"), batch)
    with pytest.raises(ValueError, match=r"see other keys than .*windows None and 4\): pair other layers"):
        hf.attention_kl(wide, narrow)
    shorter = captured(make("Llama"), make_batch(length=9))
    with pytest.raises(ValueError, match=r"\(batch, queries, keys\) must be those of the student's layer"):
        hf.attention_kl(wide, shorter)
    other = captured(make("Llama"), make_batch(left=True))
    with pytest.raises(ValueError, match="see other keys"):
        hf.attention_kl(wide, other)


# ---- sinks


def make_gpt_oss(**settings):
    model = make("GptOss", num_local_experts=2, num_experts_per_tok=1, sliding_window=4, **settings)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.sinks.normal_()
    return model


def with_sinks(maps):
    """The mass that a row lacks to 1 is the sink's."""
    return [torch.cat([m, (1 - m.sum(-1, keepdim=True)).clamp_min(0)], -1) for m in maps]


@pytest.mark.parametrize("left", (False, True))
def test_sinks(left):
    """Sliding and full layers of models like gpt-oss, whose attentions sum to less than 1."""
    student, teacher, batch = make_gpt_oss(), make_gpt_oss(hidden_size=48), make_batch(left=left)
    s, t = captured(student, batch), captured(teacher, batch)
    assert s[0].sink.shape == (4,) and "with sinks" in repr(s[0]) and [layer.window for layer in s] == [4, None]
    maps = [maps_of(m, batch) for m in (student, teacher)]
    real = batch["attention_mask"]
    got, want = hf.attention_kl(s, t), eager_kl(*[with_sinks(m) for m in maps], real)
    assert want > 1e-2 and abs(got.item() - want.item()) <= 2e-6 * max(1, want.item())
    keys = [[m / m.sum(-1, keepdim=True).clamp_min(1e-300) for m in side] for side in maps]
    want = eager_kl(*keys, real).item()
    assert hf.attention_kl(s, t, sink="conditional").item() == pytest.approx(want, rel=1e-5)


def test_gradients_of_sinks():
    student, teacher, batch = make_gpt_oss(), make_gpt_oss(), make_batch()
    own = [layer.self_attn.sinks for layer in student.model.layers]
    hf.attention_kl(captured(student, batch), captured(teacher, batch)).backward()
    out = student(**batch, output_attentions=True, use_cache=False).attentions
    want = torch.autograd.grad(
        eager_kl(with_sinks([m.double() for m in out]), with_sinks(maps_of(teacher, batch)), batch["attention_mask"]),
        own,
    )
    for sink, slope in zip(own, want):
        assert slope.abs().max() > 1e-4
        torch.testing.assert_close(sink.grad, slope, rtol=1e-3, atol=1e-5)
    assert all(p.grad is None for p in teacher.parameters())


def test_sinks_of_matched_heads():
    batch = make_batch()
    models = make_gpt_oss(), make_gpt_oss(num_attention_heads=8)
    s, t = (captured(m, batch) for m in models)
    maps = [with_sinks(maps_of(m, batch)) for m in models]
    wide = [[m.repeat_interleave(8 // m.shape[1], 1) for m in side] for side in maps]
    want = eager_kl(*wide, batch["attention_mask"]).item()
    assert hf.attention_kl(s, t, heads="grouped").item() == pytest.approx(want, rel=1e-5)
    chosen = [[m[:, heads] for m in side] for side, heads in zip(maps, ([3, 0], [1, 6]))]
    want = eager_kl(*chosen, batch["attention_mask"]).item()
    assert hf.attention_kl(s, t, heads={3: 1, 0: 6}).item() == pytest.approx(want, rel=1e-5)


def test_sinks_of_one_side():
    batch = make_batch()
    layers = dict(num_hidden_layers=1, layer_types=["full_attention"])
    models = make_gpt_oss(**layers), make("Qwen3", num_hidden_layers=1)
    s, t = (captured(m, batch) for m in models)
    assert t[0].sink is None
    with pytest.raises(ValueError, match="only sink_s is given, .*sink='conditional'"):
        hf.attention_kl(s, t)
    maps = [maps_of(m, batch) for m in models]
    want = eager_kl([m / m.sum(-1, keepdim=True) for m in maps[0]], maps[1], batch["attention_mask"]).item()
    assert hf.attention_kl(s, t, sink="conditional").item() == pytest.approx(want, rel=1e-5)
    assert hf.attention_kl(t, t, sink="conditional").item() == 0  # nothing to leave out
    with pytest.raises(TypeError, match="sink_s = 1: it is what the layers say"):
        hf.attention_kl(s, t, sink_s=1)
    with pytest.raises(TypeError, match="details = 'kl': the result is a mean"):
        hf.attention_kl(s, t, details="kl")


@pytest.mark.parametrize("mask, why", (("gap", "has gaps"), ("bias", "adds numbers to the logits")))
def test_masks_that_are_no_ranges(mask, why):
    model = make("Llama")
    full = torch.zeros(1, 1, 5, 5).masked_fill(torch.ones(5, 5).triu(1).bool(), torch.finfo(torch.float32).min)
    full[0, 0, 4, 2] = torch.finfo(torch.float32).min if mask == "gap" else -0.5
    c = captured(model, {"input_ids": torch.randint(3, 64, (1, 5)), "attention_mask": full})
    with pytest.raises(ValueError, match=f"cannot use layer model.layers.0.self_attn: .*{why}"):
        hf.attention_kl(c, c)


# ---- the model stays as it was


def state(model):
    from transformers import AttentionInterface

    tapped = [name for name, m in model.named_modules() if "forward" in vars(m) or "_streamkl_tap" in vars(m)]
    return tapped, AttentionInterface.get_interface.__module__


def test_restored():
    model, batch = make("Llama"), make_batch()
    clean = ([], "transformers.modeling_utils")
    captured(model, batch)
    assert state(model) == clean
    with pytest.raises(KeyError, match="mine"), hf.capture(model):
        model(**batch)
        assert state(model) != clean
        raise KeyError("mine")
    assert state(model) == clean
    with pytest.raises(IndexError), hf.capture(model):
        model(input_ids=torch.full((1, 2), 10**6))
    assert state(model) == clean


def test_nothing_captured():
    model = make("Llama")
    with hf.capture(model) as c:
        pass
    for look in (len, list, lambda c: c[0], lambda c: hf.attention_kl(c, c)):
        with pytest.raises(RuntimeError, match="no attention of LlamaForCausalLM was captured: call the model"):
            look(c)
    assert "0 layers" in repr(c)
    with pytest.raises(ValueError, match="BloomForCausalLM': its attention does not go through"):
        hf.capture(
            transformers.BloomForCausalLM(transformers.BloomConfig(vocab_size=8, hidden_size=8, n_layer=1, n_head=1))
        )
    for wrong in ("a tokenizer", None, torch.nn.Linear(2, 2)):
        with pytest.raises(TypeError, match="it must be a model of transformers"):
            hf.capture(wrong)


def test_nested():
    """The inner one has its own calls, the outer one the last of all."""
    model, batches = make("Llama"), [make_batch() for _ in range(3)]
    q = [captured(model, b)[0].q for b in batches]
    with hf.capture(model) as outer:
        model(**batches[0])
        with hf.capture(model) as inner:
            assert "0 layers" in repr(inner)
            model(**batches[1])
        assert torch.equal(outer[0].q, q[0]) and torch.equal(inner[0].q, q[1])
        model(**batches[2])
        with pytest.raises(RuntimeError, match="open already"):
            outer.__enter__()
    assert torch.equal(outer[0].q, q[2]) and torch.equal(inner[0].q, q[1])
    assert state(model) == ([], "transformers.modeling_utils")
    with outer:  # may be used again
        model(**batches[1])
    assert torch.equal(outer[0].q, q[1])


def test_two_models_at_once():
    student, teacher, batch = make("Llama"), make("Llama"), make_batch()
    with hf.capture(student) as s, hf.capture(teacher) as t:
        student(**batch)
        teacher(**batch)
    assert torch.equal(s[0].q, captured(student, batch)[0].q) and torch.equal(t[0].q, captured(teacher, batch)[0].q)
    hf.attention_kl(s, t).backward()  # the teacher is fixed also where it was run with a graph
    assert t[0].q.requires_grad and all(p.grad is None for p in teacher.parameters())


def test_threads():
    """Of one model and of several: each thread has its own calls, and a thread without a capture disturbs nobody."""
    models, batches = [make("Llama"), make("Llama")], [make_batch() for _ in range(6)]
    want = [[captured(m, b)[1].q.detach() for b in batches] for m in models]
    wrong = []

    def work(turn):
        with torch.no_grad():
            for i in range(25):
                which, k = turn % 2, (i * (turn + 1)) % len(batches)
                if turn < 4:
                    got = captured(models[which], batches[k])[1].q
                    if not torch.allclose(got, want[which][k], atol=1e-5):
                        wrong.append((turn, i))
                else:
                    models[which](**batches[k])

    threads = [threading.Thread(target=work, args=(turn,)) for turn in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and all(state(m) == ([], "transformers.modeling_utils") for m in models)


# ---- checkpoints, compile, dtypes, wrappers


def slopes_of(model, batch, fixed):
    model.zero_grad()
    hf.attention_kl(captured(model, batch), fixed).backward()
    return model.model.layers[0].self_attn.q_proj.weight.grad.clone()


def test_checkpoints():
    model, batch = make("Llama").train(), make_batch()
    fixed = captured(make("Llama"), batch)
    want = slopes_of(model, batch, fixed)
    model.gradient_checkpointing_enable()
    torch.testing.assert_close(slopes_of(model, batch, fixed), want)
    with hf.capture(model) as c:  # backward while it is open: what is recomputed does not take the place
        model(**batch, use_cache=False)
        q = c[0].q
        hf.attention_kl(c, fixed).backward()
        assert c[0].q is q
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    with pytest.raises(ValueError, match="use_reentrant = True: q and k have no graph there"):
        captured(model, batch)
    with torch.no_grad():
        assert len(captured(model, batch)) == 2


@pytest.mark.parametrize(
    "kind, implementation", (("Llama", "sdpa"), pytest.param("Gemma2", "eager", marks=pytest.mark.long))
)
def test_compile(kind, implementation):
    """A model that was compiled before, or is compiled inside of a capture; each is done once."""
    model, batch = make(kind, implementation, num_hidden_layers=1), make_batch()
    fixed = captured(make(kind, implementation, num_hidden_layers=1), batch)
    want = slopes_of(model, batch, fixed)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    compiled(**batch, use_cache=False)
    for turn in range(3):
        torch.compiler.set_stance("fail_on_recompile" if turn else "default")
        try:
            model.zero_grad()
            hf.attention_kl(captured(compiled, batch), fixed).backward()
            if turn:
                compiled(**batch, use_cache=False)
        finally:
            torch.compiler.set_stance("default")
        torch.testing.assert_close(model.model.layers[0].self_attn.q_proj.weight.grad, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_half(dtype):
    student, teacher, batch = make("Gemma2"), make("Gemma2"), make_batch(left=True)
    want = hf.attention_kl(captured(student, batch), captured(teacher, batch)).item()
    got = hf.attention_kl(captured(student.to(dtype), batch), captured(teacher.to(dtype), batch))
    assert got.dtype == torch.float32 and got.item() == pytest.approx(want, rel=0.1)


def test_base_models_and_adapters():
    """No head is needed; an encoder's queries see what comes after them too."""
    batch = make_batch()
    sizes = dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32)
    models = [transformers.BertModel(transformers.BertConfig(**sizes), add_pooling_layer=False).eval() for _ in "st"]
    for model in models:
        model.set_attn_implementation("eager")
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(6)
    with torch.no_grad():
        got = []
        for model in models:
            with hf.capture(model) as c:
                model(**batch)
            got.append(c)
        want = eager_kl(
            *[[m.double() for m in model(**batch, output_attentions=True).attentions] for model in models],
            batch["attention_mask"],
        )
    assert got[0][0].end[1].max() == 8 and want > 1e-2
    assert hf.attention_kl(*got).item() == pytest.approx(want.item(), rel=1e-5)
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(make("Llama"), peft.LoraConfig(target_modules=["q_proj"]))
    q = captured(model, batch)[0].q
    assert torch.equal(captured(torch.nn.DataParallel(model), batch)[0].q, q)
    q.sum().backward()
    assert any(p.grad is not None for n, p in model.named_parameters() if "lora_B" in n)


def test_meta():
    model = make("Llama", "sdpa").to("meta")
    with hf.capture(model) as c:
        model(input_ids=torch.ones(2, 5, dtype=torch.long, device="meta"))
    assert c[0].q.is_meta and c[0].q.shape == (2, 4, 5, 8)
