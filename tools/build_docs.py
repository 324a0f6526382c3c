"""Builds the documentation as a site: static files that work from a disk, offline.

    python -m tools.build_docs build/docs

The site has the layout of the repository, so that links which work there work here. Pages are as
they lie in docs/; the menu is the list in docs/README.md, and every page must be in it. Any warning
of Sphinx is an error, and so is a link or an anchor that leads nowhere, or anything that a page
would load from elsewhere (`tools/check_site.py`). Why Sphinx: docs/adr/0030.
"""

import re
import shutil
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import Final

from sphinx.application import Sphinx
from sphinx.errors import SphinxError
from sphinx.util.console import nocolor
from sphinx.util.docutils import docutils_namespace, patch_docutils

from segue import __version__
from tools.check_site import problems_of

ROOT: Final = Path(__file__).parents[1]
FRONT_PAGE: Final = "README"
MENU: Final = "docs/README"
DECISIONS: Final = "docs/adr/README"
PAGES: Final = (
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md"),
    *("docs/*.md", "docs/adr/*.md", "benchmarks/README.md", "examples/README.md"),
)
PAINT: Final = ROOT / "tools" / "site"

_HEADING: Final = re.compile(r"^## (.+)$")
_ENTRY: Final = re.compile(r"^(?:- |\d+\. )\[(.+?)\]\((?!https?:)([^)#]+)\.md\)")
_LINK: Final = re.compile(r"\[([^\]\n]*)\]\(([\w./-]+)\)")
_INDEX: Final = """<!doctype html>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url=README.html">
<title>Segue</title>
<a href="README.html">Segue</a>
"""

SETTINGS: Final[dict[str, object]] = {
    "project": "Segue",
    "version": __version__,
    "release": __version__,
    "root_doc": FRONT_PAGE,
    "extensions": ["myst_parser", "tools.build_docs"],
    "include_patterns": list(PAGES),
    "exclude_patterns": [".*", "build", "dist", "src", "tests", "tools"],
    "myst_heading_anchors": 6,
    "myst_enable_extensions": ["html_image"],
    "nitpicky": True,
    "smartquotes": False,  # Else --json would lose a dash.
    "html_theme": "furo",
    "html_title": f"Segue {__version__}",
    "html_static_path": [str(PAINT)],
    "html_css_files": ["site.css"],
    "html_copy_source": False,
    "html_show_sourcelink": False,
    "html_show_copyright": False,
    # Examples shorten what varies by "…", which is no JSON.
    "suppress_warnings": ["misc.highlighting_failure"],
}


def main() -> int:
    """Build the site at the path that is given, and say what is wrong with it."""
    [target] = map(Path, sys.argv[1:])
    problems = build(target, target.with_name(f"{target.name}-doctrees"))
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    if not problems:
        sys.stdout.write(f"{target / 'index.html'}\n")
    return len(problems) > 0


def build(target: Path, doctrees: Path) -> list[str]:
    """Build the site anew at `target`; return what is wrong with it."""
    shutil.rmtree(target, ignore_errors=True)
    nocolor()
    warnings = StringIO()
    with patch_docutils(), docutils_namespace():
        app = Sphinx(
            srcdir=ROOT,
            confdir=None,
            outdir=target,
            doctreedir=doctrees,
            buildername="html",
            confoverrides=SETTINGS,
            status=None,
            warning=warnings,
            freshenv=True,
        )
        app.build(force_all=True)
    (target / "index.html").write_text(_INDEX)
    return [*warnings.getvalue().splitlines(), *problems_of(target)]


def setup(app: Sphinx) -> dict[str, bool]:
    """Have Sphinx call us when it has read a page."""
    app.connect("source-read", _prepare)
    return {"parallel_read_safe": True}


def _prepare(app: Sphinx, page: str, source: list[str]) -> None:
    """Give the front page the menu, and links to directories something to lead to."""
    source[0] = _LINK.sub(lambda link: _without_directory(page, link), source[0])
    if page == FRONT_PAGE:
        source[0] += "\n".join(["", _toctree("", [f"All pages </{MENU}>"]), *menu_of(MENU)])
    elif page == DECISIONS:
        source[0] += "\n".join(["", *menu_of(DECISIONS)])


def _without_directory(page: str, link: re.Match[str]) -> str:
    """Return a link to what a directory says of itself; just the words if it says nothing."""
    directory = ROOT / dirname(page) / link[2]
    if not directory.is_dir():
        return link[0]
    target = f"{link[2].rstrip('/')}/README.md"
    return f"[{link[1]}]({target})" if (directory / "README.md").exists() else link[1]


def menu_of(page: str) -> Iterator[str]:
    """Yield what tells Sphinx of the pages that are listed in one, under its headings."""
    caption, entries = "", list[str]()
    for line in (ROOT / f"{page}.md").read_text().splitlines():
        if heading := _HEADING.match(line):
            yield _toctree(caption, entries)
            caption, entries = heading[1], []
        elif found := _ENTRY.match(line):
            entries.append(f"{found[1]} </{normpath(join(dirname(page), found[2]))}>")
    yield _toctree(caption, entries)


def _toctree(caption: str, entries: list[str]) -> str:
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["```{toctree}", *options, "", *entries, "```"]) if entries else ""


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SphinxError as error:
        sys.exit(str(error))
