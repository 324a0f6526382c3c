"""Static files for browsers, as they lie in the package. What a page may load, app.py says."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

from segue.server.refusal import Refused
from segue.server.routing import Reply
from segue.values import dataclass

PAGES: Final = Path(__file__).parent / "pages"
MEDIA_TYPES: Final[Mapping[str, str]] = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".ico": "image/x-icon",
}
"""What is served, by how its name ends. Nothing else that may lie there is."""
_CACHE: Final = (b"cache-control", b"no-cache")
"""A new version may come at the same address: browsers keep it, and ask whether it is the same."""
_NOT_MODIFIED: Final = 304


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """A file as it was read last."""

    changed_ns: int
    size_bytes: int
    data: bytes
    etag: bytes


class PageFiles:
    """The files of one directory, which has none below it. Safe from any thread.

    They are small and stay in memory. One that changes is read anew when it is asked for next, so
    that whoever works on a page need not start the server again.
    """

    def __init__(self, directory: Path = PAGES) -> None:
        self._directory = directory
        self._kept: dict[str, _Kept] = {}

    def reply(self, name: str, headers: Mapping[bytes, bytes]) -> Reply:
        """Return a file, or 304 to whoever has it already. Raises Refused if there is none."""
        # Found in a listing, and never put together from what was sent: so no name leads elsewhere.
        listed = {each.name: each for each in self._directory.iterdir()}
        path = listed.get(name)
        if path is None or path.suffix not in MEDIA_TYPES:
            raise Refused(404, "not_found", f"there is no page {name[:200]}")
        kept = self._read(path)
        is_known = _is_among(kept.etag, headers.get(b"if-none-match", b""))
        return Reply(
            status=_NOT_MODIFIED if is_known else 200,
            body=b"" if is_known else kept.data,
            media_type=MEDIA_TYPES[path.suffix],
            headers=(_CACHE, (b"etag", kept.etag)),
        )

    def _read(self, path: Path) -> _Kept:
        status = path.stat()
        kept = self._kept.get(path.name)
        if kept is None or (kept.changed_ns, kept.size_bytes) != (
            status.st_mtime_ns,
            status.st_size,
        ):
            data = path.read_bytes()
            kept = self._kept[path.name] = _Kept(
                changed_ns=status.st_mtime_ns,
                size_bytes=status.st_size,
                data=data,
                etag=b'"%b"' % sha256(data).hexdigest()[:32].encode(),
            )
        return kept


def _is_among(etag: bytes, said: bytes) -> bool:
    """Tell whether an If-None-Match header names what there is."""
    named = [each.strip().removeprefix(b"W/") for each in said.split(b",")]
    return etag in named or b"*" in named
