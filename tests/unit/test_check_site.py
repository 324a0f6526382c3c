from pathlib import Path

from tools.check_site import problems_of


def test_links_that_lead_nowhere_and_things_from_elsewhere_are_found(tmp_path: Path) -> None:
    """A file, an anchor, a script of somebody else's, an address that is none."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "other.html").write_text('<h1 id="here">Here</h1>')
    (tmp_path / "page.html").write_text(
        '<a href="sub/other.html#here">fine</a><a href="https://example.org/x">fine</a>'
        '<a href="gone.html">1</a><a href="sub/other.html#gone">2</a><a href="#gone">3</a>'
        '<script src="https://cdn.example.org/x.js"></script><a href="http://nowhere">5</a>'
    )

    assert problems_of(tmp_path) == [
        "page.html: gone.html: there is no such file",
        "page.html: sub/other.html#gone: there is no such anchor",
        "page.html: #gone: there is no such anchor",
        "page.html: https://cdn.example.org/x.js: a page loads it from elsewhere",
        "page.html: http://nowhere: not the address of a page",
    ]
