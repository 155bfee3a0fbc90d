# SPDX-License-Identifier: Apache-2.0
"""All Python in README.md and docs/*.md runs, as it stands; and the page made of the C header holds the whole header.

Each page runs in a folder of its own, and in this process: importing torch for each of them took longer than the pages. The
C is compiled by tests/test_documents.py.
"""

import importlib.util
import re
import sys

import pytest
import torch

import documents
from documents import ROOT

# Pages whose Python needs ranks or folders run in test_distributed_documents and test_compare_run; that of frameworks.md
# is held against the packages themselves in test_frameworks.
ELSEWHERE = ("distributed.md", "frameworks.md", "report.md")
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md")))
    if page.name not in ELSEWHERE and documents.blocks(page)
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_of(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # what a page writes is not written into the tree
    dtype, enabled = torch.get_default_dtype(), torch.is_grad_enabled()
    documents.run(page)
    assert torch.get_default_dtype() == dtype and torch.is_grad_enabled() == enabled, "the page leaves something behind"


@pytest.fixture(scope="module")
def site():
    """tools/site/c_header.py, as MkDocs' hook loads it."""
    spec = importlib.util.spec_from_file_location("c_header", ROOT / "tools/site/c_header.py")
    module = sys.modules["c_header"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_of_the_header(site):
    """Every function, enumerator and field is on it, each with its comment, and every link leads somewhere."""
    header = (ROOT / "include/streamkl/streamkl.h").read_text()
    page = site.page(header, "C", "")
    bare = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    for name in re.findall(r"SKL_API[^;(]*?\b(skl_\w+)\(|static inline [^(]*?\b(skl_\w+)\(", bare):
        assert f"{{ #{''.join(name)} }}" in page
    for body in re.findall(r"^enum \w+ \{(.*?)\}", bare, re.S | re.M):
        for name in re.findall(r"SKL_\w+", body):
            assert re.search(rf"^\| `{name}` \| \d+ \|", page, re.M), name
    for body in re.findall(r"^struct \w+ \{(.*?)^\};", bare, re.S | re.M):
        for member in filter(None, (line.strip() for line in body.split(";"))):
            for name in re.sub(r"^(?:const )?(?:struct )?\w+ ", "", member).split(","):
                assert f"`{name.strip(' *')}`" in page, name
    anchors = set(re.findall(r"\{ #(\w+) \}", page))
    assert set(re.findall(r"\]\(#(\w+)\)", page)) <= anchors
    prose = re.sub(r"```.*?```|`[^`]*`", "", page, flags=re.S)
    assert not re.search(r"(?<!\\)\]\[", prose), "x[i][j] in a comment is no link"
    assert "| `SKL_BAD_ARGUMENT` | 1 |" in page and "asked to stop; outputs are undefined |" in page
    assert "| `begin`, `end` | `struct skl_tensor` | Optional i32 tensors over the rows" in page


def test_header_in_another_form(site):
    """A member behind a comment of its own, one with both, a pointer: as they are written, none is lost."""
    header = """/* Top. */
/* -------------------------------------------------- things --- */
/* A thing. */
struct skl_thing {
    /* First,
     * on two lines. */
    const char *name; /* and behind */
    int32_t a, b;

    /* Before. */
    size_t n[4];
};
/* Makes it. */
SKL_API int skl_make(struct skl_thing *t,
                     int n); /* 0 or 1 */
#ifdef __cplusplus
"""
    ((title, (thing, make)),) = site.parse(header)[1]
    assert title == "things" and thing.comment == "A thing."
    assert thing.rows == [
        ("name", "const char *", "First, on two lines. and behind"),
        ("a, b", "int32_t", ""),
        ("n[4]", "size_t", "Before."),
    ]
    assert make.code == "int skl_make(struct skl_thing *t,\n    int n);" and make.comment == "Makes it.\n\n0 or 1"
