"""The durable segmented log: bytes at offsets in a directory. Knows nothing of what they mean."""

from segue.log.audit import DamagedRange, SegmentAudit
from segue.log.compaction import RewriteReport
from segue.log.inventory import SegmentInfo
from segue.log.layout import Offset, SegmentId
from segue.log.log import Log
from segue.log.reader import Reader, Start
from segue.log.record import Record
from segue.log.repair import RepairReport

__all__ = [
    "DamagedRange",
    "Log",
    "Offset",
    "Reader",
    "Record",
    "RepairReport",
    "RewriteReport",
    "SegmentAudit",
    "SegmentId",
    "SegmentInfo",
    "Start",
]
