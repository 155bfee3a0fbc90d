# SPDX-License-Identifier: Apache-2.0
"""Lanes of a warp that have parted have come together again before an instruction of the whole warp.

mma.sync, ldmatrix and bar.sync are undefined where not all lanes of the warp execute them together, and the emulator, which runs
lanes as it likes, cannot tell. So the machine code is searched: from every branch that lanes may take differently
(uniform.py) a BSYNC of a barrier that was set before the branch, or a WARPSYNC, comes on every way before the next such
instruction. Shuffles and votes are held to the same, although the compiler, where it is not sure
of the warp, puts a BRA.DIV before them, which goes where lanes wait for each other. After an EXIT of some lanes there is no such instruction at all.

Whoever searches must be able to find: each kernel that waits for its lanes anywhere is searched a second time as if it did
not, and must fail.

usage: convergence.py DIRECTORY [PATTERN ...]      exit code 0, 1: something failed, 77: nothing to check it with
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))
sys.path.insert(0, str(HERE))

import listing
from tools.model import sass
from uniform import Uniformity, reachable

WHOLE_WARP = {"HMMA", "LDSM", "SHFL", "BAR", "MATCH", "REDUX"}
NOT_A_TEST = 77


def _is_whole(i: listing.Instruction) -> bool:
    """A vote that leaves a mask in a register is the compiler's own, of the lanes that are there."""
    whole = i.name in WHOLE_WARP or (i.name == "VOTE" and i.operands[0].startswith("P"))
    return whole or any(_is_whole(each) for each in i.calls)


def _walk(blocks: list[listing.Block], start: list[int], apart: bool) -> listing.Instruction | None:
    """The first instruction of the whole warp that lanes reach apart, if there is one. 'apart': they never meet."""
    todo: list[tuple[int, frozenset[str]]] = [(b, frozenset()) for b in start]
    seen = set(todo)
    while todo:
        b, inner = todo.pop()
        after = blocks[b].next
        for i in blocks[b].code:
            if _is_whole(i):
                return i
            if apart:
                continue
            if i.name in ("BSSY", "BREAK"):  # a lane that has left a barrier does not wait there
                inner |= {i.operands[0]}
            elif i.name == "WARPSYNC" or (i.name == "BSYNC" and i.operands[0] not in inner):
                after = []
                break
            elif i.name == "BSYNC":
                inner -= {i.operands[0]}
        for n in after:
            if (n, inner) not in seen:
                seen.add((n, inner))
                todo.append((n, inner))
    return None


def check(blocks: list[listing.Block]) -> list[str]:
    """A sentence for every branch behind which lanes are apart for too long."""
    return _apart(blocks, _divergent(blocks))


def _divergent(blocks: list[listing.Block]) -> list[int]:
    return sorted(Uniformity(blocks).divergent) if any(_is_whole(i) for b in blocks for i in b.code) else []


def _apart(blocks: list[listing.Block], divergent: list[int], never_meet: bool = False) -> list[str]:
    wrong = []
    for b in divergent:
        branch = blocks[b].code[-1]
        if met := _walk(blocks, blocks[b].next, never_meet or branch.name == "EXIT"):
            wrong.append(f"lanes may part at {branch}, and are not together again at {met}")
    return wrong


def _waits(blocks: list[listing.Block]) -> bool:
    """Is there a place where lanes wait for each other before an instruction of the whole warp?"""
    waits = {b for b, block in enumerate(blocks) if any(i.name in ("BSYNC", "WARPSYNC") for i in block.code)}
    return any(
        _is_whole(i) for b in reachable(blocks, [n for w in waits for n in blocks[w].next]) for i in blocks[b].code
    )


def search(path: Path) -> list[tuple[str, list[str]]]:
    """Every kernel of a cubin, and what is wrong with it."""
    found = []
    for name, blocks in listing.disassemble(path).items():
        divergent = _divergent(blocks)
        sentences = _apart(blocks, divergent)
        if not sentences and _waits(blocks) and not _apart(blocks, divergent, never_meet=True):
            sentences = ["nothing is found even if lanes never meet again: the search is blind"]
        found.append((name, sentences))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="where the cubins are: build/cuda/cubin")
    parser.add_argument(
        "patterns", nargs="*", default=["*"], help="of their names without .cubin: sweep_any.sm_80; all"
    )
    options = parser.parse_args()
    found = sorted({p for pattern in options.patterns for p in options.directory.glob(f"{pattern}.cubin")})
    if not found:
        print(f"skipped: no cubins in {options.directory}")
        return NOT_A_TEST
    kernels = wrong = 0
    try:
        with ProcessPoolExecutor() as pool:
            for path, results in zip(found, pool.map(search, found)):
                for name, sentences in results:
                    kernels, wrong = kernels + 1, wrong + len(sentences)
                    for text in sentences:
                        print(f"FAILED: {name} {path.stem.partition('.')[2]}: {text}")
    except sass.NoDisassembler as error:
        print(f"skipped: {error}")
        return NOT_A_TEST
    print(f"convergence: {kernels} kernels of all architectures, {wrong} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
