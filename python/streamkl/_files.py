# SPDX-License-Identifier: Apache-2.0
"""Files of safetensors that are there when they are whole."""

from __future__ import annotations

import os
import pathlib
import uuid
from typing import Dict, Optional

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
