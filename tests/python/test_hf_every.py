# SPDX-License-Identifier: Apache-2.0
"""Every causal language model of the installed transformers that a small random one can be made of.

python tests/python/test_hf_every.py [CLASS ..] prints what became of each class, and the counts."""

import collections
import inspect
import re
import sys

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
    **dict(index_n_heads=2, index_head_dim=8, index_topk=4, moe_topk=2, zero_expert_num=2, ffn_hidden_size=32),
    **dict(expert_ffn_hidden_size=16, num_kv_shared_layers=0, encoder_hash_byte_group_vocab=64, image_size=32),
    **dict(patch_size=16, default_language="en_XX", output_channels=32, mlp_dim=48),
}
ROPE = dict(rope_type="default", rope_theta=1e4)
# What some configurations want beside, by the beginning of the class's name.
OWN = {
    "AXK2": dict(num_key_value_heads=4, head_dim=4),
    "CohereCompass": dict(rope_parameters={kind: ROPE for kind in ("full_attention", "sliding_attention")}),
    "Dbrx": dict(
        attn_config=dict(kv_n_heads=2, rope_theta=1e4, clip_qkv=8), ffn_config=dict(ffn_hidden_size=32, hidden_size=32)
    ),
    "DeepseekV32": dict(num_key_value_heads=4, head_dim=4),
    "Dots3Note": dict(num_key_value_heads=4),
    "FalconH1": dict(mamba_d_ssm=64),
    "GlmMoeDsa": dict(num_key_value_heads=4, head_dim=4),
    "GraniteMoeHybrid": dict(layer_types=["linear_attention", "full_attention"]),
    "GPTNeo": dict(attention_types=[[["global", "local"], 1]]),
    "Lfm2Moe": dict(layer_types=["conv", "full_attention"], num_dense_layers=1),
    "LongcatFlash": dict(head_dim=4),
    "Mamba2": dict(num_heads=4, head_dim=16, n_groups=1),
    "Reformer": dict(axial_pos_embds_dim=(16, 16), axial_pos_shape=(4, 4), attn_layers=["local", "local"]),
    "XLMWith": dict(emb_dim=32, n_layers=2, n_heads=4, n_words=64),
    "ZambaFor": dict(num_hidden_layers=3, layers_block_type=["linear_attention", "hybrid", "hybrid"]),
    "Zamba2": dict(layers_block_type=["linear_attention", "hybrid"]),
    "Zaya": dict(num_experts_per_tok=1),
}
CLASSES = sorted(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()))
# Not a model of text whose head gives the logits: several heads, or inputs of another kind.
NOT_ONE_HEAD = ("Musicgen", "Moshi", "ProphetNet", "Git", "Whisper", "Trocr", "TrOCR")


def settings_of(config_class):
    """Small sizes for what a configuration has, and for the configurations inside of it."""
    accepted = inspect.signature(config_class.__init__).parameters
    settings = {key: value for key, value in SMALL.items() if key in accepted}
    parts = getattr(config_class, "sub_configs", None) or {}
    whole = config_class() if any(not hasattr(part, "model_type") for part in parts.values()) else None
    for key, part in parts.items():
        part = (
            part if hasattr(part, "model_type") else type(getattr(whole, key, None))
        )  # AutoConfig: what it is by default
        if hasattr(part, "model_type"):
            settings[key] = {"model_type": part.model_type, **settings_of(part)}
    return settings


def small_model(name):
    """A random model of the class, or a skip if its configuration needs to know more."""
    kind = getattr(transformers, name)
    own = next((more for beginning, more in OWN.items() if name.startswith(beginning)), {})
    try:
        config = kind.config_class(**{**settings_of(kind.config_class), **own})
        with torch.device("meta"):
            count = sum(p.numel() for p in kind(config).parameters())
        if count > 5e7:
            pytest.skip(f"its smallest configuration here has {count / 1e6:.0f} M parameters")
        return kind(config).eval()
    except Exception as error:  # whatever a configuration dislikes
        pytest.skip(f"cannot make a small one: {type(error).__name__} {error}"[:200])


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
        if "use_cache" in inspect.signature(model.forward).parameters:
            batch["use_cache"] = False  # caches want more of the kinds of layers than two layers have
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


def main(names):
    found = collections.Counter()
    for name in names or CLASSES:
        torch.manual_seed(0)
        try:
            test_head(name)
            word, why = "passed", ""
        except pytest.skip.Exception as skipped:
            word, why = "skipped", str(skipped)
        except Exception as error:
            word, why = "FAILED", f"{type(error).__name__} {error}"[:200]
        found[word] += 1
        print(f"{word:<8}{name:<40}{why}", flush=True)
    print(dict(found))
    return 1 if found["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
