# SPDX-License-Identifier: Apache-2.0
"""Ten steps of TRL's trainers on small models made from configurations, with TRL's loss or with streamkl's.

As a program, under torchrun: runs both on every process and writes what they logged, see test_trl.py."""

import json
import os
import random
import sys
import tempfile

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from datasets import Dataset
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DistillationConfig, DistillationTrainer
from trl.experimental.gkd import GKDConfig, GKDTrainer

import streamkl.trl

VOCABULARY = 128
THEIRS = {"distillation": DistillationTrainer, "gkd": GKDTrainer}
OURS = {"distillation": streamkl.trl.DistillationTrainer, "gkd": streamkl.trl.GKDTrainer}


def tokenizer():
    words = {word: i for i, word in enumerate(["<pad>", "<eos>", *(f"w{i}" for i in range(2, VOCABULARY))])}
    made = Tokenizer(WordLevel(words, unk_token="<eos>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>")
    made.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    return made


def model(width, seed):
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            initializer_range=0.2,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=None,
        )
    )


def text(rng):
    return " ".join(f"w{rng.randrange(2, VOCABULARY)}" for _ in range(rng.randrange(3, 9)))


def dataset(kind):
    rng = random.Random(0)
    if kind == "distillation":
        return Dataset.from_list([{"prompt": text(rng)} for _ in range(64)])
    talk = [[{"role": role, "content": text(rng)} for role in ("user", "assistant")] for _ in range(64)]
    return Dataset.from_list([{"messages": messages} for messages in talk])


def trainer(kind, classes, student=None, teacher=None, **options):
    length = {"distillation": "max_completion_length", "gkd": "max_new_tokens"}[kind]
    config = {"distillation": DistillationConfig, "gkd": GKDConfig}[kind](
        **{
            length: 6,
            "output_dir": tempfile.mkdtemp(),
            "max_steps": 10,
            "per_device_train_batch_size": 4,
            "learning_rate": 1e-3,
            "logging_steps": 1,
            "report_to": [],
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "save_strategy": "no",
            "disable_tqdm": True,
            "seed": 1,
            **options,
        }
    )
    return classes[kind](
        model=student or model(32, 1),
        teacher_model=teacher or model(48, 2),
        args=config,
        train_dataset=dataset(kind),
        eval_dataset=dataset(kind).select(range(4)),
        processing_class=tokenizer(),
    )


def train(kind, classes, **options):
    """What the trainer logged, step by step, and the student's parameters afterwards."""
    made = trainer(kind, classes, **options)
    made.train()
    logged = [
        {name: entry[name] for name in ("loss", "grad_norm", "entropy") if name in entry}
        for entry in made.state.log_history
        if "loss" in entry
    ]
    return logged, torch.cat([p.detach().flatten() for p in made.model.parameters()])


def main(path):
    found = {}
    for kind in THEIRS:
        for name, classes in (("theirs", THEIRS), ("ours", OURS)):
            logged, weights = train(kind, classes, max_steps=4)
            everyone = [torch.empty_like(weights) for _ in range(torch.distributed.get_world_size())]
            torch.distributed.all_gather(everyone, weights)
            spread = max((w - weights).abs().max().item() for w in everyone)
            found[f"{kind} {name}"] = {"logged": logged, "weights": weights.double().norm().item(), "spread": spread}
    if torch.distributed.get_rank() == 0:
        with open(path, "w") as file:
            json.dump(found, file)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
