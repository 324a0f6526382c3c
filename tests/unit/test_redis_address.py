"""What the URLs of Redis stores say, and which of them say nothing."""

import pytest

from segue.errors import InvalidArgument
from segue.stores.redis.address import Address, Options, address_from, is_redis
from tests.unit.support import failing_cases


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://", Address(kind="single", endpoints=(("localhost", 6379),))),
        ("redis://box", Address(kind="single", endpoints=(("box", 6379),))),
        ("redis://box:7000/3", Address(kind="single", endpoints=(("box", 7000),), database=3)),
        ("redis://box?db=3", Address(kind="single", endpoints=(("box", 6379),), database=3)),
        ("redis://[::1]:7000", Address(kind="single", endpoints=(("::1", 7000),))),
        ("redis://[::1]", Address(kind="single", endpoints=(("::1", 6379),))),
        ("rediss://box", Address(kind="single", endpoints=(("box", 6379),), is_encrypted=True)),
        ("unix:///run/redis.sock", Address(kind="unix", path="/run/redis.sock")),
        ("unix:///run/a%20b?db=2", Address(kind="unix", path="/run/a b", database=2)),
        (
            "redis+cluster://a:1,b,[::1]:3",
            Address(kind="cluster", endpoints=(("a", 1), ("b", 6379), ("::1", 3))),
        ),
        (
            "redis+sentinel://a,b:2/main/4",
            Address(
                kind="sentinel", endpoints=(("a", 26379), ("b", 2)), service="main", database=4
            ),
        ),
        (
            "rediss+sentinel://a/main",
            Address(kind="sentinel", endpoints=(("a", 26379),), service="main", is_encrypted=True),
        ),
    ],
)
def test_a_url_says_where_the_store_is(url: str, expected: Address) -> None:
    assert is_redis(url)
    assert address_from(url) == expected


@pytest.mark.parametrize(
    ("login", "username", "password"),
    [
        ("ann:secret@", "ann", "secret"),
        (":secret@", None, "secret"),
        ("ann@", "ann", None),
        ("ann:p%40ss%3Aw%2Frd@", "ann", "p@ss:w/rd"),
        ("", None, None),
    ],
)
def test_a_login_may_hold_any_character(
    login: str, username: str | None, password: str | None
) -> None:
    address = address_from(f"redis://{login}box/0")

    assert (address.username, address.password) == (username, password)
    assert address.endpoints == (("box", 6379),)


def test_options_follow_the_question_mark() -> None:
    address = address_from(
        "redis://box?namespace=jobs&connections=4&pool_wait=0.5&timeout=1&retry=0"
        "&replicas=2&fsync=yes&ca=/a&certificate=/b&key=/c"
    )

    assert address.options == Options(
        namespace="jobs",
        connections=4,
        pool_wait=0.5,
        timeout=1.0,
        retry=0.0,
        replicas=2,
        fsync=True,
        ca="/a",
        certificate="/b",
        key="/c",
    )


@pytest.mark.parametrize("text", ["1", "yes", "true", "On", "YES"])
def test_a_flag_is_said_in_several_ways(text: str) -> None:
    assert address_from(f"redis://box?fsync={text}").options.fsync


def test_a_url_that_makes_no_sense_is_refused() -> None:
    def check(url: str) -> None:
        with pytest.raises(InvalidArgument):
            address_from(url)

    failing = failing_cases(
        check,
        [
            "redis://box:port",
            "redis://box:0",
            "redis://box:65536",
            "redis://box/one",
            "redis://box/-1",
            "redis://box/65536",
            "redis://box/0/1",
            "redis://box?namespase=jobs",
            "redis://box?connections=0",
            "redis://box?connections=10001",
            "redis://box?connections=many",
            "redis://box?timeout=0",
            "redis://box?timeout=nan",
            "redis://box?retry=-1",
            "redis://box?retry=inf",
            "redis://box?replicas=-1",
            "redis://box?fsync=perhaps",
            "redis://box?namespace=",
            "redis://box?namespace=../up",
            "unix://",
            "unix://run/redis.sock",
            "redis+cluster://a,b/1",
            "redis+cluster://a?db=1",
            "redis+sentinel://a,b",
            "redis+sentinel://a/main/one",
        ],
    )
    assert failing == []


@pytest.mark.parametrize(
    "url",
    [
        "redis://ann:hunter2@box:port",
        "redis://ann:hunter2@box/one",
        "redis://ann:hunter2@box?unknown=1",
        "redis+sentinel://ann:hunter2@box",
        "unix://ann:hunter2@box/run/redis.sock",
        "redis://ann:hunter2/is@box",
        "redis://ann:hunter2#is@box:1",
        "redis://ann:hunter2?is@box:1",
    ],
)
def test_no_refusal_repeats_a_password(url: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        address_from(url)

    assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://ann:hunter2@box/1", "redis://ann@box:6379/1"),
        ("redis://:hunter2@box", "redis://box:6379/0"),
        ("rediss://:hunter2@[::1]", "rediss://[::1]:6379/0"),
        ("redis+cluster://:hunter2@a,b", "redis+cluster://a:6379,b:6379"),
        ("redis+sentinel://:hunter2@a/main", "redis+sentinel://a:26379/main/0"),
        ("unix://:hunter2@/run/redis.sock?db=1", "unix:///run/redis.sock?db=1"),
    ],
)
def test_what_is_shown_of_an_address_has_no_password(url: str, shown: str) -> None:
    address = address_from(url)

    assert address.url == shown
    assert "hunter2" not in repr(address)
    assert address_from(shown).endpoints == address.endpoints


@pytest.mark.parametrize("url", ["/var/queues", "file:///var", "redis", "redis:/box", "http://x"])
def test_what_is_no_redis_url_is_another_stores(url: str) -> None:
    assert not is_redis(url)
