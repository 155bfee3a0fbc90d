# SPDX-License-Identifier: Apache-2.0
"""Hidden states as the head takes them, without computing logits."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Mapping, MutableMapping, Optional
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .._checks import bad
from .models import head_module, unwrap

# They would make the model compute a loss of its own.
_NOT_FOR_THE_MODEL = ("labels", "shift_labels", "num_items_in_batch")


def hidden_states(model: Any, batch: Mapping[str, Any]) -> Tensor:
    """What the model's head is given for a batch: [B, N, D], with gradients as usual.

    batch: what the model takes, as the tokenizer returns it; labels in it are not looked at. The model is called as it
    is, so every wrapper does its work; only the product with the unembedding is left out, and no cache is filled.
    """
    inner = unwrap(model)
    if not isinstance(batch, Mapping):
        raise bad("batch", type(batch).__name__, "it must be a dict of what the model takes", TypeError)
    inputs = {name: value for name, value in batch.items() if name not in _NOT_FOR_THE_MODEL}
    if getattr(inner.config.get_text_config(decoder=True), "use_cache", None) is not None:
        inputs.setdefault("use_cache", False)
    with _instead_of_the_head(head_module(inner)) as stand_in:
        model(**inputs)
        x, stand_in.x = stand_in.x, None
    if x is None:
        raise RuntimeError(f"streamkl: {type(inner).__name__} did not call the head that it names in its forward")
    return x


class _StandIn:
    """What is called in place of a head: it keeps what it is given."""

    def __init__(self) -> None:
        self.forward: Optional[Callable[..., Any]] = None
        self.x: Optional[Tensor] = None
        self.thread = 0
        self.lock = threading.RLock()

    def __call__(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        # Another thread may use the model as usual. A compiled graph cannot ask which thread it runs in.
        if not torch.compiler.is_compiling() and threading.get_ident() != self.thread:
            return self.forward(x, *args, **kwargs)
        self.x = x
        return x[..., :1].clone()  # what comes after the head does it to one column; FSDP2 dislikes views


# One for each head: a compiled model would be compiled anew for each new object that it meets.
_STAND_INS: MutableMapping[nn.Module, _StandIn] = WeakKeyDictionary()


@contextmanager
def _instead_of_the_head(module: nn.Module) -> Iterator[_StandIn]:
    stand_in = _STAND_INS.setdefault(module, _StandIn())
    with stand_in.lock:
        own = module.__dict__
        before = own.get("forward")
        stand_in.forward, stand_in.thread, stand_in.x = module.forward, threading.get_ident(), None
        own["forward"] = stand_in
        try:
            yield stand_in
        finally:
            stand_in.forward = None  # it would keep the module alive
            if before is None:
                del own["forward"]
            else:
                own["forward"] = before
