# SPDX-License-Identifier: Apache-2.0
"""Queries and keys of every attention layer of a model, while it runs.

Every attention of transformers asks AttentionInterface.get_interface for its function, whatever the implementation.
While a capture is open, that function comes wrapped in one that notes what it is given. Nothing else changes: the model
runs the implementation that it was set to, with its own masks. The modules that belong to an open capture carry a mark,
so that other models do not notice."""

from __future__ import annotations

import functools
import inspect
import threading
from typing import Any, Callable, Dict, Iterator, List, MutableMapping, NamedTuple, Optional
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .._checks import bad
from .masks import Mask, Ranges, ranges
from .models import unwrap

# Arguments of an attention function that change its logits in a way that no loss here knows.
_UNKNOWN = {
    "position_bias": "it has a position bias",
    "indices": "its attention is sparse",
    "block_indices": "its attention is sparse",
}


class _Noted(NamedTuple):
    q: Tensor
    k: Tensor
    scale: Optional[float]
    softcap: Optional[float]
    window: Optional[int]
    given: Mask
    trouble: str
    sink: Optional[Tensor]


class Layer:
    """One attention layer: logits are softcap tanh(scale <q, k> / softcap), and query i sees keys begin to end - 1, and
    its head's sink where there is one."""

    def __init__(self, name: str, noted: _Noted, known: Dict[Any, Ranges]) -> None:
        self.name = name
        self.q: Tensor = noted.q  # [B, H, N, D], after rotary embedding and norms, with its autograd graph
        self.k: Tensor = noted.k  # [B, Hkv, M, D], before it is repeated for grouped heads
        self.scale: float = noted.k.shape[-1] ** -0.5 if noted.scale is None else float(noted.scale)
        self.softcap: Optional[float] = noted.softcap or None
        self.window: Optional[int] = noted.window  # of a sliding layer; begin has it already
        self.sink: Optional[Tensor] = noted.sink  # [H], one more logit of each head, with its autograd graph
        self._noted, self._known = noted, known

    @property
    def begin(self) -> Tensor:
        """[B or 1, 1, N] integers; as all of these three, computed at the first look, from the mask of the layer."""
        return self._ranges().begin

    @property
    def end(self) -> Tensor:
        return self._ranges().end

    @property
    def real(self) -> Tensor:
        """[B or 1, 1, N] bool: False where the query is padding."""
        return self._ranges().real

    def _ranges(self) -> Ranges:
        if self._noted.trouble:
            raise ValueError(f"streamkl: cannot use layer {self.name}: {self._noted.trouble}")
        given, n, m = self._noted.given, self.q.shape[2], self.k.shape[2]
        key = (id(given.mask), id(given.positions), given.causal, given.aligned, given.window, n, m)
        if key not in self._known:  # the layers of a model share their masks
            try:
                self._known[key] = ranges(given, n, m, self.q.device)
            except ValueError as error:
                raise ValueError(f"streamkl: cannot use layer {self.name}: {error}") from None
        return self._known[key]

    def __repr__(self) -> str:
        shapes = f"q={tuple(self.q.shape)}, k={tuple(self.k.shape)}"
        more = "" if self.sink is None else ", with sinks"
        return (
            f"Layer({self.name}: {shapes}, scale={self.scale:.4g}, softcap={self.softcap}, window={self.window}{more})"
        )


class capture:
    """with capture(model) as c: model(**batch)

    c[0], c[1] .. are then the attention layers, in the model's order; len(c), and a loop over c. Of several calls
    inside of the block the last counts. The layers hold q and k of the whole batch until c is gone, and keep the
    graph: backward goes through them. Recomputation by gradient checkpointing is not captured a second time.
    """

    def __init__(self, model: Any) -> None:
        self._model = unwrap(model)
        self._modules = {name: m for name, m in self._model.named_modules() if _asks(type(m))}
        if not self._modules:
            rule = "its attention does not go through transformers' AttentionInterface"
            raise bad("model", type(self._model).__name__, rule)
        self._layers: List[Layer] = []
        self._open, self._thread = False, 0

    def __enter__(self) -> capture:
        if self._open:
            raise RuntimeError("streamkl: this capture is open already: make another one")
        _refuse_reentrant_checkpoints(self._model)
        self._layers, self._thread = [], threading.get_ident()
        _open(self)
        self._open = True
        return self

    def __exit__(self, *_: Any) -> None:
        self._open = False
        _close(self)

    def collect(self) -> None:
        """Take what the calls of the capture's thread have left, if there was one since the last time."""
        known: Dict[Any, Ranges] = {}
        noted = {name: module.__dict__[_MARK].take(self._thread) for name, module in self._modules.items()}
        self._layers = [Layer(name, x, known) for name, x in noted.items() if x is not None] or self._layers

    @property
    def layers(self) -> List[Layer]:
        if self._open:
            self.collect()
        if not self._layers:
            kind = type(self._model).__name__
            raise RuntimeError(
                f"streamkl: no attention of {kind} was captured: call the model inside of 'with capture(model)'"
            )
        return self._layers

    def __getitem__(self, i: int) -> Layer:
        return self.layers[i]

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    def __repr__(self) -> str:
        return f"capture({type(self._model).__name__}: {len(self._layers)} layers)"


def _refuse_reentrant_checkpoints(model: nn.Module) -> None:
    """They run the layers without a graph, so q and k would get no gradient and nobody would notice."""
    if not torch.is_grad_enabled():
        return
    for module in model.modules():
        checkpoint = getattr(module, "_gradient_checkpointing_func", None)
        if getattr(module, "gradient_checkpointing", False) and module.training and checkpoint is not None:
            if getattr(checkpoint, "keywords", {}).get("use_reentrant", True):
                rule = "q and k have no graph there: gradient_checkpointing_kwargs={'use_reentrant': False}"
                raise bad("use_reentrant", True, rule)


@functools.lru_cache(None)
def _asks(kind: type) -> bool:
    """Whether a class of modules asks AttentionInterface for its function."""
    functions = (inspect.unwrap(f) for c in kind.__mro__ for f in vars(c).values() if inspect.isfunction(f))
    return any("get_interface" in f.__code__.co_names for f in functions)


# ---- what is put into a model while a capture is open


class _Tap:
    """Stands in for the forward of an attention module, which it calls, and keeps what was noted.

    A compiled model is compiled anew when the forward of a module becomes another object: once with taps and once
    without. A tap lives as long as its module, since another one would be another object."""

    def __init__(self) -> None:
        self.module: Optional[nn.Module] = None
        self.users: List[capture] = []
        self.compiled: Optional[_Noted] = None
        self.by_thread: Dict[int, _Noted] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return type(self.module).forward(self.module, *args, **kwargs)

    def take(self, thread: int) -> Optional[_Noted]:
        noted, self.compiled = self.compiled, None
        return self.by_thread.pop(thread, noted)


_MARK = "_streamkl_tap"
_TAPS: MutableMapping[nn.Module, _Tap] = WeakKeyDictionary()
_lock = threading.RLock()
_opened = 0
_plain: Any = None  # get_interface as it was; kept, since another thread may be about to call it


def _open(mine: capture) -> None:
    global _opened, _plain
    from transformers import AttentionInterface

    with _lock:
        if not _opened:
            _plain = AttentionInterface.get_interface
            AttentionInterface.get_interface = _get_interface
        _opened += 1
        for module in mine._modules.values():
            own, tap = module.__dict__, _TAPS.setdefault(module, _Tap())
            tap.module, own[_MARK] = module, tap
            own.setdefault("forward", tap)
        for outer in {c for module in mine._modules.values() for c in module.__dict__[_MARK].users}:
            if outer._thread == mine._thread:
                outer.collect()
        for module in mine._modules.values():
            module.__dict__[_MARK].users.append(mine)


def _close(mine: capture) -> None:
    global _opened
    from transformers import AttentionInterface

    with _lock:
        mine.collect()
        for module in mine._modules.values():
            own = module.__dict__
            tap = own[_MARK]
            tap.users.remove(mine)
            if not tap.users:
                if own.get("forward") is tap:
                    del own["forward"]
                del own[_MARK]
                tap.module, tap.compiled = None, None
                tap.by_thread.clear()
        _opened -= 1
        if not _opened:
            AttentionInterface.get_interface = _plain


def _get_interface(self: Any, implementation: str, default: Callable[..., Any]) -> Callable[..., Any]:
    return functools.partial(_noting, _plain(self, implementation, default), implementation)


def _noting(function, implementation, module, query, key, value, attention_mask, *args, **kw):
    tap = getattr(module, _MARK, None)
    if tap is not None:
        # A compiled graph cannot ask which thread it runs in; nothing in it is recomputed by gradient checkpointing.
        if torch.compiler.is_compiling():
            tap.compiled = _note(implementation, module, query, key, attention_mask, kw)
        elif torch._C._current_graph_task_id() == -1:
            tap.by_thread[threading.get_ident()] = _note(implementation, module, query, key, attention_mask, kw)
    return function(module, query, key, value, attention_mask, *args, **kw)


def _note(implementation: str, module: nn.Module, query: Tensor, key: Tensor, mask: Any, kw: Dict[str, Any]) -> _Noted:
    flash = "flash" in (implementation or "")
    causal = kw.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    # Eager attention without a mask hides nothing, and sdpa nothing from a single query.
    causal = causal and (flash or (implementation != "eager" and query.shape[2] > 1))
    window = kw.get("sliding_window")
    positions = kw.get("position_ids") if flash and mask is None else None
    given = Mask(mask, causal, flash, window if flash else None, positions)
    trouble = "".join(why for name, why in _UNKNOWN.items() if kw.get(name) is not None)
    sink = kw.get("s_aux")  # a parameter, which FSDP2 takes away again after the layer, unlike q and k: so a copy
    sink = None if sink is None else sink.clone()
    return _Noted(query, key, kw.get("scaling"), kw.get("softcap"), window, given, trouble, sink)
