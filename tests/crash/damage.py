"""Damage to files of a log, as a failing device would do it."""

from pathlib import Path


def flip_bit(path: Path, position: int) -> None:
    """Flip one bit of the byte at `position`."""
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def overwrite(path: Path, data: bytes, *, position: int) -> None:
    """Put `data` in place of what the file holds at `position`."""
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)
