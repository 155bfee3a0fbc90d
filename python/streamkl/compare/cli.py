# SPDX-License-Identifier: Apache-2.0
"""The options of `python -m streamkl compare`."""

from __future__ import annotations

import argparse
import math
import operator
import pathlib
import re
import sys
from typing import Any, Dict, List, NamedTuple

from .._files import unwritable
from .fields import FIELDS

_OPERATORS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
FAILED, UNUSABLE = 1, 2  # exit codes: a condition of --fail-if holds; what was given cannot be used


class Condition(NamedTuple):
    key: str
    sign: str
    value: float

    def holds(self, candidate: Dict[str, Any]) -> bool:
        """A number that is missing or not finite fails too: a gate must not open because nothing could be measured."""
        stat = candidate["metrics"].get(self.key)
        if stat is None or not math.isfinite(stat["value"]):
            return True
        return _OPERATORS[self.sign](stat["value"], self.value)

    def __str__(self) -> str:
        return f"{self.key}{self.sign}{self.value:g}"


def condition(text: str) -> Condition:
    found = re.fullmatch(r"\s*(\w+)\s*(>=|<=|>|<)\s*(\S+?)(%?)\s*", text)
    try:
        if not found or found[1] not in FIELDS:
            raise ValueError
        return Condition(found[1], found[2], float(found[3]) / (100 if found[4] else 1))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"cannot use {text!r}: it must be a number's key, a sign and a value, as mean_kld>0.01 or same_top_p<97%; "
            f"keys are {', '.join(FIELDS)}"
        ) from None


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m streamkl compare",
        description="How far other models are from a reference over a text: divergence of the next token and of "
        "attention, with honest errors. No logits are stored.",
        epilog="Exit code: 0, 1 if a condition of --fail-if holds, 2 if something cannot be used.",
    )
    p.add_argument(
        "reference", metavar="REFERENCE", help="a folder that transformers loads, or a file of --save-states"
    )
    p.add_argument(
        "others", metavar="OTHER", nargs="*", help="folders; with :f32 :bf16 :f16 :int8 :int4 to load them so"
    )
    p.add_argument("--text", type=pathlib.Path, metavar="FILE", help="UTF-8 text")
    p.add_argument("--html", metavar="FILE", help="write the page")
    p.add_argument("--json", metavar="FILE", help="write every number (docs/report.md)")
    p.add_argument("--markdown", metavar="FILE", help="write the report as Markdown")
    p.add_argument("--csv", metavar="FILE", help="write a line for each token")
    p.add_argument("--quiet", action="store_true", help="print only the verdict, and no progress")
    p.add_argument(
        "--fail-if", type=condition, action="append", default=[], metavar="CONDITION",
        help="exit with 1 if it holds for any candidate: 'mean_kld>0.01'; may be given several times",
    )  # fmt: skip
    p.add_argument(
        "--window", type=int, metavar="N", help="tokens of a window (default 2048, or the models' positions)"
    )
    p.add_argument("--limit", type=int, metavar="N", help="score about so many tokens at most")
    p.add_argument("--second-half", action="store_true", help="score the second half of each window only, as llama.cpp")
    p.add_argument("--batch", type=int, metavar="B", help="windows that run at once (default: some 4096 tokens)")
    p.add_argument("--dtype", metavar="DTYPE", help="f32, bf16 or f16 for all (default: as stored)")
    p.add_argument(
        "--attention",
        type=int,
        default=2,
        metavar="W",
        help="windows whose attention is compared (default %(default)s; 0: none)",
    )
    p.add_argument(
        "--floor",
        type=int,
        default=4096,
        metavar="N",
        help="tokens over which the floor is measured (default %(default)s; 0: not)",
    )
    p.add_argument("--worst", type=int, default=20, metavar="N", help="tokens shown one by one (default %(default)s)")
    p.add_argument(
        "--save-states", metavar="FILE", help="keep the reference's states (.safetensors), to compare without it later"
    )
    p.add_argument(
        "--resume", metavar="FOLDER", help="keep what is computed there; the same command then goes on from it"
    )
    p.add_argument(
        "--device", default="cpu", help="where the models' bodies run (default %(default)s; heads always on the CPU)"
    )
    p.add_argument("--seed", type=int, default=0, help="of the bootstrap (default %(default)s)")
    return p


def _writable(args: argparse.Namespace) -> None:
    """Better before an hour of work than after it."""
    for name in ("html", "json", "markdown", "csv", "save_states"):
        given = getattr(args, name)
        if given:
            rule = unwritable(pathlib.Path(given))
            if rule:
                raise ValueError(f"streamkl: cannot use --{name.replace('_', '-')} = {given!r}: {rule}")


def run(arguments: List[str]) -> int:
    args = parser().parse_args(arguments)
    from .run import compare

    names = ("text", "window", "limit", "second_half", "batch", "dtype", "attention", "floor", "worst", "save_states")
    options = {name: getattr(args, name) for name in (*names, "resume", "device", "seed")}
    try:
        _writable(args)
        report = compare(args.reference, *args.others, progress=not args.quiet, **options)
    except (ValueError, TypeError, ImportError) as error:
        print(error, file=sys.stderr)
        return UNUSABLE
    except OSError as error:
        print(f"streamkl: a file cannot be read or written: {error}", file=sys.stderr)
        return UNUSABLE
    except KeyboardInterrupt:
        again = f" The same command goes on from {args.resume}." if args.resume else ""
        print(f"streamkl: interrupted.{again}", file=sys.stderr)
        return 130
    if report is None:
        print(f"The states are in {args.save_states}.")
        return 0
    verdicts = [c["verdict"]["headline"] for c in report.data["candidates"]]
    print("\n".join(verdicts) if args.quiet else report.text())
    code = _gate(report, args.fail_if)
    return code if _write(report, args) else UNUSABLE


def _write(report: Any, args: argparse.Namespace) -> bool:
    """Every file that is wanted, also if another one fails: the work was done."""
    made: Dict[str, Any] = {"html": report.html, "json": report.json, "markdown": report.markdown}
    good = True
    for name in (*made, "csv"):
        path = getattr(args, name)
        if not path:
            continue
        try:
            if name == "csv":
                report.csv(path)
            else:
                pathlib.Path(path).write_text(made[name](), encoding="utf-8")
        except OSError as error:
            print(f"streamkl: cannot write --{name} = {path!r}: {error.strerror or error}", file=sys.stderr)
            good = False
    return good


def _gate(report: Any, conditions: List[Condition]) -> int:
    code = 0
    for candidate in report.data["candidates"]:
        for wanted in conditions:
            if wanted.holds(candidate):
                stat = candidate["metrics"].get(wanted.key)
                shown = "not measured" if stat is None else f"{stat['value']:.6g}"
                print(f"streamkl: {candidate['name']} fails {wanted}: {shown}", file=sys.stderr)
                code = FAILED
    return code
