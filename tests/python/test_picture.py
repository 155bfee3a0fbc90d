# SPDX-License-Identifier: Apache-2.0
"""The picture of the front page: drawn from made-up results, read again, and measured once at sizes of no interest."""

import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict

import pytest

from streamkl.bench import front, picture
from streamkl.bench.case import Case
from streamkl.bench.measure import Result

NEEDS = "skipped: needs 34.2 GiB, 3.0 GiB are free"
SLOW = "skipped: would take about 400 s a call (--patience)"


def results(attention):
    """Ours, one that is always there, one that does not fit at the end, one that is too slow, one that never ran."""
    made = []
    for n in (1024, 2048, 4096):
        case = Case(attention, n, 128, n if attention else 32000, 4 if attention else 1)
        for way, missing in (("streamkl", ""), ("Liger", ""), ("eager", NEEDS), ("compile", SLOW)):
            gone = missing if n == 4096 else ""
            times = {} if gone else dict(both=n * 1e-4, memory=n << 14)
            made.append(Result(case, way, missing=gone, **times))
        made.append(Result(case, "TRL", missing="crashed (SIGILL)"))
    return made


def drawn(groups):
    svg = ElementTree.fromstring(picture.draw(groups, "a <machine> & more"))
    texts = [("".join(node.itertext()), node.attrib) for node in svg.iter() if node.tag.endswith("}text")]
    paths = [node.attrib for node in svg.iter() if node.tag.endswith("}path")]
    return texts, paths, svg


def test_what_is_on_it():
    texts, paths, svg = drawn([results(False), results(True)])
    words = [text for text, _ in texts]
    for name in ("streamkl", "Liger", "eager torch", "torch.compile"):
        assert words.count(name) == 4, name  # at the end of its line in each panel
    assert not any("TRL" in text for text in words)  # it has no line
    assert words.count("34 GiB") == words.count("400 s") == 4
    assert sum("gone" in path["class"] for path in paths) == 8
    assert "a <machine> & more. Logarithmic axes; lower is better." in words
    assert {"Vocabulary", "Attention", "1024", "2048", "4096", "loss and gradient, time"} <= set(words)
    titles = ["".join(node.itertext()) for node in svg.iter() if node.tag.endswith("}title")]
    assert "streamkl, 2048: 205 ms" in titles and "streamkl, 4096: 64 MiB" in titles


def test_everything_is_inside():
    texts, paths, svg = drawn([results(False), results(True)])
    for text, place in texts:
        x, y = float(place["x"]), float(place["y"])
        width = 7.2 * len(text) * (0 if "end" in place["class"] else 0.5 if "mid" in place["class"] else 1)
        assert 0 < x and x + width < picture.WIDTH and 10 < y < picture.HEIGHT - 4, text
    for path in paths:
        numbers = [float(n) for n in re.findall(r"[\d.]+", path["d"])]
        assert all(0 <= n <= picture.WIDTH for n in numbers)


def test_both_schemes_have_every_colour():
    text = picture.draw([results(False)], "m")
    dark = text[text.index("prefers-color-scheme:dark") :]
    for i in range(len(picture.LIGHT)):
        assert f".w{i}{{stroke:{picture.LIGHT[i]}}}" in text and f".w{i}{{stroke:{picture.DARK[i]}}}" in dark
    assert len(picture.LIGHT) == len(picture.DARK) > max(picture.NAMED.values())


@pytest.mark.parametrize("wanted", [[10, 10, 10], [0, 100, 99], [95, 96, 97, 98], [5, 50, 20], []])
def test_names_do_not_overlap(wanted):
    placed = picture.apart(wanted, 15, 0, 100)
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    gaps = [placed[b] - placed[a] for a, b in zip(order, order[1:])]
    assert all(gap >= 15 for gap in gaps) and all(0 <= y <= 100 for y in placed)


def test_drawn_again(tmp_path, capsys):
    """--from gives the same bytes as the run that was saved; a file that is something else is told of in a sentence."""
    stored = tmp_path / "saved.json"
    stored.write_text(json.dumps({"machine": "m", "results": [asdict(r) for r in results(False)]}))
    out = tmp_path / "there/front.svg"
    assert front.run(["--from", str(stored), "--out", str(out), "--save", str(tmp_path / "again.json")]) == 0
    assert out.read_text() == picture.draw([results(False)], "m")
    assert json.loads((tmp_path / "again.json").read_text()) == json.loads(stored.read_text())
    for text in ("not JSON", "{}", '{"machine": "m", "results": [{"case": {}}]}'):
        stored.write_text(text)
        assert front.run(["--from", str(stored), "--out", str(out)]) == 1
        assert "cannot use --from" in capsys.readouterr().err
    assert front.run(["--from", str(tmp_path / "none"), "--out", str(out)]) == 1
    with pytest.raises(SystemExit):
        front.run(["--lengths", "0"])


def test_where_nothing_can_be_written(tmp_path, capsys):
    """Told before anything is measured."""
    (tmp_path / "file").write_text("")
    for path, rule in ((tmp_path, "it is a folder"), (tmp_path / "file" / "x.svg", "its folder cannot be made")):
        with pytest.raises(SystemExit) as stop:
            front.run(["--out", str(path)])
        assert stop.value.code == 2 and rule in capsys.readouterr().err


@pytest.mark.long  # a process for every way and length
def test_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(front, "WAYS", ("streamkl", "eager"))
    small = "--lengths 8 16 --attention-lengths 8 16 --vocab 32 --width 8 --heads 2 --head-width 8".split()
    saved = tmp_path / "front.json"
    assert front.run([*small, "--out", str(tmp_path / "front.svg"), "--save", str(saved)]) == 0
    found = front._results(json.loads(saved.read_text()))
    assert {(r.way, r.case.attention, r.case.length) for r in found} == {
        (way, attention, n) for way in ("streamkl", "eager") for attention in (False, True) for n in (8, 16)
    }
    assert all(r.both and not r.missing for r in found)
    ElementTree.parse(tmp_path / "front.svg")
