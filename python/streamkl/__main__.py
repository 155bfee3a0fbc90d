# SPDX-License-Identifier: Apache-2.0
"""python -m streamkl COMMAND

bench     streamkl beside other ways to compute the same, in one run
compare   how far models are from a reference over a text: a report
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Dict, Tuple

# A command: its module, whose run(arguments) returns the exit code, and what it needs beside streamkl.
COMMANDS: Dict[str, Tuple[str, Tuple[str, ...], str]] = {
    "bench": (".bench.cli", ("torch",), "bench"),
    "compare": (".compare.cli", ("torch", "transformers"), "compare"),
}


def main() -> int:
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in COMMANDS:
        print(f"{__doc__.strip()}\n\nusage: python -m streamkl {{{','.join(COMMANDS)}}} [--help]", file=sys.stderr)
        return 0 if name in ("-h", "--help") else 2
    module, needs, extra = COMMANDS[name]
    from .bench.onednn import limit_onednn

    limited = limit_onednn()  # before torch is imported
    if limited:
        print(f"streamkl: {limited}", file=sys.stderr)
    for package in needs:
        try:
            import_module(package)
        except ModuleNotFoundError:
            print(f"streamkl: {name} needs {package}: pip install 'streamkl[{extra}]'", file=sys.stderr)
            return 1
    return import_module(module, "streamkl").run(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
