# SPDX-License-Identifier: Apache-2.0
"""Small random models of transformers, made from configurations, for the tests of streamkl.hf."""

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

VOCABULARY = 64
SIZES = dict(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    vocab_size=VOCABULARY,
    max_position_embeddings=64,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
# The classes that the documents name, with the settings that make each of them different.
KINDS = {
    "Llama": {},
    "Qwen2": dict(tie_word_embeddings=True),
    "Qwen3": {},
    "Mistral": dict(sliding_window=4),
    "Gemma2": dict(final_logit_softcapping=2.0, attn_logit_softcapping=3.0, sliding_window=4, query_pre_attn_scalar=3),
    "Gemma3Text": dict(final_logit_softcapping=2.0, sliding_window=4, sliding_window_pattern=2),
    "Granite": dict(logits_scaling=2.0, attention_multiplier=0.3),
    "Cohere": dict(logit_scale=0.25),
    "GPT2": dict(n_embd=32, n_head=4, n_layer=2, n_positions=64),
    "GPTNeoX": {},
    "Phi": {},
    "OPT": dict(word_embed_proj_dim=16, ffn_dim=48),
}


def make(kind, implementation="eager", apart=4, **settings):
    """A model in evaluation mode, with weights large enough that a mistake in its logits shows."""
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **KINDS.get(kind, {}), **settings})
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(apart) if p.dim() > 1 else p.add_(0.1 * torch.randn(p.shape))
    return model


def make_batch(padding=(0, 3, 5, 1), length=11, left=False, labels=False):
    """input_ids and attention_mask [B, N], with so many padded tokens on the right, or on the left."""
    ids, mask = torch.randint(3, VOCABULARY, (len(padding), length)), torch.ones(len(padding), length, dtype=torch.long)
    for row, n in enumerate(padding):
        mask[row, slice(0, n) if left else slice(length - n, length)] = 0
    batch = {"input_ids": ids * mask, "attention_mask": mask}
    return {**batch, "labels": ids.masked_fill(mask == 0, -100)} if labels else batch
