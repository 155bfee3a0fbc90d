# SPDX-License-Identifier: Apache-2.0
"""The options of `python -m streamkl bench`, and the order of things."""

from __future__ import annotations

import argparse
import sys
from typing import Dict, List

import torch

from . import bars, report
from .case import DTYPES, Case
from .measure import Result, available_memory, exact_gradients, machine, measure, timed
from .ways import ways_of

AGAIN = 5.0  # seconds: slower ones are measured in one round


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m streamkl bench",
        description="Mean forward KL and its gradient by streamkl, eager torch, torch.compile, a chunked loop, Liger "
        "and TRL (vocabulary) or three flash calls (attention): time, peak extra memory, error against float64.",
    )
    p.add_argument("--attention", action="store_true", help="attention instead of vocabulary")
    p.add_argument(
        "--seq-lens", type=int, nargs="+", metavar="N", help="tokens (default 1024), or queries and keys (1024 2048)"
    )
    p.add_argument(
        "--d-models", type=int, nargs="+", metavar="D", help="widths, one after the other (default 1024; a head: 128)"
    )
    p.add_argument("--vocab", type=int, default=32000, metavar="V", help="size of the vocabulary (default %(default)s)")
    p.add_argument("--heads", type=int, default=4, metavar="H", help="attention heads (default %(default)s)")
    p.add_argument("--causal", action="store_true", help="causal attention")
    p.add_argument("--dtype", choices=DTYPES, default="f32", help="of all operands (default %(default)s)")
    p.add_argument(
        "--ways", nargs="+", metavar="WAY", help="only these: streamkl eager compile 'chunked loop' Liger TRL ..."
    )
    p.add_argument("--threads", type=int, metavar="T", help="default: as many as torch uses")
    p.add_argument(
        "--patience",
        type=float,
        default=120,
        metavar="S",
        help="skip a call expected to take longer (default %(default)s s)",
    )
    p.add_argument("--csv", metavar="FILE", help="write every number")
    p.add_argument("--plot", metavar="FILE", help="draw time and memory against length")
    p.add_argument(
        "--bars", action="store_true", help="measure what the project promises instead, and say what is kept"
    )
    return p


def cases_of(args) -> List[Case]:
    if args.bars:
        return list(bars.PROMISES)
    lengths = args.seq_lens or ([1024, 2048] if args.attention else [1024])
    widths = args.d_models or ([128] if args.attention else [1024])
    if args.attention:
        return [Case(True, n, d, n, args.heads, args.dtype, args.causal) for d in widths for n in lengths]
    return [Case(False, n, d, args.vocab, 1, args.dtype) for d in widths for n in lengths]


def chosen(case: Case, args) -> List:
    ways = ways_of(case)
    if args.bars:
        return [w for w in ways if w.name == "streamkl" or w.name in bars.PROMISES[case]]
    return [w for w in ways if not args.ways or w.name in args.ways]


def run(argv: List[str]) -> int:
    p = parser()
    args = p.parse_args(argv)
    for name in ("seq_lens", "d_models", "vocab", "heads", "threads"):
        values = getattr(args, name)
        for value in values if isinstance(values, list) else [values]:
            if value is not None and value < 1:
                p.error(f"cannot use --{name.replace('_', '-')} {value}: it must be at least 1")
    if args.threads:
        torch.set_num_threads(args.threads)
    cases = cases_of(args)
    known = {way.name for case in cases for way in ways_of(case)}
    for way in args.ways or []:
        if way not in known:
            p.error(f"cannot use --ways {way!r}: it must be one of {', '.join(sorted(known))}")
    print(machine())
    results = _measure_all(cases, args)
    print(report.table(results))
    if args.csv:
        report.write_csv(args.csv, results)
    if args.plot:
        try:
            report.plot(args.plot, results)
        except ModuleNotFoundError:
            print("streamkl: --plot needs matplotlib: pip install 'streamkl[bench]'", file=sys.stderr)
            return 1
    return _bars(results) if args.bars else 0


def _measure_all(cases: List[Case], args) -> List[Result]:
    progress = report.Progress(sum(len(chosen(case, args)) for case in cases))
    speed: Dict[str, float] = {}  # seconds per multiplication, of each way and dtype, from the last case
    results = []
    for case in cases:
        ways = chosen(case, args)
        need, free = 2.0 * case.operand_bytes(), available_memory()
        if need > 0.9 * free:
            why = f"the operands alone need {need / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free"
            results += [Result(case, way.name, skipped=why) for way in ways]
            progress.done += len(ways)
            continue
        x = case.inputs()
        exact = exact_gradients(case, x)
        for way in ways:
            progress.step(f"{case}: {way.name}")
            expected = speed.get(way.name, 0.0) * case.products
            if expected > args.patience and way.name != "streamkl":
                result = Result(case, way.name, skipped=f"would take about {expected:.0f} s a call (--patience)")
            else:
                result = _measured(case, way, x, exact)
            if result.both:
                speed[way.name] = result.both / case.products
            results.append(result)
        _again(ways, results[-len(ways) :], x)
    progress.end()
    return results


def _measured(case: Case, way, x, exact) -> Result:
    """Another way that fails (no compiler, another version) is a line in the table, not the end of the run."""
    try:
        return measure(case, way, x, exact)
    except Exception as error:
        if way.name == "streamkl":
            raise
        return Result(case, way.name, skipped=f"failed with {type(error).__name__}: {str(error).splitlines()[0][:80]}")


def _again(ways, results: List[Result], x) -> None:
    """Two more rounds, way after way: what disturbs a machine for a while shall not hit one way only."""
    for _ in range(2):
        for way, result in zip(ways, results):
            if result.both is not None and result.both < AGAIN:
                timed(way, x, result)


def _bars(results: List[Result]) -> int:
    extra, more = bars.overhead(), bars.overhead(gradients=True)
    text = f"overhead {1e6 * extra:.0f} us, promised below {1e6 * bars.OVERHEAD:.0f} (with gradients {1e6 * more:.0f})"
    lines = [(text, extra < bars.OVERHEAD)]
    lines += bars.verdicts(results)
    for text, kept in lines:
        print(f"{'ok     ' if kept else 'MISSED '} {text}")
    return 0 if all(kept for _, kept in lines) else 1
