"""`segue queue`: pushing, taking, settling and looking, in this process where that is enough."""

import json
import resource
from pathlib import Path

import pytest
import typer

from segue.cli import parsing
from segue.cli.exits import ExitCode
from tests.integration.cli_support import ask, on_a_terminal, started
from tests.waiting import LIMIT_SECONDS


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Where a store is, or will be."""
    return tmp_path / "data"


def push(store: Path, *words: str) -> list[str]:
    """Push to the queue "jobs" and return the ids."""
    answer = ask("queue", "push", store, "jobs", *words, "--sync", "os")
    assert (answer.code, answer.err) == (0, "")
    return answer.lines


def lease(store: Path, *words: str) -> list[str]:
    """Lease from the queue "jobs" and return the receipts."""
    answer = ask("queue", "lease", store, "jobs", *words)
    assert (answer.code, answer.err) == (0, "")
    return [receipt for receipt, _ in answer.fields]


def ready(store: Path) -> int:
    """Return how many messages of "jobs" are ready."""
    document = ask("queue", "stats", store, "jobs", "--json").json
    assert isinstance(document["ready"], int)
    return document["ready"]


# push ----------------------------------------------------------------------------------------


def test_push_makes_the_store_and_prints_ids(store: Path) -> None:
    """As `append` makes a log: the first message is the beginning of everything."""
    ids = push(store, "one", "two")
    urgent = push(store, "now", "--priority", "low")

    assert (ids, urgent) == (["0-0", "0-1"], ["3-0"])
    assert ask("queue", "pop", store, "jobs", "-n", "9").lines == ["one", "two", "now"]


def test_push_takes_any_bytes_from_standard_input(store: Path) -> None:
    """With - all of it is one message."""
    body = bytes(range(256)) + b"\n"
    answer = ask("queue", "push", store, "jobs", "-", stdin=body)

    assert (answer.code, answer.lines) == (0, ["0-0"])
    assert ask("queue", "pop", store, "jobs", "--null").out == body + b"\0"


def test_push_lines_keeps_their_order_over_batches(store: Path) -> None:
    """Also where the queue's segments take only a few at once."""
    assert ask("queue", "rules", store, "jobs", "--segment-items", "7").code == 0
    lines = [str(number) for number in range(50)]
    answer = ask("queue", "push", store, "jobs", "--lines", stdin="\n".join(lines).encode())

    assert answer.lines == [f"0-{number}" for number in range(50)]
    assert ask("queue", "pop", store, "jobs", "-n", "99").lines == lines


def test_more_lines_than_fit_in_a_segment_are_pushed_all_the_same(store: Path) -> None:
    """How large a segment is, is no concern of whoever pipes lines."""
    lines = b"\n".join([b"x" * 100_000] * 120)
    answer = ask("queue", "push", store, "jobs", "--lines", "--sync", "os", stdin=lines)

    assert (answer.code, len(answer.lines)) == (0, 120)


def test_push_lines_may_end_with_nul(store: Path) -> None:
    """So that a message may hold newlines."""
    ask("queue", "push", store, "jobs", "--lines", "--null", stdin=b"a\nb\0c\0")

    assert ask("queue", "pop", store, "jobs", "-n", "9", "--null").out == b"a\nb\0c\0"


def test_push_as_json_names_all_ids(store: Path) -> None:
    """One object, at the end."""
    answer = ask("queue", "push", store, "jobs", "a", "b", "--json")

    assert answer.json == {
        "store": str(store),
        "queue": "jobs",
        "pushed": 2,
        "ids": ["0-0", "0-1"],
    }


def test_everything_a_message_carries_comes_out_again(store: Path) -> None:
    """Headers, key, priority and time to live."""
    push(store, "x", "-p", "7", "--header", "a=1", "--header", "b=c=d", "--key", "k", "--ttl", "1h")
    message = ask("queue", "peek", store, "jobs", "--json").json

    assert message["headers"] == {"a": "1", "b": "c=d"}
    assert (message["key"], message["priority"], message["attempt"]) == ("k", 7, 1)
    assert isinstance(message["expires"], str)
    assert message["body"] == "x"


def test_messages_of_a_group_come_one_by_one(store: Path) -> None:
    """Whoever leases meanwhile gets others."""
    push(store, "a1", "a2", "--group", "a")
    push(store, "b1")
    receipts = lease(store, "-n", "9")
    left = ask("queue", "peek", store, "jobs", "-n", "9")
    ask("queue", "ack", store, "jobs", *receipts)
    message = ask("queue", "peek", store, "jobs", "--json").json

    assert [receipt.split("/")[0] for receipt in receipts] == ["0-0", "0-2"]
    assert left.out == b""
    assert (message["body"], message["group"]) == ("a2", "a")


def test_a_body_that_is_no_text_is_base64_in_json(store: Path) -> None:
    """JSON has no bytes."""
    ask("queue", "push", store, "jobs", "-", stdin=b"\xff\x00")

    assert ask("queue", "peek", store, "jobs", "--json").json["body_base64"] == "/wA="


def test_a_second_push_with_a_key_gives_the_first_ones_id(store: Path) -> None:
    """Within the queue's window."""
    assert push(store, "x", "--key", "k") == push(store, "y", "--key", "k") == ["0-0"]
    assert ready(store) == 1


def test_a_delayed_message_waits(store: Path) -> None:
    """It is counted and not delivered."""
    push(store, "later", "--delay", "1h")

    assert ask("queue", "pop", store, "jobs").code == ExitCode.EMPTY
    assert ask("queue", "ls", store).fields[0][:3] == ["jobs", "0", "1"]


def test_a_full_queue_has_a_code_of_its_own(store: Path) -> None:
    """All or none of the arguments are pushed."""
    ask("queue", "rules", store, "jobs", "--capacity", "2")
    full = ask("queue", "push", store, "jobs", "a", "b", "c")
    push(store, "a", "b")
    ask("queue", "rules", store, "jobs", "--on-full", "block")
    waited = ask("queue", "push", store, "jobs", "c", "--wait", "10ms")

    assert (full.code, waited.code) == (ExitCode.FULL, ExitCode.FULL)
    assert ready(store) == 2


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["body", "--lines"],
        ["a", "b", "--key", "k"],
        ["a", "--priority", "-1"],
        ["a", "--priority", "urgent"],
        ["a", "--priority", "1.5"],
        ["a", "--delay", "soon"],
        ["a", "--delay", "-1"],
        ["a", "--header", "novalue"],
        ["a", "--header", "=x"],
        ["a", "--ttl", "0"],
        ["a", "--group", ""],
    ],
)
def test_a_wrong_argument_pushes_nothing(store: Path, words: list[str]) -> None:
    """One line, exit code 2."""
    answer = ask("queue", "push", store, "jobs", *words)

    assert (answer.code, answer.out) == (ExitCode.USAGE, b"")
    assert answer.err.count("\n") == 1
    assert not store.exists() or ask("queue", "ls", store).out == b""


# Taking and settling -------------------------------------------------------------------------


def test_pop_ends_a_loop_with_a_code_of_its_own(store: Path) -> None:
    """`while body=$(segue queue pop …)` stops when there is nothing."""
    push(store, "a")
    codes = [ask("queue", "pop", store, "jobs", "--wait", "1ms").code for _ in range(2)]

    assert codes == [0, ExitCode.EMPTY]


def test_a_receipt_settles_a_lease_from_elsewhere(store: Path) -> None:
    """Acked once, it is gone; a second time the lease is lost."""
    push(store, "a", "b")
    receipts = lease(store, "-n", "2", "--ttl", "1m", "--owner", "me")
    done = ask("queue", "ack", store, "jobs", *receipts, receipts[0])
    again = ask("queue", "ack", store, "jobs", receipts[0], "--json")

    assert (done.code, done.lines) == (0, ["acked\t2"])
    assert again.code == ExitCode.LEASE_LOST
    assert again.json["acked"] == 0
    assert again.json_rows["lost"][0]["receipt"] == receipts[0]
    assert json.loads(again.err)["error"] == "LeaseLost"


def test_what_is_lost_does_not_keep_others_from_being_settled(store: Path) -> None:
    """The lost ones are named."""
    push(store, "a", "b")
    first, second = lease(store, "-n", "2")
    lost = first.rpartition("/")[0] + "/1"
    answer = ask("queue", "ack", store, "jobs", lost, second)

    assert answer.code == ExitCode.LEASE_LOST
    assert answer.fields[0] == ["acked", "1"]
    assert answer.fields[1][:2] == ["lost", lost]


def test_receipts_come_from_standard_input_too(store: Path) -> None:
    """`lease | cut -f 1 | ack -` settles what was leased."""
    push(store, "a", "b")
    receipts = "\n".join(lease(store, "-n", "2"))
    answer = ask("queue", "ack", store, "jobs", "-", stdin=receipts.encode())

    assert answer.lines == ["acked\t2"]


@pytest.mark.parametrize(
    ("outcome", "state"), [("release", "ready"), ("fail", "delayed"), ("dead", "dead")]
)
def test_nack_gives_back_in_three_ways(store: Path, outcome: str, state: str) -> None:
    """As if never taken, to be tried again later, or never again."""
    push(store, "a")
    [receipt] = lease(store)
    answer = ask("queue", "nack", store, "jobs", receipt, "--outcome", outcome, "--reason", "why")
    stats = ask("queue", "stats", store, "jobs", "--json").json

    assert (answer.code, answer.lines) == (0, ["nacked\t1"])
    assert [name for name in ("ready", "delayed", "leased", "dead") if stats[name]] == [state]


def test_extend_holds_a_lease_longer(store: Path) -> None:
    """From now on, for the time that is given."""
    push(store, "a")
    [receipt] = lease(store, "--ttl", "10m")
    answer = ask("queue", "extend", store, "jobs", receipt, "--ttl", "2h")
    [shown] = ask("queue", "stats", store, "jobs", "--json").json_rows["leases"]

    assert answer.lines == ["extended\t1"]
    assert isinstance(shown["seconds_left"], float)
    assert 7000 < shown["seconds_left"] <= 7200


def test_a_strict_queue_is_locked_while_a_lease_is_out(store: Path) -> None:
    """One lock for the queue: who asks is told so, with the code for locked things."""
    push(store, "a", "b")
    ask("queue", "rules", store, "jobs", "--max-leases", "1")
    lease(store)
    locked = ask("queue", "lease", store, "jobs")

    assert locked.code == ExitCode.LOCKED
    assert "locked" in locked.err


def test_peek_takes_nothing_and_an_empty_queue_is_no_error(store: Path) -> None:
    """Looking is not taking."""
    push(store, "a", "b")
    shown = ask("queue", "peek", store, "jobs", "-n", "5", "--ids")
    ask("queue", "pop", store, "jobs", "-n", "5")
    empty = ask("queue", "peek", store, "jobs")

    assert shown.lines == ["0-0\ta", "0-1\tb"]
    assert (empty.code, empty.out, empty.err) == (0, b"", "")


@pytest.mark.parametrize("receipt", ["nonsense", "0-0", "0-0/x"])
def test_a_receipt_that_is_none_is_a_wrong_argument(store: Path, receipt: str) -> None:
    """Not a lost lease."""
    push(store, "a")

    assert ask("queue", "ack", store, "jobs", receipt).code == ExitCode.USAGE


# Looking -------------------------------------------------------------------------------------


def test_stats_shows_counts_priorities_and_leases(store: Path) -> None:
    """Who works on what, and for how long still."""
    push(store, "a", "b")
    push(store, "c", "--priority", "2")
    [receipt] = lease(store, "--owner", "ada")
    answer = ask("queue", "stats", store, "jobs")

    facts = {line[0]: line[1] for line in answer.fields}
    assert (facts["ready"], facts["leased"], facts["paused"]) == ("2", "1", "no")
    assert [line for line in answer.fields if line[0] == "priority"] == [
        ["priority", "0", "1"],
        ["priority", "2", "1"],
    ]
    [shown] = [line for line in answer.fields if line[0] == "lease"]
    assert shown[1:4] == [receipt, "ada", "1"]


def test_many_queues_need_many_descriptors(store: Path) -> None:
    """All that lists what a store holds raises the limit as far as it may be, as most shells'."""
    names = [f"q{number}" for number in range(8)]
    for name in names:
        ask("queue", "push", store, name, "x", "--sync", "os")
    used = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 40, hard))
    try:
        answer = ask("queue", "ls", store)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert (answer.code, [row[0] for row in answer.fields]) == (0, names)


def test_one_message_is_shown_until_it_is_settled(store: Path) -> None:
    """With who holds it, or why it came back."""
    (id_,) = push(store, "x", "--group", "g", "--header", "a=1")
    (receipt,) = lease(store, "--owner", "ada", "--ttl", "1h")
    held = dict(ask("queue", "show", store, "jobs", id_).fields)
    ask("queue", "nack", store, "jobs", receipt, "--reason", "no paper", "--delay", "1h")
    document = ask("queue", "show", store, "jobs", id_, "--json").json
    ask("queue", "purge", store, "jobs", "--yes")
    gone = ask("queue", "show", store, "jobs", id_)

    assert (held["state"], held["owner"], held["tries"]) == ("leased", "ada", "1")
    assert (held["group"], held["header a"], held["body"]) == ("g", "1", "x")
    assert (document["state"], document["reason"], document["tries"]) == ("delayed", "no paper", 1)
    assert isinstance(document["due"], str)
    assert (gone.code, gone.out) == (ExitCode.NOT_FOUND, b"")
    assert ask("queue", "show", store, "jobs", "seventeen").code == ExitCode.USAGE


def test_what_is_not_settled_is_listed_page_by_page(store: Path) -> None:
    """By state, and as JSON an object each."""
    push(store, "one", "two", "three")
    push(store, "later", "--delay", "1h")
    (receipt,) = lease(store)
    ask("queue", "nack", store, "jobs", receipt, "--outcome", "dead", "--reason", "no use")
    listed = ask("queue", "browse", store, "jobs")
    page = ask("queue", "browse", store, "jobs", "--limit", "1", "--after", "0-1")
    dead = ask("queue", "browse", store, "jobs", "--state", "dead", "--json").json

    assert [row[:2] for row in listed.fields] == [
        ["0-1", "ready"],
        ["0-2", "ready"],
        ["later-0", "delayed"],
        ["0-0", "dead"],
    ]
    assert [row[0] for row in page.fields] == ["0-2"]
    assert (dead["id"], dead["reason"], dead["body"]) == ("0-0", "no use", "one")
    assert ask("queue", "browse", store, "jobs", "--state", "gone").code == ExitCode.USAGE
    assert ask("queue", "browse", store, "jobs", "--limit", "0").code == ExitCode.USAGE


def test_state_is_shaped_as_the_ancestors_was(store: Path) -> None:
    """250 items: three segments, their numbers and counts."""
    lines = [json.dumps({"id": number}) for number in range(250)]
    ask("queue", "push", store, "jobs", "--lines", stdin="\n".join(lines).encode())
    state = ask("queue", "state", store, "jobs").json
    segment = ask("queue", "state", store, "jobs", "queue_0_seg_2", "--json")
    metadata = ask("queue", "state", store, "jobs", "metadata")

    assert metadata.json == {
        "config": {"segment_size": 100},
        "queues": {"queue_0": {"metadata": {"count": 250, "head_segment": 0, "tail_segment": 2}}},
    }
    assert list(state) == ["queue_0_seg_0", "queue_0_seg_1", "queue_0_seg_2", "metadata"]
    assert json.loads(segment.out) == [{"id": number} for number in range(200, 250)]
    assert ask("queue", "state", store, "jobs", "queue_9_seg_0").code == ExitCode.NOT_FOUND


def test_half_a_character_in_a_body_is_shown_all_the_same(store: Path) -> None:
    """JSON can say what UTF-8 cannot; printing it must not fail."""
    push(store, '"\\ud800"')
    answer = ask("queue", "state", store, "jobs", "queue_0_seg_0")

    assert (answer.code, answer.out) == (0, b'["\\ud800"]\n')


@pytest.mark.parametrize(
    "words",
    [
        ["pop"],
        ["lease"],
        ["ack", "0-0/1"],
        ["nack", "0-0/1"],
        ["extend", "0-0/1"],
        ["peek"],
        ["stats"],
        ["state"],
        ["dead"],
        ["redrive"],
        ["discard", "--yes"],
        ["history"],
        ["replay"],
        ["pause"],
        ["resume"],
        ["purge", "--yes"],
        ["rm", "--yes"],
    ],
    ids=lambda words: words[0],
)
def test_a_misspelt_name_makes_nothing(store: Path, words: list[str]) -> None:
    """Neither a store nor a queue comes to be by looking for one."""
    verb, *others = words
    no_store = ask("queue", verb, store, "jobs", *others)
    assert not store.exists()
    push(store, "a")
    no_queue = ask("queue", verb, store, "typo", *others)

    assert (no_store.code, no_queue.code) == (ExitCode.NOT_FOUND, ExitCode.NOT_FOUND)
    assert no_store.err == f"segue: there is no store at {store}\n"
    assert no_queue.err == f"segue: there is no queue typo in {store}\n"
    assert [line[0] for line in ask("queue", "ls", store).fields] == ["jobs"]


# Operating -----------------------------------------------------------------------------------


def test_dead_letters_are_listed_redriven_and_discarded(store: Path) -> None:
    """By cause, by reason, by priority; counted first if asked."""
    reasons = ("down", "bad address", "bad name")
    push(store, "one", "two", "three")
    for reason, receipt in zip(reasons, lease(store, "-n", "3"), strict=True):
        ask("queue", "nack", store, "jobs", receipt, "--outcome", "dead", "--reason", reason)
    listed = ask("queue", "dead", store, "jobs", "--reason-contains", "bad", "--limit", "1")
    dry = ask("queue", "redrive", store, "jobs", "--reason-contains", "down", "--dry-run")
    redriven = ask("queue", "redrive", store, "jobs", "--reason-contains", "down", "--json")
    unasked = ask("queue", "discard", store, "jobs")
    none = ask("queue", "discard", store, "jobs", "--cause", "expired", "--yes")
    discarded = ask("queue", "discard", store, "jobs", "--limit", "1", "--yes")

    assert listed.fields[0][:4] == ["0-1", "dead", "bad address", "1"]
    assert listed.fields[0][5:] == ["two"]
    assert dry.lines == ["matched\t1", "redriven\t0"]
    assert redriven.json == {"matched": 1, "redriven": 1}
    assert unasked.code == ExitCode.USAGE
    assert none.lines == ["matched\t0", "discarded\t0"]
    assert discarded.lines == ["matched\t1", "discarded\t1"]
    letters = ask("queue", "dead", store, "jobs", "--json").lines
    assert [json.loads(line)["body"] for line in letters] == ["three"]


def test_a_paused_queue_delivers_nothing_until_it_is_resumed(store: Path) -> None:
    """Durably: every command is a process of its own."""
    push(store, "a")
    assert ask("queue", "pause", store, "jobs").code == 0
    paused = ask("queue", "pop", store, "jobs")
    assert ask("queue", "resume", store, "jobs").code == 0

    assert paused.code == ExitCode.EMPTY
    assert ask("queue", "pop", store, "jobs").lines == ["a"]


def test_purge_and_rm_ask_first(store: Path) -> None:
    """Without a terminal it takes --yes."""
    push(store, "a", "b")
    refused = [ask("queue", verb, store, "jobs").code for verb in ("purge", "rm")]
    purged = ask("queue", "purge", store, "jobs", "--yes")
    removed = ask("queue", "rm", store, "jobs", "--yes", "--json")

    assert refused == [ExitCode.USAGE, ExitCode.USAGE]
    assert purged.lines == ["purged\t2"]
    assert removed.json == {"queue": "jobs", "removed": True}
    assert ask("queue", "ls", store).out == b""


def test_rules_are_shown_and_changed(store: Path) -> None:
    """Those that are not given stay as they are; none takes a limit away."""
    ask(
        "queue",
        "rules",
        store,
        "jobs",
        "--capacity",
        "9",
        "--lease-ttl",
        "2m",
        "--keep-bytes",
        "4KiB",
    )
    ask("queue", "rules", store, "jobs", "--capacity", "none", "--keep-seconds", "7d")
    rules = ask("queue", "rules", store, "jobs", "--json").json

    assert (rules["capacity"], rules["lease_ttl"]) == (None, 120.0)
    assert (rules["keep_seconds"], rules["keep_bytes"]) == (604_800.0, 4096)


def test_how_fast_messages_come_is_a_rule(store: Path) -> None:
    """For everybody who takes any."""
    flow = ["--rate", "0.001", "--rate-burst", "2", "--group-concurrency", "3"]
    shown = ask("queue", "rules", store, "jobs", *flow, "--json").json
    push(store, "one", "two", "three")
    taken = ask("queue", "pop", store, "jobs", "-n", "9")
    empty = ask("queue", "pop", store, "jobs")
    ask("queue", "rules", store, "jobs", "--rate", "none")

    assert (shown["rate"], shown["rate_burst"], shown["group_concurrency"]) == (0.001, 2, 3)
    assert (taken.lines, empty.code) == (["one", "two"], ExitCode.EMPTY)
    assert ask("queue", "pop", store, "jobs").lines == ["three"]


@pytest.mark.parametrize(
    "words",
    [
        ["--capacity", "0"],
        ["--capacity", "many"],
        ["--on-full", "panic"],
        ["--lease-ttl", "none"],
        ["--backoff-jitter", "2"],
        ["--keep-bytes", "4 elephants"],
        ["--rate", "0"],
        ["--rate", "fast"],
        ["--rate-burst", "none"],
        ["--group-concurrency", "0"],
    ],
)
def test_rules_that_make_no_sense_make_no_queue(store: Path, words: list[str]) -> None:
    """They are looked at before anything is made."""
    answer = ask("queue", "rules", store, "jobs", *words)

    assert answer.code == ExitCode.USAGE
    assert not store.exists()


def test_what_is_kept_can_be_read_and_replayed(store: Path) -> None:
    """By offset within a priority."""
    ask("queue", "rules", store, "jobs", "--keep-seconds", "1h")
    push(store, "a", "b", "c")
    ask("queue", "pop", store, "jobs", "-n", "3")
    kept = ask("queue", "history", store, "jobs", "--priority", "0", "--from", "1", "--ids")
    replayed = ask("queue", "replay", store, "jobs", "--priority", "0", "--from", "1", "--to", "2")
    bad = ask("queue", "history", store, "jobs", "--from", "latest")

    assert kept.lines == ["0-1\tb", "0-2\tc"]
    assert replayed.lines == ["replayed\t1"]
    assert ask("queue", "pop", store, "jobs").lines == ["b"]
    assert bad.code == ExitCode.USAGE


# As the shell runs it ------------------------------------------------------------------------


def test_a_waiting_pop_is_woken_by_a_push(store: Path) -> None:
    """In another process, without polling on our side."""
    push(store, "first")
    ask("queue", "pop", store, "jobs")
    with started("queue", "pop", store, "jobs", "--wait", "forever") as pop:
        push(store, "second")
        out, err = pop.communicate(timeout=LIMIT_SECONDS)

    assert (out, err, pop.returncode) == (b"second\n", b"", 0)


def test_a_terminal_gets_tables_and_is_asked(store: Path) -> None:
    """People see headings, and a no leaves everything as it is."""
    push(store, "a")
    shown = on_a_terminal("queue", "ls", store)
    asked = on_a_terminal("queue", "purge", store, "jobs", typed="n\n")

    assert "delayed" in shown
    assert "\t" not in shown
    assert "Drop 1 messages of jobs? [y/N]" in asked
    assert ready(store) == 1


# The frame -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("1.5", 1.5),
        (".5", 0.5),
        ("250ms", 0.25),
        ("30s", 30),
        ("5m", 300),
        ("2h", 7200),
    ],
)
def test_durations_are_read_in_one_way(text: str, seconds: float) -> None:
    """Seconds, or a number with a unit."""
    assert parsing.duration(text) == seconds
    assert parsing.wait_from(parsing.waiting_time(text)) == seconds
    assert parsing.wait_from(parsing.waiting_time("forever")) is None


@pytest.mark.parametrize("text", ["", "s", "-1", "1w", "1 2", "inf", "nan", "1e3", "9" * 400])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """Rather than guessed at."""
    with pytest.raises(typer.BadParameter):
        parsing.duration(text)


def test_every_verb_has_help_with_an_example_and_json() -> None:
    """Help is complete without the documentation at hand."""
    for verb in ("import", "export", *_verbs("queue"), *_verbs("ring"), *_verbs("lock")):
        answer = ask(*verb.split(), "--help").out.decode()

        assert f"segue {verb} data" in answer, verb
        assert "--json" in answer, verb


def _verbs(group: str) -> list[str]:
    """Return the verbs that the help of a group lists, with the group before each."""
    listed = ask(group).out.decode().partition("Commands:")[2]
    return [f"{group} {line.split()[0]}" for line in listed.splitlines() if line.strip()]
