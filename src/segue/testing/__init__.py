"""What tests on top of Segue need: a clock that stands still, disks that fail or lose power.

    clock.py    ManualClock: time moves when the test says so
    faulty.py   FaultyDisk: the k-th call fails as the operating system would
    power.py    RecordingDisk: what a directory may look like after the power was cut

Hand them to `Log(clock=..., disk=...)`. Nothing here knows a test framework, and nothing in
`segue` imports it.
"""

from segue.testing.clock import ManualClock
from segue.testing.faulty import OPERATIONS, FaultyDisk, Operation
from segue.testing.power import Event, RecordingDisk

__all__ = ["OPERATIONS", "Event", "FaultyDisk", "ManualClock", "Operation", "RecordingDisk"]
