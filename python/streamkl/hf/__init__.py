# SPDX-License-Identifier: Apache-2.0
"""streamkl for the models of Hugging Face's transformers.

    head, head_from         the unembedding of a model, or of a checkpoint on disk, as linear_kl takes it
    hidden_states           what the head is given, without computing logits
    linear_kl               the divergence between the next-token distributions of two models

Nothing here changes a model: what is put into one for the time of a call is taken out again, also after an exception.
"""

from .heads import Head, head, linear_kl
from .states import hidden_states

__all__ = [
    "Head",
    "head",
    "hidden_states",
    "linear_kl",
]
