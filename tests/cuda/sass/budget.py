# SPDX-License-Identifier: Apache-2.0
"""Reads budget.toml, which explains its format."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import tomllib

KNOWN = {"match", "registers", "shared", "blocks", "local"}


class BadBudget(Exception):
    """An entry that cannot be used; the message says which."""


@dataclass
class Budget:
    match: str
    registers: dict[str, int] | int
    shared: int
    blocks: dict[str, int]
    local: int

    def registers_on(self, arch: str) -> int:
        return self.registers if isinstance(self.registers, int) else self.registers.get(arch, 255)


def read_budgets(path: Path) -> list[Budget]:
    """Raises BadBudget."""
    budgets = []
    for entry in tomllib.loads(path.read_text()).get("budget", []):
        if missing := {"match", "registers", "shared"} - entry.keys():
            raise BadBudget(f"{path.name}: the entry {entry.get('match', entry)} has no {', '.join(sorted(missing))}")
        if unknown := entry.keys() - KNOWN:
            raise BadBudget(
                f"{path.name}: the entry {entry['match']} has {', '.join(sorted(unknown))}, which means nothing"
            )
        budgets.append(
            Budget(entry["match"], entry["registers"], entry["shared"], entry.get("blocks", {}), entry.get("local", 0))
        )
    return budgets


def find(budgets: list[Budget], name: str) -> Budget | None:
    return next((b for b in budgets if fnmatchcase(name, b.match)), None)
