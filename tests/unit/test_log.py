"""The log through its public door."""

from pathlib import Path

from segue import Log


def test_what_is_appended_is_read_back_in_order(tmp_path: Path) -> None:
    """Records come back as they went in, also through another handle."""
    with Log(tmp_path / "log") as log:
        offsets = [log.append(b"one"), log.append_many([b"two", b"three"])]

    with Log(tmp_path / "log", read_only=True) as log:
        assert offsets == [0, 1]
        assert [record.payload for record in log.records()] == [b"one", b"two", b"three"]
