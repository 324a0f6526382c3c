"""What is wrong with a log and what a repair would do: shared by `verify` and `repair`."""

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path

from segue.cli.output import Column, Kind, Rows, Value, progress
from segue.cli.survey import ReaderState, reader_states
from segue.errors import CorruptSegment
from segue.log import DamagedRange, Log, SegmentAudit
from segue.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong."""

    path: Path | str
    """A file, or on a server what else is damaged."""
    first_offset: int | None = None
    last_offset: int | None = None
    position: int | None = None
    problem: str
    remedy: str
    """What a repair would do."""


@dataclass(slots=True, kw_only=True)
class Check:
    """What checking every byte of a log found."""

    path: Path
    segments: int = 0
    readers: int = 0
    records: int = 0
    removed: int = 0
    payload_bytes: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def state(self) -> str:
        """Say in one word how the log is."""
        return "damaged" if self.findings else "intact"


def check_log(log: Log) -> Check:
    """Check every byte of the log and of its readers' positions. Changes nothing."""
    check = Check(path=log.path)
    sizes = {segment.id: segment.size_bytes for segment in log.segments()}
    with progress(f"checking {log.path}", sum(sizes.values())) as advance:
        for audit in log.verify():
            check.segments += 1
            check.records += audit.records
            check.removed += audit.removed
            check.payload_bytes += audit.payload_bytes
            check.findings += _segment_findings(audit)
            advance(sizes.get(audit.id, 0))
    for reader in reader_states(log.path):
        check.readers += 1
        check.findings += _reader_findings(reader)
    return check


def findings_rows(findings: Sequence[Finding], *, with_remedies: bool) -> Rows:
    """Return everything that was found as one table."""
    columns = [
        Column("file"),
        Column("first_offset", Kind.COUNT),
        Column("last_offset", Kind.COUNT),
        Column("position", Kind.COUNT),
        Column("problem"),
        Column("remedy"),
    ]
    rows: list[tuple[Value, ...]] = [
        (
            str(finding.path),
            finding.first_offset,
            finding.last_offset,
            finding.position,
            finding.problem,
            finding.remedy,
        )
        for finding in findings
    ]
    count = len(columns) if with_remedies else len(columns) - 1
    return Rows(
        name="damage", mark="damage", columns=columns[:count], rows=[row[:count] for row in rows]
    )


def _segment_findings(audit: SegmentAudit) -> list[Finding]:
    findings = [_damaged(audit.path, damaged) for damaged in audit.damaged]
    if audit.problem is not None:
        findings.append(
            Finding(path=audit.path, problem=audit.problem, remedy=_segment_remedy(audit))
        )
    return findings


def _segment_remedy(audit: SegmentAudit) -> str:
    if isinstance(audit.error, CorruptSegment):
        return "file set aside, its records removed"
    if audit.error is not None:
        return "none: this is no damage, the file cannot be read"
    if audit.missing_before:
        return "removed records in their place"
    return "segment written anew"


def _damaged(path: Path, damaged: DamagedRange) -> Finding:
    return Finding(
        path=path,
        first_offset=damaged.first_offset,
        last_offset=damaged.last_offset,
        position=damaged.position,
        problem="checksum does not match",
        remedy="records removed, a copy of the file kept",
    )


def _reader_findings(reader: ReaderState) -> list[Finding]:
    if reader.problem is None:
        return []
    return [
        Finding(
            path=reader.path,
            problem=reader.problem,
            remedy="file set aside, reader starts over",
        )
    ]
