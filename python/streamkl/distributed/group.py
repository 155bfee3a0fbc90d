# SPDX-License-Identifier: Apache-2.0
"""The collectives of a group of processes. What is added up is added in rank order, or by the one collective that gives
the same bits on every rank; so results are the same on every rank and from run to run."""

from __future__ import annotations

import ctypes
from typing import Any, List, Optional, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from .. import _c, _ops
from .._checks import bad

_TEXT = 1024  # bytes of an error's sentence
_KINDS = {kind.__name__: kind for kind in (ValueError, TypeError, NotImplementedError, MemoryError)}
_GIVEN_UP = -1.0  # in place of l_s, which is a sum of exponentials: this rank has no states to give

# Rows whose states travel together: memory for them is 48 bytes x this x ranks, 3 MiB a rank.
BLOCK = 1 << 16


class Group:
    """One process group, seen from a rank of it."""

    def __init__(self, given: Any) -> None:
        """given: a ProcessGroup, or a DeviceMesh of one dimension."""
        if not dist.is_available() or not dist.is_initialized():
            raise bad("group", given, "torch.distributed.init_process_group() has to come first", RuntimeError)
        if hasattr(given, "get_group"):
            if given.ndim != 1:
                raise bad("group", given, "a mesh must have one dimension, such as mesh['tp']")
            given = given.get_group()
        if not isinstance(given, dist.ProcessGroup):
            rule = "it must be a ProcessGroup, such as torch.distributed.group.WORLD, or a DeviceMesh"
            if given == dist.GroupMember.NON_GROUP_MEMBER:
                rule = "this process does not belong to it"
            raise bad("group", given, rule, ValueError if "belong" in rule else TypeError)
        self.pg = given
        self.ended = False  # the others know, or cannot be told
        self.rank, self.size = dist.get_rank(given), dist.get_world_size(given)
        if self.rank < 0:
            raise bad("group", given, "this process does not belong to it")

    def _do(self, what: str, collective, *args, **kwargs) -> Any:
        try:
            return collective(*args, group=self.pg, **kwargs)
        except RuntimeError as error:
            raise self._lost(what, error) from error

    def _lost(self, what: str, error: Exception) -> RuntimeError:
        self.ended = True
        who = f"rank {self.rank} of {self.size}"
        return RuntimeError(f"streamkl: {who} could not exchange {what} with its group, has a rank ended? {error}")

    def _global(self, rank: int) -> int:
        return dist.get_global_rank(self.pg, rank)

    def gather(self, t: Tensor, what: str) -> Tensor:
        """[ranks, *t.shape]; the same shape on every rank."""
        t = t.contiguous()
        out = torch.empty((self.size, *t.shape), dtype=t.dtype, device=t.device)
        if t.numel():
            self._do(what, dist.all_gather_into_tensor, out.view(-1), t.view(-1))
        return out

    def rows(self, t: Tensor, counts: Sequence[int], dim: int, what: str) -> Tensor:
        """The ranks' tensors one after the other along that dimension, of which rank r has counts[r]."""
        own, most = t.movedim(dim, 0), max(counts)
        if own.shape[0] < most:
            padding = own.new_zeros((most - own.shape[0], *own.shape[1:]))
            own = torch.cat([own, padding])
        found = self.gather(own, what)
        if all(n == most for n in counts):
            whole = found.flatten(0, 1)
        else:
            whole = torch.cat([found[r, :n] for r, n in enumerate(counts)])
        return whole.movedim(0, dim)

    def sum(self, tensors: Sequence[Tensor], what: str) -> List[Tensor]:
        """Sums over the ranks, of all tensors in one exchange; in place where it can be."""
        if not any(t.numel() for t in tensors):
            return list(tensors)
        if len(tensors) == 1 and tensors[0].is_contiguous():
            self._do(what, dist.all_reduce, tensors[0])
            return list(tensors)
        flat = torch.cat([t.reshape(-1) for t in tensors])
        self._do(what, dist.all_reduce, flat)
        return [part.view(t.shape) for part, t in zip(flat.split([t.numel() for t in tensors]), tensors)]

    def sum_own(self, t: Tensor, counts: Sequence[int], dim: int, what: str) -> Tensor:
        """The part of the sum that belongs to this rank: a reduce-scatter, but of uneven parts and in rank order."""
        whole = t.movedim(dim, 0).contiguous()
        own = counts[self.rank]
        parts = torch.empty((self.size * own, *whole.shape[1:]), dtype=t.dtype, device=t.device)
        if whole.numel():
            self._do(what, dist.all_to_all_single, parts, whole, [own] * self.size, list(counts))
        total = parts[:own]
        for r in range(1, self.size):
            total = total + parts[r * own : (r + 1) * own]
        return total.movedim(0, dim)

    def merge(self, states: Tensor) -> Tensor:
        """The states of all columns, from those of each rank's: 48 bytes a row and rank, merged in rank order. Raises on
        every rank if one has given up."""
        flat = states.reshape(-1, _c.STATE)
        merged = []
        for block in flat.split(BLOCK):
            found = self.gather(block, "states")
            given_up = [l_s == _GIVEN_UP for l_s in found[:, 0, 1].tolist()] if len(block) else []
            if any(given_up):
                self.raise_together(None, given_up)
            into = found[0]
            for other in found[1:]:
                into = _ops.merge(into, other)
            merged.append(into)
        return torch.cat(merged).view(states.shape) if len(merged) > 1 else merged[0].reshape(states.shape)

    def merge_at(self, address: int, rows: int) -> None:
        """The same of states in the engine's memory, in place: what C calls back with."""
        memory = (ctypes.c_double * (rows * _c.STATE)).from_address(address)
        states = torch.frombuffer(memory, dtype=torch.float64).view(rows, _c.STATE)
        states.copy_(self.merge(states))

    def give_up(self, failure: BaseException, rows: int) -> None:
        """Tells the others, who wait for states of so many rows, that this rank raises that. It does nothing if they know."""
        if self.ended or rows == 0:
            return
        states = torch.zeros((min(rows, BLOCK), _c.STATE), dtype=torch.float64, device=self.device)
        states[0, 1] = _GIVEN_UP
        try:
            self.gather(states, "states")
            self.raise_together(failure, ())
        except (type(failure), RuntimeError):
            pass  # the caller raises what was first

    def raise_together(self, failure: Optional[BaseException], failed: Sequence[bool]) -> None:
        """Raises on every rank: its own failure where there is one, elsewhere that of the first rank that failed."""
        self.ended = True
        words = "" if failure is None else f"{type(failure).__name__}\n{failure}"
        sent = torch.zeros(_TEXT, dtype=torch.uint8)
        cut = torch.tensor(list(words.encode()[:_TEXT]), dtype=torch.uint8)
        sent[: len(cut)] = cut
        found = self.gather(sent.to(self.device), "errors").cpu()
        if failure is not None:
            raise failure
        rank = list(failed).index(True)
        kind, sentence = bytes(found[rank].tolist()).rstrip(b"\0").decode(errors="replace").split("\n", 1)
        if sentence.startswith("streamkl: "):
            sentence = sentence[len("streamkl: ") :]
        if kind not in _KINDS:
            sentence = f"{kind}: {sentence}" if sentence else kind
        raise _KINDS.get(kind, RuntimeError)(f"streamkl: on rank {rank}: {sentence}")

    @property
    def device(self) -> torch.device:
        """Where the group's backend takes tensors from; the CPU where there is a choice."""
        backend = str(dist.get_backend(self.pg))
        return torch.device("cuda" if "nccl" in backend and "gloo" not in backend else "cpu")

    def start_broadcast(self, tensors: Sequence[Tensor], source: int) -> List[Any]:
        """Sends the source's tensors into those of the others; end_broadcast() waits for it."""
        src = self._global(source)
        return [self._do("columns", dist.broadcast, t, src, async_op=True) for t in tensors if t.numel()]

    def end_broadcast(self, started: Sequence[Any]) -> None:
        for work in started:
            try:
                work.wait()
            except RuntimeError as error:
                raise self._lost("columns", error) from error

    def sum_at(self, t: Tensor, rank: int, what: str) -> None:
        """The sum, in place, on one rank; the others' tensors are scratch afterwards."""
        if t.numel():
            self._do(what, dist.reduce, t, self._global(rank))
