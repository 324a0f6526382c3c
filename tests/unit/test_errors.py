"""The tree of errors is as its module draws it."""

import re
from typing import Final

from segue import errors
from segue.errors import SegueError

LINE: Final = re.compile(r"(?P<indent>[ │]*)[├└]── (?P<name>\w+)(?: \(also (?P<also>\w+)\))?")


def drawn() -> dict[str, list[str]]:
    """Return the bases of each error, as the picture has them."""
    found: dict[str, list[str]] = {}
    above = [(-1, "SegueError")]
    for match in map(LINE.match, (errors.__doc__ or "").splitlines()):
        if match is None:
            continue
        depth = len(match["indent"])
        while above[-1][0] >= depth:
            above.pop()
        found[match["name"]] = [above[-1][1], *filter(None, [match["also"]])]
        above.append((depth, match["name"]))
    return found


def test_every_error_stands_where_it_is_drawn() -> None:
    """Whoever catches one by the picture catches what is below it, and all of them are there."""
    bases = {
        name: [base.__name__ for base in error.__bases__]
        for name, error in vars(errors).items()
        if isinstance(error, type) and issubclass(error, SegueError) and error is not SegueError
    }

    assert drawn() == bases
