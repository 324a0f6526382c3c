"""Tokens: what lets a client in, and the file that knows them.

A token is the text `segue_<id>_<secret>`. The secret is 256 random bits, which nobody finds by
trying: so a plain SHA-256 of it is enough to know it again, and is all that is kept. Slow hashes
are for passwords, which people choose; here they would only make every request slow.
"""

import hmac
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final, Literal

import msgspec

from segue.delivery.topic_record import MOMENT_US_MAX
from segue.errors import InvalidArgument, UnsupportedFormat
from segue.log.disk import Disk, storage_errors

DIRECTORY: Final = "server"
FILENAME: Final = "tokens.json"
FORMAT: Final = 1
PREFIX: Final = b"segue"
SECRET_BYTES: Final = 32
ID_BYTES: Final = 5
TOKENS_MAX: Final = 10_000
NAME_CHARACTERS_MAX: Final = 100
PATTERNS_MAX: Final = 100
_PATTERN: Final = re.compile(r"[A-Za-z0-9_.*?\[\]!-]{1,200}")
_NO_DIGEST: Final = bytes(sha256().digest_size)

RoleName = Literal["produce", "consume", "read", "admin"]


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a token. The secret is not among it."""

    id: str
    name: str
    """Whose it is, for people and logs."""
    roles: tuple[RoleName, ...]
    names: tuple[str, ...] = ("*",)
    """Which queues, topics, rings and locks it is good for, as shells match names."""
    created_us: int
    expires_us: int | None = None
    sha256: str
    """Of the secret, in hexadecimal."""


class _Document(msgspec.Struct, kw_only=True):
    format: int
    tokens: list[Token]


def tokens_path(store: Path) -> Path:
    """Return where a store in a directory has its tokens."""
    return store / DIRECTORY / FILENAME


def make_token(
    *,
    name: str,
    roles: Sequence[RoleName],
    names: Sequence[str],
    now_us: int,
    expires_us: int | None,
) -> tuple[Token, str]:
    """Return a new token and its text, which nobody can tell again. Raises InvalidArgument."""
    if not name or not name.isprintable() or len(name) > NAME_CHARACTERS_MAX:
        raise InvalidArgument(
            f"the name of a token is printable, of 1 to {NAME_CHARACTERS_MAX} characters"
        )
    if not roles:
        raise InvalidArgument("a token without a role is good for nothing")
    if not 0 < len(names) <= PATTERNS_MAX:
        raise InvalidArgument(f"a token has 1 to {PATTERNS_MAX} patterns of names")
    for pattern in names:
        if _PATTERN.fullmatch(pattern) is None:
            raise InvalidArgument(f"{pattern!r} is no pattern of names, such as mail or mail.*")
    if expires_us is not None and not now_us < expires_us <= MOMENT_US_MAX:
        raise InvalidArgument("a token is over some time from now, before the year 10000")
    id_, secret = secrets.token_hex(ID_BYTES), secrets.token_urlsafe(SECRET_BYTES)
    token = Token(
        id=id_,
        name=name,
        roles=tuple(dict.fromkeys(roles)),
        names=tuple(dict.fromkeys(names)),
        created_us=now_us,
        expires_us=expires_us,
        sha256=sha256(secret.encode()).hexdigest(),
    )
    return token, f"{PREFIX.decode()}_{id_}_{secret}"


def is_secret(secret: bytes, digest: bytes | None) -> bool:
    """Tell whether a secret is the one of a digest. Takes as long if there is no digest."""
    matches = hmac.compare_digest(sha256(secret).digest(), digest or _NO_DIGEST)
    return matches and digest is not None


# The file --------------------------------------------------------------------------------------


def read_tokens(path: Path) -> list[Token]:
    """Return the tokens in a file. Raises FileNotFoundError, UnsupportedFormat, OSError."""
    try:
        document = msgspec.json.decode(path.read_bytes(), type=_Document)
        for token in document.tokens:
            bytes.fromhex(token.sha256)
    except (msgspec.DecodeError, ValueError) as error:
        raise UnsupportedFormat(f"{path} is no file of tokens: {error}") from None
    if document.format != FORMAT:
        raise UnsupportedFormat(f"{path} says format {document.format}; this Segue knows {FORMAT}")
    return document.tokens


def add_token(path: Path, token: Token, disk: Disk | None = None) -> None:
    """Add a token to a file, which is made if need be. Servers know it within a second."""
    disk = disk or Disk()
    with storage_errors(f"writing {path}"), _alone(path, disk):
        tokens = _read_or_none(path)
        if len(tokens) >= TOKENS_MAX:
            raise InvalidArgument(f"{path} holds {TOKENS_MAX} tokens, and no more")
        _write(path, [*tokens, token], disk)


def remove_token(path: Path, id_: str, disk: Disk | None = None) -> Token | None:
    """Remove a token from a file and return it, None if it is not there."""
    if not path.exists():
        return None  # Nothing is made to look into it.
    disk = disk or Disk()
    with storage_errors(f"writing {path}"), _alone(path, disk):
        tokens = _read_or_none(path)
        found = next((token for token in tokens if token.id == id_), None)
        if found is not None:
            # The last one, too: an empty file lets nobody in, no file would let everybody in.
            _write(path, [token for token in tokens if token.id != id_], disk)
        return found


def _read_or_none(path: Path) -> list[Token]:
    try:
        return read_tokens(path)
    except FileNotFoundError:
        return []


def _write(path: Path, tokens: list[Token], disk: Disk) -> None:
    data = msgspec.json.format(msgspec.json.encode(_Document(format=FORMAT, tokens=tokens)))
    disk.replace_file(path, data + b"\n", sync=True)
    disk.sync_directory(path.parent)


@contextmanager
def _alone(path: Path, disk: Disk) -> Iterator[None]:
    """Keep others from changing the file meanwhile: none of two additions gets lost."""
    disk.make_directory(path.parent)
    fd = disk.open_to_write(path.with_name(f".{path.name}.lock"), create=True)
    try:
        disk.lock(fd)
        yield
    finally:
        disk.close(fd)
