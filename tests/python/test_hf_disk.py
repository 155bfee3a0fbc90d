# SPDX-License-Identifier: Apache-2.0
"""What streamkl.hf reads from and writes to disk: heads of checkpoints, and the cache of a teacher's hidden states."""

import json

import pytest
import torch

from hf_models import KINDS, make, make_batch
from streamkl import hf

pytest.importorskip("safetensors", reason="safetensors is not installed")


@pytest.mark.parametrize(
    "kind, tied", [*((kind, False) for kind in KINDS), ("Llama", True), ("GPT2", True), ("OPT", True)]
)
def test_head_from(kind, tied, tmp_path):
    model = make(kind, tie_word_embeddings=tied)
    model.save_pretrained(tmp_path)
    got, want = hf.head_from(tmp_path), hf.head(model)
    assert torch.equal(got.weight, want.weight) and got[2:] == want[2:]
    assert (got.bias is None) if want.bias is None else torch.equal(got.bias, want.bias)
    assert not got.weight.requires_grad


def test_head_from_shards(tmp_path):
    model = make("Granite", tie_word_embeddings=False).bfloat16()
    model.save_pretrained(tmp_path, max_shard_size="8KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    got = hf.head_from(str(tmp_path), dtype=torch.float32)
    assert got.weight.dtype == torch.float32 and torch.equal(got.weight, model.lm_head.weight.float())
    home = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]["lm_head.weight"]
    for file in tmp_path.glob("*.safetensors"):  # the others are not needed
        if file.name != home:
            file.unlink()
    assert hf.head_from(tmp_path).weight.dtype == torch.bfloat16


def test_head_from_tied_with_two_tensors(tmp_path):
    """A checkpoint that says 'tied' and has another head all the same: what transformers makes of it."""
    from safetensors.torch import load_file, save_file

    model = make("Llama", tie_word_embeddings=True)
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "lm_head.weight": torch.randn(64, 32)}, tmp_path / "model.safetensors", {"format": "pt"})
    want = hf.head(type(model).from_pretrained(tmp_path)).weight
    assert torch.equal(hf.head_from(tmp_path).weight, want)


def test_head_from_wrong_folders(tmp_path):
    from safetensors.torch import load_file, save_file

    with pytest.raises(ValueError, match="there is no config.json in it"):
        hf.head_from(tmp_path / "nowhere")
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match="it holds an adapter: merge it"):
        hf.head_from(tmp_path)
    make("Llama", tie_word_embeddings=False).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    quantised = tensors.pop("lm_head.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="it has no tensor of the name lm_head.weight"):
        hf.head_from(tmp_path)
    save_file({**tensors, "lm_head.weight": quantised.to(torch.int8)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"lm_head.weight is \(64, 32\) of torch.int8: a head of plain numbers"):
        hf.head_from(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="there are no safetensors in it"):
        hf.head_from(tmp_path)


# ---- the cache


def make_batches(n=3):
    return [{**make_batch(left=turn % 2 == 1), "id": [f"sample {turn}/{i}" for i in range(4)]} for turn in range(n)]


def inputs_of(batch):
    return {name: value for name, value in batch.items() if name != "id"}


@pytest.mark.parametrize("kind", ("Gemma2", "Phi"))
def test_cache(kind, tmp_path):
    teacher, batches = make(kind), make_batches()
    hf.TeacherCache(tmp_path).fill(teacher, batches)
    cache = hf.TeacherCache(tmp_path)
    assert len(cache) == 12 and "sample 1/2" in cache and "sample 3/0" not in cache and sorted(cache)[0] == "sample 0/0"
    found, want = cache.head, hf.head(teacher)
    assert torch.equal(found.weight, want.weight) and found[2:] == want[2:]
    assert (found.bias is None) == (want.bias is None)
    for batch in batches:
        with torch.no_grad():
            x = hf.hidden_states(teacher, inputs_of(batch))
        real = batch["attention_mask"].bool()
        assert torch.equal(cache.states(batch["id"], batch)[real], x[real])
    student, batch = make("Llama"), inputs_of(batches[0])
    got = hf.distillation_loss(student, (cache.states(batches[0]["id"], batch), cache.head), batch)
    assert got.loss.item() == pytest.approx(hf.distillation_loss(student, teacher, batch).loss.item(), rel=1e-6)


def test_cache_in_another_order(tmp_path):
    """By sample id: other batches, padded to another length on the other side."""
    teacher, (batch,) = make("Llama"), make_batches(1)
    cache = hf.TeacherCache(tmp_path)
    cache.fill(teacher, [batch])
    other = {"input_ids": torch.zeros(2, 13, dtype=torch.long), "attention_mask": torch.zeros(2, 13, dtype=torch.long)}
    for place, i in enumerate((2, 0)):
        n = int(batch["attention_mask"][i].sum())
        other["input_ids"][place, 13 - n :] = batch["input_ids"][i, :n]
        other["attention_mask"][place, 13 - n :] = 1
    got = cache.states([batch["id"][2], batch["id"][0]], other)
    for place, i in enumerate((2, 0)):
        x = cache[batch["id"][i]]
        assert torch.equal(got[place, 13 - len(x) :], x) and not got[place, : 13 - len(x)].any()


def test_cache_resumes(tmp_path):
    """What was written before an interruption is neither lost nor computed again."""
    teacher, batches = make("Llama"), make_batches(4)

    def interrupted():
        yield from batches[:2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hf.TeacherCache(tmp_path, shard_bytes=1).fill(teacher, interrupted())
    (tmp_path / ".left.unfinished").write_bytes(b"half a shard")
    assert len(hf.TeacherCache(tmp_path)) == 8
    calls = []
    teacher.register_forward_hook(lambda *_: calls.append(1))
    cache = hf.TeacherCache(tmp_path)
    cache.fill(teacher, batches)
    assert len(calls) == 2 and len(cache) == 16 and len(hf.TeacherCache(tmp_path)) == 16
    cache.fill(teacher, batches)
    assert len(calls) == 2


def test_cache_of_two_writers(tmp_path):
    teacher, batches = make("Llama"), make_batches(2)
    first, second = hf.TeacherCache(tmp_path), hf.TeacherCache(tmp_path)
    first.fill(teacher, batches[:1])
    second.fill(teacher, batches[1:])
    first.reload()
    assert len(first) == 8 and len(hf.TeacherCache(tmp_path)) == 8


def test_cache_dtype_and_mapping(tmp_path):
    """bf16 on disk; the tensors are the file's memory and not copies of it."""
    teacher, (batch,) = make("Llama"), make_batches(1)
    cache = hf.TeacherCache(tmp_path, dtype=torch.bfloat16)
    cache.fill(teacher, [batch])
    x = cache["sample 0/1"]
    assert x.dtype == torch.bfloat16 and x.shape == (8, 32)
    (shard,) = tmp_path.glob("shard-*")
    assert str(shard) in open("/proc/self/maps").read()


def test_cache_errors(tmp_path):
    teacher, (batch,) = make("Llama"), make_batches(1)
    cache = hf.TeacherCache(tmp_path)
    with pytest.raises(ValueError, match="there is no head in it yet"):
        cache.head  # noqa: B018
    with pytest.raises(ValueError, match="key = 'id': a batch must have the samples' ids there; it has 'input_ids'"):
        cache.fill(teacher, [make_batch()])
    cache.fill(teacher, [batch])
    with pytest.raises(KeyError, match="sample 'sample 9/9' is not in"):
        cache["sample 9/9"]
    with pytest.raises(ValueError, match="is the cache of another teacher"):
        cache.fill(make("Llama"), [batch])
    with pytest.raises(ValueError, match="'sample 0/0'.*: its tokens are not those that the teacher saw"):
        cache.states(batch["id"], {**batch, "input_ids": batch["input_ids"] + 1})
    with pytest.raises(ValueError, match="it must be .3 ids, tokens."):
        cache.states(batch["id"][:3], batch)
    with pytest.raises(ValueError, match="it is in the cache already"):
        cache.add("sample 0/0", torch.zeros(2, 32), torch.zeros(2))
    with pytest.raises(ValueError, match="states.shape"):
        cache.add("new", torch.zeros(2, 32), torch.zeros(3))
    (tmp_path / "shard-bad.safetensors").write_bytes(b"no shard")
    with pytest.raises(ValueError, match="shard-bad.safetensors is damaged"):
        hf.TeacherCache(tmp_path)
