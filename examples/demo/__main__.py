"""Arguments in, the story on the screen, an exit code out."""

import argparse
import json
import logging
import sys
from pathlib import Path
from typing import Final

INTERRUPTED: Final = 130
REPORT: Final = Path("build/demo/report.html")


def arguments() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument("--short", action="store_true", help="a sixth of it, for CI")
    parser.add_argument("--json", action="store_true", help="print the totals as JSON")
    parser.add_argument(
        "--keep", type=Path, metavar="DIRECTORY", help="have the store there, for later"
    )
    parser.add_argument(
        "--report", type=Path, default=REPORT, help=f"where the page goes ({REPORT})"
    )
    return parser.parse_args()


def main() -> int:
    """Play all of it."""
    given = arguments()
    if given.keep is not None and given.keep.exists():
        print(f"demo: {given.keep} is there already", file=sys.stderr)
        return 2
    from examples.demo.report import write_report
    from examples.demo.screen import Screen
    from examples.demo.stage import Stage
    from examples.demo.story import FULL, SHORT, DemoFailed, Story

    logging.basicConfig(level=logging.ERROR)
    screen = Screen(to_stderr=given.json)
    keep = given.keep.absolute() if given.keep else None
    with Stage(keep) as stage:
        try:
            outcome = Story(stage, screen, SHORT if given.short else FULL).play()
        except DemoFailed as error:
            screen.fail(str(error))
            for words in stage.last_words(error.child):
                screen.say(words)
            return 1
    screen.table("What came of it", outcome.rows())
    wrong = list(outcome.wrong())
    try:
        write_report(outcome, given.report)
    except OSError as error:
        wrong.append(f"the page with plots is not there: {error}")
    else:
        screen.act("The same as a page, with plots")
        screen.say(str(given.report))
    screen.act("Three commands to try next")
    for command in outcome.next_commands(keep):
        screen.say(command)
    if given.json:
        print(json.dumps(outcome.as_values()))
    for sentence in wrong:
        screen.fail(sentence)
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\ndemo: interrupted; no process and no temporary file is left", file=sys.stderr)
        sys.exit(INTERRUPTED)
