# SPDX-License-Identifier: Apache-2.0
"""The options of `python -m streamkl bench`, and the order of things."""

from __future__ import annotations

import argparse
import pathlib
import sys
from contextlib import ExitStack, closing
from typing import Dict, List

import torch

from .._files import unwritable
from . import bars, labels, ranks, report
from .case import DTYPES, Case
from .labels import Lines
from .measure import Result, available_memory, exact_gradients, machine
from .ways import Way, ways_of
from .worker import Worker

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
    p.add_argument(
        "--limit",
        type=float,
        default=1200,
        metavar="S",
        help="cut a way that has not measured a case by then (default %(default)s s)",
    )
    p.add_argument("--csv", metavar="FILE", help="write every number")
    p.add_argument("--plot", metavar="FILE", help="draw time and memory against length")
    p.add_argument(
        "--bars", action="store_true", help="measure what the project promises instead, and say what is kept"
    )
    p.add_argument("--labels", action="store_true", help="with --bars: only those of labels and details")
    p.add_argument(
        "--peak", type=float, metavar="GF/s", help="FMA peak of these threads (default: asks `streamkl info`)"
    )
    p.add_argument(
        "--ranks",
        type=int,
        metavar="P",
        help="a vocabulary split over P processes of one thread against one process with P threads, and four products "
        "against six, instead",
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


def chosen(case: Case, args) -> List[Way]:
    ways = ways_of(case)
    if args.bars:
        return [w for w in ways if w.name.startswith("streamkl") or w.name in bars.PROMISES[case]]
    return [w for w in ways if not args.ways or w.name in args.ways]


def run(argv: List[str]) -> int:
    p = parser()
    args = p.parse_args(argv)
    for name in ("seq_lens", "d_models", "vocab", "heads", "threads", "ranks"):
        values = getattr(args, name)
        for value in values if isinstance(values, list) else [values]:
            if value is not None and value < 1:
                p.error(f"cannot use --{name.replace('_', '-')} {value}: it must be at least 1")
    for name in ("csv", "plot"):
        rule = unwritable(pathlib.Path(getattr(args, name))) if getattr(args, name) else ""
        if rule:
            p.error(f"cannot use --{name} {getattr(args, name)}: {rule}")
    if args.labels and not args.bars:
        p.error("cannot use --labels without --bars: it is one of its parts")
    if args.ranks and (args.attention or args.bars):
        p.error("cannot use --ranks with --attention or --bars: it measures a vocabulary")
    if args.ranks:
        print(machine())
        return max(ranks.report(case, args.ranks) for case in cases_of(args))
    if args.threads:
        torch.set_num_threads(args.threads)
    cases = cases_of(args)
    known = {way.name for case in cases for way in ways_of(case)}
    for way in args.ways or []:
        if way not in known:
            p.error(f"cannot use --ways {way!r}: it must be one of {', '.join(sorted(known))}")
    print(machine())
    if args.bars and args.labels:
        return _say(_label_bars(args))
    results = measure_all(cases, args)
    print(report.table(results))
    if args.csv:
        report.write_csv(args.csv, results)
    if args.plot:
        try:
            report.plot(args.plot, results)
        except ModuleNotFoundError:
            print("streamkl: --plot needs matplotlib: pip install 'streamkl[bench]'", file=sys.stderr)
            return 1
    kept = _bars(results, args) if args.bars else 0
    return 1 if any(_our_failure(r) for r in results) else kept


def _our_failure(result: Result) -> bool:
    """What fails in others is only a row of the table; in ours it is a row, and the program says so with its status."""
    return result.way.startswith("streamkl") and bool(result.missing) and not result.missing.startswith("skipped")


def measure_all(cases: List[Case], args) -> List[Result]:
    progress = report.Progress(sum(len(chosen(case, args)) for case in cases))
    speed: Dict[str, float] = {}  # seconds per multiplication, of each way and dtype, from the last case
    results: List[Result] = []
    with ExitStack() as stack:
        names = dict.fromkeys(way.name for case in cases for way in chosen(case, args))
        workers = {name: stack.enter_context(closing(Worker(name, args.limit))) for name in names}
        for case in cases:
            results += _measure_case(case, args, workers, speed, progress)
    progress.end()
    return results


def _measure_case(case: Case, args, workers: Dict[str, Worker], speed: Dict[str, float], progress) -> List[Result]:
    ways = chosen(case, args)
    need, free = 2.0 * case.operand_bytes(), available_memory()
    if need > 0.9 * free:
        why = f"skipped: the operands alone need {need / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free"
        progress.done += len(ways)
        return [Result(case, way.name, missing=why) for way in ways]
    exact = {name: grad.numpy() for name, grad in exact_gradients(case, case.inputs()).items()}
    keep = len(ways) * case.operand_bytes() < 0.25 * free  # each process has inputs of its own
    results = []
    for way in ways:
        progress.step(f"{case}: {way.name}")
        expected = speed.get(way.name, 0.0) * case.products
        if expected > args.patience and not way.name.startswith("streamkl"):
            why = f"skipped: would take about {expected:.0f} s a call (--patience)"
            result = Result(case, way.name, missing=why)
        else:
            result = workers[way.name].measure(case, way, exact, keep)
        if result.both:
            speed[way.name] = result.both / case.products
        results.append(result)
    return _again(results, workers) if keep else results


def _again(results: List[Result], workers: Dict[str, Worker]) -> List[Result]:
    """Two more rounds, way after way: what disturbs a machine for a while shall not hit one way only."""
    for _ in range(2):
        results = [
            workers[r.way].again(r) if not r.missing and r.both is not None and r.both < AGAIN else r for r in results
        ]
    return results


def _label_bars(args) -> Lines:
    peak = args.peak or labels.fma_peak(torch.get_num_threads())
    return labels.verdicts(labels.seconds(), peak)


def _bars(results: List[Result], args) -> int:
    extra, more = bars.overhead(), bars.overhead(gradients=True)
    text = f"overhead {1e6 * extra:.0f} us, promised below {1e6 * bars.OVERHEAD:.0f} (with gradients {1e6 * more:.0f})"
    lines = [(text, extra < bars.OVERHEAD)]
    return _say([*lines, *bars.verdicts(results), *_label_bars(args)])


def _say(lines: Lines) -> int:
    for text, kept in lines:
        print(f"{'ok     ' if kept else 'MISSED '} {text}")
    return 0 if all(kept for _, kept in lines) else 1
