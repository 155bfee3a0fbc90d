# SPDX-License-Identifier: Apache-2.0
"""A safetensors file that grows: it is whole after every tensor, so a run that was cut goes on from it."""

from __future__ import annotations

import json
import os
import pathlib
import struct
from typing import Any, Dict, List, Optional, Union

import torch
from torch import Tensor

from .._checks import bad

SPACE = 1 << 20  # bytes kept free for the names and places of tensors, some ten thousand of them
_TYPES = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I64": torch.int64,
    "I32": torch.int32,
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
Path = Union[str, "os.PathLike[str]"]


class Store:
    """Tensors by name, and a dict 'about' of plain values that says what they belong to."""

    def __init__(self, path: Path, about: Optional[Dict[str, Any]] = None, keep: bool = False) -> None:
        """about: starts a file, or with 'keep' goes on with one that was started with the same; None: reads one."""
        self.path = pathlib.Path(path)
        self.places: Dict[str, Any] = {}
        if about is None or (keep and self.path.exists()):
            self._read()
            if about is not None and self.about.get("key") != about.get("key"):
                raise bad("resume", str(self.path), "it was begun with other models, another text or other options")
        else:
            self.about, self.start = about, SPACE
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "wb") as file:
                self._write_header(file)

    def __contains__(self, name: str) -> bool:
        return name in self.places

    def names(self, prefix: str = "") -> List[str]:
        return [name for name in self.places if name.startswith(prefix)]

    def add(self, name: str, tensor: Tensor) -> None:
        data = tensor.detach().cpu().contiguous()
        raw = data.reshape(-1).view(torch.uint8).numpy().tobytes() if data.numel() else b""
        begin = self._end()
        with open(self.path, "r+b") as file:
            file.seek(self.start + begin)
            file.write(raw)
            file.truncate()
            file.flush()
            self.places[name] = dict(
                dtype=_NAMES[data.dtype], shape=list(data.shape), data_offsets=[begin, begin + len(raw)]
            )
            self._write_header(file)

    def note(self, **about: Any) -> None:
        self.about.update(about)
        with open(self.path, "r+b") as file:
            self._write_header(file)

    def __getitem__(self, name: str) -> Tensor:
        place = self.places[name]
        begin, end = place["data_offsets"]
        with open(self.path, "rb") as file:
            file.seek(self.start + begin)
            raw = bytearray(file.read(end - begin))
        dtype = _TYPES[place["dtype"]]
        return (torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)).reshape(place["shape"])

    def _end(self) -> int:
        return max((place["data_offsets"][1] for place in self.places.values()), default=0)

    def _write_header(self, file: Any) -> None:
        text = json.dumps({"__metadata__": {"streamkl": json.dumps(self.about)}, **self.places}).encode()
        if len(text) > self.start - 8:
            raise bad("batch", "so many", "one file cannot name them all: use larger batches or a smaller --limit")
        file.seek(0)
        file.write(struct.pack("<Q", self.start - 8) + text.ljust(self.start - 8))

    def _read(self) -> None:
        try:
            with open(self.path, "rb") as file:
                (size,) = struct.unpack("<Q", file.read(8))
                header = json.loads(file.read(size))
            self.about = json.loads(header.pop("__metadata__")["streamkl"])
        except (OSError, struct.error, ValueError, KeyError, MemoryError, OverflowError) as error:
            raise bad("states", str(self.path), "it is no file that --save-states has written") from error
        self.places, self.start = header, 8 + size
