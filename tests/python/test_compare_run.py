# SPDX-License-Identifier: Apache-2.0
"""streamkl compare from folders to reports: numbers against the models' own logits, files, and everything refused."""

import argparse
import csv
import json
import pathlib
import shutil

import numpy as np
import pytest
import torch

import compare_models
import documents

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("tokenizers", reason="tokenizers is not installed")

import streamkl  # noqa: E402
import streamkl.compare  # noqa: E402
from streamkl.compare import cli, models, windows  # noqa: E402
from streamkl.compare import run as running  # noqa: E402

QUICK = dict(floor=0, attention=0, resamples=50)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return compare_models.family(tmp_path_factory.mktemp("models"), steps=25)


@pytest.fixture(scope="module")
def report(root):
    """One with everything in it."""
    others = (root / "other", f"{root}/reference:bf16", f"{root}/reference:int4")
    return streamkl.compare(
        root / "reference", *others, text=root / "text.txt", window=64, limit=1500, floor=400, resamples=200
    )


def rewritten(root, to, change):
    """A copy of the reference whose weights were changed."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(root / "reference")
    with torch.no_grad():
        change(model)
    model.save_pretrained(to)
    for file in (root / "reference").glob("tokenizer*"):
        shutil.copy(file, to)
    return to


def test_numbers_are_those_of_the_models_logits(root, report):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    words = AutoTokenizer.from_pretrained(root / "reference")
    ids = torch.tensor(words((root / "text.txt").read_text(), add_special_tokens=False)["input_ids"])
    ids = ids[: 24 * 64].reshape(24, 64)
    with torch.no_grad():
        logits = [
            AutoModelForCausalLM.from_pretrained(root / name)(ids).logits.double() for name in ("reference", "other")
        ]
    lp, lq = (z[:, :-1].log_softmax(-1) for z in logits)
    labels = ids[:, 1:, None]
    kl = (lp.exp() * (lp - lq)).sum(-1)
    found = report["other"]
    assert found["tokens"] == 24 * 63 == report.data["text"]["scored"] and found["sequences"] == 24
    metrics = {key: stat["value"] for key, stat in found["metrics"].items()}
    assert metrics["mean_kld"] == pytest.approx(kl.mean().item(), rel=1e-4)
    assert metrics["p99_kld"] == pytest.approx(np.quantile(kl.numpy(), 0.99), rel=1e-3)
    assert metrics["mean_ppl_base"] == pytest.approx(lp.gather(-1, labels).mean().neg().exp().item(), rel=1e-5)
    assert metrics["same_top_p"] == pytest.approx((lp.argmax(-1) == lq.argmax(-1)).double().mean().item(), abs=2e-3)
    tokens = report.tokens["other"]
    np.testing.assert_allclose(tokens.rows["kl"], kl.flatten().numpy(), rtol=1e-3, atol=1e-6)
    worst = found["worst"][0]
    assert worst["kld"] == pytest.approx(kl.max().item(), rel=1e-3)
    row = int(kl.argmax())
    assert (worst["sequence"], worst["position"]) == (row // 63, row % 63 + 1)
    top = lp.flatten(0, 1)[row].exp().topk(5)
    assert [e["id"] for e in worst["top_reference"]] == top.indices.tolist()
    assert [e["p"] for e in worst["top_reference"]] == pytest.approx(top.values.tolist(), rel=1e-4)
    assert worst["token"] == words.decode([ids.reshape(24, 64)[row // 63, row % 63 + 1]])


def test_attention_is_that_of_the_models(root, report):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    words = AutoTokenizer.from_pretrained(root / "reference")
    ids = torch.tensor(words((root / "text.txt").read_text(), add_special_tokens=False)["input_ids"])[:128].reshape(
        2, 64
    )
    maps = []
    for name in ("reference", "other"):
        model = AutoModelForCausalLM.from_pretrained(root / name, attn_implementation="eager")
        with torch.no_grad():
            maps.append(torch.stack(model(ids, output_attentions=True).attentions).double())  # [layers, B, H, N, M]
    p, q = maps
    kl = torch.where(p > 0, p * (p / q.clamp_min(1e-300)).log(), 0).sum(-1).mean((1, 3))
    found = report["other"]["attention"]
    assert found["windows"] == 2 and found["layers"] == 3
    np.testing.assert_allclose(found["kl"], kl.numpy(), rtol=1e-3)
    np.testing.assert_allclose(found["sink_reference"], p[..., 1:, 0].mean((1, 2, 3)).numpy(), rtol=1e-3)
    worst = found["worst"][0]
    assert divmod(int(kl.argmax()), 4) == (worst["layer"], worst["head"])


def test_floor_and_order(report):
    """bf16 has a floor, which is its own drift; f32 run again has none; four bits move more than a rounding to bf16."""
    bf16, int4 = report["reference:bf16"], report["reference:int4"]
    assert bf16["floor"]["dtype"] == "bfloat16" and bf16["floor"]["mean_kld"] > 0
    assert bf16["verdict"]["grade"] == "same"
    assert int4["floor"]["dtype"] == "float32" and int4["floor"]["max_kld"] < 1e-6
    assert int4["metrics"]["mean_kld"]["value"] > 10 * bf16["metrics"]["mean_kld"]["value"]
    pair = next(p for p in report.data["pairs"] if {p["a"], p["b"]} == {"reference:bf16", "reference:int4"})
    assert pair["a"] == "reference:bf16" and pair["verdict"] == "better"
    assert pair["difference"]["high"] < 0


def test_json_keeps_its_schema(report):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((pathlib.Path(streamkl.compare.__file__).parent / "schema.json").read_text())
    data = json.loads(report.json())
    jsonschema.validate(data, schema)
    assert (data["schema"], data["version"]) == ("streamkl.compare", 1)
    del data["candidates"][0]["metrics"]["mean_kld"]["error"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, schema)


def test_text_and_markdown(report):
    text, marked = report.text(), report.markdown()
    at = -1
    for name in (
        "Mean PPL(Q)",
        "Cor(ln(PPL(Q))",
        "Mean    KLD",
        "99.9%   KLD",
        "Minimum KLD",
        "Mean    Δp",
        "Same top p",
    ):
        assert text.index(name) > at, name  # in the order of llama.cpp
        at = text.index(name)
    for c in report.data["candidates"]:
        assert c["verdict"]["headline"] in text and f"## {c['name']}" in marked
    assert "Between candidates" in text and "\N{MINUS SIGN}" not in text
    assert repr(report).startswith("<streamkl report: ")


def test_files_and_gate(root, tmp_path, capsys):
    files = {kind: tmp_path / f"r.{kind}" for kind in ("html", "json", "csv", "md")}
    base = [str(root / "reference"), f"{root}/reference:int4", "--text", str(root / "text.txt"), "--window", "64"]
    base += ["--limit", "300", "--floor", "0", "--attention", "0", "--quiet"]
    wanted = ["--html", files["html"], "--json", files["json"], "--csv", files["csv"], "--markdown", files["md"]]
    assert cli.run([*base, *map(str, wanted), "--fail-if", "mean_kld>5", "--fail-if", "same_top_p<10%"]) == 0
    assert all(path.stat().st_size > 500 for path in files.values())
    data = json.loads(files["json"].read_text())
    rows = list(csv.DictReader(files["csv"].open()))
    assert len(rows) == data["candidates"][0]["tokens"] == 5 * 63
    mean = data["candidates"][0]["metrics"]["mean_kld"]["value"]
    assert np.mean([float(row["kl"]) for row in rows]) == pytest.approx(mean, rel=1e-6)
    assert capsys.readouterr().out.strip() == data["candidates"][0]["verdict"]["headline"]
    assert cli.run([*base, "--fail-if", f"mean_kld>{mean / 2}"]) == cli.FAILED
    assert "reference:int4 fails mean_kld>" in capsys.readouterr().err
    assert cli.run([*base, "--html", str(tmp_path / "no" / "r.html")]) == cli.UNUSABLE
    assert "there is no such folder" in capsys.readouterr().err
    assert cli.run([*base, "--csv", str(tmp_path)]) == cli.UNUSABLE
    assert "it is a folder, and must be a file" in capsys.readouterr().err
    assert cli.unwritable(tmp_path / "new.html") == "" and not (tmp_path / "new.html").exists()
    before = files["csv"].read_bytes()
    assert cli.unwritable(files["csv"]) == "" and files["csv"].read_bytes() == before
    for text in ("mean_kld", "kld>1", "mean_kld>x"):
        with pytest.raises(SystemExit):
            cli.run([*base, "--fail-if", text])


def test_a_file_that_cannot_be_written(tmp_path, capsys, monkeypatch):
    """Found before the work; and where it is only found afterwards, the other files are written."""

    def deny(path, mode="r", *args, **kwargs):
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as changed:
        changed.setattr("builtins.open", deny)
        assert cli.run(["a", "b", "--html", str(tmp_path / "r.html")]) == cli.UNUSABLE
    assert "cannot use --html = " in (said := capsys.readouterr().err) and "Permission denied" in said

    class Report:
        def html(self):
            raise OSError(28, "No space left on device")

        def json(self):
            return "{}"

        markdown = csv = json

    args = argparse.Namespace(html="a", json=str(tmp_path / "r.json"), markdown=None, csv=None)
    assert not cli._write(Report(), args) and (tmp_path / "r.json").read_text() == "{}"
    assert "cannot write --html = 'a': No space left on device" in capsys.readouterr().err


def test_gate_closes_when_nothing_was_measured():
    assert cli.condition("mean_kld > 0.1").holds({"metrics": {}})
    assert cli.condition("mean_kld<=0.1").holds({"metrics": {"mean_kld": {"value": float("nan")}}})
    assert not cli.condition("same_top_p<97%").holds({"metrics": {"same_top_p": {"value": 0.98}}})


def test_saved_states(root, tmp_path):
    """Without the reference model the numbers are the same bits, attention and floor too."""
    options = dict(text=root / "text.txt", window=64, limit=400)
    path = tmp_path / "ref.safetensors"
    assert streamkl.compare(root / "reference", save_states=path, floor=100, **options) is None
    first = streamkl.compare(root / "reference", root / "other", floor=100, resamples=50, **options)
    later = streamkl.compare(path, root / "other", resamples=50)
    assert json.loads(later.json()) == json.loads(first.json())
    assert set(json.loads(later.json())["candidates"][0]["floor"]) and later["other"]["attention"]["layers"] == 3
    with pytest.raises(ValueError, match="tokens of its own text"):
        streamkl.compare(path, root / "other", text=root / "text.txt")
    with pytest.raises(ValueError, match="no such file"):
        streamkl.compare(tmp_path / "none.safetensors", root / "other")


def test_resume(root, tmp_path, monkeypatch):
    """Cut in the middle of the reference, and of a candidate, it goes on, and gives what one run gives."""
    options = dict(text=root / "text.txt", window=64, limit=600, batch=2, resume=tmp_path / "run", **QUICK)
    once = streamkl.compare(root / "reference", root / "other", **{**options, "resume": None})
    calls = []

    def cut_after(allowed):
        from streamkl.compare import states

        plain = states.hf.hidden_states

        def counted(model, batch):
            calls.append(1)
            if len(calls) > allowed:
                raise KeyboardInterrupt
            return plain(model, batch)

        return plain, counted

    from streamkl.compare import states

    for allowed in (3, 5):  # five batches each: cut in the reference, then in the candidate
        calls.clear()
        plain, counted = cut_after(allowed)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(states.hf, "hidden_states", counted)
            streamkl.compare(root / "reference", root / "other", **options)
    calls.clear()
    plain, counted = cut_after(99)
    monkeypatch.setattr(states.hf, "hidden_states", counted)
    again = streamkl.compare(root / "reference", root / "other", **options)
    assert len(calls) == 2  # of ten, 3 + 5 were there
    assert json.loads(again.json()) == json.loads(once.json())
    with pytest.raises(ValueError, match="begun with other models, another text"):
        streamkl.compare(root / "reference", root / "other", **{**options, "limit": 1000})


def test_models_in_memory(root):
    """The same report from models as from their folders; they are left as they were."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    pair = [AutoModelForCausalLM.from_pretrained(root / name).train() for name in ("reference", "other")]
    words = AutoTokenizer.from_pretrained(root / "reference")
    text = (root / "text.txt").read_text()
    found = streamkl.compare(*pair, text=text, tokenizer=words, window=64, limit=200, **QUICK)
    want = streamkl.compare(root / "reference", root / "other", text=root / "text.txt", window=64, limit=200, **QUICK)
    key = "mean_kld"
    assert found.data["candidates"][0]["metrics"][key] == want.data["candidates"][0]["metrics"][key]
    assert all(model.training for model in pair)
    with pytest.raises(ValueError, match="a model needs tokenizer="):
        streamkl.compare(*pair, text=text)


def test_nan_is_counted_and_shown(root, tmp_path):
    from transformers import AutoTokenizer

    words = AutoTokenizer.from_pretrained(root / "reference")
    ids = torch.tensor(words((root / "text.txt").read_text(), add_special_tokens=False)["input_ids"])[:640].reshape(
        10, 64
    )
    within = [len(set((ids == i).nonzero()[:, 0].tolist())) for i in range(384)]
    rare = next(i for i, count in enumerate(within) if 1 <= count <= 5)  # its windows are lost, the others are not

    def spoil(model):
        model.get_input_embeddings().weight[rare] = float("nan")

    broken = rewritten(root, tmp_path / "broken", spoil)
    found = streamkl.compare(root / "reference", broken, text=root / "text.txt", window=64, limit=600, **QUICK)
    (candidate,) = found.data["candidates"]
    bad = candidate["not_finite"]
    assert bad["reference"] == 0 and 0 < bad["other"] == bad["rows"] < 10 * 63
    assert candidate["tokens"] + bad["rows"] == 10 * 63 and candidate["verdict"]["grade"] == "broken"
    for shown in (found.text(), found.html()):
        assert f"{bad['rows']:,}" in shown and "not finite" in shown
    json.loads(found.json())


def test_all_nan(root, tmp_path):
    broken = rewritten(root, tmp_path / "broken", lambda model: model.lm_head.weight.fill_(float("nan")))
    found = streamkl.compare(root / "reference", broken, text=root / "text.txt", window=64, limit=100, **QUICK)
    assert found.data["candidates"][0]["tokens"] == 0 and found.data["candidates"][0]["metrics"] == {}
    assert "cannot be compared" in found.text() and "not finite" in found.html() and found.markdown() and found.json()
    assert cli.condition("mean_kld>9").holds(found.data["candidates"][0])


def test_window_is_within_positions(root):
    found = streamkl.compare(root / "reference", root / "other", text=root / "text.txt", limit=100, **QUICK)
    assert found.data["text"]["window"] == 128
    with pytest.raises(ValueError, match="cannot use window = 129: the models have 128 positions"):
        streamkl.compare(root / "reference", root / "other", text=root / "text.txt", window=129)
    assert windows.choose_window(None, [None, 4096]) == 2048 and windows.choose_window(4096, [None]) == 4096


def test_second_half_and_begin_token(root):
    class Words:
        bos_token_id = 0

        def __call__(self, text, add_special_tokens=True, verbose=True):
            return {"input_ids": [0] * add_special_tokens + [1 + i % 9 for i in range(len(text))]}

    cut = windows.cut("x" * 40, Words(), 8, [], second_half=True)
    assert cut.ids.shape == (5, 8) and (cut.ids[:, 0] == 0).all() and cut.ids[1, 1] == 8  # eighth of the text
    assert cut.first == 3 and cut.scored == 4 and cut.about["scored"] == 20 and cut.about["bos"]
    found = streamkl.compare(
        root / "reference", root / "other", text=root / "text.txt", window=64, limit=100, second_half=True, **QUICK
    )
    tokens = found.tokens["other"]
    assert tokens.position.min() == 32 and tokens.position.max() == 63 and len(tokens.position) == 4 * 32


def test_quantised(root):
    torch.manual_seed(0)
    w = torch.randn(5, 70)
    for bits in (8, 4):
        got = models.rounded(w, bits)
        for i in range(5):
            for at in (slice(0, 32), slice(32, 64), slice(64, 70)):
                step = w[i, at].abs().max() / (2 ** (bits - 1) - 1)
                assert (got[i, at] - w[i, at]).abs().max() <= step / 2 * 1.0001
                assert (got[i, at] / step - (got[i, at] / step).round()).abs().max() < 1e-3
    assert not models.rounded(torch.zeros(2, 40), 4).any()
    found = models.source(f"{root}/reference:int4")
    with models.source(root / "reference").loaded() as plain, found.loaded() as model:
        one, two = plain.state_dict(), model.state_dict()
        changed = {name for name in one if not torch.equal(one[name], two[name])}
    assert "lm_head.weight" not in changed and "model.embed_tokens.weight" not in changed
    assert changed == {name for name in one if "_proj" in name}


def test_refused(root, tmp_path):
    reference, text = root / "reference", root / "text.txt"

    def refused(match, *args, kind=ValueError, **options):
        with pytest.raises(kind, match=match):
            streamkl.compare(*args, **{**dict(text=text, **QUICK), **options})

    refused("there is no such folder", reference, tmp_path / "nowhere")
    refused("no such folder, and what follows a colon", reference, f"{reference}:int5")
    refused("no config.json", reference, tmp_path)
    refused("must be a folder's name", reference, 7, kind=TypeError)
    refused("a text to compare", reference, root / "other", text=None)
    refused("there is no such file", reference, root / "other", text=tmp_path / "no.txt")
    refused("a model to compare", reference)
    refused("dtype", reference, root / "other", dtype="f8")
    refused(r"it has \d+ tokens, and a window is 128", reference, root / "other", text="A short text.")
    refused("limit", reference, root / "other", limit=0)
    for name, value in (("batch", 0), ("attention", -1), ("floor", -1), ("worst", -1), ("seed", -1)):
        refused(f"{name} = {value}: it must be at least", reference, root / "other", **{name: value})
    refused("device = 'nowhere': torch cannot use it", reference, root / "other", device="nowhere")
    refused("states.bin': its name must end in .safetensors", reference, save_states=tmp_path / "states.bin")
    refused("text.txt': it is a file, and must be a folder", reference, root / "other", resume=text)
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00\x81")
    refused("UTF-8", reference, root / "other", text=tmp_path / "bytes.txt")

    bare = shutil.copytree(reference, tmp_path / "bare")
    for file in bare.glob("tokenizer*"):
        file.unlink()
    refused("there is no tokenizer in it", bare, root / "other")
    assert streamkl.compare(reference, bare, text=text, window=64, limit=64, **QUICK)["bare"]["tokens"] == 126

    torch.manual_seed(0)
    from transformers import LlamaForCausalLM

    words = compare_models.tokenizer(compare_models.prose(500, seed=9))
    other = compare_models.folder(tmp_path / "words", LlamaForCausalLM(compare_models.config()), words)
    refused("its tokenizer is another one than that of reference: token", reference, other)
    model = LlamaForCausalLM(compare_models.config(vocab_size=400))
    larger = compare_models.folder(tmp_path / "larger", model, None)
    refused("its vocabulary has 400 tokens and that of reference 384", reference, larger)
    garbage = shutil.copytree(reference, tmp_path / "garbage")
    (garbage / "model.safetensors").write_bytes(b"not one")
    refused("transformers cannot load it", reference, garbage)


def test_other_numbers_of_layers(root, tmp_path):
    """A smaller model compares, but for its attention, and the report says why."""
    from transformers import AutoTokenizer, LlamaForCausalLM

    model = LlamaForCausalLM(compare_models.config(num_hidden_layers=2, hidden_size=32))
    words = AutoTokenizer.from_pretrained(root / "reference")
    small = compare_models.folder(tmp_path / "small", model, words)
    found = streamkl.compare(
        root / "reference", small, text=root / "text.txt", window=64, limit=100, **{**QUICK, "attention": 1}
    )
    assert "3 and 2 layers" in found["small"]["attention"]["missing"]
    assert "3 and 2 layers" in found.text() and "3 and 2 layers" in found.html()


def test_attention_with_sinks(root, tmp_path):
    """Head by head and together, also from saved states: against the models' maps, whose rows lack the sink's mass."""
    from transformers import AutoTokenizer, GptOssConfig, GptOssForCausalLM

    sizes = dict(
        hidden_size=32, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
    )
    sizes.update(head_dim=8, num_local_experts=2, num_experts_per_tok=1, vocab_size=384, sliding_window=8)
    models = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        models.append(GptOssForCausalLM(GptOssConfig(**sizes)).eval())
        with torch.no_grad():
            for p in models[-1].parameters():
                p.normal_(std=0.3)
    words, text, states = (
        AutoTokenizer.from_pretrained(root / "reference"),
        root / "text.txt",
        tmp_path / "s.safetensors",
    )
    more = dict(tokenizer=words, **{**QUICK, "attention": 1})
    found = streamkl.compare(*models, text=text, window=32, limit=64, save_states=states, **more)
    later = streamkl.compare(states, models[1], **more)
    maps, ids = [], torch.tensor([words(text.read_text(), add_special_tokens=False)["input_ids"][:32]])
    for model in models:
        model.set_attn_implementation("eager")
        with torch.no_grad():
            p = torch.stack(model(ids, output_attentions=True).attentions)[:, 0].double()
        maps.append(torch.cat([p, 1 - p.sum(-1, keepdim=True)], -1))
    p, q = maps
    one = found.data["candidates"][0]["attention"]
    assert later.data["candidates"][0]["attention"] == one
    kl = (p * (p.clamp_min(1e-30) / q.clamp_min(1e-30)).log()).sum(-1).mean(-1)
    np.testing.assert_allclose(one["kl"], kl.numpy(), rtol=1e-3)
    p, q = p.mean(1), q.mean(1)
    kl = (p * (p.clamp_min(1e-30) / q.clamp_min(1e-30)).log()).sum(-1).mean(-1)
    np.testing.assert_allclose(one["head_mean_kl"], kl.numpy(), rtol=1e-3)


def test_names_are_told_apart(root, tmp_path):
    for folder in ("a", "b"):
        shutil.copytree(root / "other", tmp_path / folder / "other")
    found = streamkl.compare(
        root / "reference", tmp_path / "a/other", tmp_path / "b/other", f"{tmp_path}/b/other", text=root / "text.txt",
        window=64, limit=64, **QUICK,
    )  # fmt: skip
    assert [c["name"] for c in found.data["candidates"]] == ["a/other", "b/other", "b/other (2)"]
    assert {p["verdict"] for p in found.data["pairs"]} == {"cannot tell"}


def test_the_module_is_the_function():
    assert running.compare is streamkl.compare.compare


def test_document(root, tmp_path, monkeypatch):
    """Every command and all Python of docs/report.md run, beside folders of the names that they use."""
    import re
    import shlex

    text = (documents.ROOT / "docs/report.md").read_text(encoding="utf-8")
    for name in ("reference", "other", "text.txt"):
        (tmp_path / name).symlink_to(root / name)
    monkeypatch.chdir(tmp_path)
    for code in re.findall(r"^```sh\n(.*?)```", text, re.S | re.M):
        for command in code.strip().splitlines():
            words = shlex.split(command)
            assert words[:4] == ["python", "-m", "streamkl", "compare"]
            assert cli.run(words[4:]) == 0, command
    documents.run("docs/report.md")
    for name in ("report.html", "report.json", "report.md", "tokens.csv", "ref.safetensors"):
        assert (tmp_path / name).stat().st_size > 1000
    for key in re.findall(r"`(\w+_(?:kld|delta_p|ppl\w*|top_p|in_q|in_base))`", text):
        assert key in streamkl.compare.fields.FIELDS, key


MEMORY = """
import ctypes, sys
getattr(ctypes.CDLL(None), "mallopt", max)(-3, 65536)  # M_MMAP_THRESHOLD, where the C library has it
sys.path.insert(0, sys.argv[1])
import compare_models, streamkl, torch
from streamkl.bench.measure import Peak
from transformers import LlamaForCausalLM

words = compare_models.tokenizer(compare_models.prose(1000))
torch.manual_seed(0)
config = compare_models.config(vocab_size=8192, max_position_embeddings=2048, num_hidden_layers=1)
reference, other = (LlamaForCausalLM(config).eval() for _ in range(2))
more = dict(text=compare_models.prose(3500), tokenizer=words, floor=0, attention=1, resamples=10)
streamkl.compare(reference, other, window=32, limit=256, **more)  # warms up
for window in (32, 2048):
    with Peak() as peak:
        report = streamkl.compare(reference, other, window=window, limit=2048, **more)
    assert report.data["candidates"][0]["tokens"] > 1900
    print(peak.bytes)
"""


def test_memory_is_flat_in_context_length(child):
    """The same tokens in windows of 32 and of 2048. Logits of both models would take 128 MiB, maps of the attention 64.
    In a process whose large blocks go back to the system at once: what malloc keeps for later is not what a call
    needs."""
    peaks = child(MEMORY, documents.ROOT / "tests/python", in_warm=True).split()
    if peaks[0] == "None":
        pytest.skip("the system does not tell a peak")
    short, long = map(int, peaks)
    assert not long > short + (32 << 20) and not short > 96 << 20, peaks
