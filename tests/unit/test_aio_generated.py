"""The twin is what the generator writes, and has all that the contract has."""

import inspect
from collections.abc import AsyncIterator, Iterator

import pytest

from segue import aio
from segue.stores import contract, opening
from segue.stores.consumer import Consumer
from segue.stores.job import Job
from tools import generate_aio

TWINS: dict[type, type] = {
    contract.Store: aio.Store,
    contract.Queue: aio.Queue,
    contract.Ring: aio.Ring,
    contract.Transaction: aio.Transaction,
    contract.Lock: aio.Lock,
    contract.HeldLock: aio.HeldLock,
    Job: aio.Job,
}
FOR_STORES = {"settle"}
BLOCKS = {"__enter__": "__aenter__", "__exit__": "__aexit__"}


def public_names(noun: type) -> list[str]:
    return [
        name
        for name, value in vars(noun).items()
        if (not name.startswith("_") or name in BLOCKS)
        and name not in FOR_STORES
        and (inspect.isfunction(value) or isinstance(value, property))
    ]


def parameters(function: object) -> list[tuple[str, object, object]]:
    assert callable(function)
    return [
        (each.name, each.kind, each.default)
        for each in inspect.signature(function).parameters.values()
    ]


def test_the_file_is_what_the_generator_writes() -> None:
    """Nobody keeps the two equal by hand: after a change of the contract, `make generate`."""
    assert generate_aio.TARGET.read_text() == generate_aio.generated()


def test_every_noun_of_the_contract_has_a_twin() -> None:
    nouns = {
        noun
        for noun in vars(contract).values()
        if inspect.isclass(noun)
        and noun.__module__ == contract.__name__
        and getattr(noun, "_is_protocol", False)
    }

    assert nouns | {Job} == TWINS.keys()


@pytest.mark.parametrize(("noun", "twin"), TWINS.items(), ids=lambda noun: noun.__name__)
def test_a_twin_has_every_method_with_the_same_arguments(noun: type, twin: type) -> None:
    for name in public_names(noun):
        original = inspect.getattr_static(noun, name)
        copy = inspect.getattr_static(twin, BLOCKS.get(name, name))
        if not inspect.isfunction(original):
            assert isinstance(copy, property), name
            continue

        assert parameters(copy) == parameters(original), name


@pytest.mark.parametrize(("noun", "twin"), TWINS.items(), ids=lambda noun: noun.__name__)
def test_a_twin_says_what_the_original_says(noun: type, twin: type) -> None:
    """Every method has a docstring where the original has one."""
    names = [name for name in public_names(noun) if getattr(noun, name).__doc__]

    assert [name for name in names if not getattr(twin, BLOCKS.get(name, name)).__doc__] == []


def test_opening_takes_the_same_arguments() -> None:
    assert parameters(aio.open) == parameters(opening.open)


def test_iterators_become_asynchronous_iterators() -> None:
    for name in public_names(contract.Queue):
        original = inspect.getattr_static(contract.Queue, name)
        if not inspect.isfunction(original):
            continue
        returns = inspect.signature(original).return_annotation
        if str(returns).startswith(Iterator.__name__):
            copy = inspect.signature(inspect.getattr_static(aio.Queue, name))

            assert copy.return_annotation.__origin__ is AsyncIterator


def test_the_loop_has_the_same_verbs() -> None:
    """It is written by hand: its names follow the language, its arguments the original."""
    renamed = {"close": "aclose", "__iter__": "__aiter__", "__next__": "__anext__", **BLOCKS}
    for name in ["stop", "close", *renamed]:
        assert hasattr(Consumer, name)
        assert hasattr(aio.Consumer, renamed.get(name, name))
    assert parameters(aio.Consumer) == parameters(Consumer)


def test_a_table_that_no_longer_fits_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tables of the generator speak of must be there."""
    monkeypatch.setattr(generate_aio, "PHRASES", (("nobody says this", "nor that"),))
    with pytest.raises(generate_aio.OutOfDate):
        generate_aio.generated()
