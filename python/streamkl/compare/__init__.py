# SPDX-License-Identifier: Apache-2.0
"""streamkl.compare(reference, other, text=...): how far models are from a reference, token by token and head by head.

The module is itself the function: streamkl.compare(...) is streamkl.compare.compare(...).

    cli.py          python -m streamkl compare
    run.py          the order of things; models.py, windows.py what goes in; store.py, states.py what is kept
    rows.py         hidden states and heads -> numbers a token; attention.py the same of heads
    statistics.py   numbers a token -> numbers a model; fields.py their names; verdict.py the sentence
    report.py       the Report; plain.py text and Markdown; page.py, charts.py, maps.py, svg.py the page
    metric.py       DriftMetric
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from .report import Report
from .run import compare

__all__ = ["Report", "compare"]


class _Callable(ModuleType):
    __doc__ = compare.__doc__

    def __call__(self, *args: Any, **options: Any) -> Any:
        return compare(*args, **options)


sys.modules[__name__].__class__ = _Callable
