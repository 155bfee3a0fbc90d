# SPDX-License-Identifier: Apache-2.0
"""Files of safetensors that are there when they are whole, and files that cannot be written."""

from __future__ import annotations

import os
import pathlib
import uuid
from typing import TYPE_CHECKING, Dict, Optional

if TYPE_CHECKING:
    from torch import Tensor


def write_whole(path: pathlib.Path, tensors: Dict[str, Tensor], text: Optional[Dict[str, str]] = None) -> None:
    """Under another name first: who reads at the same time, or after an interruption, finds the file that was there before."""
    from safetensors.torch import save_file

    unfinished = path.with_name(f".{uuid.uuid4().hex}.unfinished")
    try:
        save_file(tensors, unfinished, text)
        with open(unfinished, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def unwritable(path: pathlib.Path) -> str:
    """Why nothing can be written there; empty if it can. What is there stays as it is."""
    if not path.resolve().parent.is_dir():
        return "there is no such folder"
    if path.is_dir():
        return "it is a folder, and must be a file"
    new = not path.exists()
    try:
        with open(path, "ab"):
            pass
        if new:
            path.unlink()
    except OSError as error:
        return f"it cannot be written ({error.strerror})"
    return ""
