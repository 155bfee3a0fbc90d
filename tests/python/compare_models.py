# SPDX-License-Identifier: Apache-2.0
"""Small models on disk for the tests of the report: made from configs, with a tokenizer trained on the spot."""

import pathlib
import random

import torch

WORDS = (
    "the a this that one some every no river bridge council city engineer road town winter letter garden house door "
    "window table paper story number light water stone tree bird night morning was is were had has made found built "
    "named after before under over near against with without from into of and but or because while when where who "
    "which it they she he old new small great quiet long short early late green blue white dark open"
).split()


def prose(count, seed=0):
    """Sentences in which the next word is not quite random."""
    draw = random.Random(seed)
    follows = {word: random.Random(i).sample(WORDS, 4) for i, word in enumerate(WORDS)}
    said, word = [], WORDS[0]
    for i in range(count):
        word = draw.choice(follows[word]) if draw.random() < 0.8 else draw.choice(WORDS)
        said.append(word.capitalize() if i % 11 == 0 else word + ("." if i % 11 == 10 else ""))
    return " ".join(said) + "\n"


def tokenizer(text, size=384):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        [text],
        trainers.BpeTrainer(vocab_size=size, special_tokens=["<s>"], initial_alphabet=alphabet, show_progress=False),
    )
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>")


def config(**changes):
    from transformers import LlamaConfig

    sizes = dict(
        hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2
    )
    sizes.update(vocab_size=384, max_position_embeddings=128, tie_word_embeddings=False)
    return LlamaConfig(**{**sizes, **changes})


def trained(ids, steps=60, seed=0, **changes):
    """A model that has seen some of the text, so that it is sure of something."""
    from transformers import LlamaForCausalLM

    torch.manual_seed(seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the products are too small for two
    model = LlamaForCausalLM(config(**changes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for _ in range(steps):
        at = torch.randint(0, len(ids) - 65, (8,))
        batch = torch.stack([ids[i : i + 64] for i in at.tolist()])
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.set_num_threads(threads)
    return model.eval()


def folder(path, model, words):
    path = pathlib.Path(path)
    model.save_pretrained(path)
    if words is not None:
        words.save_pretrained(path)
    return path


def family(root, steps=60):
    """reference, other (the same, moved a little), text: what most tests need."""
    root = pathlib.Path(root)
    text = prose(6000)
    (root / "text.txt").write_text(prose(2600, seed=1), encoding="utf-8")
    words = tokenizer(text)
    ids = torch.tensor(words(text)["input_ids"])
    model = trained(ids, steps)
    folder(root / "reference", model, words)
    with torch.no_grad():
        torch.manual_seed(1)
        for p in model.parameters():
            p.add_(0.1 * p.std() * torch.randn_like(p) if p.dim() > 1 else 0)
    folder(root / "other", model, words)
    return root
