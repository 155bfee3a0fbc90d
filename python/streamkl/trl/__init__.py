# SPDX-License-Identifier: Apache-2.0
"""TRL's distillation trainers with streamkl's loss: the same losses, log and gradients, without logits.

patch(), unpatch()                   TRL's own DistillationTrainer and GKDTrainer compute their loss here, or as before
DistillationTrainer, GKDTrainer      subclasses of TRL's that do so, where a patch is not wanted
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Dict, Tuple

if TYPE_CHECKING:
    from ._distillation import DistillationTrainer
    from ._gkd import GKDTrainer

__all__ = ["DistillationTrainer", "GKDTrainer", "patch", "unpatch"]

_HOMES = {"DistillationTrainer": "._distillation", "GKDTrainer": "._gkd"}
_own: Dict[Tuple[type, str], Any] = {}  # the methods that patch() took out


def patch() -> None:
    """From now on TRL's DistillationTrainer and GKDTrainer compute their loss with streamkl, those that exist too."""
    for home in _HOMES.values():
        module = import_module(home, __name__)
        trainer, method = module.PLACE
        if (trainer, method) not in _own:
            _own[trainer, method] = vars(trainer)[method]
            setattr(trainer, method, module.with_streamkl(vars(trainer)[method]))


def unpatch() -> None:
    """TRL's trainers are as they were before patch()."""
    while _own:
        (trainer, method), own = _own.popitem()
        setattr(trainer, method, own)


def __getattr__(name: str):
    if name in _HOMES:
        return getattr(import_module(_HOMES[name], __name__), name)
    raise AttributeError(f"module 'streamkl.trl' has no attribute {name!r}")
