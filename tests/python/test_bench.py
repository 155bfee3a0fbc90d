# SPDX-License-Identifier: Apache-2.0
"""The benchmark, on problems of no size: every way computes the same thing, and what it prints and writes is right."""

import csv
import importlib.util
import multiprocessing
import os
import signal
import sys
import time
from functools import partial
from types import SimpleNamespace

import pytest
import torch

import warm
from streamkl.bench import bars, cli, measure, report, trainers, ways, worker
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
        loss = way.make()(*x.values())
        grads = dict(zip(("a_s", "b_s"), torch.autograd.grad(loss, [x["a_s"], x["b_s"]])))
        losses[way.name] = loss.item()
        assert measure.gradient_error(case, grads, exact) < (2e-2 if case.dtype == "bf16" else 1e-5), way.name
    assert max(losses.values()) == pytest.approx(min(losses.values()), rel=2e-2 if case.dtype == "bf16" else 1e-5)


def test_every_case_is_compiled(monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    with torch._dynamo.config.patch(recompile_limit=1, fail_on_recompile_limit_hit=True):
        for n in (2, 3):
            assert ways._compiled(lambda x: x.sum())(torch.ones(n)) == n


@pytest.fixture
def warm_processes(monkeypatch):
    """The run's processes need not import torch again. One test has them as they are: that of our own failure."""
    monkeypatch.setattr(worker, "multiprocessing", SimpleNamespace(get_context=lambda method: warm.context()))


@pytest.fixture
def no_process_left():
    """Those that were there before may be another test's."""
    before = set(multiprocessing.active_children())
    yield
    assert set(multiprocessing.active_children()) <= before


def test_run(tmp_path, capsys, no_process_left, warm_processes):
    table, picture = tmp_path / "r.csv", tmp_path / "r.png"
    want = ["streamkl", "eager"]
    arguments = "--vocab 300 --seq-lens 16 32 --d-models 12 --csv".split() + [str(table), "--ways", *want]
    plots = importlib.util.find_spec("matplotlib") is not None
    assert cli.run(arguments + (["--plot", str(picture)] if plots else [])) == 0
    out = capsys.readouterr()
    assert "vocabulary N32 D12 V300 f32" in out.out and "4/4" in out.err
    rows = list(csv.DictReader(table.open()))
    assert len(rows) == 4 and [r["way"] for r in rows[:2]] == want
    assert all(float(r["forward_backward_ms"]) > 0 and float(r["gradient_error"]) < 1e-5 for r in rows)
    assert all(float(r["forward_ms"]) > 0 and float(r["peak_extra_mib"]) >= 0 and not r["missing"] for r in rows)
    assert not plots or picture.stat().st_size > 10000


def test_what_does_not_fit_is_skipped(monkeypatch):
    monkeypatch.setattr(measure, "available_memory", lambda: 2.0**30)
    case = Case(False, 8192, 16, 32000)
    eager = next(w for w in ways.ways_of(case) if w.name == "eager")
    result = measure.Result(case, "eager")
    measure.measure(eager, None, {}, {}, result)
    assert result.missing.startswith("skipped: needs 6.") and result.both is None
    assert "skipped: needs 6." in report.table([result])


# Ways that end badly. They stand in the module, because a way travels to its process by pickle.


def killed(number, *x):
    os.kill(os.getpid(), number)


def illegal_at_first(x_s, w_s, x_t, w_t):
    if x_s.shape[0] == 8:
        killed(signal.SIGILL)
    return ways._vocabulary_eager(x_s, w_s, x_t, w_t)


def killed_later(x_s, w_s, x_t, w_t):
    """Measures well, then dies in the rounds after."""
    killed_later.calls = getattr(killed_later, "calls", 0) + 1
    if killed_later.calls > CALLS_OF_ONE_MEASUREMENT:
        os.kill(os.getpid(), signal.SIGSEGV)
    return ways._vocabulary_eager(x_s, w_s, x_t, w_t)


CALLS_OF_ONE_MEASUREMENT = 2 * (1 + measure.REPEATS[1]) + 1


def raises(*x):
    raise RuntimeError("no such kernel\nand more")


def leaves(*x):
    os._exit(3)


def hangs(*x):
    time.sleep(1000)


SMALL = "--vocab 30 --seq-lens 8 --d-models 8".split()


def run_with(monkeypatch, *others):
    """A run with these ways instead of the real ones."""
    monkeypatch.setattr(cli, "ways_of", lambda case: list(others))
    return lambda *more: cli.run([*SMALL, *more])


def plain(name, loss):
    return ways.Way(name, partial(ways._as_it_is, loss), 0)


def rows_of(out, name):
    return [line[2 + len(name) :].strip() for line in out.splitlines() if line.startswith(f"  {name} ")]


@pytest.mark.parametrize(
    "loss, want",
    [
        (partial(killed, signal.SIGILL), "crashed (SIGILL)"),
        pytest.param(partial(killed, signal.SIGSEGV), "crashed (SIGSEGV)", marks=pytest.mark.long),
        pytest.param(leaves, "crashed (exit code 3)", marks=pytest.mark.long),
        pytest.param(raises, "failed with RuntimeError: no such kernel", marks=pytest.mark.long),
    ],
)
def test_an_end_is_a_row(monkeypatch, capsys, warm_processes, loss, want):
    assert run_with(monkeypatch, plain("bad", loss))() == 0
    assert rows_of(capsys.readouterr().out, "bad") == [want]


def test_the_run_goes_on_after_a_crash(monkeypatch, capsys, warm_processes):
    """With the next way, and with the next case of the same way: a process of its own for it."""
    run = run_with(monkeypatch, plain("illegal", illegal_at_first), plain("eager", ways._vocabulary_eager))
    assert run("--seq-lens", "8", "16") == 0
    out = capsys.readouterr().out
    first, second = rows_of(out, "illegal")
    assert first == "crashed (SIGILL)" and "e-0" in second
    assert all("e-0" in row for row in rows_of(out, "eager"))


def test_a_hang_is_cut(monkeypatch, capsys, warm_processes):
    run = run_with(monkeypatch, plain("hangs", hangs))
    assert run("--limit", "0.5") == 0
    assert rows_of(capsys.readouterr().out, "hangs") == ["cut: no answer in 0.5 s (--limit)"]


def test_what_was_measured_before_a_crash_stays(monkeypatch, capsys, warm_processes):
    run = run_with(monkeypatch, plain("later", killed_later))
    assert run() == 0
    (row,) = rows_of(capsys.readouterr().out, "later")
    assert "e-0" in row and "crashed" not in row


def test_our_own_failure_is_a_row_and_the_status(monkeypatch, capsys, no_process_left):
    assert run_with(monkeypatch, plain("streamkl", raises))() == 1
    assert "failed with RuntimeError" in capsys.readouterr().out


def test_no_process_outlives_a_run_that_fails(monkeypatch, no_process_left, warm_processes):
    monkeypatch.setattr(cli, "_again", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_with(monkeypatch, plain("raises", raises))()


def test_patience(monkeypatch, capsys):
    """The second case is expected to take as long for each multiplication as the first one did."""

    class Slow:
        def __init__(self, *_):
            pass

        def measure(self, case, way, *_):
            return measure.Result(case, way.name, both=case.products)

        def again(self, result):
            return result

        def close(self):
            pass

    monkeypatch.setattr(cli, "Worker", Slow)
    arguments = "--vocab 300 --seq-lens 16 512 --d-models 8 --ways streamkl eager --patience 1".split()
    assert cli.run(arguments) == 0
    out = capsys.readouterr().out
    assert rows_of(out, "eager")[1] == f"skipped: would take about {300 * 512 * 8} s a call (--patience)"
    assert not any("skipped" in row for row in rows_of(out, "streamkl"))


@pytest.mark.parametrize(
    "bad", (["--seq-lens", "0"], ["--ways", "magic"], ["--dtype", "f8"], ["--labels"], ["--csv", "/proc/x/y"])
)
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


def test_bars_of_one_part(monkeypatch):
    """With round_dz it is that way's time that counts."""
    monkeypatch.setattr(bars, "promised", lambda factor: 1.5)
    case = next(iter(bars.ONE_PART))
    results = [measure.Result(case, way, both=t) for way, t in (("streamkl", 2.0), (ways.ROUNDED, 1.0), ("eager", 1.6))]
    kept = dict(bars.verdicts(results))
    assert kept[f"{case}: 1.6 x faster than eager with round_dz, promised 1.5"]
    assert not kept[f"{case}: 0.8 x faster than eager, promised 1.5"]


@pytest.mark.parametrize("used, least", [("amx", 15), ("avx2", 1)])
def test_a_promise_of_bf16_is_one_of_its_unit(monkeypatch, used, least):
    """Where no unit multiplies bf16, it is not to be slower."""
    monkeypatch.setattr(bars._c, "lib", SimpleNamespace(skl_isa_best=lambda: bars._c.ISAS[used]))
    assert bars.promised({"amx": 15}) == least and bars.promised(3) == 3


@pytest.mark.long
def test_bars_of_labels():
    """Every promise has a line; times of a small case only show that the ways run."""
    from streamkl.bench import labels
    from streamkl.bench.case import Case
    from streamkl.bench.labels import FLCE

    small = Case(False, 16, 8, 96)
    took = labels.seconds(small, rounds=1)
    lines = labels.verdicts(took, 100.0, small)
    assert len(lines) == 11 and all("promised" in text or "not installed" in text for text, _ in lines)
    kept = labels.verdicts(dict.fromkeys(took, 1.0), 1e-9, small)
    assert [ok for _, ok in kept] == [True] * 3 + [False] * 6 + [FLCE not in took, True]
    assert all("promised" in text for text, _ in kept) == ("Liger" in took)


@pytest.mark.parametrize("setting", trainers.SETTINGS[-3:], ids=lambda setting: setting.trainer)
def test_trainers_compute_the_same(setting):
    pytest.importorskip("liger_kernel" if setting.trainer == "liger" else "trl", reason="not installed")
    x = {
        f"{name}_{side}": torch.randn(1, 32, 8) if name == "x" else torch.randn(50, 8) for name in "xw" for side in "st"
    }
    mask = torch.arange(32)[None] > 10
    theirs, ours = (loss().item() for loss in trainers.ways(setting, x, mask).values())
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_trainers_as_a_program(monkeypatch, capsys):
    """Its smallest setting; how fast it is here is not asked."""
    pytest.importorskip("liger_kernel", reason="not installed")
    monkeypatch.setattr(sys, "argv", ["trainers", "--only", "liger N 32 ", "--rounds", "1"])
    assert trainers.main() in (0, 1)
    said = capsys.readouterr().out
    assert "| loss and gradient | theirs | streamkl | |" in said and "| liger N 32 (0% masked)" in said
    for wrong in (["--only", "nobody's"], ["--rounds", "x"]):
        monkeypatch.setattr(sys, "argv", ["trainers", *wrong])
        with pytest.raises(SystemExit):
            trainers.main()


def test_drift_as_a_program(monkeypatch, capsys):
    pytest.importorskip("transformers", reason="not installed")
    from streamkl.bench import drift

    small = dict(tokens=200, vocab=128, width=64, layers=1, window=64, rounds=1)
    monkeypatch.setattr(sys, "argv", ["drift", *[f"--{name}={value}" for name, value in small.items()]])
    assert drift.main() in (0, 1)
    said = capsys.readouterr().out
    assert "| the numbers of tokens |" in said and "| with attention and floor |" in said and "| 2.5 |" in said


def test_ranks(monkeypatch, capsys):
    """Both promises are printed, with what was measured; how fast two processes are here is not asked."""
    from streamkl.bench import ranks

    monkeypatch.setattr(ranks, "measure", lambda case, n: (1.0, 1.0, 1.2))
    assert cli.run(["--ranks", "2", "--seq-lens", "40", "--vocab", "90", "--d-models", "16"]) == 1
    said = capsys.readouterr().out
    assert "| 1 process x 2 threads | 1000.0 ms | 1.00 | 0.90 | ok |" in said
    assert "six products | 1200.0 ms | 1.20 | 1.35 | MISSED |" in said
    with pytest.raises(SystemExit):
        cli.run(["--ranks", "2", "--attention"])


@pytest.mark.long
def test_ranks_run():
    from streamkl.bench import ranks

    assert all(seconds > 0 for seconds in ranks.measure(Case(False, 40, 16, 90), 2))
