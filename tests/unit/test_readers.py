"""Named readers: a durable place in the log."""

from pathlib import Path

import pytest

from segue import Log
from segue.errors import (
    InvalidArgument,
    InvalidName,
    LogClosed,
    LogReadOnly,
    OffsetNotWritten,
    OffsetTrimmed,
)
from segue.log.layout import Offset
from segue.log.options import SyncName
from segue.log.reader import Start
from tests.unit.support import (
    ManualClock,
    contents,
    fill,
    moment,
    offsets,
    payloads,
    small_log,
)

syncs = pytest.mark.parametrize("sync", ["always", "interval", "os"])


@syncs
def test_a_reader_is_registered_when_it_opens(directory: Path, sync: SyncName) -> None:
    """Before it has read or committed anything, so that retention sees it."""
    with small_log(directory, sync=sync) as log:
        fill(log, 6)
        with log.reader("audit"):
            assert (directory / "readers" / "audit.meta").exists()
            assert log.readers() == {"audit": (0, 0)}


@syncs
def test_a_reader_goes_on_where_it_committed(directory: Path, sync: SyncName) -> None:
    """Not where it had read to, and also after the log was reopened."""
    with small_log(directory, sync=sync) as log:
        written = fill(log, 10)
        with log.reader("r") as reader:
            assert payloads(reader.read(4)) == written[:4]
            reader.commit()
            assert payloads(reader.read(3)) == written[4:7]
        with log.reader("r") as reader:
            assert reader.position == 4
    with small_log(directory, sync=sync) as log, log.reader("r") as reader:
        assert payloads(reader) == written[4:]
        assert log.readers() == {"r": (1, 4)}


def test_a_new_reader_begins_at_the_earliest_record(directory: Path) -> None:
    """Resuming what was never begun means from the oldest record there is."""
    with small_log(directory) as log:
        fill(log, 10)
        log.trim(4)
        with log.reader("new") as reader:
            assert offsets(reader) == list(range(4, 10))


def test_a_reader_begins_where_it_is_told(directory: Path, clock: ManualClock) -> None:
    """At either end, an offset or a time; that becomes its saved place."""
    with small_log(directory, clock=clock) as log:
        fill(log, 6)
        clock.advance(us=1)
        fill(log, 2)
        expected = {"earliest": 0, "latest": 8, "offset": 7, "time": 6}
        for name, start in (
            ("earliest", "earliest"),
            ("latest", "latest"),
            ("offset", 7),
            ("time", moment(clock.now_us)),
        ):
            log.reader(name, start).close()  # type: ignore[arg-type]

        assert {name: saved.offset for name, saved in log.readers().items()} == expected
        for name, offset in expected.items():
            with log.reader(name) as reader:
                assert reader.position == offset


def test_an_explicit_start_moves_a_known_reader(directory: Path) -> None:
    """Whoever names a place means it, whatever was saved before."""
    with small_log(directory) as log:
        fill(log, 10)
        log.reader("r", 7).close()
        log.reader("r", "earliest").close()

        assert log.readers() == {"r": (0, 0)}


@pytest.mark.parametrize("start", [11, -1])
def test_a_reader_cannot_begin_outside_the_log(directory: Path, start: int) -> None:
    """It is not registered then."""
    with small_log(directory) as log:
        fill(log, 10)
        with pytest.raises(OffsetNotWritten) as raised:
            log.reader("r", start)

        assert (raised.value.earliest, raised.value.latest) == (0, 10)
        assert log.readers() == {}


def test_the_position_is_that_of_the_next_record(directory: Path) -> None:
    """At every step of an iteration, so a commit in the loop body means "this one is done"."""
    with small_log(directory) as log:
        fill(log, 10)
        with log.reader("r") as reader:
            assert reader.position == 0
            for record in reader:
                assert reader.position == record.offset + 1
                assert reader.lag == 9 - record.offset
                reader.commit()
                assert log.readers()["r"].offset == record.offset + 1
                if record.offset == 6:
                    break

            assert reader.position == 7
            assert offsets(reader) == [7, 8, 9]
            assert (reader.position, reader.lag) == (10, 0)


def test_a_reader_sees_what_comes_later(directory: Path) -> None:
    """Iterating again goes on; it ends only for now."""
    with small_log(directory) as log, log.reader("r") as reader:
        assert list(reader) == []
        fill(log, 5)
        assert offsets(reader) == [0, 1, 2, 3, 4]
        fill(log, 5)
        assert offsets(reader.read()) == [5, 6, 7]
        assert offsets(reader.read()) == [8, 9]
        assert reader.read() == []
        assert reader.read(timeout=0.01) == []


def test_reading_takes_at_most_what_is_asked_for(directory: Path) -> None:
    """And at least one record if there is any, never across what is not there."""
    with small_log(directory) as log:
        fill(log, 10)
        with log.reader("r") as reader:
            read: list[int] = []
            while records := reader.read(3):
                assert 1 <= len(records) <= 3
                read += offsets(records)

            assert read == list(range(10))
            with pytest.raises(InvalidArgument):
                reader.read(0)


def test_readers_are_independent(directory: Path) -> None:
    """One reader's reading, committing and seeking leaves the others where they are."""
    with small_log(directory) as log:
        written = fill(log, 10)
        with log.reader("one") as one, log.reader("two") as two:
            one.read(4)
            one.commit()
            assert payloads(two.read(2)) == written[:2]
            two.commit()
            one.seek(9)
            one.commit()

            assert two.position == 2
            assert {name: saved.offset for name, saved in log.readers().items()} == {
                "one": 9,
                "two": 2,
            }
            assert offsets(two) == list(range(2, 10))


def test_seeking_moves_and_committing_saves(directory: Path, clock: ManualClock) -> None:
    """`seek` alone changes nothing on disk."""
    with small_log(directory, clock=clock) as log:
        fill(log, 6)
        clock.advance(us=1)
        fill(log, 2)
        with log.reader("r") as reader:
            before = contents(directory)
            places = []
            for start in (3, "latest", "earliest", moment(clock.now_us), 8, "resume"):
                reader.seek(start)
                places.append(reader.position)
            with pytest.raises(OffsetNotWritten):
                reader.seek(9)

            assert places == [3, 8, 0, 6, 8, 0]
            assert contents(directory) == before
            reader.seek(5)
            assert offsets(reader) == [5, 6, 7]


def test_seeking_within_a_loop_goes_on_from_there(directory: Path) -> None:
    """The next record is the one that was sought, forwards or backwards."""
    with small_log(directory) as log:
        fill(log, 10)
        seen = []
        with log.reader("r") as reader:
            for record in reader:
                seen.append(record.offset)
                if seen == [0, 1]:
                    reader.seek(8)
                if seen == [0, 1, 8]:
                    reader.seek(4)

        assert seen == [0, 1, 8, 4, 5, 6, 7, 8, 9]


def test_any_offset_of_the_log_can_be_committed(directory: Path) -> None:
    """Not only the current one; one that is not in the log is refused."""
    with small_log(directory) as log:
        fill(log, 10)
        with log.reader("r") as reader:
            reader.commit(6)
            assert log.readers() == {"r": (1, 6)}
            assert reader.position == 0
            reader.commit(10)
            assert log.readers() == {"r": (2, 10)}
            for offset in (11, -1):
                with pytest.raises(InvalidArgument):
                    reader.commit(offset)
            assert log.readers() == {"r": (2, 10)}


def test_a_reader_whose_records_are_gone_is_told(directory: Path) -> None:
    """It never silently jumps over what was trimmed: the error says where the log begins now."""
    with small_log(directory) as log:
        fill(log, 10)
        log.reader("late", 2).close()
        log.trim(8)
        with pytest.raises(OffsetTrimmed) as raised:
            log.reader("late")

        assert (raised.value.offset, raised.value.earliest, raised.value.latest) == (2, 8, 10)
        with log.reader("late", "earliest") as reader:
            assert offsets(reader) == [8, 9]


def test_a_reader_cannot_save_a_place_that_is_gone(directory: Path) -> None:
    """It would resume nowhere, and hold back segments it will never read."""
    with small_log(directory) as log:
        fill(log, 10)
        with log.reader("overtaken") as reader:
            log.trim(8)
            with pytest.raises((OffsetTrimmed, InvalidArgument)):
                reader.commit()
            with pytest.raises((OffsetTrimmed, InvalidArgument)):
                reader.commit(7)
            reader.commit(8)

            assert log.readers() == {"overtaken": (2, 8)}


def test_a_reader_beyond_the_end_waits_for_what_is_new(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What it had read was lost with the power: it goes on at the end, with a warning."""
    with small_log(directory) as log:
        fill(log, 4)
        with log.reader("r") as reader:
            reader.commit(4)
        meta = directory / "readers" / "r.meta"
        meta.write_bytes((0).to_bytes(8, "little") + (99).to_bytes(8, "little"))
        with log.reader("r") as reader:
            assert (reader.position, reader.lag) == (4, 0)
            fill(log, 1)
            assert offsets(reader) == [4]

    assert "beyond the end" in caplog.text


def test_readers_are_forgotten_on_demand(directory: Path) -> None:
    """And only once."""
    with small_log(directory) as log:
        log.reader("one").close()
        log.reader("two").close()

        assert log.remove_reader("one")
        assert not log.remove_reader("one")
        assert not log.remove_reader("never")
        assert list(log.readers()) == ["two"]


def test_a_reader_follows_the_end(directory: Path) -> None:
    """It yields what is there and gives up after its timeout."""
    with small_log(directory) as log, log.reader("r") as reader:
        fill(log, 6)

        assert offsets(reader.follow(timeout=0.01)) == list(range(6))
        assert list(reader.follow(timeout=0.01)) == []


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../up",
        "a/b",
        "/root",
        ".hidden",
        "-flag",
        "a b",
        "ä",
        "a\0b",
        "a\n",
        "x" * 101,
    ],
)
def test_a_name_that_could_leave_its_directory_is_refused(directory: Path, name: str) -> None:
    """A reader's name is a plain file name; nothing is written anywhere."""
    with small_log(directory) as log:
        before = contents(directory.parent)
        with pytest.raises(InvalidName):
            log.reader(name)
        with pytest.raises(InvalidName):
            log.reader(name, "earliest")
        with pytest.raises(InvalidName):
            log.remove_reader(name)

        assert contents(directory.parent) == before


@pytest.mark.parametrize("name", ["a", "_", "0", "A-b.c_d", "x" * 100, "a..b"])
def test_plain_names_are_taken(directory: Path, name: str) -> None:
    """Letters, digits, '_', '-' and '.', up to a hundred of them."""
    with small_log(directory) as log:
        log.reader(name).close()

        assert list(log.readers()) == [name]


def test_files_that_are_no_readers_disturb_nobody(directory: Path) -> None:
    """What an editor or a copy left in readers/ neither stops retention nor counts as a reader."""
    with small_log(directory) as log:
        fill(log, 10)
        log.reader("r", "latest").close()
        for name in ("._r.meta", ".meta", "r.meta~", "notes.txt", "with space.meta"):
            (directory / "readers" / name).write_bytes(b"")

        assert list(log.readers()) == ["r"]
        assert log.cleanup() == [0, 1]


def test_a_closed_reader_is_of_no_use(directory: Path) -> None:
    """Every use says that it is closed; closing twice is allowed."""
    with small_log(directory) as log:
        fill(log, 5)
        reader = log.reader("r")
        iteration = iter(reader)
        next(iteration)
        reader.close()
        reader.close()
        for use in (
            reader.read,
            lambda: list(reader),
            lambda: list(reader.follow(timeout=0)),
            lambda: reader.seek(0),
            reader.commit,
        ):
            with pytest.raises(LogClosed):
                use()


def test_a_reader_of_a_read_only_log_saves_nothing(directory: Path) -> None:
    """It resumes like any other, but is not registered and cannot commit."""
    with small_log(directory) as log:
        fill(log, 10)
        log.reader("r", 3).close()
    before = contents(directory)
    with Log(directory, read_only=True) as log:
        with log.reader("r") as reader:
            assert offsets(reader) == list(range(3, 10))
            with pytest.raises(LogReadOnly):
                reader.commit()
        with log.reader("new") as reader:
            assert reader.position == 0
        with pytest.raises(LogReadOnly):
            log.remove_reader("r")

    assert contents(directory) == before


def test_a_reader_that_starts_at_the_end_is_not_overtaken_by_a_trim(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end is looked up where no trim can come between it and the registration."""
    with small_log(directory, segment_items=4) as log:
        fill(log, 8)
        resolve = Log.resolve

        def resolve_under_the_lock(self: Log, start: Start) -> Offset:
            place = resolve(self, start)
            assert log.writer.mutex.locked()
            return place

        monkeypatch.setattr(Log, "resolve", resolve_under_the_lock)
        with log.reader("late", "latest") as reader:
            assert reader.position == 8
