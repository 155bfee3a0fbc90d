# SPDX-License-Identifier: Apache-2.0
"""The versions of TRL that were tested, and the way to what is taken from TRL's inside."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.metadata import version
from typing import Any

from .._faces import warn_untested

TESTED = ("1.16", "1.17")
_SILENCE = "TRL_EXPERIMENTAL_SILENCE"  # of a warning for who imports trl.experimental; here that is not the user


def inside(module: str, name: str) -> Any:
    """module.name of TRL, whose inside changes without notice: a version that was not tested is warned of, once."""
    warn_untested("trl", TESTED)
    before = os.environ.get(_SILENCE)
    os.environ[_SILENCE] = "1"
    try:
        return getattr(import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        rule = f"it has no {module}.{name}; tested with {TESTED[0]}"
        raise ImportError(f"streamkl: cannot use trl = {version('trl')!r}: {rule}") from error
    finally:
        if before is None:
            del os.environ[_SILENCE]
