"""Says what is wrong with a site: links that lead nowhere, and what is loaded from elsewhere."""

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

LOADED: Final = frozenset({("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src")})
"""What a browser fetches without being asked."""
LINKED: Final = LOADED | {("a", "href")}
MADE_BY_SCRIPTS: Final = frozenset({"search.html", "genindex.html"})
"""Pages whose anchors come to be in the browser."""


@dataclass(slots=True)
class Page:
    """What one file of HTML names, and what can be named in it."""

    anchors: set[str] = field(default_factory=set)
    links: list[tuple[str, str]] = field(default_factory=list)
    """Each with the tag it is in."""


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in {"id", "name"} and value:
                self.page.anchors.add(value)
            if (tag, name) in LINKED and value:
                self.page.links.append((tag, value))


def problems_of(site: Path) -> list[str]:
    """Return a line for each link that leads nowhere, and for all that is loaded from elsewhere."""
    pages = {path.resolve(): _read(path) for path in sorted(site.rglob("*.html"))}
    return [
        f"{path.relative_to(site.resolve())}: {link}: {problem}"
        for path, page in pages.items()
        for tag, link in page.links
        if (problem := _problem(path, tag, link, pages))
    ]


def _read(path: Path) -> Page:
    reader = _Reader()
    reader.feed(path.read_text())
    return reader.page


def _problem(path: Path, tag: str, link: str, pages: dict[Path, Page]) -> str:
    parts = urlsplit(link)
    if parts.scheme == "data":
        return ""
    if parts.scheme or parts.netloc:
        return _elsewhere(tag, parts)
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_file():
        return "there is no such file"
    if not parts.fragment or target.name in MADE_BY_SCRIPTS:
        return ""
    if target in pages and unquote(parts.fragment) not in pages[target].anchors:
        return "there is no such anchor"
    return ""


def _elsewhere(tag: str, parts: SplitResult) -> str:
    """Say what is wrong with a link to elsewhere as it is written: nobody is asked."""
    if (tag, "href") != ("a", "href"):
        return "a page loads it from elsewhere"
    if parts.scheme != "https" or "." not in (parts.hostname or ""):
        return "not the address of a page"
    return ""
