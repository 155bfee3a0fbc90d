# SPDX-License-Identifier: Apache-2.0
"""DriftMetric: the report's numbers inside of an evaluation loop, batch by batch and over ranks."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

import numpy as np
import torch
from torch import Tensor

from .. import hf
from .._checks import bad
from .report import Tokens, describe
from .rows import Side, on_cpu, token_rows
from .statistics import RESAMPLES


class DriftMetric:
    """How far a model is from a reference, accumulated as torchmetrics does: update, compute, reset, sync.

    metric = streamkl.DriftMetric()
    for ...: metric.update(x_s, head_s, x_t, head_t, labels)
    metric.sync()                       # with torch.distributed: every rank then has all tokens
    metric.compute()["mean_kld"]        # the keys of the report
    """

    def __init__(self, resamples: int = RESAMPLES, seed: int = 0) -> None:
        self.resamples, self.seed = resamples, seed
        self.reset()

    def reset(self) -> None:
        self._parts: List[Tokens] = []
        self._sequences = 0

    def update(
        self,
        x_s: Tensor,
        head_s: Any,
        x_t: Tensor,
        head_t: Any,
        labels: Optional[Tensor] = None,
        ignore_index: int = -100,
    ) -> None:
        """x_s, x_t: hidden states [..., N, D] of the model and the reference, each of the leading entries a sequence.
        head_s, head_t: unembeddings [V, D], or what streamkl.hf.head returns. labels [..., N]: the token that follows
        each position; those that are ignore_index are left out. Give labels always, or never.
        """
        if x_s.shape[:-1] != x_t.shape[:-1] or x_s.dim() < 2:
            raise bad(
                "x_t.shape", tuple(x_t.shape), f"all but the last must be as x_s {tuple(x_s.shape)}, at least [N, D]"
            )
        if labels is not None and labels.shape != x_s.shape[:-1]:
            raise bad("labels.shape", tuple(labels.shape), f"it must be {tuple(x_s.shape[:-1])}")
        if self._parts and (labels is not None) != ("label" in self._parts[0].rows):
            raise bad("labels", "given" if labels is not None else None, "give labels in every update, or in none")
        n = x_s.shape[-2]
        count = x_s.shape[:-1].numel()
        keep = torch.ones(count, dtype=torch.bool) if labels is None else (labels != ignore_index).reshape(-1).cpu()
        sides = [
            Side(x.detach().reshape(-1, x.shape[-1])[keep.to(x.device)].cpu(), _head(head))
            for x, head in ((x_t, head_t), (x_s, head_s))
        ]
        wanted = None if labels is None else labels.detach().reshape(-1).cpu()[keep]
        at = torch.arange(count)[keep].numpy()
        rows = token_rows(*sides, wanted)
        self._parts.append(Tokens(rows, self._sequences + at // max(n, 1), at % max(n, 1) + 1))
        self._sequences += count // max(n, 1)

    def tokens(self) -> Tokens:
        """All tokens so far."""
        if not self._parts:
            raise RuntimeError("streamkl: no token to tell of: call update first")
        rows = {name: np.concatenate([p.rows[name] for p in self._parts]) for name in self._parts[0].rows}
        return Tokens(rows, *(np.concatenate([p[i] for p in self._parts]) for i in (1, 2)))

    def summary(self) -> Dict[str, Any]:
        """A candidate's part of the report: metrics with errors and intervals, groups, tokens that are not finite."""
        return describe({"name": "other"}, self.tokens(), resamples=self.resamples, seed=self.seed)

    def compute(self) -> Dict[str, float]:
        """The values alone, by the keys of the report; and how many tokens there were, and were not finite."""
        found = self.summary()
        values = {key: stat["value"] for key, stat in found["metrics"].items()}
        return {**values, "tokens": found["tokens"], "not_finite": found["not_finite"]["rows"]}

    def sync(self, group: Any = None) -> None:
        """Gathers the tokens of all ranks of torch.distributed, in their order: the same numbers on every rank."""
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized()):
            return
        mine = (self.tokens() if self._parts else None, self._sequences)
        gathered: List[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(gathered, mine, group=group)
        self.reset()
        for tokens, sequences in gathered:
            if tokens is not None:
                self._parts.append(tokens._replace(sequence=tokens.sequence + self._sequences))
            self._sequences += sequences


def _head(head: Any) -> Any:
    if isinstance(head, Tensor):
        head = hf.Head(head, None, 1.0, None, head.shape[0])
    return on_cpu(head)
