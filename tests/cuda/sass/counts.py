# SPDX-License-Identifier: Apache-2.0
"""What the compiler made of the kernels: no spills, within the budget, the instructions that the tiles need, no others.

Reads cubins itself; needs neither a GPU nor a disassembler. For the occupancy a C compiler and the toolkit's
cuda_occupancy.h, without which that part is left out.

usage: counts.py DIRECTORY [--units REGEX] [--cuda-include DIR] [--verbose]      exit code 0, 1: something failed, 77: nothing to check
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))
sys.path.insert(0, str(HERE))

import budget as budgets
from tools.model import elf, flow, kernels, raw

WANTED = (80, 90, 100, 120)
NOT_A_TEST = 77


@dataclass
class Subject:
    """A kernel as compiled for one architecture, and what is known about it."""

    code: elf.KernelCode
    arch: int
    entry: kernels.Kernel | None
    budget: budgets.Budget | None

    @property
    def sm(self) -> str:
        return f"sm_{self.arch}"

    @property
    def threads(self) -> int:
        return self.entry.threads if self.entry else self.code.threads

    @property
    def shared(self) -> int:
        return self.code.shared + (self.entry.shared if self.entry else 0)


def subjects(directory: Path) -> list[Subject]:
    table, allowed = kernels.read_table(), budgets.read_budgets(HERE / "budget.toml")
    found = []
    for path in sorted(directory.glob("**/*.cubin")):
        cubin = elf.read_cubin(path)
        found += [
            Subject(code, cubin.arch, kernels.find(table, name), budgets.find(allowed, name))
            for name, code in sorted(cubin.kernels.items())
        ]
    return [s for s in found if s.arch in WANTED]


# ------------------------------------------------------------------------------------------------------- one kernel ---


def check(subject: Subject) -> Iterator[str]:
    """A sentence for everything that is wrong."""
    if not subject.budget:
        yield "has no entry in tests/cuda/sass/budget.toml"
    else:
        yield from check_budget(subject, subject.budget)
    yield from check_threads(subject)
    yield from check_instructions(subject)


def check_budget(subject: Subject, budget: budgets.Budget) -> Iterator[str]:
    code, total = subject.code, raw.count(subject.code.code)
    if code.frame > budget.local or (not budget.local and total["LDL"] + total["STL"]):
        yield (
            f"uses {code.frame} bytes of local memory a thread ({total['STL']} STL, {total['LDL']} LDL), "
            f"may use {budget.local}: registers spill, or an array is indexed by a variable"
        )
    if code.registers > budget.registers_on(subject.sm):
        yield f"uses {code.registers} registers, may use {budget.registers_on(subject.sm)}"
    if subject.shared > budget.shared:
        yield f"uses {subject.shared} bytes of shared memory ({code.shared} static), may use {budget.shared}"


def check_threads(subject: Subject) -> Iterator[str]:
    if subject.entry and subject.code.threads and subject.code.threads != subject.entry.threads:
        yield f"is compiled for {subject.code.threads} threads a block, kernels.def says {subject.entry.threads}"


def check_instructions(subject: Subject) -> Iterator[str]:
    entry, has_products = subject.entry, raw.count(subject.code.code)["HMMA"] > 0
    if not entry:
        if has_products:
            yield "uses tensor cores and has no entry in tools/model/kernels.toml"
        return
    decoded = raw.decode(subject.code, subject.arch)
    path = entry.path(decoded)
    if path is None:
        yield "has no loop with HMMA: tensor cores are not used where they should be"
        return
    turn = [decoded[i] for i in path]
    yield from (f"has {text}" for text in entry.differences(lambda name: flow.tally(turn, name)))


# ------------------------------------------------------------------------------------------------------ all kernels ---


def check_architectures(found: list[Subject]) -> Iterator[str]:
    """Every kernel for every architecture that any kernel is compiled for."""
    archs = {s.arch for s in found}
    for name in sorted({s.code.name for s in found}):
        if missing := archs - {s.arch for s in found if s.code.name == name}:
            yield f"{name} is missing for {', '.join(f'sm_{a}' for a in sorted(missing))}, other kernels are not"


def check_list(found: list[Subject], units: str) -> Iterator[str]:
    """The kernels of the list that are of such units are those that were compiled."""
    listed = {name for name, unit in kernels.read_units().items() if re.fullmatch(units, unit)}
    compiled = {s.code.name for s in found}
    yield from (f"{name} is in src/cuda/kernels.def and was not compiled" for name in sorted(listed - compiled))
    yield from (f"{name} was compiled and is not in src/cuda/kernels.def" for name in sorted(compiled - listed))


class NoOccupancy(Exception):
    """The calculator cannot be compiled here; the message says why."""


def occupancy(found: list[Subject], include: Path) -> list[int]:
    """Blocks on a multiprocessor, by NVIDIA's calculator."""
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if not compiler:
        raise NoOccupancy("no C compiler")
    if not (include / "cuda_occupancy.h").exists():
        raise NoOccupancy(f"no cuda_occupancy.h in {include}")
    lines = [f"{s.arch} {s.code.registers} {s.threads} {s.code.shared} {s.shared - s.code.shared}" for s in found]
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "occupancy")
        command = [compiler, "-std=c11", "-isystem", str(include), str(HERE / "occupancy.c"), "-o", str(program)]
        made = subprocess.run(command, check=False, capture_output=True, text=True)
        if made.returncode:
            raise NoOccupancy(f"{compiler} does not compile occupancy.c: {made.stderr.strip()[:300]}")
        answer = subprocess.run([program], input="\n".join(lines), capture_output=True, text=True, check=True)
    return [int(line) for line in answer.stdout.split()]


def check_occupancy(found: list[Subject], include: Path) -> Iterator[str]:
    found = [s for s in found if s.budget and s.budget.blocks and s.threads]
    for s, blocks in zip(found, occupancy(found, include)):
        least = s.budget.blocks.get(s.sm, 0) if s.budget else 0
        if blocks < least:
            yield (
                f"{s.code.name} {s.sm}: {blocks} blocks fit on a multiprocessor, {least} are wanted "
                f"({s.code.registers} registers, {s.threads} threads, {s.shared} bytes of shared memory)"
            )


def nvcc_include() -> Path:
    """Beside the nvcc that is on PATH or in its usual place."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    return Path(nvcc).resolve().parents[1] / "include"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="where the cubins are: build/cuda/cubin")
    parser.add_argument("--units", default=".*", help="a regular expression: there is machine code of these alone")
    parser.add_argument("--cuda-include", type=Path, default=nvcc_include(), help="where cuda_occupancy.h is")
    parser.add_argument("--verbose", action="store_true", help="a line for every kernel")
    options = parser.parse_args()
    try:
        found = subjects(options.directory)
    except (elf.NotACubin, budgets.BadBudget, kernels.BadTable) as error:
        print(f"FAILED: {error}")
        return 1
    if not found:
        print(f"skipped: no cubins of sm_{', '.join(map(str, WANTED))} in {options.directory}")
        return NOT_A_TEST
    wrong = [f"{s.code.name} {s.sm} {text}" for s in found for text in check(s)]
    wrong += [*check_architectures(found), *check_list(found, options.units)]
    try:
        wrong += check_occupancy(found, options.cuda_include)
    except NoOccupancy as error:
        print(f"note: occupancy is not checked: {error}")
    if options.verbose:
        for s in found:
            size = len(s.code.code) // raw.BYTES
            use = f"{s.code.registers:3d} registers, {s.shared:6d} bytes shared, {size} instructions"
            print(f"{s.code.name:28s} {s.sm:6s} {use}")
    for text in wrong:
        print(f"FAILED: {text}")
    names, archs = {s.code.name for s in found}, sorted({s.arch for s in found})
    print(f"sass: {len(names)} kernels, {len(found)} for sm_{', sm_'.join(map(str, archs))}, {len(wrong)} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
