"""What `segue serve` and `segue token` refuse before anything is opened, and what they say."""

import json
import re
from pathlib import Path

import pytest

from segue.server.tokens import read_tokens, tokens_path
from tests.integration.cli_support import ask


def test_a_token_is_shown_once_and_never_listed(tmp_path: Path) -> None:
    """Who did not keep it makes another."""
    made = ask(
        *("token", "add", tmp_path, "--name", "billing", "--role", "produce", "--role", "read"),
        *("--names", "billing.*", "--expires", "30d", "--json"),
    ).json
    listed = ask("token", "ls", tmp_path, "--json")

    assert re.fullmatch(r"segue_[0-9a-f]{10}_[A-Za-z0-9_-]{43}", str(made["token"]))
    assert str(made["token"]).split("_", 2)[2] not in listed.out.decode()
    (row,) = listed.json_rows["tokens"]
    assert (row["id"], row["name"], row["roles"], row["names"]) == (
        made["id"],
        "billing",
        "produce,read",
        "billing.*",
    )
    (token,) = read_tokens(tokens_path(tmp_path))
    assert token.expires_us == token.created_us + 30 * 86_400 * 1_000_000


def test_a_token_that_is_taken_back_is_gone(tmp_path: Path) -> None:
    """Another of that id is an error, as any name that is not there."""
    made = ask("token", "add", tmp_path, "--name", "x", "--role", "admin", "--json").json
    removed = ask("token", "rm", tmp_path, str(made["id"]), "--json")
    again = ask("token", "rm", tmp_path, str(made["id"]))

    assert removed.json == {"removed": made["id"], "name": "x"}
    assert again.code == 3
    assert ask("token", "ls", tmp_path, "--json").json == {"tokens": []}


def test_plain_lines_are_for_pipes(tmp_path: Path) -> None:
    """The token stands behind its name and a tab."""
    made = ask("token", "add", tmp_path, "--name", "x", "--role", "read")

    assert made.fields[-1][0] == "token"
    assert made.fields[-1][1].startswith("segue_")


@pytest.mark.parametrize(
    "words",
    [
        ("--name", "x"),
        ("--role", "read"),
        ("--name", "x", "--role", "owner"),
        ("--name", "x", "--role", "read", "--names", "a b"),
        ("--name", "x", "--role", "read", "--expires", "soon"),
        ("--name", "x", "--role", "read", "--expires", "0"),
    ],
)
def test_a_token_that_makes_no_sense_is_a_usage_error(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Nothing is written then."""
    assert ask("token", "add", tmp_path / "data", *words).code == 2
    assert not (tmp_path / "data").exists()


def test_a_store_on_a_server_has_its_tokens_where_it_is_told(tmp_path: Path) -> None:
    """Redis has no directory; the file is named."""
    url = "redis://127.0.0.1:1/0"
    assert ask("token", "ls", url).code == 2
    path = tmp_path / "tokens.json"
    ask("token", "add", url, "--name", "x", "--role", "read", "--tokens", path)

    assert len(read_tokens(path)) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--host", "0.0.0.0"), "it lacks tokens"),
        (("--host", "::"), "it lacks tokens"),
        (("--host", "no.such.host.invalid"), "there is no address"),
        (("--tls-cert", "x.crt"), "come together"),
        (("--tls-cert", "x.crt", "--tls-key", "x.key"), "cannot be used"),
        (("--cors-origin", "*"), "is no origin"),
        (("--cors-origin", "https://a.example/path"), "is no origin"),
        (("--port", "70000"), "70000"),
        (("--max-body", "much"), "is no size"),
    ],
)
def test_what_cannot_be_served_is_said_before_anything_is_opened(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    """One line, exit code 2, and no store."""
    answer = ask("serve", tmp_path / "data", "--port", "0", *words)

    assert answer.code == 2
    assert said in answer.err
    assert len(answer.err.splitlines()) == 1
    assert not (tmp_path / "data").exists()


def test_tokens_alone_do_not_make_a_public_server_safe(tmp_path: Path) -> None:
    """They would be overheard."""
    ask("token", "add", tmp_path, "--name", "x", "--role", "read")
    answer = ask("serve", tmp_path, "--host", "0.0.0.0", "--port", "0", "--json")

    assert answer.code == 2
    said = json.loads(answer.err)["message"]
    assert "a certificate" in said
    assert "lacks tokens" not in said


def test_a_file_of_tokens_that_is_named_must_be_there(tmp_path: Path) -> None:
    """A slip in its name must not open the store to everybody."""
    answer = ask("serve", tmp_path / "data", "--tokens", tmp_path / "tokns.json", "--port", "0")

    assert answer.code == 3
    assert not (tmp_path / "data").exists()


def test_a_server_is_not_served_again(tmp_path: Path) -> None:
    """A store behind a server is that server's to serve."""
    answer = ask("serve", "http://127.0.0.1:1", "--port", "0")

    assert answer.code == 2
    assert "served already" in answer.err
