"""What makes tens of thousands of openings bearable."""

import logging
from collections.abc import Iterator

import pytest

from segue.log import segment


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Write no warnings, of which damage causes many, and look at damage only once.

    Nobody writes while these tests read, so there is no store to wait for.
    """
    monkeypatch.setattr(segment, "SETTLE_SECONDS", 0)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
