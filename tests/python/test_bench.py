# SPDX-License-Identifier: Apache-2.0
"""The benchmark, on problems of no size: every way computes the same thing, and what it prints and writes is right."""

import csv
import importlib.util

import pytest
import torch

from streamkl.bench import bars, cli, measure, report, ways
from streamkl.bench.case import Case

CASES = [
    Case(False, 40, 16, 90),
    Case(True, 40, 16, 40, 2),
    Case(True, 300, 16, 300, 2, causal=True),
    Case(True, 40, 16, 40, 2, "bf16", True),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_ways_agree(case):
    x = case.inputs()
    exact = measure.exact_gradients(case, x)
    losses = {}
    for way in ways.ways_of(case):
        if way.compiles:
            continue
        loss = way.loss(*x.values())
        grads = dict(zip(("a_s", "b_s"), torch.autograd.grad(loss, [x["a_s"], x["b_s"]])))
        losses[way.name] = loss.item()
        assert measure.gradient_error(case, grads, exact) < (2e-2 if case.dtype == "bf16" else 1e-5), way.name
    assert max(losses.values()) == pytest.approx(min(losses.values()), rel=2e-2 if case.dtype == "bf16" else 1e-5)


def test_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(measure, "ENOUGH", 0.01)
    table, picture = tmp_path / "r.csv", tmp_path / "r.png"
    want = ["streamkl", "eager", "chunked loop"]
    arguments = [
        "--vocab",
        "300",
        "--seq-lens",
        "16",
        "32",
        "--d-models",
        "8",
        "12",
        "--csv",
        str(table),
        "--ways",
        *want,
    ]
    plots = importlib.util.find_spec("matplotlib") is not None
    assert cli.run(arguments + (["--plot", str(picture)] if plots else [])) == 0
    out = capsys.readouterr()
    assert "vocabulary N32 D12 V300 f32" in out.out and "12/12" in out.err
    rows = list(csv.DictReader(table.open()))
    assert len(rows) == 12 and [r["way"] for r in rows[:3]] == want
    assert all(float(r["forward_backward_ms"]) > 0 and float(r["gradient_error"]) < 1e-5 for r in rows)
    assert not plots or picture.stat().st_size > 10000


def test_what_does_not_fit_is_skipped(monkeypatch, capsys):
    monkeypatch.setattr(measure, "available_memory", lambda: 2.0**30)
    case = Case(False, 8192, 16, 32000)
    eager = next(w for w in ways.ways_of(case) if w.name == "eager")
    result = measure.measure(case, eager, {}, {})
    assert result.skipped.startswith("needs 6.") and result.both is None
    assert "skipped: needs 6." in report.table([result])


def test_a_way_that_fails_is_a_line(monkeypatch, capsys):
    def fail(*x):
        raise RuntimeError("no such kernel\nand more")

    monkeypatch.setattr(ways, "_vocabulary_eager", fail)
    assert cli.run(["--vocab", "30", "--seq-lens", "8", "--d-models", "8", "--ways", "streamkl", "eager"]) == 0
    assert "skipped: failed with RuntimeError: no such kernel" in capsys.readouterr().out


def test_patience(capsys):
    assert (
        cli.run(
            [
                "--vocab",
                "300",
                "--seq-lens",
                "16",
                "512",
                "--d-models",
                "8",
                "--ways",
                "streamkl",
                "eager",
                "--patience",
                "0",
            ]
        )
        == 0
    )
    assert "would take about" in capsys.readouterr().out


@pytest.mark.parametrize("bad", (["--seq-lens", "0"], ["--ways", "magic"], ["--dtype", "f8"]))
def test_bad_options(bad):
    with pytest.raises(SystemExit) as stop:
        cli.run(bad)
    assert stop.value.code == 2


def test_bars():
    """The verdicts, from made-up times; and a call really has little overhead."""
    case = next(iter(bars.PROMISES))
    results = [
        measure.Result(case, "streamkl", both=1.0),
        measure.Result(case, "compile", both=3.5),
        measure.Result(case, "eager", both=5.0),
    ]
    kept = dict(bars.verdicts(results))
    assert (
        kept[f"{case}: 3.5 x faster than compile, promised 3"]
        and not kept[f"{case}: 5.0 x faster than eager, promised 6"]
    )
    assert bars.overhead() < 10 * bars.OVERHEAD
