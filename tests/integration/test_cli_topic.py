"""`segue topic`: making topics, looking at them, moving who reads them, deleting what may go."""

import resource
from pathlib import Path

import pytest

import segue
from segue.cli import parsing
from segue.cli.exits import ExitCode
from tests.integration.cli_support import Answer, ask, on_a_terminal

PARTITIONS = 3
SMALL_SEGMENT = "16KiB"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a topic "orders" of three partitions and small segments."""
    path = tmp_path / "data"
    made = topic(path, "create", "--partitions", str(PARTITIONS), "--segment-bytes", SMALL_SEGMENT)
    assert (made.code, made.err) == (0, "")
    return path


def topic(store: Path, verb: str, *words: str, stdin: bytes = b"") -> Answer:
    return ask("topic", verb, store, "orders", *words, stdin=stdin)


def append(store: Path, *lines: str, words: tuple[str, ...] = ("-K", ":")) -> Answer:
    answer = topic(store, "append", *words, "--sync", "os", stdin="\n".join(lines).encode())
    assert (answer.code, answer.err) == (0, "")
    return answer


def fill(store: Path) -> None:
    """Append so much that every partition has several segments."""
    for partition in range(PARTITIONS):
        append(store, *["x" * 500] * 100, words=("-p", str(partition)))


def facts(answer: Answer) -> dict[str, str]:
    return {line[0]: line[1] for line in answer.fields if len(line) == 2}


def rows(answer: Answer, mark: str) -> list[list[str]]:
    return [line[1:] for line in answer.fields if line[0] == mark]


# create --------------------------------------------------------------------------------------


def test_create_makes_a_topic_with_its_rules(tmp_path: Path) -> None:
    """Every rule has an option, and --json says all of them."""
    made = ask(
        *("topic", "create", tmp_path / "data", "events", "--partitions", "12", "--keep", "7d"),
        *("--keep-bytes", "1G", "--lag-max", "1000", "--segment-bytes", "1MiB", "--json"),
        *("--segment-age", "1h", "--tombstones", "2d", "--no-clean-on-roll"),
    )

    assert (made.code, made.err) == (0, "")
    assert made.json == {
        "topic": "events",
        "partitions": 12,
        "keep_seconds": 604_800.0,
        "keep_bytes": 1 << 30,
        "lag_max": 1000,
        "clean_on_roll": False,
        "segment_bytes": 1 << 20,
        "segment_seconds": 3600.0,
        "tombstone_seconds": 172_800.0,
    }


def test_create_again_changes_only_the_rules_that_are_given(store: Path) -> None:
    """And 'none' takes one away."""
    first = facts(topic(store, "create", "--keep", "7d", "--lag-max", "5"))
    second = facts(topic(store, "create", "--keep", "none", "--partitions", "3"))

    assert (first["keep_seconds"], first["lag_max"]) == ("604800.0", "5")
    assert (second["keep_seconds"], second["lag_max"]) == ("-", "5")
    assert second["segment_bytes"] == "16384"


def test_partitions_are_added_only_on_purpose(store: Path) -> None:
    """It moves keys, so it takes --grow and says so; none is ever removed."""
    refused = topic(store, "create", "--partitions", "5")
    fewer = topic(store, "create", "--partitions", "2", "--grow")
    grown = topic(store, "create", "--partitions", "5", "--grow")

    assert (refused.code, fewer.code) == (ExitCode.USAGE, ExitCode.USAGE)
    assert "--grow" in refused.err
    assert "never removed" in fewer.err
    assert facts(grown)["partitions"] == "5"
    assert "keys go to other partitions" in grown.err


def test_a_missing_manifest_is_made_anew_by_who_knows_the_partitions(store: Path) -> None:
    """What the topic holds is still there."""
    append(store, "a:1", "b:2")
    manifest = store / "topics" / "orders" / "manifest.json"
    manifest.unlink()
    lost = topic(store, "cat")
    unsaid = topic(store, "create")
    repaired = topic(store, "create", "--partitions", "3")

    assert (lost.code, unsaid.code) == (ExitCode.DAMAGE_MET, ExitCode.DAMAGE_MET)
    assert "segue topic create" in lost.err
    assert repaired.code == 0
    assert sorted(topic(store, "cat").lines) == ["1", "2"]


def test_a_damaged_manifest_is_not_overwritten(store: Path) -> None:
    """Whoever wants another moves it away first, and is told so."""
    manifest = store / "topics" / "orders" / "manifest.json"
    manifest.write_text("{}")
    refused = topic(store, "create", "--partitions", "3")
    listed = ask("topic", "ls", store)

    assert (refused.code, listed.code) == (ExitCode.DAMAGE_MET, ExitCode.DAMAGE_MET)
    assert "move it away" in refused.err
    assert str(manifest) in listed.fields[0][-1]
    assert manifest.read_text() == "{}"


@pytest.mark.parametrize(
    "words",
    [
        ["--partitions", "0"],
        ["--partitions", "5000"],
        ["--keep", "soon"],
        ["--keep-bytes", "-1"],
        ["--lag-max", "many"],
        ["--segment-bytes", "1"],
        ["--segment-age", "0"],
        ["--tombstones", "none"],
    ],
)
def test_what_no_topic_can_be_makes_none(tmp_path: Path, words: list[str]) -> None:
    """A wrong argument is told before anything is made."""
    answer = ask("topic", "create", tmp_path / "data", "events", *words)

    assert (answer.code, answer.out) == (ExitCode.USAGE, b"")
    assert answer.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("1G", 1 << 30), ("4K", 4096), ("1.5MiB", 3 << 19), ("7", 7)]
)
def test_sizes_may_have_short_units(text: str, size_bytes: int) -> None:
    """Always by 1024, as the long ones say."""
    assert parsing.size(text) == size_bytes


# ls, info, files -----------------------------------------------------------------------------


def test_a_store_is_listed_with_its_topics(store: Path) -> None:
    """`segue ls` and `segue topic ls` say the same of them."""
    append(store, "a:1", "b:2")
    topic(store, "cat", "--reader", "audit")
    topic(store, "cat", "--group", "billing")
    [listed] = ask("topic", "ls", store).fields
    all_of_it = rows(ask("ls", store), "topic")
    document = ask("ls", store, "--json").json_rows

    assert [*listed[:3], *listed[4:]] == ["orders", "3", "2", "1", "1", "-"]
    assert all_of_it == [listed]
    assert [row["topic"] for row in document["topics"]] == ["orders"]


def test_info_shows_partitions_and_who_reads(store: Path) -> None:
    """Where each begins and ends, and the names of readers and groups."""
    append(store, "a:1", "b:2", words=("-p", "1"))
    topic(store, "cat", "--reader", "audit")
    topic(store, "cat", "--group", "billing")
    answer = topic(store, "info")

    assert facts(answer)["records"] == "2"
    assert [row[:4] for row in rows(answer, "partition")] == [
        ["0", "0", "0", "1"],
        ["1", "0", "2", "1"],
        ["2", "0", "0", "1"],
    ]
    assert rows(answer, "reader") == [["audit"]]
    assert rows(answer, "group") == [["billing"]]
    oldest = [row["oldest"] for row in topic(store, "info", "--json").json_rows["partitions"]]
    assert (oldest[0], oldest[2]) == (None, None)
    assert str(oldest[1]).endswith("Z")


def test_files_show_both_names_of_a_segment(store: Path) -> None:
    """Where it lies, and what the ancestors would have called it."""
    fill(store)
    listed = topic(store, "files", "-p", "0").fields

    assert len(listed) > 1
    assert [line[2] for line in listed] == ["sealed"] * (len(listed) - 1) + ["active"]
    assert [line[7] for line in listed[:2]] == [
        "orders_partition_0_segment_0.log",
        "orders_partition_0_segment_1.log",
    ]
    first, second = listed[0], listed[1]
    assert int(first[3]) + int(first[4]) == int(second[3])
    assert all(Path(line[6]).is_file() for line in listed)
    assert topic(store, "files", "-p", "3").code == ExitCode.USAGE


def test_info_of_a_store_counts_topics_and_their_logs(store: Path) -> None:
    """Every partition is a log of the store, once it is used."""
    append(store, "a:1", words=("-p", "2"))
    topic(store, "info")
    answer = ask("info", store)

    assert facts(answer)["topics"] == "1"
    assert [Path(row[0]).name for row in rows(answer, "log")] == [
        f"partition_{number}" for number in range(PARTITIONS)
    ]


def test_verify_checks_what_topics_have_beside_their_logs(store: Path) -> None:
    """A manifest, what groups are made of, what is known of producers."""
    append(store, "a:1", words=("--producer", "me"))
    topic(store, "cat", "--group", "billing")
    intact = ask("verify", store)
    place = store / "topics" / "orders"
    (place / "manifest.json").write_text("{}")
    (place / "groups" / "billing" / "state.json").write_text("[]")
    (place / "partition_0" / "origins.json").write_text("")
    (place / "producers" / "me" / "routes.json").write_text('{"crc32": 1, "holds": {}}')
    damaged = ask("verify", store)
    (place / "manifest.json").unlink()
    missing = ask("verify", store)

    assert intact.code == 0
    assert len(rows(intact, "log")) == PARTITIONS
    assert damaged.code == ExitCode.DAMAGE_FOUND
    assert [Path(row[0]).name for row in rows(damaged, "damage")] == [
        "manifest.json",
        "state.json",
        "origins.json",
        "routes.json",
    ]
    assert rows(missing, "damage")[0][-1] == "it is missing"


# readers, groups, lag ------------------------------------------------------------------------


def test_lag_is_what_is_committed_against_what_is_there(store: Path) -> None:
    """In records and bytes, by partition; summed up by reader and group."""
    append(store, "a", "bb", "ccc", words=("-p", "0"))
    topic(store, "cat", "--reader", "audit", "-n", "1")
    topic(store, "cat", "--group", "billing")
    append(store, "dddd", words=("-p", "0"))
    lag = topic(store, "lag").fields
    [reader] = topic(store, "readers").fields
    groups = topic(store, "groups")

    assert [line[:7] for line in lag if line[2] == "0"] == [
        ["reader", "audit", "0", "1", "4", "3", "9"],
        ["group", "billing", "0", "3", "4", "1", "4"],
    ]
    assert len(lag) == 2 * PARTITIONS
    assert [*reader[:3], reader[4]] == ["audit", "3", "9", "0"]
    [group] = rows(groups, "group")
    assert (group[0], group[2:5], group[6]) == ("billing", ["0", "1", "4"], "0")
    assert rows(groups, "member") == []


def test_lag_can_be_asked_for_by_name(store: Path) -> None:
    """A name that is not there is an error, so that a typo raises an alarm."""
    append(store, "a:1")
    topic(store, "cat", "--reader", "audit", "-n", "0")
    topic(store, "cat", "--group", "billing", "-n", "0")

    assert {line[1] for line in topic(store, "lag", "--reader", "audit").fields} == {"audit"}
    assert {line[1] for line in topic(store, "lag", "--group", "billing").fields} == {"billing"}
    assert topic(store, "lag", "--reader", "typo").code == ExitCode.NOT_FOUND
    assert topic(store, "lag", "--group", "typo").code == ExitCode.NOT_FOUND


def test_lag_beyond_a_limit_is_an_exit_code(store: Path) -> None:
    """For monitoring: what is shown stays the same."""
    append(store, "a:1", "b:2", "c:3")
    topic(store, "cat", "--reader", "audit", "-n", "1")

    assert topic(store, "lag", "--max-records", "2", "--max-seconds", "1h").code == 0
    late = topic(store, "lag", "--max-records", "1")
    assert (late.code, len(late.lines), late.err) == (ExitCode.LAGGING, PARTITIONS, "")
    assert topic(store, "lag", "--max-seconds", "0").code == ExitCode.LAGGING


def test_a_group_shows_who_has_what(store: Path) -> None:
    """Members with their partitions, and how long they have to show up."""
    with segue.open(store) as opened:
        group = opened.topic("orders").group("billing")
        with group.join(owner="ann"), group.join(owner="ben"):
            shown = topic(store, "groups")
            busy = topic(store, "groups", "--remove", "billing")
            seek = topic(store, "seek", "--group", "billing", "--to", "latest")
            dry = topic(store, "seek", "--group", "billing", "--to", "latest", "--dry-run")

    members = rows(shown, "member")
    assert [(row[0], row[2], row[3]) for row in members] == [
        ("billing", "ann", "0,1,2"),
        ("billing", "ben", "-"),
    ]
    assert all(0 < float(row[4]) <= 60 for row in members)
    assert (busy.code, seek.code, dry.code) == (ExitCode.LOCKED, ExitCode.LOCKED, 0)
    assert seek.err == "segue: group billing has 2 members; stop them first\n"
    assert "2 members" in dry.err


def test_readers_and_groups_can_be_forgotten(store: Path) -> None:
    """They then hold nothing back; forgetting one that is not there is an error."""
    topic(store, "cat", "--reader", "audit")
    topic(store, "cat", "--group", "billing")
    removed = topic(store, "readers", "--remove", "audit")
    group = topic(store, "groups", "--remove", "billing")

    assert (removed.code, removed.lines, group.code, group.lines) == (0, [], 0, [])
    assert topic(store, "readers", "--remove", "audit").code == ExitCode.NOT_FOUND
    assert topic(store, "groups", "--remove", "billing").code == ExitCode.NOT_FOUND


# seek ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", [["--reader", "audit"], ["--group", "audit"]])
def test_seek_moves_what_is_named_and_nothing_else(store: Path, who: list[str]) -> None:
    """By partition and offset, over all partitions, or in some of them."""
    append(store, *(f"{number}" for number in range(4)), words=("-p", "0"))
    append(store, *(f"{number}" for number in range(4)), words=("-p", "2"))
    topic(store, "cat", *who)
    dry = topic(store, "seek", *who, "--to", "earliest", "--dry-run").fields
    one = topic(store, "seek", *who, "--to", "0:1").fields
    other = topic(store, "seek", *who, "--to", "2", "-p", "2").fields
    printed = topic(store, "cat", *who, "--format", "%p:%o ").out

    assert dry == [["0", "4", "0", "-4"], ["1", "0", "0", "0"], ["2", "4", "0", "-4"]]
    assert (one, other) == ([["0", "4", "1", "-3"]], [["2", "4", "2", "-2"]])
    assert sorted(printed.split()) == [b"0:1", b"0:2", b"0:3", b"2:2", b"2:3"]


def test_seek_goes_by_time(store: Path) -> None:
    """By a time of the calendar, or by how long ago."""
    append(store, "one", words=("-p", "0"))
    topic(store, "cat", "--reader", "audit")

    def offsets(place: str) -> list[str]:
        answer = topic(store, "seek", "--reader", "audit", "--to", place)
        return [line[2] for line in answer.fields]

    assert offsets("2000-01-01T00:00:00Z") == ["0", "0", "0"]
    assert offsets("2200-01-01") == ["1", "0", "0"]
    assert offsets("1h") == ["0", "0", "0"]
    assert offsets("latest") == ["1", "0", "0"]


@pytest.mark.parametrize("who", ["--reader", "--group"])
def test_seek_makes_nobody_by_mistake(store: Path, who: str) -> None:
    """Only with --create, which is how something is kept for who comes later."""
    append(store, "one", words=("-p", "0"))
    typo = topic(store, "seek", who, "new", "--to", "latest")
    made = topic(store, "seek", who, "new", "--to", "latest", "--create")

    assert typo.code == ExitCode.NOT_FOUND
    assert [line[1:] for line in made.fields] == [["-", "1", "-"], ["-", "0", "-"], ["-", "0", "-"]]
    assert len(topic(store, "lag").lines) == PARTITIONS


def test_seek_leaves_alone_the_partitions_a_reader_never_had(store: Path) -> None:
    """Who reads one partition is not made to hold back the others."""
    append(store, "one", words=("-p", "1"))
    topic(store, "cat", "--reader", "audit", "-p", "1")
    moved = topic(store, "seek", "--reader", "audit", "--to", "earliest")

    assert moved.fields == [["1", "1", "0", "-1"]]
    assert [line[2] for line in topic(store, "lag").fields] == ["1"]


def test_seek_replaces_a_damaged_place(store: Path) -> None:
    """If it is told what to do in its partition; else nothing is guessed."""
    topic(store, "cat", "--reader", "audit")
    damaged = store / "topics" / "orders" / "partition_1" / "readers" / "audit.meta"
    damaged.write_bytes(b"not a position")
    partly = topic(store, "seek", "--reader", "audit", "--to", "0:0")
    left = damaged.read_bytes()
    wholly = topic(store, "seek", "--reader", "audit", "--to", "earliest")

    assert (partly.code, wholly.code) == (0, 0)
    assert left == b"not a position"
    assert damaged.read_bytes() != left
    assert topic(store, "readers").code == 0


@pytest.mark.parametrize(
    "words",
    [
        ["--to", "earliest"],
        ["--to", "earliest", "--reader", "a", "--group", "b"],
        ["--reader", "a", "--to", "7"],
        ["--reader", "a", "--to", "0:1,x"],
        ["--reader", "a", "--to", "resume"],
        ["--reader", "a", "--to", "0:1", "-p", "0"],
        ["--reader", "a", "--to", "9:1"],
    ],
)
def test_a_seek_that_cannot_be_meant_is_refused(store: Path, words: list[str]) -> None:
    """With a line that says why, before anything is moved."""
    topic(store, "cat", "--reader", "a")
    answer = topic(store, "seek", *words)

    assert (answer.code, answer.out) == (ExitCode.USAGE, b"")
    assert answer.err.count("\n") == 1


def test_a_seek_to_what_is_not_there_is_not_found(store: Path) -> None:
    """An offset nobody has written, or none any longer."""
    topic(store, "cat", "--reader", "a")

    assert topic(store, "seek", "--reader", "a", "--to", "0:5").code == ExitCode.NOT_FOUND


# clean, compact ------------------------------------------------------------------------------


def test_clean_deletes_what_everybody_has_read_and_says_who_holds_the_rest(store: Path) -> None:
    """Nothing while there is no reader; then all but what the slowest still wants."""
    fill(store)
    nobody = topic(store, "clean")
    topic(store, "cat", "--reader", "fast")
    topic(store, "cat", "--group", "slow", "-n", "5")
    held = topic(store, "clean")
    topic(store, "seek", "--group", "slow", "--to", "latest")
    cleaned = topic(store, "clean")

    assert facts(nobody) == {"segments": "0", "freed_bytes": "0"}
    assert ["0", "group", "slow"] in rows(held, "held_by")
    assert int(facts(cleaned)["segments"]) == len(rows(cleaned, "deleted")) > PARTITIONS
    assert int(facts(cleaned)["freed_bytes"]) > 100_000
    assert all(line[2] == "active" for line in topic(store, "files").fields)


def test_stricter_limits_are_asked_about(store: Path) -> None:
    """They delete what somebody may want; afterwards lag says what is gone."""
    fill(store)
    topic(store, "cat", "--reader", "audit", "-n", "1")
    unasked = topic(store, "clean", "--lag-max", "0")
    on_terminal = on_a_terminal("topic", "clean", store, "orders", "--lag-max", "0", typed="n\n")
    before = len(topic(store, "files").lines)
    cleaned = topic(store, "clean", "--lag-max", "0", "--yes", "--json")

    assert (unasked.code, unasked.out) == (ExitCode.USAGE, b"")
    assert "still want? [y/N]" in on_terminal
    assert len(topic(store, "files").lines) == before - len(cleaned.json_rows["deleted"])
    assert sum(int(line[8]) for line in topic(store, "lag").fields) > 0


def test_clean_takes_limits_of_every_kind(store: Path) -> None:
    """By age, by bytes; of some partitions only."""
    fill(store)
    one = topic(store, "clean", "--keep", "0", "--yes", "-p", "1")
    rest = topic(store, "clean", "--keep-bytes", "0", "--yes")
    everything = topic(store, "clean", "--keep", "0", "--yes", "--roll")

    assert {row[0] for row in rows(one, "deleted")} == {"1"}
    assert {row[0] for row in rows(rest, "deleted")} == {"0", "2"}
    assert [row[0] for row in rows(everything, "deleted")] == ["0", "1", "2"]
    assert topic(store, "cat").lines == []


def test_compact_keeps_the_newest_of_every_key(store: Path) -> None:
    """With --roll also of what has just been appended; offsets stay."""
    append(store, "a:1", "b:2", "a:3", "b:4", "c:5")
    untouched = topic(store, "compact")
    compacted = topic(store, "compact", "--roll", "--json")

    assert facts(untouched)["removed_records"] == "0"
    assert compacted.json["removed_records"] == 2
    assert len(compacted.json_rows["compacted"]) >= 1
    assert sorted(topic(store, "cat").lines) == ["3", "4", "5"]


# The frame -----------------------------------------------------------------------------------

VERBS = {
    "create": [],
    "info": [],
    "append": [],
    "cat": [],
    "tail": ["--no-follow"],
    "readers": [],
    "groups": [],
    "lag": [],
    "seek": ["--reader", "a", "--to", "earliest"],
    "clean": [],
    "compact": [],
    "files": [],
}


@pytest.mark.parametrize("verb", sorted(VERBS.keys() - {"create", "append"}))
def test_no_verb_but_create_and_append_makes_a_topic(store: Path, verb: str) -> None:
    """A misspelt name is exit code 3."""
    answer = ask("topic", verb, store, "typo", *VERBS[verb])

    assert (answer.code, answer.out) == (ExitCode.NOT_FOUND, b"")
    assert answer.err == "segue: there is no topic typo\n"
    assert [line[0] for line in ask("topic", "ls", store).fields] == ["orders"]


@pytest.mark.parametrize("verb", sorted({*VERBS, "ls"}))
def test_every_verb_explains_itself(verb: str) -> None:
    """With an example, and with --json."""
    text = ask("topic", verb, "--help").out.decode()

    assert f"segue topic {verb} " in text.partition("Example")[2].partition("Options:")[0]
    assert "--json" in text


def test_a_terminal_gets_tables(store: Path) -> None:
    """With headings, and rules of the same kind told apart."""
    topic(store, "create", "--keep", "7d", "--keep-bytes", "1MiB")
    append(store, "a:1")
    shown = on_a_terminal("topic", "info", store, "orders")

    assert "first offset" in shown
    assert "keep seconds" in shown
    assert "keep bytes" in shown
    assert "7.0 d" in shown
    assert "\t" not in shown


def test_many_partitions_need_many_descriptors(tmp_path: Path) -> None:
    """A limit of 1024, as most shells have, is raised as far as it may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    partitions = 200
    is_enough = hard == resource.RLIM_INFINITY or hard >= 10 * partitions
    assert is_enough, f"this test needs {10 * partitions} descriptors: raise `ulimit -Hn {hard}`"
    store = tmp_path / "data"
    ask("topic", "create", store, "wide", "--partitions", str(partitions))
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 1024) if hard > 0 else 1024, hard))
    try:
        answer = ask("topic", "ls", store)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert (answer.code, answer.fields[0][:2]) == (0, ["wide", str(partitions)])
    assert len(list((store / "topics" / "wide").iterdir())) > partitions
