"""A real `segue serve`, or `segue dash`, for pages that tell of one and of its usual address."""

import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.waiting import LIMIT_SECONDS

ENVIRONMENT: Final = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
SERVERS: Final = ("segue serve ", "segue dash ")
_USUAL: Final = re.compile(r"\b(localhost|127\.0\.0\.1):80[01]0\b")
_BEGUN: Final = re.compile(r"(?:serving|showing) .* at http://127\.0\.0\.1:(\d+)(?:/dash/)?\n")


class PageServer:
    """The server a page has started last; or one on an empty directory, if it starts none."""

    def __init__(self, directory: Path, environment: Mapping[str, str] = ENVIRONMENT) -> None:
        self._directory = directory
        self._environment = environment
        self._errors = directory / ".serve-errors"
        self._process: subprocess.Popen[str] | None = None
        self._port = ""

    def for_real(self, text: str) -> str:
        """Return `text` with the address of the server where it says the usual one."""
        if _USUAL.search(text) is None:
            return text
        if self._process is None:
            self.start(f"{SERVERS[0]}.served")
        return _USUAL.sub(f"127.0.0.1:{self._port}", text)

    def start(self, line: str) -> str:
        """Serve as a line of the page says, on a free port; return what that prints.

        The server before it is ended, as whoever follows the page would do.
        """
        self.end()
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [*shlex.split(line, comments=True), "--port", "0"],
                cwd=self._directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        found = _BEGUN.fullmatch(said)
        assert found is not None, (line, said, self._errors.read_text())
        self._port = found[1]
        return said

    def end(self) -> None:
        """End it in order, as Ctrl-C would."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.terminate()
        try:
            code = process.wait(LIMIT_SECONDS)
        finally:
            process.kill()
            assert process.stdout is not None
            process.stdout.close()
        assert code == 0, self._errors.read_text()
        assert "Traceback" not in self._errors.read_text()
