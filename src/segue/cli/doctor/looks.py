"""Which looks are taken at what: a directory or a server, and always what is installed."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import typer

from segue.cli.doctor.check import Check
from segue.cli.doctor.clock import read_clocks
from segue.cli.doctor.directory import directory_checks
from segue.cli.doctor.installed import installed_checks, look_at_installed
from segue.cli.doctor.java import NAME as JAVA
from segue.cli.doctor.java import java_check, look_at_java
from segue.cli.doctor.probe import Probe
from segue.cli.doctor.redis_server import redis_server_checks
from segue.cli.doctor.redis_verdicts import REDIS
from segue.cli.doctor.running import checks_of
from segue.cli.doctor.segue_server import SERVER, segue_server_checks
from segue.stores.http.address import address_from as http_address_from
from segue.stores.http.address import is_http
from segue.stores.opening import directory_of
from segue.stores.redis.address import address_from as redis_address_from
from segue.stores.redis.address import is_redis


def all_checks(url: str, *, redis_url: str | None, probe: Probe) -> Iterator[Check]:
    """Yield every check, in order. Raises InvalidArgument for a URL that names nothing."""
    began = read_clocks()
    if redis_url is not None and not is_redis(redis_url):
        raise typer.BadParameter("redis://host names one", param_hint="--redis")
    servers = [each for each in (url, redis_url) if each is not None and is_redis(each)]
    for server in servers:
        redis_address_from(server)  # What was mistyped is told before anything is looked at.
    if is_http(url):
        http_address_from(url)
        yield from checks_of(SERVER, lambda: segue_server_checks(url))
    elif not is_redis(url):
        directory_of(url)
        yield from directory_checks(Path(url), probe, began)
    for server in servers:
        yield from checks_of(REDIS, partial(redis_server_checks, server))
    yield from checks_of("installed", lambda: installed_checks(look_at_installed()))
    yield from checks_of(JAVA, lambda: [java_check(look_at_java())])
