# SPDX-License-Identifier: Apache-2.0
"""python -m streamkl COMMAND"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Dict, NamedTuple, Tuple


class Command(NamedTuple):
    module: str  # with a function run(arguments) that returns the exit code
    says: str
    needs: Tuple[str, ...] = ("torch",)  # of which torch's own bf16 product is tried first, in a child process
    extra: str = "bench"  # what installs them


COMMANDS: Dict[str, Command] = {
    "bench": Command(".bench.cli", "streamkl beside other ways to compute the same, in one run"),
    "compare": Command(
        ".compare.cli",
        "how far models are from a reference over a text: a report",
        ("torch", "transformers"),
        "compare",
    ),
    "picture": Command(".bench.front", "the same as bench against length, as the picture of the front page"),
    "doctor": Command(".doctor", "what is installed, what is used and why, what would make it faster", ()),
}


def usage() -> str:
    lines = [f"    {name:<10}{command.says}" for name, command in COMMANDS.items()]
    return "\n".join(["usage: python -m streamkl COMMAND [--help]", "", *lines])


def main() -> int:
    name, *rest = sys.argv[1:] or [""]
    if name not in COMMANDS:
        print(usage(), file=sys.stderr)
        return 0 if name in ("-h", "--help") else 2
    command = COMMANDS[name]
    if command.needs and not _prepare(name, command):
        return 1
    return import_module(command.module, "streamkl").run(rest)


def _prepare(name: str, command: Command) -> bool:
    from .bench.onednn import limit_onednn

    limited = limit_onednn()  # before torch is imported
    if limited:
        print(f"streamkl: {limited}", file=sys.stderr)
    for package in command.needs:
        try:
            import_module(package)
        except ModuleNotFoundError:
            print(f"streamkl: {name} needs {package}: pip install 'streamkl[{command.extra}]'", file=sys.stderr)
            return False
    return True


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # also while torch is being imported, which takes a while
        print("streamkl: interrupted.", file=sys.stderr)
        sys.exit(130)
