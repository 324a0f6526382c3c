"""Opening a server, and what looks like one: a URL that is misspelt makes no store."""

from pathlib import Path

import pytest

import segue
from segue.cli.exits import ExitCode
from segue.cli.places import store_url
from segue.errors import InvalidArgument
from segue.log.options import SyncName
from segue.stores.opening import directory_of
from tests.contract.worlds import HttpWorld
from tests.integration.cli_support import ask

SECRET = "open-sesame"
MISSPELT = [
    "http:/localhost:8000",
    "https:/box",
    "http:localhost:8000",
    "HTTP://box",
    "Https://box",
    "localhost:8000",
    "127.0.0.1:8000",
    "[::1]:8000",
    ":8000",
    "box:443/below",
    "box:8000?retry=3",
    f"http:/ada:{SECRET}@box",
    f"ada:{SECRET}@box:8000",
]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be where a mistake would leave something."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SEGUE_TOKEN", raising=False)


@pytest.mark.parametrize("url", [*MISSPELT, f"{SECRET}@http://box"])
def test_a_misspelt_url_of_a_server_is_refused_and_nothing_is_made(url: str) -> None:
    """What is pushed to a store that nobody else knows of is as good as lost."""
    with pytest.raises(InvalidArgument, match="http://") as refusal:
        segue.open(url)

    assert list(Path.cwd().iterdir()) == []
    assert SECRET not in str(refusal.value)


@pytest.mark.parametrize("url", MISSPELT)
def test_the_command_line_says_so_in_one_line(url: str) -> None:
    answer = ask("queue", "push", url, "mail", "x")

    assert answer.code == ExitCode.USAGE
    assert len(answer.err.splitlines()) == 1
    assert "http://" in answer.err
    assert SECRET not in answer.err
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize(
    "name",
    [
        "./localhost:8000",
        "../localhost:8000",
        "data/localhost:8000",
        "C:/data",
        "C:\\data",
        "backup:20240101",
        "box:99999",
        "a:b",
        "http",
        "httpd/data",
        "https-logs",
    ],
)
def test_a_path_that_only_looks_a_little_like_a_server_is_a_path(name: str) -> None:
    assert directory_of(name) == Path(name)


def test_a_path_is_no_text_that_was_misspelt() -> None:
    """Whoever makes a `Path` of it means a directory."""
    assert directory_of(Path("localhost:8000")) == Path("localhost:8000")


@pytest.mark.parametrize("url", ["localhost:8000", "localhost:8000/data"])
def test_a_directory_that_is_there_is_opened_whatever_it_is_called(url: str) -> None:
    """One that was named so before must stay within reach."""
    Path("localhost:8000").mkdir()
    with segue.open(url, sync="os") as store:
        store.queue("mail").push(b"x")

    assert Path(url, "queues").is_dir()


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "redis://127.0.0.1:9"])
def test_a_server_cannot_be_had_alone(url: str) -> None:
    """Whoever asks for that counts on it: to pass over it would be a promise that is not kept."""
    with pytest.raises(InvalidArgument, match="exclusive"):
        segue.open(url, exclusive=True)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "redis://127.0.0.1:9"])
def test_a_way_to_sync_that_nobody_knows_is_refused_by_a_server_too(url: str) -> None:
    with pytest.raises(InvalidArgument, match="sync must be one of"):
        segue.open(url, sync="nonsense")  # type: ignore[arg-type]


@pytest.mark.parametrize("sync", ["always", "interval", "os"])
def test_a_way_to_sync_may_be_given_whatever_the_store_is(scratch: Path, sync: SyncName) -> None:
    """Which store it is may be a setting: the server says what is durable there."""
    world = HttpWorld(scratch / "data")
    try:
        with segue.open(world.url, sync=sync) as store:
            assert store.queues() == []
    finally:
        world.end()


@pytest.mark.parametrize("text", ["./localhost:8000", "file://localhost:8000"])
def test_the_command_line_keeps_what_says_that_it_is_a_directory(text: str) -> None:
    assert directory_of(store_url(text)) == Path("localhost:8000")
