# SPDX-License-Identifier: Apache-2.0
"""The teacher's hidden states on disk, so that it runs once and not in every epoch.

A folder of safetensors: head.safetensors, and shards with two tensors for each sample, its hidden states of the real
tokens [n, D] and the tokens themselves. A shard gets its name when it is complete, so an interrupted run leaves whole
shards and goes on where they end; processes that fill one folder together write shards of their own."""

from __future__ import annotations

import pathlib
import uuid
from typing import Any, Dict, Iterable, Iterator, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from .._checks import bad
from .._files import write_whole
from .heads import Head, head
from .states import hidden_states

_HEAD = "head.safetensors"
_STATES, _TOKENS = "states/", "tokens/"
_Open = Tuple[Any, pathlib.Path]  # an open file of safetensors, memory-mapped, and where it is


class TeacherCache:
    """cache = TeacherCache(folder); cache.fill(teacher, batches); x_t, head_t = cache.states(ids, batch), cache.head

    folder: made if it is not there. dtype: of the hidden states on disk; None is the teacher's.
    shard_bytes: how much is kept in memory before it is written, and lost if the process dies.
    """

    def __init__(
        self, folder: Union[str, pathlib.Path], *, dtype: Optional[torch.dtype] = None, shard_bytes: int = 256 << 20
    ) -> None:
        self.folder, self.dtype, self.shard_bytes = pathlib.Path(folder), dtype, shard_bytes
        self.folder.mkdir(parents=True, exist_ok=True)
        self._head: Optional[Head] = None
        self._waiting: Dict[str, Tensor] = {}
        self._homes: Dict[str, _Open] = {}
        self._seen: Dict[pathlib.Path, _Open] = {}
        self.reload()

    def reload(self) -> None:
        """Look again which shards there are: other processes may have written some."""
        from safetensors import SafetensorError, safe_open

        for path in sorted(self.folder.glob("shard-*.safetensors")):
            if path in self._seen:
                continue
            try:
                file = safe_open(path, "pt")
            except SafetensorError as error:
                raise bad("folder", str(self.folder), f"{path.name} is damaged ({error}): delete it") from None
            self._seen[path] = (file, path)
            for name in file.keys():
                if name.startswith(_STATES):
                    self._homes[name[len(_STATES) :]] = self._seen[path]

    # ---- writing

    def fill(self, teacher: Any, batches: Iterable[Mapping[str, Any]], key: str = "id") -> None:
        """Run the teacher over batches, each with the samples' ids under 'key' beside what the model takes. Samples
        that are here already are not computed again: after an interruption, call it again."""
        self._keep_head(head(teacher))
        for batch in batches:
            ids = [str(i) for i in self._ids(batch, key)]
            if all(i in self for i in ids):
                continue
            inputs = {name: value for name, value in batch.items() if name != key}
            with torch.no_grad():
                x = hidden_states(teacher, inputs)
            self._check_shape(ids, inputs, x.shape[:2])
            for i, states, tokens, real in zip(ids, x, inputs["input_ids"], _real(inputs)):
                if i not in self:
                    self.add(i, states[real], tokens[real])
        self.flush()

    def add(self, sample: object, states: Tensor, tokens: Tensor) -> None:
        """The hidden states [n, D] of one sample, and its tokens [n]."""
        name = str(sample)
        if name in self:
            raise bad("sample", sample, "it is in the cache already")
        if states.dim() != 2 or tokens.shape != states.shape[:1]:
            raise bad("states.shape", tuple(states.shape), f"it must be [n, D], with tokens {tuple(tokens.shape)} [n]")
        self._waiting[_STATES + name] = states.detach().to("cpu", self.dtype).contiguous().clone()
        self._waiting[_TOKENS + name] = tokens.detach().to("cpu", torch.int32).contiguous()
        if sum(t.numel() * t.element_size() for t in self._waiting.values()) >= self.shard_bytes:
            self.flush()

    def flush(self) -> None:
        """Write what waits in memory."""
        if self._waiting:
            write_whole(self.folder / f"shard-{uuid.uuid4().hex}.safetensors", self._waiting)
            self._waiting = {}
            self.reload()

    def _keep_head(self, found: Head) -> None:
        if (self.folder / _HEAD).is_file():
            if not torch.equal(self.head.weight, found.weight.detach().cpu()):
                raise bad("teacher", "model", f"{self.folder} is the cache of another teacher: its head is another")
            return
        tensors = {"weight": found.weight, **({} if found.bias is None else {"bias": found.bias})}
        numbers = {"scale": found.scale, "softcap": found.softcap, "columns": found.columns}
        text = {name: repr(value) for name, value in numbers.items() if value is not None}
        copies = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
        write_whole(self.folder / _HEAD, copies, text)

    # ---- reading

    @property
    def head(self) -> Head:
        """The teacher's head, as it was when the cache was filled."""
        if self._head is None:
            from safetensors import safe_open

            if not (self.folder / _HEAD).is_file():
                raise bad("folder", str(self.folder), "there is no head in it yet: call fill(teacher, batches)")
            file = safe_open(self.folder / _HEAD, "pt")
            text, weight = file.metadata() or {}, file.get_tensor("weight")
            softcap = float(text["softcap"]) if "softcap" in text else None
            bias = file.get_tensor("bias") if "bias" in file.keys() else None
            self._head = Head(weight, bias, float(text["scale"]), softcap, int(text["columns"]))
        return self._head

    def __getitem__(self, sample: object) -> Tensor:
        """[n, D], of the file's memory: nothing is read before it is used."""
        return self._tensor(_STATES, sample)

    def _tensor(self, kind: str, sample: object) -> Tensor:
        name = str(sample)
        if kind + name in self._waiting:
            return self._waiting[kind + name]
        if name not in self._homes:
            raise KeyError(f"streamkl: sample {sample!r} is not in {self.folder}")
        return self._homes[name][0].get_tensor(kind + name)

    def __contains__(self, sample: object) -> bool:
        return str(sample) in self._homes or _STATES + str(sample) in self._waiting

    def __iter__(self) -> Iterator[str]:
        waiting = [name[len(_STATES) :] for name in self._waiting if name.startswith(_STATES)]
        return iter([*self._homes, *waiting])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def states(self, ids: Sequence[object], batch: Mapping[str, Any]) -> Tensor:
        """The teacher's hidden states for a batch, [B, N, D], 0 at padding: as hidden_states(teacher, batch).

        A sample must have the tokens that the teacher saw, padded on any side and to any length."""
        ids, tokens = list(ids), batch["input_ids"]
        self._check_shape(ids, batch, tokens.shape)
        found = [self[i] for i in ids]
        x = found[0].new_zeros(*tokens.shape, found[0].shape[-1]) if found else torch.zeros(*tokens.shape, 0)
        for place, (i, states, row, real) in enumerate(zip(ids, found, tokens.cpu(), _real(batch).cpu())):
            if not torch.equal(self._tensor(_TOKENS, i), row[real].to(torch.int32)):
                raise bad("batch", f"sample {i!r}", "its tokens are not those that the teacher saw")
            x[place, real] = states
        return x.to(tokens.device)

    @staticmethod
    def _ids(batch: Mapping[str, Any], key: str) -> Sequence[object]:
        if key not in batch:
            raise bad("key", key, f"a batch must have the samples' ids there; it has {', '.join(map(repr, batch))}")
        ids = batch[key]
        return ids.tolist() if isinstance(ids, Tensor) else list(ids)

    @staticmethod
    def _check_shape(ids: Sequence[object], batch: Mapping[str, Any], shape: Sequence[int]) -> None:
        tokens = batch.get("input_ids")
        if tokens is None or tuple(tokens.shape) != tuple(shape) or len(ids) != len(tokens):
            got = None if tokens is None else tuple(tokens.shape)
            raise bad("batch['input_ids'].shape", got, f"it must be [{len(ids)} ids, tokens] and {tuple(shape)}")


def _real(batch: Mapping[str, Any]) -> Tensor:
    mask = batch.get("attention_mask")
    return torch.ones_like(batch["input_ids"], dtype=torch.bool) if mask is None else mask.bool()
