"""The twin is what the generator writes, and has all that the contract has."""

import inspect
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from segue import aio
from segue.stores import contract, opening, topic_contract
from segue.stores.consumer import Consumer
from segue.stores.job import Job
from tools import generate_aio
from tools.aio_sources import OutOfDate

TWINS: dict[type, type] = {
    contract.Store: aio.Store,
    contract.Queue: aio.Queue,
    contract.Ring: aio.Ring,
    contract.Transaction: aio.Transaction,
    contract.Lock: aio.Lock,
    contract.HeldLock: aio.HeldLock,
    Job: aio.Job,
    topic_contract.Topic: aio.Topic,
    topic_contract.Producer: aio.Producer,
    topic_contract.TopicReader: aio.TopicReader,
    topic_contract.Group: aio.Group,
    topic_contract.Member: aio.Member,
}
FOR_STORES = {"know", "settle"}
RENAMED = {"__enter__": "__aenter__", "__exit__": "__aexit__", "__iter__": "__aiter__"}


def public_names(noun: type) -> list[str]:
    return [
        name
        for name, value in vars(noun).items()
        if (not name.startswith("_") or name in RENAMED)
        and name not in FOR_STORES
        and (inspect.isfunction(value) or isinstance(value, property))
    ]


def parameters(function: object) -> list[tuple[str, object, object]]:
    assert callable(function)
    return [
        (each.name, each.kind, each.default)
        for each in inspect.signature(function).parameters.values()
    ]


def test_the_files_are_what_the_generator_writes() -> None:
    """Nobody keeps the two equal by hand: after a change of the contract, `make generate`."""
    texts = generate_aio.generated()

    assert sorted(generate_aio.TARGETS.glob("_generated*.py")) == sorted(texts)
    for path, text in texts.items():
        assert path.read_text() == text, path.name


def test_every_noun_of_the_contract_has_a_twin() -> None:
    nouns = {
        noun
        for module in (contract, topic_contract)
        for noun in vars(module).values()
        if inspect.isclass(noun)
        and noun.__module__ == module.__name__
        and getattr(noun, "_is_protocol", False)
    }

    assert nouns | {Job} == TWINS.keys()


def test_every_twin_is_a_public_name() -> None:
    """With what they return besides: loops over jobs, and iterators."""
    names = {twin.__name__ for twin in TWINS.values()} | {"Consumer", "Items", "open"}

    assert set(aio.__all__) == names
    assert [name for name in aio.__all__ if not hasattr(aio, name)] == []


@pytest.mark.parametrize(("noun", "twin"), TWINS.items(), ids=lambda noun: noun.__name__)
def test_a_twin_has_every_method_with_the_same_arguments(noun: type, twin: type) -> None:
    for name in public_names(noun):
        original = inspect.getattr_static(noun, name)
        copy = inspect.getattr_static(twin, RENAMED.get(name, name))
        if not inspect.isfunction(original):
            assert isinstance(copy, property), name
            continue

        assert parameters(copy) == parameters(original), name


@pytest.mark.parametrize(("noun", "twin"), TWINS.items(), ids=lambda noun: noun.__name__)
def test_a_twin_says_what_the_original_says(noun: type, twin: type) -> None:
    """Every method has a docstring where the original has one."""
    names = [name for name in public_names(noun) if getattr(noun, name).__doc__]

    assert [name for name in names if not getattr(twin, RENAMED.get(name, name)).__doc__] == []


def test_opening_takes_the_same_arguments() -> None:
    assert parameters(aio.open) == parameters(opening.open)


@pytest.mark.parametrize(("noun", "twin"), TWINS.items(), ids=lambda noun: noun.__name__)
def test_iterators_become_asynchronous_iterators(noun: type, twin: type) -> None:
    """And nothing else does."""

    def returning(word: str, of: type) -> list[str]:
        methods = {name: inspect.getattr_static(of, name, None) for name in public_names(noun)}
        returns = {
            name: inspect.signature(method).return_annotation
            for name, method in methods.items()
            if inspect.isfunction(method)
        }
        return [
            name
            for name, each in returns.items()
            if str(each).removeprefix("segue.aio._items.").startswith(word) and name not in RENAMED
        ]

    assert returning("Items[", twin) == returning("Iterator[", noun)
    assert issubclass(aio.Items, AsyncIterator)


def test_the_loop_has_the_same_verbs() -> None:
    """It is written by hand: its names follow the language, its arguments the original."""
    renamed = {"close": "aclose", "__next__": "__anext__", **RENAMED}
    for name in ["stop", "close", *renamed]:
        assert hasattr(Consumer, name)
        assert hasattr(aio.Consumer, renamed.get(name, name))
    assert parameters(aio.Consumer) == parameters(Consumer)


def test_the_contract_of_topics_is_tested_through_asyncio() -> None:
    """Every part of it, by a module here that imports it."""
    here = Path(__file__).parent
    parts = [path.stem.removeprefix("test_") for path in here.parent.glob("contract/test_topic_*")]
    twins = [
        path.stem.removeprefix("test_aio_contract_") for path in here.glob("*_contract_topic_*")
    ]

    assert sorted(twins) == sorted(parts)


def test_a_table_that_no_longer_fits_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tables of the generator speak of must be there."""
    monkeypatch.setattr(generate_aio, "PHRASES", (("nobody says this", "nor that"),))
    with pytest.raises(OutOfDate):
        generate_aio.generated()
