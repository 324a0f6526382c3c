"""`segue import` and `segue export`, and stores as the verbs on logs see them."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import segue
from segue.cli.exits import ExitCode
from tests.integration.cli_support import ask, flip_byte, on_a_terminal


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Where a store is, or will be."""
    return tmp_path / "data"


def v4(numbers: int, **changes: object) -> dict[str, object]:
    """A state of version 4 with that many items in priority 0, and some in priority 2."""
    items = [{"id": number} for number in range(numbers)]
    places = range(0, numbers, 100)
    entry = {"count": numbers, "head_segment": 0, "tail_segment": len(places) - 1, **changes}
    return {
        **{f"queue_0_seg_{start // 100}": items[start : start + 100] for start in places},
        "queue_2_seg_0": ["text", 7, None],
        "metadata": {
            "config": {"segment_size": 100},
            "queues": {
                "queue_0": {"metadata": entry},
                "queue_2": {"metadata": {"count": 3, "head_segment": 0, "tail_segment": 0}},
            },
        },
    }


def write(path: Path, document: object) -> Path:
    path.write_text(json.dumps(document))
    return path


def names(store: Path) -> list[str]:
    return [line[0] for line in ask("queue", "ls", store).fields]


def test_a_state_comes_out_as_it_went_in(tmp_path: Path, store: Path) -> None:
    """Import and export are each other's opposite."""
    state = v4(250)
    imported = ask("import", store, "jobs", write(tmp_path / "state.json", state))
    exported = ask("export", store, "jobs")

    assert imported.code == 0
    assert imported.lines == [
        "format\tv4",
        "items\t253",
        "returned\t0",
        "pushed\t253",
        "priority\t0\t250",
        "priority\t2\t3",
    ]
    assert exported.json == state
    assert (exported.code, exported.err) == (0, "")


def test_the_format_before_is_imported_in_order(tmp_path: Path, store: Path) -> None:
    """One list per priority becomes segments, and can become a list again."""
    old = {
        "queue_0": [{"id": 1}, {"id": 2}],
        "queue_1": ["x"],
        "metadata": {
            "queues": {
                "queue_0": {"metadata": {"count": 2}},
                "queue_1": {"metadata": {"count": 1}},
            }
        },
    }
    answer = ask("import", store, "jobs", write(tmp_path / "old.json", old), "--json")

    assert (answer.code, answer.json["format"], answer.json["pushed"]) == (0, "v3", 3)
    assert ask("export", store, "jobs", "--format", "v3").json == old
    assert ask("queue", "pop", store, "jobs", "-n", "9").lines == ['{"id":1}', '{"id":2}', "x"]


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(bodies=st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=20)), max_size=8))
def test_any_queue_is_the_same_after_export_and_import(
    tmp_path_factory: pytest.TempPathFactory, bodies: list[tuple[int, bytes]]
) -> None:
    """A law, whatever is in it."""
    path = tmp_path_factory.mktemp("law")
    with segue.open(path / "a", sync="os") as store:
        queue = store.queue("q")
        queue.push_many([segue.Item(body=body, priority=number) for number, body in bodies])
    first = ask("export", path / "a", "q")
    ask("import", path / "b", "q", "-", "--sync", "os", stdin=first.out)

    assert ask("export", path / "b", "q").out == first.out


def test_counts_that_are_wrong_are_reported_and_nothing_is_dropped(
    tmp_path: Path, store: Path
) -> None:
    """The segments are trusted; the exit code makes sure that somebody looks."""
    file = write(tmp_path / "state.json", v4(5, count=9))
    dry = ask("import", store, "jobs", file, "--dry-run")
    assert not store.exists()
    answer = ask("import", store, "jobs", file)

    assert dry.code == answer.code == ExitCode.MISMATCH
    assert dry.lines[3] == "pushed\t0"
    assert answer.lines[3] == "pushed\t8"
    assert answer.fields[-1] == ["mismatch", "queue_0", "count", "9", "5"]


@pytest.mark.parametrize("text", ["", "not json", "[]", "{}", '{"queue_0": 1}', '{"a": []}'])
def test_what_is_no_state_is_refused_before_anything_is_made(store: Path, text: str) -> None:
    """In one line."""
    answer = ask("import", store, "jobs", "-", stdin=text.encode())

    assert (answer.code, answer.out) == (ExitCode.USAGE, b"")
    assert answer.err.startswith("segue: ")
    assert answer.err.count("\n") == 1
    assert not store.exists()


def test_a_queue_without_room_is_refused_before_anything_is_pushed(
    tmp_path: Path, store: Path
) -> None:
    """Also one that would drop its oldest: an import drops nothing."""
    ask("queue", "push", store, "jobs", "a")
    for on_full in ("refuse", "drop_oldest"):
        ask("queue", "rules", store, "jobs", "--capacity", "4", "--on-full", on_full)
        answer = ask("import", store, "jobs", write(tmp_path / "state.json", v4(5)))

        assert answer.code == ExitCode.FULL
        assert ask("queue", "ls", store).fields[0][1] == "1"


def test_an_interrupted_import_goes_on_where_it_stopped(tmp_path: Path, store: Path) -> None:
    """It says how many are in, and --skip leaves those out."""
    ask("queue", "rules", store, "jobs", "--segment-items", "10")
    document = v4(25)
    document["queue_0_seg_0"] = [{"id": number} for number in range(20)] + ["x" * 70_000_000]
    stopped = ask("import", store, "jobs", write(tmp_path / "bad.json", document), "--sync", "os")
    rest = ask(
        "import",
        store,
        "jobs",
        write(tmp_path / "good.json", v4(25)),
        "--skip",
        "20",
        "--sync",
        "os",
    )

    assert stopped.code == ExitCode.USAGE
    assert "20 of 24 items are in: --skip 20 goes on" in stopped.err
    assert rest.lines[3] == "pushed\t8"
    bodies = ask("queue", "pop", store, "jobs", "-n", "25").lines
    assert bodies == [f'{{"id":{number}}}' for number in range(25)]


def test_a_new_queue_takes_over_the_files_segment_size(store: Path) -> None:
    """One that is there keeps its own."""
    document = {
        "queue_0_seg_0": [1, 2],
        "queue_0_seg_1": [3],
        "metadata": {
            "config": {"segment_size": 2},
            "queues": {"queue_0": {"metadata": {"count": 3, "head_segment": 0, "tail_segment": 1}}},
        },
    }
    ask("import", store, "jobs", "-", stdin=json.dumps(document).encode())

    assert ask("export", store, "jobs").json == document


def test_export_says_what_it_leaves_out(tmp_path: Path, store: Path) -> None:
    """On standard error, so that the JSON stays JSON; the file is whole or not there."""
    ask("queue", "push", store, "jobs", "a", "b", "c")
    ask("queue", "push", store, "jobs", "later", "--delay", "1h")
    receipts = [line[0] for line in ask("queue", "lease", store, "jobs", "-n", "2").fields]
    ask("queue", "nack", store, "jobs", receipts[0], "--outcome", "dead")
    answer = ask("export", store, "jobs", "-o", tmp_path / "out.json")

    assert answer.lines == [f"file\t{tmp_path / 'out.json'}", "items\t1"]
    assert answer.err == "segue: warning: left out: 1 leased, 1 delayed, 1 dead\n"
    assert json.loads((tmp_path / "out.json").read_text())["queue_0_seg_0"] == ["c"]
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["out.json"]
    assert ask("export", store, "typo").code == ExitCode.NOT_FOUND


def test_an_import_on_a_terminal_shows_its_progress(tmp_path: Path, store: Path) -> None:
    """The bar goes to standard error and the answer stays."""
    file = write(tmp_path / "state.json", v4(2000))
    shown = on_a_terminal("import", store, "jobs", file, "--sync", "os")

    assert "importing" in shown
    assert "2,003" in shown


# Stores as the verbs on logs see them --------------------------------------------------------


@pytest.fixture
def full_store(store: Path) -> Path:
    """A store with one of each kind."""
    with segue.open(store) as opened:
        opened.queue("jobs").push_many([b"a", b"b"])
        opened.topic("orders", partitions=2).append(b"x", partition=1)
        opened.ring("bus", capacity=10).enqueue(b"x")
        opened.lock("leader").acquire(owner="ada")
    return store


def test_ls_of_a_store_lists_what_it_holds(full_store: Path) -> None:
    """Not the logs it is made of."""
    plain = ask("ls", full_store)
    document = ask("ls", full_store, "--json").json_rows

    assert [line[:3] for line in plain.fields] == [
        ["queue", "jobs", "2"],
        ["topic", "orders", "2"],
        ["ring", "bus", "1"],
        ["lock", "leader", "ada"],
    ]
    assert {name: len(rows) for name, rows in document.items()} == {
        "queues": 1,
        "topics": 1,
        "rings": 1,
        "locks": 1,
    }


def test_info_and_verify_of_a_store_look_at_every_log(full_store: Path) -> None:
    """Whatever is damaged is found, wherever it lies."""
    info = ask("info", full_store)
    intact = ask("verify", full_store)
    flip_byte(full_store / "queues" / "jobs" / "lanes" / "0" / "000000000.q", b"ab")
    damaged = ask("verify", full_store)

    facts = {line[0]: line[1] for line in info.fields}
    assert [facts[kind] for kind in ("queues", "topics", "rings", "locks")] == ["1"] * 4
    logs = [line[1] for line in info.fields if line[0] == "log"]
    assert str(full_store / "queues" / "jobs" / "lanes" / "0") in logs
    assert str(full_store / "topics" / "orders" / "partition_1") in logs
    assert (intact.code, damaged.code) == (0, ExitCode.DAMAGE_FOUND)
    assert [line[1] for line in intact.fields] == logs
    assert sum(line[2] == "damaged" for line in damaged.fields if line[0] == "log") == 1


def test_a_queue_with_a_problem_hides_no_other(full_store: Path) -> None:
    """It is listed with its problem, and the exit code is that of the problem."""
    broken = full_store / "queues" / "broken"
    (broken / "lanes").mkdir(parents=True)
    (broken / "ledger").write_bytes(b"no directory")
    answer = ask("queue", "ls", full_store)

    assert answer.code == ExitCode.STORAGE
    assert names(full_store) == ["broken", "jobs"]
    assert answer.fields[0][1] == "-"
