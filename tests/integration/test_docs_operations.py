"""Figures in docs/operations.md are those of docs/benchmarks.md and of the code."""

import re
from pathlib import Path
from typing import Final

import pytest

from segue import Log
from segue.errors import RecordTooLarge
from tests.integration.test_docs import ROOT

PAGE: Final = (ROOT / "docs" / "operations.md").read_text()
FIGURES: Final = (ROOT / "docs" / "benchmarks.md").read_text()
NUMBER: Final = re.compile(r"\d{1,3}(?:,\d{3})+")


def test_rates_were_measured() -> None:
    """Each is in a table of the benchmarks, but for rounding."""
    table = PAGE.partition("| a second, one process |")[2].partition("\n\n")[0]
    told = [int(each.replace(",", "")) for each in NUMBER.findall(table) if each != "1,000"]
    measured = {int(each.replace(",", "")) for each in NUMBER.findall(FIGURES)}

    assert len(told) > 8
    assert [
        each for each in told if all(abs(each - other) > each / 100 for other in measured)
    ] == []


def test_a_record_may_be_as_large_as_the_page_says(tmp_path: Path) -> None:
    """Whatever is said twice drifts, unless it is looked at."""
    most = int(
        re.findall(r"what fits in one segment beside its slots: ([\d,]+)", PAGE)[0].replace(",", "")
    )
    with Log(tmp_path / "log", sync="os") as log:
        log.append(bytes(most))
        with pytest.raises(RecordTooLarge):
            log.append(bytes(most + 1))
