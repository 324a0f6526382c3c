"""Runs the command line: `python -m segue`."""

import sys

from segue.cli import main

if __name__ == "__main__":
    sys.exit(main())
