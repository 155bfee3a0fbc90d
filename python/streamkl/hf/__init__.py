# SPDX-License-Identifier: Apache-2.0
"""streamkl for the models of Hugging Face's transformers.

    head, head_from         the unembedding of a model, or of a checkpoint on disk, as linear_kl takes it
    hidden_states           what the head is given, without computing logits
    linear_kl               the divergence between the next-token distributions of two models
    capture                 queries, keys and masks of every attention layer, while a model runs
    attention_kl            the divergence between the attentions of two models, from what was captured
    distillation_loss       a whole recipe: the two divergences and cross-entropy, in one call

Nothing here changes a model: what is put into one for the time of a call is taken out again, also after an exception.
"""

from .attention import attention_kl
from .capture import Layer, capture
from .heads import Head, head, linear_kl
from .losses import distillation_loss
from .states import hidden_states

__all__ = [
    "Head",
    "Layer",
    "attention_kl",
    "capture",
    "distillation_loss",
    "head",
    "hidden_states",
    "linear_kl",
]
