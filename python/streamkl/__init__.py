# SPDX-License-Identifier: Apache-2.0
"""streamkl: the divergence between two softmax distributions, and its gradient, without ever storing them.

    attention_kl, linear_kl             losses for torch tensors, with autograd
    indexer_kl, pooled_attention_kl     what scorers of sparse attention learn from: all heads, blocks of keys
    indexer_topk                        the keys that such a scorer chooses
    linear_cross_entropy                the same without a teacher; linear_logsumexp
    linear_topk_kl                      the same with a teacher of lists, ids and log-probabilities
    AttentionKLLoss, LinearKLLoss, LinearTopKKLLoss, LinearCrossEntropyLoss
                                        the same as torch modules
    topk_of, save_lists, load_lists     such lists of a live teacher, and files of them
    compress_head                       a teacher's head of low rank
    attention_partial, linear_partial, merge, finish, attention_backward, linear_backward
                                        rows whose columns are in several pieces or places
    ranges_from_mask, cu_seqlens_from_position_ids
                                        masks and packed sequences, from what other libraries have
    streamkl.distributed                the losses over process groups (group=, DTensors); averaged() for DDP
    streamkl.trl, .liger, .verl, .nemo_rl
                                        the same in TRL's trainers, by Liger's names, in verl and NeMo-RL
    compare, DriftMetric                how far models are from a reference: a report, and its numbers in a loop
    streamkl.nitrobrew                  forward_kl and reverse_kl as Nitrobrew has them
    streamkl.hf                         models of Hugging Face: heads, hidden states, attention, whole recipes
    streamkl.numpy                      value, and value and gradient, of NumPy arrays; needs no torch

torch is imported by the first use of a name that needs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, List

from ._c import version as _version

if TYPE_CHECKING:
    from .compare.metric import DriftMetric
    from .compare.run import compare
    from .functional import attention_kl, linear_cross_entropy, linear_kl, linear_logsumexp, linear_topk_kl
    from .indexer import indexer_kl, indexer_topk, pooled_attention_kl
    from .lists import Lists, StoredLists, load_lists, save_lists, topk_of
    from .low_rank import LowRankHead, compress_head
    from .modules import AttentionKLLoss, LinearCrossEntropyLoss, LinearKLLoss, LinearTopKKLLoss
    from .partial import attention_backward, attention_partial, finish, linear_backward, linear_partial, merge
    from .ranges import cu_seqlens_from_position_ids, ranges_from_mask

__version__ = _version()
__all__ = [
    "AttentionKLLoss",
    "DriftMetric",
    "LinearCrossEntropyLoss",
    "LinearKLLoss",
    "LinearTopKKLLoss",
    "Lists",
    "LowRankHead",
    "StoredLists",
    "attention_backward",
    "attention_kl",
    "attention_partial",
    "compare",
    "compress_head",
    "cu_seqlens_from_position_ids",
    "finish",
    "indexer_kl",
    "indexer_topk",
    "linear_backward",
    "linear_cross_entropy",
    "linear_kl",
    "linear_logsumexp",
    "linear_partial",
    "linear_topk_kl",
    "load_lists",
    "merge",
    "pooled_attention_kl",
    "ranges_from_mask",
    "save_lists",
    "topk_of",
]

_HOMES = {
    "indexer_kl": ".indexer",
    "indexer_topk": ".indexer",
    "pooled_attention_kl": ".indexer",
    "attention_kl": ".functional",
    "linear_cross_entropy": ".functional",
    "linear_kl": ".functional",
    "linear_logsumexp": ".functional",
    "linear_topk_kl": ".functional",
    "AttentionKLLoss": ".modules",
    "LinearCrossEntropyLoss": ".modules",
    "LinearKLLoss": ".modules",
    "LinearTopKKLLoss": ".modules",
    "Lists": ".lists",
    "StoredLists": ".lists",
    "load_lists": ".lists",
    "save_lists": ".lists",
    "topk_of": ".lists",
    "LowRankHead": ".low_rank",
    "compress_head": ".low_rank",
    "DriftMetric": ".compare.metric",
    "attention_backward": ".partial",
    "attention_partial": ".partial",
    "finish": ".partial",
    "linear_backward": ".partial",
    "linear_partial": ".partial",
    "merge": ".partial",
    "cu_seqlens_from_position_ids": ".ranges",
    "ranges_from_mask": ".ranges",
}
# streamkl.verl changes verl when it is imported: only an import of its own does that.
_ROOMS = (
    "compare",
    "distributed",
    "functional",
    "hf",
    "liger",
    "lists",
    "low_rank",
    "modules",
    "nemo_rl",
    "nitrobrew",
    "numpy",
    "partial",
    "trl",
)


def __getattr__(name: str):
    if name in _HOMES:
        try:
            found = getattr(import_module(_HOMES[name], __name__), name)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise ImportError(
                f"streamkl.{name} needs torch: pip install 'streamkl[torch]' (NumPy: streamkl.numpy)"
            ) from error
        globals()[name] = found
        return found
    if name in _ROOMS:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module 'streamkl' has no attribute {name!r}")


def __dir__() -> List[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
