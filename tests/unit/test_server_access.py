"""Tokens, roles, pages from elsewhere, and what is told of requests."""

import errno
import json
import threading
from pathlib import Path
from typing import NoReturn

import pytest

from segue.errors import InvalidArgument, StorageError, UnsupportedFormat
from segue.server import access, access_log
from segue.server.access import (
    ADDRESSES_MAX,
    AUDIT_TOPIC,
    EVERYTHING,
    FAILURES_MAX,
    Failures,
    Grant,
    Guard,
    KnownTokens,
    is_own_host,
)
from segue.server.access_log import AccessLog, Note
from segue.server.audit import Act, Audit, page_of
from segue.server.flow import Standing
from segue.server.health import LATE_SECONDS, Watchdog
from segue.server.metrics import RequestMetrics, Snapshot, render
from segue.server.refusal import Refused
from segue.server.routes import ALL
from segue.server.routing import Role, Route
from segue.server.samples import HISTORY_TOPIC
from segue.server.tokens import (
    RoleName,
    Token,
    add_token,
    make_token,
    read_tokens,
    remove_token,
    tokens_path,
)
from segue.stores.opening import open_directory
from tests.unit.support import failing_cases

HOST = b"127.0.0.1:8000"
ROLES: tuple[RoleName, ...] = ("produce", "consume", "read", "admin")


class Hand:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds

    def us(self) -> int:
        return round(self.seconds * 1_000_000)


def new_token(
    path: Path,
    *roles: RoleName,
    names: tuple[str, ...] = ("*",),
    expires_us: int | None = None,
) -> tuple[Token, str]:
    """Return a token that is in the file at `path`."""
    token, text = make_token(
        name="tester", roles=roles or ("admin",), names=names, now_us=0, expires_us=expires_us
    )
    add_token(path, token)
    return token, text


def asked(
    guard: Guard,
    route: Route,
    *names: str,
    token: str | None = None,
    address: str = "127.0.0.1",
    headers: dict[bytes, bytes] | None = None,
) -> Grant:
    """Return what the guard grants."""
    given = {b"host": HOST, **(headers or {})}
    if token is not None:
        given[b"authorization"] = b"Bearer " + token.encode()
    scope = {"method": route.method, "client": (address, 1), "headers": list(given.items())}
    return guard.admit(scope, route, list(names), given)


def refusal(
    guard: Guard,
    route: Route,
    *names: str,
    token: str | None = None,
    address: str = "127.0.0.1",
    headers: dict[bytes, bytes] | None = None,
) -> Refused:
    """Return why the guard lets nobody in."""
    with pytest.raises(Refused) as caught:
        asked(guard, route, *names, token=token, address=address, headers=headers)
    return caught.value


def route_of(role: Role, method: str = "POST") -> Route:
    """Return some route that needs a role."""
    return next(each for each in ALL if each.role is role and each.method == method)


# Tokens ----------------------------------------------------------------------------------------


def test_a_file_of_tokens_never_holds_a_secret(tmp_path: Path) -> None:
    """Whoever reads the file can still not get in; others than its owner cannot even read it."""
    path = tokens_path(tmp_path)
    token, text = new_token(path, "read")

    secret = text.split("_", 2)[2]
    assert secret not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert read_tokens(path) == [token]


def test_tokens_added_at_once_are_all_kept(tmp_path: Path) -> None:
    """Two who add a token at the same moment do not overwrite each other's."""
    path = tmp_path / "tokens.json"
    threads = [threading.Thread(target=new_token, args=(path,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({token.id for token in read_tokens(path)}) == 8


@pytest.mark.parametrize(
    ("name", "roles", "names", "expires_us"),
    [
        ("", ["read"], ["*"], None),
        ("line\nbreak", ["read"], ["*"], None),
        ("x" * 101, ["read"], ["*"], None),
        ("x", [], ["*"], None),
        ("x", ["read"], [], None),
        ("x", ["read"], ["a b"], None),
        ("x", ["read"], ["*"], 5),
        ("x", ["read"], ["*"], 1 << 60),
    ],
)
def test_a_token_that_makes_no_sense_is_not_made(
    name: str, roles: list[RoleName], names: list[str], expires_us: int | None
) -> None:
    """What cannot be meant is refused before it is in the file."""
    with pytest.raises(InvalidArgument):
        make_token(name=name, roles=roles, names=names, now_us=10, expires_us=expires_us)


def test_removing_the_last_token_leaves_a_file_that_lets_nobody_in(tmp_path: Path) -> None:
    """Taking a token back must never open a server to everybody."""
    path = tmp_path / "tokens.json"
    token, text = new_token(path)
    hand = Hand()
    guard = Guard(KnownTokens(path, monotonic=hand))
    assert asked(guard, route_of(Role.ADMIN), "a", token=text).name == "tester"

    assert remove_token(path, token.id) == token
    assert remove_token(path, token.id) is None
    hand.seconds += 1.1
    assert refusal(guard, route_of(Role.ADMIN), "a", token=text).problem.status == 401
    path.unlink()
    hand.seconds += 1.1
    assert refusal(guard, route_of(Role.ADMIN), "a").problem.status == 401


def test_a_token_can_be_replaced_while_the_server_runs(tmp_path: Path) -> None:
    """A new token counts within a second, and the old one until it is taken back."""
    path = tmp_path / "tokens.json"
    old, old_text = new_token(path)
    hand = Hand()
    tokens = KnownTokens(path, monotonic=hand)
    guard = Guard(tokens)
    _, new_text = new_token(path)
    assert refusal(guard, route_of(Role.ADMIN), "a", token=new_text).problem.status == 401

    hand.seconds += 1.1
    asked(guard, route_of(Role.ADMIN), "a", token=new_text)
    asked(guard, route_of(Role.ADMIN), "a", token=old_text)
    remove_token(path, old.id)
    hand.seconds += 1.1
    asked(guard, route_of(Role.ADMIN), "a", token=new_text)
    assert refusal(guard, route_of(Role.ADMIN), "a", token=old_text).problem.status == 401


def test_the_first_token_closes_a_server_that_was_open(tmp_path: Path) -> None:
    """Without a file everybody gets in; with its first token nobody does without one."""
    path = tmp_path / "tokens.json"
    hand = Hand()
    guard = Guard(KnownTokens(path, monotonic=hand))
    assert asked(guard, route_of(Role.ADMIN), "a") is EVERYTHING

    _, text = new_token(path)
    hand.seconds += 1.1
    assert refusal(guard, route_of(Role.ADMIN), "a").problem.status == 401
    asked(guard, route_of(Role.ADMIN), "a", token=text)


def test_a_broken_file_leaves_the_tokens_as_they_were(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A slip of the pen locks nobody out, and is told; at the start it is an error."""
    path = tmp_path / "tokens.json"
    _, text = new_token(path)
    hand = Hand()
    guard = Guard(KnownTokens(path, monotonic=hand))
    path.write_text("{")
    hand.seconds += 1.1

    asked(guard, route_of(Role.ADMIN), "a", token=text)
    assert "tokens stay as they were" in caplog.text
    with pytest.raises(UnsupportedFormat):
        KnownTokens(path)
    with pytest.raises(UnsupportedFormat):
        new_token(path)


def test_a_file_that_could_not_be_read_for_once_is_read_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was taken back stays so, also where descriptors were short just then."""
    path = tmp_path / "tokens.json"
    token, text = new_token(path)
    hand = Hand()
    guard = Guard(KnownTokens(path, monotonic=hand))
    remove_token(path, token.id)
    with monkeypatch.context() as patched:
        patched.setattr(access, "read_tokens", fail)
        hand.seconds += 1.1
        asked(guard, route_of(Role.ADMIN), "a", token=text)
    hand.seconds += 1.1

    assert refusal(guard, route_of(Role.ADMIN), "a", token=text).problem.status == 401
    assert caplog.text.count("tokens stay as they were") == 1


def fail(path: Path) -> list[Token]:
    """Be out of descriptors."""
    raise OSError(errno.EMFILE, "too many open files", str(path))


def test_a_token_is_over_when_its_time_is(tmp_path: Path) -> None:
    """An expired token is as good as none."""
    path = tmp_path / "tokens.json"
    hand = Hand()
    _, text = new_token(path, expires_us=hand.us() + 5_000_000)
    guard = Guard(KnownTokens(path, clock=hand.us, monotonic=hand))
    asked(guard, route_of(Role.ADMIN), "a", token=text)

    hand.seconds += 5
    assert refusal(guard, route_of(Role.ADMIN), "a", token=text).problem.status == 401


@pytest.mark.parametrize(
    "mangle",
    [
        lambda text: text[:-1],
        lambda text: text + "x",
        lambda text: text.replace("segue_", "other_"),
        lambda text: "segue_0000000000_" + text.split("_", 2)[2],
        lambda text: "segue__",
        lambda text: "segue",
        lambda text: "",
        lambda text: text.upper(),
    ],
)
def test_a_wrong_token_is_401_and_says_how_to_ask(tmp_path: Path, mangle: object) -> None:
    """Whatever is wrong with a token, the answer is the same."""
    path = tmp_path / "tokens.json"
    _, text = new_token(path)
    guard = Guard(KnownTokens(path))
    assert callable(mangle)
    refused = refusal(guard, route_of(Role.ADMIN), "a", token=mangle(text))

    assert refused.problem.status == 401
    assert dict(refused.headers)[b"www-authenticate"].startswith(b"Bearer")
    assert text not in refused.problem.detail


def test_wrong_tokens_are_limited_for_each_address(tmp_path: Path) -> None:
    """After ten in a minute it is 429; others, and good tokens, are not kept out."""
    path = tmp_path / "tokens.json"
    _, text = new_token(path)
    hand = Hand()
    guard = Guard(KnownTokens(path, monotonic=hand), failures=Failures(hand))
    route = route_of(Role.ADMIN)
    for _ in range(FAILURES_MAX):
        assert refusal(guard, route, "a", token="segue_1_2").problem.status == 401
    limited = refusal(guard, route, "a", token="segue_1_2").problem

    assert (limited.status, limited.retry_after_seconds) == (429, 60)
    assert refusal(guard, route, "a", token="segue_1_2", address="::1").problem.status == 401
    asked(guard, route, "a", token=text)
    hand.seconds += 61
    assert refusal(guard, route, "a", token="segue_1_2").problem.status == 401


def test_what_is_remembered_of_failures_is_bounded() -> None:
    """Whoever has many addresses cannot use up the memory."""
    failures = Failures()
    for number in range(ADDRESSES_MAX + 100):
        failures.count(str(number))

    assert len(failures._by_address) == ADDRESSES_MAX


def test_who_failed_last_is_not_forgotten_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever has a few addresses to spare could go on trying from one."""
    monkeypatch.setattr(access, "ADDRESSES_MAX", 2)
    failures = Failures(Hand())
    for _ in range(FAILURES_MAX):
        failures.count("tries")
        failures.count("before")
    failures.count("tries")
    failures.count("another")

    assert failures.count("tries") > 0


# Roles -----------------------------------------------------------------------------------------


def test_every_route_goes_by_its_role(tmp_path: Path) -> None:
    """Each role opens its own routes and no others; admin opens all."""
    path = tmp_path / "tokens.json"
    texts = {role: new_token(path, role)[1] for role in ROLES}
    guard = Guard(KnownTokens(path))

    def check(route: Route) -> None:
        names = ("name",) * route.full_path.count("{")
        for role, text in texts.items():
            if role == "admin" or route.role.value in {role, "any", "nobody"}:
                asked(guard, route, *names, token=text)
            else:
                problem = refusal(guard, route, *names, token=text).problem
                assert problem.status == 403
                assert route.role.value in problem.detail

        if route.role is Role.NOBODY:
            asked(guard, route, *names)
        else:
            assert refusal(Guard(KnownTokens(path)), route, *names).problem.status == 401

    assert failing_cases(check, ALL) == []


def test_every_route_with_a_name_goes_by_the_names_of_the_token(tmp_path: Path) -> None:
    """A token is good for the names it was made for, also one that may do everything with them."""
    path = tmp_path / "tokens.json"
    _, text = new_token(path, "admin", names=("mail.*", "news"))
    guard = Guard(KnownTokens(path))

    def check(route: Route) -> None:
        rest = ("x",) * (route.full_path.count("{") - 1)

        asked(guard, route, "mail.eu", *rest, token=text)
        asked(guard, route, "news", *rest, token=text)
        assert refusal(guard, route, "news.eu", *rest, token=text).problem.status == 403

    guarded = [each for each in ALL if each.is_guarded and each.role is not Role.NOBODY]
    assert failing_cases(check, [each for each in guarded if "{" in each.full_path]) == []


def test_nobody_but_an_admin_gets_at_the_audit(tmp_path: Path) -> None:
    """Whoever may append to all topics can still not forge what was done."""
    path = tmp_path / "tokens.json"
    _, text = new_token(path, "produce", "consume", "read")
    guard = Guard(KnownTokens(path))

    assert refusal(guard, route_of(Role.PRODUCE), AUDIT_TOPIC, token=text).problem.status == 403


@pytest.mark.parametrize("role", [Role.READ, Role.CONSUME, Role.PRODUCE])
def test_nobody_but_an_admin_writes_to_the_history_and_all_may_read_it(
    tmp_path: Path, role: Role
) -> None:
    """Whoever may append to all topics can still not make up what is shown of the past."""
    path = tmp_path / "tokens.json"
    _, text = new_token(path, "produce", "consume", "read")
    _, admin = new_token(path, "admin")
    guard = Guard(KnownTokens(path))

    asked(guard, route_of(role), HISTORY_TOPIC, token=admin)
    if role is Role.PRODUCE:
        assert refusal(guard, route_of(role), HISTORY_TOPIC, token=text).problem.status == 403
    else:
        asked(guard, route_of(role), HISTORY_TOPIC, token=text)


def test_nobody_but_an_admin_keeps_servers_from_recording_the_history(tmp_path: Path) -> None:
    """Whoever may take all locks does not get the one that the server holds that records."""
    path = tmp_path / "tokens.json"
    _, text = new_token(path, "produce", "consume", "read")
    guard = Guard(KnownTokens(path))
    locks = {each.path.rpartition("/")[2]: each for each in ALL if "{lock}" in each.path}

    for verb in ("acquire", "renew", "release"):
        assert refusal(guard, locks[verb], HISTORY_TOPIC, token=text).problem.status == 403
        asked(guard, locks[verb], "mine", token=text)
    asked(guard, locks["{lock}"], HISTORY_TOPIC, token=text)


# Browsers --------------------------------------------------------------------------------------


def test_a_name_that_is_not_ours_is_found_out() -> None:
    """A page whose name was made to lead here sends that name along."""

    def check(host: str, is_ours: bool) -> None:
        assert is_own_host(host, {"localhost", "box.example"}) is is_ours

    failing = failing_cases(
        check,
        [
            ("127.0.0.1:8000", True),
            ("127.0.0.1", True),
            ("localhost:8000", True),
            ("LocalHost.", True),
            ("[::1]:8000", True),
            ("[::1]", True),
            ("localhost:", True),
            ("10.1.2.3:80", True),
            ("box.example:8000", True),
            ("evil.example:8000", False),
            ("localhost.evil.example", False),
            ("127.0.0.1.evil.example", False),
            ("", False),
            ("[", False),
            ("[::1].evil.example", False),
            ("[::1]evil.example:8000", False),
            ("[::1]:8000.evil.example", False),
            ("[::1]]", False),
            ("[localhost]", False),
            ("[evil.example]", False),
            ("127.0.0.1:evil.example", False),
            ("localhost:80:80", False),
            ("localhost:80@evil.example", False),
            ("::1", False),
        ],
    )
    assert failing == []


def test_a_rebound_name_is_refused_where_no_token_is_needed(tmp_path: Path) -> None:
    """Without tokens the name is all there is to know a page from elsewhere by."""
    route = route_of(Role.READ, "GET")
    evil = {b"host": b"evil.example:8000"}
    assert refusal(Guard(), route, headers=evil).problem.status == 421
    assert asked(Guard(hosts=["evil.example"]), route, headers=evil) is EVERYTHING

    path = tmp_path / "tokens.json"
    _, text = new_token(path)
    asked(Guard(KnownTokens(path)), route, token=text, headers=evil)


@pytest.mark.parametrize(
    ("headers", "is_refused"),
    [
        ({b"sec-fetch-site": b"cross-site"}, True),
        ({b"sec-fetch-site": b"same-site"}, True),
        ({b"sec-fetch-site": b"same-origin"}, False),
        ({b"sec-fetch-site": b"none"}, False),
        ({b"sec-fetch-site": b"cross-site", b"sec-fetch-mode": b"navigate"}, True),
        ({b"origin": b"http://evil.example"}, True),
        ({b"origin": b"null"}, True),
        ({b"origin": b"http://127.0.0.1:9000"}, True),
        ({b"origin": b"http://" + HOST}, False),
        ({b"origin": b"http://" + HOST, b"sec-fetch-site": b"cross-site"}, True),
        ({b"origin": b"https://good.example", b"sec-fetch-site": b"cross-site"}, False),
    ],
)
def test_a_page_from_elsewhere_changes_nothing(
    headers: dict[bytes, bytes], is_refused: bool
) -> None:
    """A browser carries any page's request here; it says whose page it is."""
    guard = Guard(cors_origins=["https://good.example"])
    route = route_of(Role.PRODUCE)
    if is_refused:
        assert refusal(guard, route, "a", headers=headers).problem.status == 403
    else:
        assert asked(guard, route, "a", headers=headers) is EVERYTHING


def test_a_link_from_elsewhere_may_be_followed() -> None:
    """Following a link only looks, and the page it was on does not see the answer."""
    headers = {b"sec-fetch-site": b"cross-site", b"sec-fetch-mode": b"navigate"}

    assert asked(Guard(), route_of(Role.READ, "GET"), headers=headers) is EVERYTHING


# What is told ----------------------------------------------------------------------------------


def test_health_is_about_what_the_store_answers() -> None:
    """A store that is silent, or answers with errors, is told; one that recovers, too."""
    hand = Hand()
    errors: list[Exception] = []

    def look() -> None:
        if errors:
            raise errors[0]

    watchdog = Watchdog(look, monotonic=hand)
    watchdog.look()
    assert watchdog.health().status == "ok"
    hand.seconds += LATE_SECONDS + 1
    assert watchdog.health().status == "stuck"
    errors.append(StorageError("no disk"))
    watchdog.look()
    assert watchdog.health().status == "failing"
    assert watchdog.health().reason == "the store fails with StorageError; the log says more"
    errors.clear()
    watchdog.look()

    assert watchdog.health().status == "ok"
    assert not watchdog.is_stuck


def test_a_look_that_does_not_end_is_stuck() -> None:
    """What neither answers nor fails is what starting anew may help against."""
    hand = Hand()
    seen = []

    def look() -> None:
        hand.seconds += LATE_SECONDS + 1
        seen.append((watchdog.is_stuck, watchdog.health().status))

    watchdog = Watchdog(look, monotonic=hand)
    watchdog.look()

    assert seen == [(True, "stuck")]


def test_metrics_are_what_prometheus_reads() -> None:
    """Counters by route, method and status; a histogram by route; depths by queue and state."""
    metrics = RequestMetrics()
    route = route_of(Role.PRODUCE)
    metrics.count(route, 200, 0.0004)
    metrics.count(route, 200, 0.2)
    metrics.count(route, 429, 99.0)
    metrics.count(None, 404, 0.001)
    text = render(
        Snapshot(
            series=metrics.series,
            gauges={"connections": ("Open.", 3)},
            counters={"syncs": ("Done.", 7)},
            queues={
                "mail": Standing(
                    ready=1, delayed=2, leased=3, dead=4, came=10, went=0, failed=0, size_bytes=0
                )
            },
        )
    ).decode()

    label = f'method="{route.method}",route="{route.full_path}"'
    assert f'segue_http_requests_total{{{label},status="200"}} 2.0' in text
    assert 'segue_http_requests_total{method="",route="(none)",status="404"} 1.0' in text
    assert f'segue_http_request_duration_seconds_bucket{{le="0.25",{label}}} 2.0' in text
    assert f"segue_http_request_duration_seconds_count{{{label}}} 3.0" in text
    assert "segue_server_connections 3.0" in text
    assert "segue_server_syncs_total 7.0" in text
    assert 'segue_queue_messages{queue="mail",state="dead"} 4.0' in text
    assert "process_resident_memory_bytes" in text


def test_the_access_log_is_bounded_and_says_what_it_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is slower than the requests costs lines, and not the server's memory."""
    monkeypatch.setattr(access_log, "NOTES_MAX", 10)
    path = tmp_path / "access.log"
    log = AccessLog(str(path))
    note = Note(1, "GET", "/" + "x" * 5_000, None, 200, 1, 1, "", "", "127.0.0.1", "id")
    for _ in range(12):
        log.note(note)
    log.flush()

    lines = path.read_text().splitlines()
    assert len(lines) == 11
    assert json.loads(lines[-1]) == {"dropped": 2}
    assert len(json.loads(lines[0])["path"]) == 1_000
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_access_log_survives_its_file_being_moved_away(tmp_path: Path) -> None:
    """Whoever turns logs over needs to tell nobody."""
    path = tmp_path / "access.log"
    log = AccessLog(str(path))
    note = Note(1, "GET", "/a", None, 200, None, 1, "", "", "", "id")
    log.note(note)
    log.flush()
    path.rename(tmp_path / "access.log.1")
    log.note(note)
    log.flush()

    assert len(path.read_text().splitlines()) == 1


def test_acts_are_kept_in_their_order_and_paged(tmp_path: Path) -> None:
    """The last page is the newest, and `after` goes on from where one was."""
    with open_directory(tmp_path, sync="os") as store:
        assert page_of(store, limit=10).entries == []
        audit = Audit(store)
        for number in range(5):
            audit.note(
                Act(
                    time_us=number,
                    token="tester",
                    token_id="1",
                    method="DELETE",
                    path=f"/{number}",
                    remote="127.0.0.1",
                    status=200,
                )
            )
        audit.close()
        last = [entry.path for entry in page_of(store, limit=2).entries]
        behind = [entry.path for entry in page_of(store, after=0, limit=2).entries]

        assert last == ["/3", "/4"]
        assert behind == ["/1", "/2"]
        assert page_of(store, after=4, limit=2).entries == []
        assert store.topic(AUDIT_TOPIC).partitions == 1
        assert store.topic(AUDIT_TOPIC).rules.keep_seconds == 90 * 86_400


@pytest.mark.parametrize("fault", ["closed", "unforeseen", "no thread"])
def test_an_act_that_cannot_be_kept_is_logged(
    fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was done is to be found somewhere, whatever goes wrong; who did it is answered."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise RuntimeError("can't start new thread")

    act = Act(time_us=1, token="t", token_id="1", method="PUT", path="/x", remote="", status=200)
    with open_directory(tmp_path, sync="os") as store:
        audit = Audit(store)
        if fault == "closed":
            store.close()
        elif fault == "unforeseen":
            monkeypatch.setattr(store, "topic", fail)
        else:
            monkeypatch.setattr(threading.Thread, "start", fail)
        audit.note(act)
        monkeypatch.undo()
        audit.close()

    assert "act not audited" in caplog.text
    assert "/x" in caplog.text
