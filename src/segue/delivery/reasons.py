"""What reasons have in common: those that differ by a number or a name alone are one pattern."""

import re
from functools import lru_cache
from typing import Final

PATTERN_CHARACTERS_MAX: Final = 200
"""How long a pattern is."""
READ_CHARACTERS_MAX: Final = 1_000
"""How much of a reason is looked at."""
REASONS_KEPT: Final = 1_024
"""Of how many reasons the pattern is remembered: many are the same but for their digits."""

_DIGITS: Final = str.maketrans("123456789", "0" * 9)
"""All digits are alike."""

# Nothing is replaced by more than it was, or replacing again and again might never end.
_PARTS: Final = (
    ('"', re.compile(r'"[^"]+"'), '"…"'),
    ("'", re.compile(r"(?<!\w)'[^']+'(?!\w)"), "'…'"),
    ("`", re.compile(r"`[^`]+`"), "`…`"),
    ("://", re.compile(r"""(://[^\s/"'`<>]+/)[^\s"'`<>]+"""), r"\1…"),
    ("/", re.compile(r"""(?<![\w.~/…-])[.~]{0,2}(?:/[^\s/:;,"'`()<>\[\]]+){2,}/?"""), "…"),
    (":\\", re.compile(r"""\b[A-Za-z]:\\[^\s"'`]+"""), "…"),
    ("-", re.compile(r"\b[0A-Fa-f]{8}(?:-[0A-Fa-f]{4}){3}-[0A-Fa-f]{12}\b"), "#"),
)
"""What is replaced by what, where there is something like it."""
_WORD: Final = re.compile(r"\b[A-Za-z]*+0++[A-Za-z][A-Za-z0]*+\b")
"""Where a letter follows a digit: a name with a number behind it stays a name."""
_ID: Final = re.compile(r"0[xX][0A-Fa-f]+|[0A-Fa-f]{6,}|[A-Za-z0]{16,}")
_NUMBER: Final = re.compile(r"0+(?:[.,:]0+)*")


def pattern_of(reason: str) -> str:
    """Return the first line of a reason with what differs from case to case left out.

    Numbers and ids become `#`; what is quoted, paths and the ends of addresses `…`. It is one line
    of at most `PATTERN_CHARACTERS_MAX` characters, whatever else stands in it. The pattern of a
    pattern is itself.
    """
    return _pattern(reason[:READ_CHARACTERS_MAX].translate(_DIGITS))


@lru_cache(REASONS_KEPT)
def _pattern(reason: str) -> str:
    return _settled(_replaced(reason))


@lru_cache(REASONS_KEPT)
def _settled(pattern: str) -> str:
    """Return what stays as it is: what was replaced, or cut, may show more to be replaced."""
    while (again := _replaced(pattern)) != pattern:
        pattern = again
    return pattern


def _replaced(reason: str) -> str:
    lines = reason.lstrip().splitlines()
    line = " ".join(lines[0].split()) if lines else ""
    for sign, varying, instead in _PARTS:
        if sign in line:
            line = varying.sub(instead, line)
    line = _NUMBER.sub("#", _WORD.sub(_named, line))[:PATTERN_CHARACTERS_MAX].rstrip()
    # Half a character, which UTF-8 cannot say, is nobody's pattern.
    return line if line.isascii() else line.encode(errors="replace").decode()


def _named(word: re.Match[str]) -> str:
    return "#" if _ID.fullmatch(word[0]) else word[0]
