# SPDX-License-Identifier: Apache-2.0
"""The Python of README.md and docs/*.md: found, and run one block after the other, in one namespace.

What a reader has and the page does not show (a model, a batch) is made in a comment before the block, which starts with the
line "<!-- python".
"""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
BLOCK = r"^(?:```python|<!-- python)\n(?P<code>.*?)^(?:```|-->)$"


def blocks(page):
    """The code of each block, behind as many empty lines as there are before it: a traceback has the page's lines."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = ["\n" * text.count("\n", 0, b.start("code")) + b["code"] for b in re.finditer(BLOCK, text, re.S | re.M)]
    fences = re.findall(r"^ *(?:```|~~~) *(?:py|\{)\w*|<!-- *py", text, re.M)
    assert len(found) == len(fences), "a block of Python is not written as the others, and would not be run"
    return found


def run(page, space=None):
    """Runs the page, and returns its namespace. Only a package that nobody has to have may be missing."""
    space = {} if space is None else space
    for code in blocks(page):
        try:
            exec(compile(code, str(page), "exec"), space)
        except ModuleNotFoundError as error:
            if error.name.split(".")[0] in ("streamkl", "torch", "numpy"):
                raise
            pytest.skip(f"{error.name} is not installed")
    return space
