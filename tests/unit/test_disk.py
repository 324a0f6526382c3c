"""What the disk tells of itself."""

from pathlib import Path

import pytest

from segue.log import disk as disk_module
from segue.log.disk import Disk

ELSEWHERE = "0:9999"
"""The device of nothing that is there."""


@pytest.fixture
def table(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The table of mounts, to be written by the test."""
    path = scratch / "mountinfo"
    monkeypatch.setattr(disk_module, "MOUNT_TABLE", path)
    return path


def test_a_file_system_is_found_by_the_path_if_the_device_is_unknown(
    scratch: Path, table: Path
) -> None:
    """Files on btrfs have a device that is in no table; who copies on write must not be missed."""
    inner = scratch / "a b" / "not there yet"
    inner.parent.mkdir()
    point = str(inner.parent.resolve()).replace(" ", r"\040")
    table.write_text(
        f"27 1 {ELSEWHERE} / / rw - ext4 /dev/vda rw\n"
        f"30 27 {ELSEWHERE} / {point} rw shared:5 - btrfs /dev/vdb rw,subvol=/a\n"
    )
    disk = Disk()

    assert disk.file_system(inner) == "btrfs"
    assert not disk.may_store_mapped(inner)
    assert disk.file_system(scratch) == "ext4"
    assert disk.may_store_mapped(scratch)


@pytest.mark.parametrize("text", [None, "", "a line that is none\n"])
def test_a_file_system_that_nobody_knows_is_taken_for_a_local_one(
    scratch: Path, table: Path, text: str | None
) -> None:
    """As where there is no such table at all."""
    if text is not None:
        table.write_text(text)

    assert Disk().file_system(scratch) == ""
    assert not Disk().is_network_file_system(scratch)
