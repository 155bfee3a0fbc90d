# SPDX-License-Identifier: Apache-2.0
"""The page: nothing of the text becomes markup, nothing leaves it, and a browser finds it whole at every width."""

import html.parser
import json
import pathlib
import re
import shutil
import subprocess

import numpy as np
import pytest

from streamkl.compare.report import Tokens, assemble, describe

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
EVIL = '<script>alert("&")</script>\n'


def candidate(name, scale, seed):
    draw = np.random.default_rng(seed)
    n = 640
    rows = {key: scale * draw.gamma(0.7, 1, n) for key in ("kl", "reverse", "jsd", "tv")}
    rows.update({key: draw.random(n) for key in ("entropy_ref", "entropy_other", "lse_ref", "lse_other")})
    rows.update({key: draw.integers(0, 3, n) for key in ("top1_ref", "top1_other", "label", "rank_ref", "rank_other")})
    rows.update({key: np.log(draw.uniform(0.01, 1, n)) for key in ("logprob_ref", "logprob_other", "logprob_top1_ref")})
    tokens = Tokens(rows, np.arange(n) // 64, np.arange(n) % 64 + 1)
    floor = dict(mean_kld=1e-4, median_kld=1e-5, p99_kld=1e-3, max_kld=1e-2, same_top_p=0.99, tokens=640)
    info = dict(name=name, path=None, variant=None, dtype="bfloat16", parameters=1000)
    found = describe(info, tokens, resamples=100, floor=dict(floor, dtype="bfloat16", how="the reference in bfloat16"))
    top = [{"id": i, "text": text, "p": 0.4 / (i + 1)} for i, text in enumerate((EVIL, " the", "\n", "x" * 80, ""))]
    place = dict(sequence=1, position=3, kld=0.5, p_reference=0.4, p_other=0.1, top_reference=top, top_other=top[::-1])
    found["worst"] = [dict(place, before=EVIL * 3, token=EVIL) for _ in range(7)]
    kl = (scale * draw.gamma(1, 1, (5, 12))).tolist()
    found["attention"] = {
        "layers": 5, "windows": 2, "mean": 0.1, "head_mean": 0.05, "kl": kl, "head_mean_kl": [0.1, 0.2, 0.0, 0.1, 0.3],
        "sink_reference": [0.1] * 5, "sink_other": [0.2] * 5, "worst": [{"layer": 1, "head": 2, "kl": 0.5}],
    }  # fmt: skip
    return found, tokens


def made(*names):
    parts = {name: candidate(name, 0.01 * 3**i, i) for i, name in enumerate(names)}
    reference = dict(name=f"base {EVIL}", path=None, variant=None, dtype="float32", parameters=1000, vocabulary=300)
    text = dict(name=EVIL, sha256="0", tokens=700, window=65, windows=10, scored=640, second_half=False, bos=True)
    return assemble(
        reference, text, [p for p, _ in parts.values()], {n: t for n, (_, t) in parts.items()}, resamples=100
    )


@pytest.fixture(scope="module")
def page():
    return made("one", "two & a name that is rather long for a telephone", EVIL).html()


class Reader(html.parser.HTMLParser):
    """Tags that are open at the end, addresses that are asked for, and what is inside of scripts."""

    VOID = {"meta", "link", "br", "img"}

    def __init__(self):
        super().__init__()
        self.open, self.asked, self.scripts, self.ids = [], [], 0, []

    def handle_starttag(self, tag, attributes):
        if tag not in self.VOID:
            self.open.append(tag)
        self.scripts += tag == "script"
        for name, value in attributes:
            if name in ("src", "href", "srcset", "action", "data") and not (value or "").startswith("data:"):
                self.asked.append(value)
            if name == "id":
                self.ids.append(value)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes what is not open"


def test_markup(page):
    reader = Reader()
    reader.feed(page)
    assert not reader.open and not reader.asked and reader.scripts == 1
    assert len(reader.ids) == len(set(reader.ids))
    assert "alert(&quot;" in page and "<script>alert" not in page
    assert not re.search(r"url\(|@import|https?://", page)
    assert "NaN" not in page and "None" not in page and page.count("<svg") > 20


def test_one_candidate_has_no_tabs():
    page = made("one").html()
    assert 'role="tab"' not in page and "Which one is closest" not in page and "base" in page
    assert made("one").html() == page  # the same report is the same page


# Runs inside of the page and writes down what it found.
PROBE = """
<script>
const found = {}, all = (s) => [...document.querySelectorAll(s)], shown = (e) => e.checkVisibility();
const key = (e, name) => e.dispatchEvent(new KeyboardEvent("keydown", {key: name, bubbles: true}));
const tip = document.getElementById("tip");
found.width = innerWidth;
found.overflow = document.documentElement.scrollWidth - innerWidth;
found.panels = all("[role=tabpanel]").map((p) => shown(p));
const tabs = all("[role=tab]");
tabs[0].focus(); key(tabs[0], "ArrowRight");
found.after = all("[role=tabpanel]").map((p) => shown(p));
found.focused = document.activeElement.id; found.second = tabs[1].id;
const plots = all("svg.plot[tabindex]").filter(shown);
found.plots = plots.length;
const silent = (plot) => {
  plot.focus(); key(plot, "ArrowRight");
  const said = !tip.hidden && tip.textContent.length > 3;
  plot.blur();
  return !said || !tip.hidden;
};
found.silent = plots.filter(silent).length;
const map = plots.find((p) => p.dataset.columns);
key(map, "ArrowRight"); key(map, "ArrowDown"); found.below = tip.textContent;
key(map, "Escape"); found.hidden = tip.hidden;
const spilt = (t) => { const a = t.getBoundingClientRect(); return a.right > innerWidth + 1 || a.left < -1; };
found.spilt = all("svg text").filter((t) => shown(t) && spilt(t)).map((t) => t.textContent);
const sizes = all("svg text").filter(shown).map((t) => t.getBoundingClientRect().height);
found.letters = Math.min(...sizes);
const linear = (x) => (x /= 255) <= .04 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4;
const light = (colour) => {
  const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map(linear);
  return .2126 * r + .7152 * g + .0722 * b;
};
const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + .05) / (y + .05); };
const style = (s) => getComputedStyle(document.querySelector(s));
found.paper = style("body").backgroundColor;
found.contrast = {
  ink: ratio(style("h1").color, found.paper), soft: ratio(style(".lead").color, found.paper),
  hint: ratio(style(".card .hint").color, style(".card").backgroundColor),
  pill: ratio(style(".pill").color, style(".pill").backgroundColor),
};
found.asked = performance.getEntriesByType("resource").map((e) => e.name);
const pre = document.createElement("pre");
pre.id = "found"; pre.textContent = JSON.stringify(found);
document.body.replaceChildren(pre);
</script>
"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here (Debian: apt-get install chromium)")
@pytest.mark.parametrize("width, theme", ((400, "light"), (400, "dark"), (1600, "light"), (1600, "dark")))
def test_in_a_browser(page, tmp_path, width, theme):
    """In a frame of that width, since a window of Chromium is never narrower than some 500 pixels."""
    page = page.replace('<html lang="en">', f'<html lang="en" data-theme="{theme}">').replace(
        "</body>", PROBE + "</body>"
    )
    inner = page.replace("&", "&amp;").replace('"', "&quot;")
    frame = f'<!doctype html><iframe id=f style="border:0;width:{width}px;height:4000px" srcdoc="{inner}"></iframe>'
    copy = (
        '<script>f.onload = () => { const p = document.createElement("pre"); p.id = "copy"; '
        'p.textContent = f.contentDocument.getElementById("found").textContent; '
        "document.body.replaceChildren(p); }</script>"
    )
    (tmp_path / "frame.html").write_text(frame + copy, encoding="utf-8")
    command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command += [f"--window-size={max(width, 600)},900", "--virtual-time-budget=5000", "--dump-dom"]
    done = subprocess.run([*command, (tmp_path / "frame.html").as_uri()], capture_output=True, text=True, timeout=110)
    match = re.search(r'<pre id="copy">(.*?)</pre>', done.stdout, re.S)
    assert match, (done.stdout[-500:], done.stderr[-1500:])
    found = json.loads(html.unescape(match[1]))
    assert found["width"] == width and found["overflow"] <= 0
    assert found["panels"] == [True, False, False] and found["after"] == [False, True, False]
    assert found["focused"] == found["second"]
    assert found["plots"] >= 8 and found["silent"] == 0
    assert found["below"].startswith("layer 1, head 1") and found["hidden"]
    assert found["spilt"] == [] and found["letters"] >= 10.5
    assert min(found["contrast"].values()) >= 4.5, found["contrast"]  # WCAG AA
    assert found["asked"] == []
    dark = sum(map(int, re.findall(r"\d+", found["paper"])[:3])) < 200
    assert dark == (theme == "dark")


def test_files_of_the_page_are_packed():
    import streamkl.compare

    folder = pathlib.Path(streamkl.compare.__file__).parent
    for name in ("page.css", "page.js", "schema.json"):
        assert (folder / name).is_file()
