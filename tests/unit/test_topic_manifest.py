"""What says how a topic is made: damaged, missing, or written by a newer version."""

import json
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest

from segue import Event, Store, Topic, TopicRules
from segue.errors import CorruptManifest, InvalidArgument, SegueError, UnsupportedFormat
from segue.log.disk import Disk
from segue.stores.file.topics.manifest import FILENAME, read_manifest
from segue.stores.opening import open_directory
from tests.unit.support import contents

RULES = TopicRules(keep_seconds=60, segment_bytes=1 << 16)


@pytest.fixture
def root(scratch: Path) -> Path:
    """A store with a topic of three partitions that holds three records."""
    with opened(scratch) as store:
        topic = store.topic("orders", partitions=3, rules=RULES)
        topic.append_many([Event(value=b"%d" % number, partition=number) for number in range(3)])
        topic.reader("audit").close()
    return scratch


@pytest.fixture
def store(root: Path) -> Iterator[Store]:
    with opened(root) as store:
        yield store


def opened(root: Path) -> Store:
    return open_directory(root, sync="os")


def manifest_of(root: Path) -> Path:
    return root / "topics" / "orders" / FILENAME


def rewritten(root: Path, **changes: object) -> None:
    """Write the manifest as another version would, with a checksum that matches."""
    path = manifest_of(root)
    values = json.loads(path.read_bytes())["holds"] | changes
    text = json.dumps(values, sort_keys=True)
    path.write_text(json.dumps({"crc32": crc32(text.encode()), "holds": values}))


def uses(topic: Topic) -> list[Exception]:
    """Try everything that needs to know how the topic is made; return what was raised."""
    raised: list[Exception] = []
    for use in (
        lambda: topic.append(b"x"),
        lambda: topic.append(b"x", partition=0),
        lambda: list(topic.records()),
        lambda: topic.reader("audit"),
        lambda: topic.group("workers").join(),
        lambda: topic.producer("importer"),
        lambda: topic.partitions,
        lambda: topic.rules,
        lambda: topic.grow(4),
        lambda: topic.configure(TopicRules()),
        topic.info,
        topic.clean,
    ):
        try:
            use()
        except SegueError as error:
            raised.append(error)
        else:
            raised.append(AssertionError("nothing was raised"))
    return raised


# Damage ------------------------------------------------------------------------------------


def test_a_manifest_with_a_flipped_byte_is_told_or_means_the_same(root: Path) -> None:
    """No damage is ever taken for other partitions or other rules."""
    path = manifest_of(root)
    good, meaning = path.read_bytes(), read_manifest(path.parent, Disk())
    told = 0
    for position in range(len(good)):
        for mask in (0x01, 0x10, 0x20, 0x80, 0xFF):
            damaged = bytearray(good)
            damaged[position] ^= mask
            path.write_bytes(damaged)
            try:
                found = read_manifest(path.parent, Disk())
            except (CorruptManifest, UnsupportedFormat):
                told += 1
            else:
                assert found == meaning, (position, mask)

    assert told > len(good)


def test_a_manifest_that_was_cut_short_is_told(root: Path) -> None:
    """At every byte."""
    path = manifest_of(root)
    good = path.read_bytes()
    for size_bytes in range(len(good) - 1):
        path.write_bytes(good[:size_bytes])
        with pytest.raises(CorruptManifest) as damage:
            read_manifest(path.parent, Disk())
        assert damage.value.path == path


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\x00" * 100,
        b"[]",
        b"null",
        b"1",
        b'{"crc32": 0}',
        b'{"holds": {}, "crc32": 0}',
        b'{"holds": null, "crc32": 634125391}',
        b'{"holds": [], "crc32": 223132457}',
        b"[" * 100_000,
        b"\xff\xfe{",
    ],
)
def test_what_is_no_manifest_is_told(root: Path, text: bytes) -> None:
    """Whatever somebody has put in its place."""
    manifest_of(root).write_bytes(text)
    with opened(root) as store, pytest.raises((CorruptManifest, UnsupportedFormat)):
        store.topic("orders").append(b"x")


@pytest.mark.parametrize(
    "changes",
    [
        {"partitions": 0},
        {"partitions": 4097},
        {"partitions": "3"},
        {"partitions": None},
        {"partitions": 2.5},
        {"partitions": True},
        {"version": "1"},
        {"created_us": None},
        {"rules": None},
        {"rules": []},
        {"rules": {"keep_bytes": -1}},
        {"rules": {"keep_seconds": "x"}},
        {"rules": {"segment_bytes": 1}},
    ],
    ids=str,
)
def test_a_manifest_that_makes_no_sense_is_told(root: Path, changes: dict[str, object]) -> None:
    """Also if its checksum matches."""
    rewritten(root, **changes)
    with opened(root) as store, pytest.raises(CorruptManifest):
        _ = store.topic("orders").partitions


def test_a_damaged_manifest_keeps_everybody_out(root: Path) -> None:
    """Nothing is written, nothing is made anew, and the records are untouched."""
    manifest_of(root).write_bytes(b"{}")
    before = contents(root)
    with opened(root) as store:
        raised = uses(store.topic("orders"))
        with pytest.raises(CorruptManifest):
            store.topic("orders", partitions=3)
        listed = store.topics()

    assert [type(error) for error in raised] == [CorruptManifest] * len(raised)
    assert listed == ["orders"]
    assert {name: data for name, data in contents(root).items() if name in before} == before


# Other versions ----------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 2, "1", None])
def test_a_format_that_is_not_known_is_not_touched(root: Path, number: object) -> None:
    """What a newer version wrote is for a newer version."""
    rewritten(root, format=number)
    before = manifest_of(root).read_bytes()
    with opened(root) as store:
        raised = uses(store.topic("orders"))
        with pytest.raises(UnsupportedFormat):
            store.topic("orders", partitions=3)

    assert [type(error) for error in raised] == [UnsupportedFormat] * len(raised)
    assert manifest_of(root).read_bytes() == before


def test_rules_of_another_version_are_taken_for_what_they_say(root: Path) -> None:
    """What is not known is left out, what is not said is as by default."""
    rewritten(root, rules={"keep_bytes": 5, "colour": "blue"})
    with opened(root) as store:
        assert store.topic("orders").rules == TopicRules(keep_bytes=5)


# Missing -----------------------------------------------------------------------------------


def test_a_missing_manifest_is_told(root: Path) -> None:
    """Partitions without it are a topic that lost it, and not a new one."""
    manifest_of(root).unlink()
    with opened(root) as store:
        raised = uses(store.topic("orders"))
        listed = store.topics()

    assert [type(error) for error in raised] == [CorruptManifest] * len(raised)
    assert "create" in str(raised[0])
    assert listed == ["orders"]


def test_a_missing_manifest_is_made_by_who_knows_the_number(root: Path) -> None:
    """With all that the topic holds; with fewer partitions than there are it is refused."""
    manifest_of(root).unlink()
    with opened(root) as store:
        with pytest.raises(InvalidArgument):
            store.topic("orders", partitions=2)
        topic = store.topic("orders", partitions=3, rules=RULES)

        assert sorted(record.value or b"" for record in topic.records()) == [b"0", b"1", b"2"]
        assert list(topic.readers()) == ["audit"]
        assert (topic.rules, topic.info().version) == (RULES, 1)


def test_a_topic_that_was_never_finished_is_none(scratch: Path) -> None:
    """Whoever made its directory was killed before there was a manifest."""
    (scratch / "topics" / "orders").mkdir(parents=True)
    (scratch / "topics" / "orders" / "lock").touch()
    with opened(scratch) as store:
        before = store.topics()
        store.topic("orders").append(b"x")

        assert before == []
        assert store.topics() == ["orders"]


def test_the_manifest_can_be_read_by_people(root: Path, store: Store) -> None:
    """It is text that names what it says."""
    values = json.loads(manifest_of(root).read_bytes())["holds"]

    assert (values["format"], values["partitions"], values["version"]) == (1, 3, 1)
    assert values["rules"]["keep_seconds"] == 60
