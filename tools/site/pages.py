# SPDX-License-Identifier: Apache-2.0
"""MkDocs hooks: what the site has beside docs/*.md. Nothing is written into the tree.

The files for people at the root are pages too (README.md is the first one), and the C interface is a page made of its
header. Links that are right where the files lie are turned into links of the site. A link to something in the tree that
is no page becomes its name; one to nothing is a warning, which `mkdocs build --strict` takes as an error. A picture that
has not been made yet (`make pictures`) is left out.
"""

from __future__ import annotations

import importlib.util
import logging
import pathlib
import posixpath
import re
import sys

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parents[2]
HEADER = "include/streamkl/streamkl.h"
# File of the tree: page of the site.
PAGES = {
    "README.md": "index.md",
    HEADER: "c-api.md",
    **{name: name.lower() for name in ("CONTRIBUTING.md", "NEWS.md", "RELEASING.md", "SECURITY.md")},
}
INTRODUCTION = (
    "Made from the comments of `include/streamkl/streamkl.h`, which is the whole interface. "
    "[What does not fit in a comment](api.md) has a page of its own, the formulas are in [the mathematics](math.md)."
)
_LINK = re.compile(r"(?P<open>!?\[(?P<text>[^\]]*)\]\()(?P<to>[^)\s]+)\)")
_IMAGE = re.compile(r"(?P<before><(?:img|source)\b[^>]*?\b(?:src|srcset)=\")(?P<to>[^\"]+)\"")
_FENCE = re.compile(r"^```.*?^```[ \t]*$", re.S | re.M)  # code, where nothing is a link
_LIST = re.compile(r"^(?![-*|>#\s]|\d+\. |<!--)[^\n]+\n(?P<item>- |\d+\. )", re.M)  # GitHub sees it, MkDocs does not
log = logging.getLogger("mkdocs.hooks.pages")


def _sibling(name: str):
    """A module beside this one: MkDocs runs its hooks by their paths."""
    path = pathlib.Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"streamkl_site_{name}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _home(page: str) -> str:
    """The file of the tree that a page is made of."""
    return next((file for file, name in PAGES.items() if name == page), f"docs/{page}")


def on_files(files, config):
    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        if name == HEADER:
            text = _sibling("c_header").page(text, "The interface of C", INTRODUCTION)
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    here = _home(page.file.src_uri)
    if here == HEADER:
        return markdown
    at, out = 0, []
    for code in _FENCE.finditer(markdown):
        out += [_mended(markdown[at : code.start()], here, page), code.group()]
        at = code.end()
    return "".join([*out, _mended(markdown[at:], here, page)])


def _mended(text: str, here: str, page) -> str:
    for found in _LIST.finditer(text):
        log.warning("%s: a list needs an empty line before it, after %r", here, found.group().splitlines()[0])
    text = _LINK.sub(lambda found: _link(found, here, page), text)
    return _IMAGE.sub(lambda found: f'{found["before"]}{_target(found["to"], here, page)[1]}"', text)


def _target(to: str, here: str, page):
    """What a link of a file means: "page", "file", "nothing" or "elsewhere", and how the site writes it."""
    if re.match(r"\w+:|#|/", to):
        return "elsewhere", to
    path, mark, anchor = to.partition("#")
    file = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
    if not (ROOT / file).exists():
        return "nothing", file
    name = PAGES.get(file) or (file[len("docs/") :] if file.startswith("docs/") else None)
    if name is None:
        return "file", file
    return "page", posixpath.relpath(name, posixpath.dirname(page.file.src_uri) or ".") + mark + anchor


def _link(found, here: str, page) -> str:
    kind, to = _target(found["to"], here, page)
    picture = found["open"].startswith("!")
    if kind == "nothing" and picture and "pictures/" in to:
        log.info("%s: no %s yet: make pictures", here, to)
        return ""
    if kind == "nothing":
        log.warning("%s links to %s, which is not there", here, found["to"])
        return found["text"]
    if kind == "file":
        return found["text"] if f"`{to}`" in found["text"] else f"{found['text']} (`{to}`)"
    return f"{found['open']}{to})"
