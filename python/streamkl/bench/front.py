# SPDX-License-Identifier: Apache-2.0
"""python -m streamkl picture: measures the picture of the front page, or draws it again from what was measured."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from dataclasses import asdict
from typing import Any, Dict, List, Sequence

from .._files import unwritable
from .case import DTYPES, Case
from .measure import Result, machine
from .picture import draw

VOCABULARY, ATTENTION = (512, 1024, 2048, 4096, 8192), (1024, 2048, 4096, 8192, 16384)
WAYS = ("streamkl", "eager", "compile", "Liger", "three flash calls")


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m streamkl picture",
        description="Loss and gradient by streamkl, eager torch, torch.compile, Liger (vocabulary) and three flash "
        "calls (attention): time and peak extra memory against length, as one SVG. For an idle machine: the lengths it "
        "has by default take most of an hour on two cores.",
    )
    p.add_argument("--out", type=pathlib.Path, default=pathlib.Path("front.svg"), metavar="FILE", help="%(default)s")
    p.add_argument("--save", type=pathlib.Path, metavar="FILE", help="also write what was measured, as JSON")
    p.add_argument(
        "--from", type=pathlib.Path, dest="source", metavar="FILE", help="draw what --save wrote; measure nothing"
    )
    p.add_argument("--lengths", type=int, nargs="+", default=VOCABULARY, metavar="N", help="tokens of the vocabulary")
    p.add_argument("--attention-lengths", type=int, nargs="+", default=ATTENTION, metavar="N", help="queries and keys")
    p.add_argument("--vocab", type=int, default=32000, metavar="V", help="words (default %(default)s)")
    p.add_argument("--width", type=int, default=1024, metavar="D", help="of hidden states (default %(default)s)")
    p.add_argument("--heads", type=int, default=4, metavar="H", help="default %(default)s")
    p.add_argument("--head-width", type=int, default=128, metavar="D", help="default %(default)s")
    p.add_argument("--dtype", choices=DTYPES, default="f32", help="default %(default)s")
    p.add_argument(
        "--patience", type=float, default=120, metavar="S", help="skip what would take longer (%(default)s s)"
    )
    return p


def _measured(args) -> Dict[str, Any]:
    from .cli import measure_all
    from .cli import parser as bench_parser

    words = [Case(False, n, args.width, args.vocab, 1, args.dtype) for n in sorted(args.lengths)]
    heads = [Case(True, n, args.head_width, n, args.heads, args.dtype) for n in sorted(args.attention_lengths)]
    options = bench_parser().parse_args(["--ways", *WAYS, "--patience", str(args.patience)])
    return {"machine": machine(), "results": [asdict(r) for r in measure_all([*words, *heads], options)]}


def _results(stored: Dict[str, Any]) -> List[Result]:
    return [Result(**{**one, "case": Case(**one["case"])}) for one in stored["results"]]


def run(argv: Sequence[str]) -> int:
    p = parser()
    args = p.parse_args(argv)
    for name in ("lengths", "attention_lengths"):
        for value in getattr(args, name):
            if value < 1:
                p.error(f"cannot use --{name.replace('_', '-')} {value}: it must be at least 1")
    for path in filter(None, (args.out, args.save)):  # before an hour of work, not after it
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            rule = unwritable(path)
        except OSError as error:
            rule = f"its folder cannot be made ({error.strerror})"
        if rule:
            p.error(f"cannot write {path}: {rule}")
    try:
        stored = json.loads(args.source.read_text()) if args.source else _measured(args)
        results = _results(stored)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if not args.source:
            raise
        print(f"streamkl: cannot use --from {args.source}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    if args.save:
        args.save.write_text(json.dumps(stored, indent=1) + "\n")
    groups = [[r for r in results if r.case.attention is kind] for kind in (False, True)]
    args.out.write_text(draw([group for group in groups if group], stored["machine"]))
    print(args.out)
    return 0
