"""What tests on top of Segue need: a clock that stands still, disks that fail or lose power.

    clock.py    ManualClock: time moves when the test says so
    faulty.py   FaultyDisk: the k-th call fails as the operating system would
    power.py    RecordingDisk: what a directory may look like after the power was cut
    tasks.py    TaskBench: tasks run in the test's own thread, by its own clock
    pytest_plugin.py   the fixture `task_bench`

Hand the first three to `Log(clock=..., disk=...)`. Nothing in `segue` imports any of this, and only
the plugin knows a test framework.
"""

from segue.testing.clock import ManualClock
from segue.testing.faulty import OPERATIONS, FaultyDisk, Operation
from segue.testing.power import Event, RecordingDisk

__all__ = ["OPERATIONS", "Event", "FaultyDisk", "ManualClock", "Operation", "RecordingDisk"]
