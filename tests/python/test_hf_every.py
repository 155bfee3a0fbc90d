# SPDX-License-Identifier: Apache-2.0
"""Every causal language model of the installed transformers that a small random one can be made of."""

import inspect
import re

import pytest
import torch
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from hf_models import SIZES, transformers
from streamkl import hf

pytestmark = pytest.mark.long

# What the configurations call the sizes of a model. Whatever else is large is made small by its name.
SMALL = {
    **SIZES,
    **dict(n_embd=32, n_layer=2, n_head=4, n_positions=64, d_model=32, num_layers=2, num_heads=4, ffn_dim=48, d_ff=48),
    **dict(encoder_layers=1, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, head_dim=8),
    **dict(encoder_ffn_dim=48, decoder_ffn_dim=48, is_decoder=True, embedding_size=32, word_embed_proj_dim=32),
    **dict(num_experts=4, num_local_experts=4, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1),
    **dict(moe_intermediate_size=16, shared_expert_intermediate_size=16, q_lora_rank=16, kv_lora_rank=16, n_group=1),
    **dict(qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=8, topk_group=1, first_k_dense_replace=1, n_ctx=64),
    **dict(mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8, mamba_n_groups=1, state_size=8, lru_width=32),
    **dict(sliding_window=4, attention_chunk_size=8, rotary_dim=4, dim_model_base=16, vocab_size_per_layer_input=64),
    **dict(hidden_size_per_layer_input=8, final_logit_softcapping=2.0, logits_soft_cap=2.0, logits_scaling=2.0),
    **dict(logit_scale=0.5, lm_head_multiplier=0.5, output_multiplier=0.5, output_logit_soft_cap=2.0, max_seq_len=64),
}
CLASSES = sorted(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()))
# Not a model of text whose head gives the logits: several heads, or inputs of another kind.
NOT_ONE_HEAD = ("Musicgen", "Moshi", "ProphetNet", "Git", "Whisper", "Trocr", "TrOCR")


def small_model(name):
    """A random model of the class, or a skip if its configuration needs to know more."""
    kind = getattr(transformers, name)
    config_class = kind.config_class
    accepted = inspect.signature(config_class.__init__).parameters
    try:
        settings = {key: value for key, value in SMALL.items() if key in accepted}
        if "text_config" in accepted:
            settings = {"text_config": settings_of(config_class, "text_config")}
        config = config_class(**settings)
        with torch.device("meta"):
            count = sum(p.numel() for p in kind(config).parameters())
        if count > 3e7:
            pytest.skip(f"its smallest configuration here has {count / 1e6:.0f} M parameters")
        return kind(config).eval()
    except Exception as error:  # whatever a configuration dislikes
        pytest.skip(f"cannot make a small one: {type(error).__name__} {error}"[:200])


def settings_of(config_class, part):
    inner = config_class.sub_configs.get(part) if hasattr(config_class, "sub_configs") else None
    accepted = inspect.signature(inner.__init__).parameters if inner is not None else {}
    return {key: value for key, value in SMALL.items() if key in accepted}


@pytest.mark.parametrize("name", CLASSES)
def test_head(name):
    if name.startswith(NOT_ONE_HEAD):
        pytest.skip("it has not one head over one text")
    model = small_model(name)
    vocabulary = min(model.config.get_text_config(decoder=True).vocab_size, 64)
    with torch.no_grad():
        for p in model.parameters():
            if not torch.isfinite(p).all():
                p.normal_(std=0.05)
            p.mul_(2 if p.dim() > 1 else 1)
        batch = {"input_ids": torch.randint(3, vocabulary, (2, 16))}
        try:
            want = model(**batch).logits.float()
        except Exception as error:  # it needs images, sound, or a kernel that is not here
            pytest.skip(f"cannot run on tokens alone: {type(error).__name__} {error}"[:200])
        try:
            found = hf.head(model)
        except ValueError as refused:
            assert re.search("cannot use model = .*: (its head|its forward|it has no head)", str(refused))
            pytest.skip(f"refused: {refused}"[:200])
        got = found.logits(hf.hidden_states(model, batch)).float()
    assert got.shape == want.shape and torch.isfinite(want).all()
    assert (got - want).abs().max() <= 1e-4 * want.abs().max()
