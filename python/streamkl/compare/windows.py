# SPDX-License-Identifier: Apache-2.0
"""A text as windows of tokens, each of them a sequence of its own."""

from __future__ import annotations

import hashlib
import pathlib
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Union

import torch
from torch import Tensor

from .._checks import bad

DEFAULT_WINDOW = 2048  # or what the models' positions allow, if that is less
Text = Union[str, pathlib.Path]


class Windows(NamedTuple):
    ids: Tensor  # [windows, window]
    first: int  # the position whose prediction is the first that counts
    about: Dict[str, Any]

    @property
    def scored(self) -> int:
        """Positions of a window that count: its last token has no next one."""
        return self.ids.shape[1] - 1 - self.first


def read(text: Text) -> str:
    if isinstance(text, str):
        return text
    try:
        return text.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise bad("text", str(text), "there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise bad("text", str(text), f"it must be a file of UTF-8 text ({error})") from None


def choose_window(window: Optional[int], positions: Sequence[Optional[int]]) -> int:
    """As asked for, if every model has so many positions; or as many as all of them have, up to DEFAULT_WINDOW."""
    most = min((p for p in positions if p), default=None)
    if window is None:
        return min(DEFAULT_WINDOW, most or DEFAULT_WINDOW)
    if window < 2:
        raise bad("window", window, "it must be at least 2: a token and the one that follows it")
    if most and window > most:
        raise bad("window", window, f"the models have {most} positions")
    return window


def cut(text: Text, tokenizer: Any, window: Optional[int], positions: Sequence[Optional[int]],
        limit: Optional[int] = None, second_half: bool = False) -> Windows:  # fmt: skip
    """Windows side by side; what is left at the end is dropped. A tokenizer's begin token stands before each."""
    if limit is not None and limit < 1:
        raise bad("limit", limit, "it must be at least 1 token")
    content = read(text)
    ids: List[int] = tokenizer(content, add_special_tokens=False, verbose=False)["input_ids"]
    bos = _begin(tokenizer)
    length = choose_window(window, positions)
    step = length - (bos is not None)
    if len(ids) < max(step, 1):
        name = str(text) if isinstance(text, pathlib.Path) else "the given text"
        shorter = len(ids) + (bos is not None)
        rule = f"it has {len(ids)} tokens, and a window is {step}: give more text"
        raise bad("text", name, rule + (f", or --window {shorter} at most" if len(ids) and shorter > 1 else ""))
    first = (length - 1) // 2 if second_half else 0
    count = len(ids) // step
    if limit is not None:
        count = min(count, -(-limit // (length - 1 - first)))
    found = torch.tensor(ids[: count * step], dtype=torch.long).reshape(count, step)
    if bos is not None:
        found = torch.cat([torch.full((count, 1), bos), found], 1)
    about = {
        "name": text.name if isinstance(text, pathlib.Path) else "given text",
        "sha256": hashlib.sha256(content.encode()).hexdigest(),
        "tokens": len(ids),
        "window": length,
        "windows": count,
        "scored": count * (length - 1 - first),
        "second_half": second_half,
        "bos": bos is not None,
    }
    return Windows(found, first, about)


def _begin(tokenizer: Any) -> Optional[int]:
    """The begin token, if the tokenizer puts one before a text."""
    bos = getattr(tokenizer, "bos_token_id", None)
    return bos if bos is not None and tokenizer("a")["input_ids"][:1] == [bos] else None
