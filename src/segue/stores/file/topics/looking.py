"""A topic in a directory, looked at without opening it: by headers and the places of who reads.

To open a log takes a moment, several files, and space for what is appended next; a page of all
topics would open hundreds.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from segue.delivery.topic_rules import TopicRules
from segue.log.inventory import SegmentInfo
from segue.log.outline import Outline, sealed_facts
from segue.log.outlines import Outlines
from segue.log.positions import SavedPosition
from segue.log.retention import SegmentFacts
from segue.stores.file.topics.core import TopicCore
from segue.stores.file.topics.group import GroupCore
from segue.stores.file.topics.pinning import Pins
from segue.stores.topic_contract import Lag
from segue.stores.topic_looks import Consumer, Kept, Standing, holder, kind_of, worst_of


class DirectoryTopicLooks:
    """Looks at one topic, and changes nothing. Raises TopicNotFound, CorruptManifest."""

    def __init__(self, core: TopicCore, outlines: Outlines) -> None:
        self.name = core.name
        self.outlines = outlines
        self._core = core

    def path_of(self, number: int) -> Path:
        """Return the directory of a partition's log."""
        return self._core.path / f"partition_{number}"

    @contextmanager
    def partition(self, number: int) -> Iterator[Outline | None]:
        """Give a partition's log, None if nothing was ever appended to it."""
        with self.outlines.look(self.path_of(number)) as outline:
            yield outline

    def numbers(self) -> range:
        """Return the partitions there are."""
        return range(self._core.require().partitions)

    def numbers_on_disk(self) -> range:
        """Return the partitions that have a directory, whatever the manifest says."""
        return range(self._core.partitions_on_disk())

    @property
    def rules(self) -> TopicRules:
        """How the topic keeps what it holds."""
        return self._core.require().rules

    # In one line ---------------------------------------------------------------------------

    def standing(self) -> Standing:
        """Return the topic in one line."""
        numbers = self.numbers()
        records = size_bytes = 0
        moments: list[int | None] = []
        ahead: dict[str, int] = {}
        problem = ""
        for number in numbers:
            with self.partition(number) as outline:
                if outline is None:
                    continue
                first, end = outline.first_offset, outline.next_offset
                records += max(0, end - first)
                size_bytes += outline.size_bytes
                moments.append(outline.time_of(first))
                for mark, saved in outline.positions().items():
                    if saved is None:
                        problem = f"the place of {holder(mark)} in partition {number} is damaged"
                    here = 0 if saved is None else max(0, end - saved.offset)
                    ahead[mark] = ahead.get(mark, 0) + here
        readers = sum(kind_of(mark)[0] == "reader" for mark in ahead)
        # Only of who is furthest behind: bytes and time take a look at the records.
        worst = max(sorted(ahead), key=ahead.__getitem__, default=None)
        lags = {} if worst is None or not ahead[worst] else self._lags([worst])
        return Standing(
            partitions=len(numbers),
            records=records,
            size_bytes=size_bytes,
            oldest_us=min((each for each in moments if each is not None), default=None),
            readers=readers,
            groups=len(ahead) - readers,
            worst=worst_of({kind_of(mark): lag for mark, lag in lags.items()}),
            problem=problem,
        )

    # Who reads -----------------------------------------------------------------------------

    def consumers(self) -> list[Consumer]:
        """Return who reads, readers first."""
        readers, groups = [], []
        for mark, lags in sorted(self._lags().items()):
            kind, name = kind_of(mark)
            if kind == "reader":
                readers.append(Consumer(kind=kind, name=name, lag=lags))
                continue
            generation, members = GroupCore(self._core, name).members()
            groups.append(
                Consumer(kind=kind, name=name, lag=lags, generation=generation, members=members)
            )
        return readers + groups

    def _lags(self, marks: Collection[str] | None = None) -> dict[str, list[Lag]]:
        """Return how far those who have these places are behind, or all of them.

        Without the partitions where a place is damaged.
        """
        found: dict[str, list[Lag]] = {}
        now_us = self._core.place.clock()
        for number in self.numbers():
            with self.partition(number) as outline:
                if outline is None:
                    continue
                for mark, saved in outline.positions().items():
                    if marks is None or mark in marks:
                        lags = found.setdefault(mark, [])
                        if saved is not None:
                            lags.append(_lag(number, outline, saved, now_us))
        return found

    # What is kept --------------------------------------------------------------------------

    def retention(self) -> tuple[TopicRules, list[Kept]]:
        """Return the rules, and what each partition keeps."""
        rules = self.rules
        return rules, [self._kept(number, rules) for number in self.numbers()]

    def _kept(self, number: int, rules: TopicRules) -> Kept:
        with self.partition(number) as outline:
            if outline is None:
                return _nothing_kept(number)
            infos = outline.oldest()
            facts = sealed_facts(infos)
            size_bytes = outline.size_bytes
            other_bytes = size_bytes - sum(fact.size_bytes for fact in facts)
            pins = self._pins(outline, facts, rules, other_bytes)
            held_by = pins.furthest_of(pins.deletable) if pins.deletable < len(facts) else ""
            if pins.deletable == len(facts) < len(infos) - 1:
                held_by = _unreadable(infos[len(facts)])
            return Kept(
                partition=number,
                first_offset=outline.first_offset,
                next_offset=outline.next_offset,
                size_bytes=size_bytes,
                oldest_us=outline.time_of(outline.first_offset),
                marks=len(outline.positions()),
                held_by=held_by,
                deletable_segments=pins.deletable,
                deletable_bytes=sum(fact.size_bytes for fact in facts[: pins.deletable]),
            )

    def pins(self, rules: TopicRules, outline: Outline, infos: list[SegmentInfo]) -> list[str]:
        """Return in words what keeps each of a partition's newest segments."""
        facts = sealed_facts(infos)
        newer_bytes = sum(info.size_bytes for info in infos[len(facts) :])
        pins = self._pins(outline, facts, rules, newer_bytes)
        found = [pins.of(index) for index in range(len(facts))]
        if len(facts) < len(infos):
            # The one that takes records, or one that nobody dares to delete, nor what follows it.
            cause = _unreadable(infos[len(facts)])
            found.append("")
            found += [cause if info.sealed else "" for info in infos[len(found) :]]
        return found

    def _pins(
        self, outline: Outline, facts: list[SegmentFacts], rules: TopicRules, other_bytes: int
    ) -> Pins:
        return Pins(
            facts,
            outline.positions(),
            rules,
            other_bytes=other_bytes,
            next_offset=outline.next_offset,
            now_us=self._core.place.clock(),
        )


def _unreadable(info: SegmentInfo) -> str:
    return f"segment {info.id}, which cannot be read"


def _lag(number: int, outline: Outline, saved: SavedPosition, now_us: int) -> Lag:
    end = outline.next_offset
    committed = min(saved.offset, end)
    time_us = outline.time_of(committed)
    return Lag(
        partition=number,
        committed=committed,
        next_offset=end,
        size_bytes=outline.bytes_from(committed),
        seconds=0.0 if time_us is None else max(0, now_us - time_us) / 1_000_000,
        trimmed=max(0, outline.first_offset - committed),
    )


def _nothing_kept(number: int) -> Kept:
    return Kept(
        partition=number,
        first_offset=0,
        next_offset=0,
        size_bytes=0,
        oldest_us=None,
        marks=0,
        held_by="",
        deletable_segments=0,
        deletable_bytes=0,
    )
