"""Slots as NumPy has them, for who looks at many. Apart, as it needs nothing but NumPy."""

from typing import Final

import numpy as np

SLOT_DTYPE: Final = np.dtype(
    [
        ("time_us", "<i8"),
        ("attr", "<u8"),
        ("position", "<u4"),
        ("length", "<u4"),
        ("link", "<u4"),
        ("before", "<u4"),
        ("after", "<u4"),
        ("crc", "<u4"),
    ]
)
