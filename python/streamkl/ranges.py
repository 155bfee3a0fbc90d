# SPDX-License-Identifier: Apache-2.0
"""Which keys queries see, for attention_kl, from what other libraries have: dense masks and position ids."""

from __future__ import annotations

from typing import Any, Tuple

import torch
from torch import Tensor

from ._checks import bad
from ._ranges import ranges_of_mask, starts_of_positions


def ranges_from_mask(mask: Tensor) -> Tuple[Tensor, Tensor]:
    """begin and end, int32, of a dense bool mask [N, M], [B, N, M] or [B, H, N, M] (True: is seen), in its shape without
    the last dimension. Every row must be one run of True, or have none; causal, sliding, padded and packed masks are. A
    row with gaps is refused."""
    if not isinstance(mask, Tensor) or mask.dtype is not torch.bool:
        what = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise bad("mask", what, "it must be a bool tensor, True where a key is seen", TypeError)
    if mask.dim() < 2:
        raise bad("mask.shape", tuple(mask.shape), "it must be [.., queries, keys]")
    begin, end = ranges_of_mask(mask, torch, torch.arange(mask.shape[-1], device=mask.device))
    return begin.to(torch.int32), end.to(torch.int32)


def cu_seqlens_from_position_ids(position_ids: Tensor) -> Tensor:
    """cu_seqlens, int32 [sequences + 1], of sequences packed one after the other, from their position ids [N] or [B, N],
    whose rows follow one another. A sequence begins where a position is not the one before plus 1."""
    positions: Any = position_ids
    if not isinstance(positions, Tensor) or positions.is_floating_point() or positions.dtype is torch.bool:
        what = positions.dtype if isinstance(positions, Tensor) else type(positions).__name__
        raise bad("position_ids", what, "it must be a tensor of integers", TypeError)
    if positions.dim() == 0:
        raise bad("position_ids.shape", (), "it must have a last dimension of positions")
    first = torch.argwhere(starts_of_positions(positions))[:, 0]
    return torch.cat([first, first.new_tensor([positions.numel()])]).to(torch.int32)
