# SPDX-License-Identifier: Apache-2.0
"""Progress, table, CSV and plot."""

from __future__ import annotations

import csv
import sys
from typing import List, Tuple

from .measure import Result

COLUMNS = ("", "forward ms", "fwd+bwd ms", "of it bwd", "/ streamkl", "peak extra", "gradient error")


class Progress:
    """A bar on the terminal; on anything else a line for each step."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0

    def step(self, what: str) -> None:
        full = 24 * self.done // max(self.total, 1)
        line = f"[{'#' * full}{'.' * (24 - full)}] {self.done + 1}/{self.total} {what}"
        self.done += 1
        if sys.stderr.isatty():
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def end(self) -> None:
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _ms(seconds) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.1f}" if seconds < 10 else f"{1e3 * seconds:.0f}"


def _mib(size) -> str:
    return "" if size is None else f"{size / 2**20:.0f} MiB"


def ratio(result: Result, results: List[Result], way: str = "streamkl") -> float:
    """How many times faster streamkl, or one of its ways, is in forward and backward; 0 if it or the result was not
    measured."""
    ours = next((r for r in results if r.case == result.case and r.way == way), None)
    return result.both / ours.both if ours and ours.both and result.both else 0.0


def table(results: List[Result]) -> str:
    lines: List[str] = []
    rows: List[Tuple[str, ...]] = [COLUMNS]
    case = None
    for r in results:
        if r.case != case:
            case = r.case
            rows.append((str(case), "", "", "", "", "", ""))
        if r.missing:
            rows.append((f"  {r.way}", r.missing))
            continue
        times = f"{ratio(r, results):.2f} x" if ratio(r, results) else ""
        error = "" if r.error is None else f"{r.error:.1e}"
        rows.append((f"  {r.way}", _ms(r.forward), _ms(r.both), _ms(r.backward), times, _mib(r.memory), error))
    widths = [max(len(row[i]) for row in rows if len(row) == len(COLUMNS)) for i in range(len(COLUMNS))]
    widths[0] = max(len(row[0]) for row in rows if row[0].startswith("  "))  # the names of cases may run over
    for row in rows:
        cells = [cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths))]
        lines.append("  ".join(cells if len(row) == len(COLUMNS) else (cells[0], row[1])).rstrip())
    return "\n".join(lines)


def write_csv(path: str, results: List[Result]) -> None:
    with open(path, "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(
            "use way length width columns heads dtype causal forward_ms forward_backward_ms backward_ms "
            "peak_extra_mib gradient_error missing".split()
        )
        for r in results:
            c = r.case
            ms = ["" if t is None else f"{1e3 * t:.3f}" for t in (r.forward, r.both, r.backward)]
            memory = "" if r.memory is None else f"{r.memory / 2**20:.1f}"
            error = "" if r.error is None else f"{r.error:.3e}"
            use = "attention" if c.attention else "vocabulary"
            out.writerow(
                [
                    use,
                    r.way,
                    c.length,
                    c.width,
                    c.columns,
                    c.heads,
                    c.dtype,
                    int(c.causal),
                    *ms,
                    memory,
                    error,
                    r.missing,
                ]
            )


def plot(path: str, results: List[Result]) -> None:
    """Time and memory against length, one line per way, one column of pictures per width."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    widths = sorted({r.case.width for r in results})
    figure, axes = plt.subplots(2, len(widths), figsize=(1 + 5 * len(widths), 7), squeeze=False, sharex="col")
    for column, width in enumerate(widths):
        for way in dict.fromkeys(r.way for r in results):
            mine = [r for r in results if r.case.width == width and r.way == way and r.both is not None]
            style = dict(marker="o", linewidth=2.5 if way == "streamkl" else 1.2, label=way)
            axes[0][column].plot([r.case.length for r in mine], [r.both for r in mine], **style)
            known = [r for r in mine if r.memory is not None]
            axes[1][column].plot(
                [r.case.length for r in known], [max(r.memory or 0, 2**20) / 2**20 for r in known], **style
            )
        axes[0][column].set_title(f"width {width}")
        axes[1][column].set_xlabel("queries and keys" if results[0].case.attention else "tokens")
    axes[0][0].set_ylabel("forward + backward, s")
    axes[1][0].set_ylabel("peak extra memory, MiB")
    for ax in axes.flat:
        ax.set_xscale("log", base=2), ax.set_yscale("log"), ax.grid(alpha=0.3)
    axes[0][0].legend(loc="upper left", fontsize="small")
    figure.suptitle(str(results[0].case).split(" ")[0] + f", {results[0].case.dtype}")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
