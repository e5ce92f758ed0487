"""A call whose rule fails after it changed something, on the SQL stores: nothing of that call is stored, the calls
beside it are done, and only its caller gets the error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pytest

from redrive import Broker, connect
from redrive.contract import Call
from redrive.contract.admin_calls import Hold, ManualChange, ManualTarget, StartOperation, Unhold
from redrive.contract.item_calls import LeaseByIds, NewItem, Put
from redrive.contract.maintenance_calls import Import
from redrive.errors import InvalidInput, StoreFailed
from redrive.model.filter import Filter
from redrive.model.ids import ItemId
from redrive.model.item import Result
from redrive.model.payload import JSON
from redrive.model.state_machine import Verb
from redrive.stores.rules.dispatch import CALL_RULES
from redrive.stores.rules.state import State
from redrive.testing.conformance.actions import kill
from redrive.testing.fake_clock import FakeClock


@pytest.fixture(params=["sqlite", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def url(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db" if kind == "sqlite" else str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def broker(url: str) -> Iterator[Broker]:
    with connect(url, maintenance=False, clock=FakeClock(), actor="ada") as broker:
        broker.create_queue("jobs")
        broker.create_queue("others")
        yield broker


def change(verb: Verb, id: ItemId, **options: Any) -> ManualChange:
    return ManualChange(verb, (ManualTarget(id),), "ada", **options)


def edit(id: ItemId) -> ManualChange:
    return ManualChange(Verb.REDRIVE, (ManualTarget(id, payload=Result(b"2", JSON)),), "ada")


CALLS: dict[str, Callable[[Broker, ItemId, ItemId], Call]] = {
    "redrive": lambda _, dead, __: change(Verb.REDRIVE, dead),
    "redrive to another queue": lambda _, dead, __: change(Verb.REDRIVE, dead, to="others"),
    "edited redrive": lambda _, dead, __: edit(dead),
    "move": lambda _, dead, __: change(Verb.MOVE, dead, to="others"),
    "archive": lambda _, dead, __: change(Verb.ARCHIVE, dead),
    "drop": lambda _, __, waiting: change(Verb.DROP, waiting),
    "done": lambda _, __, waiting: change(Verb.DONE, waiting),
    "hold": lambda _, __, waiting: Hold((waiting,), "canary"),
    "unhold": lambda _, __, waiting: Unhold("ann", (waiting,)),
    "lease by id": lambda _, dead, __: LeaseByIds((dead,), include_dead=True),
    "operation": lambda _, __, ___: StartOperation(verb=Verb.REDRIVE, where=Filter(), actor="ada"),
    "import": lambda broker, dead, __: Import("others", (broker.get(dead),), "ada"),
}
"""Calls that go by the rules, of a dead letter and of an item that has a key and a holder."""


@pytest.fixture
def dead(broker: Broker) -> ItemId:
    return kill(broker, "dead").id


@pytest.fixture
def waiting(broker: Broker) -> ItemId:
    receipt = broker.put("jobs", "waits", idempotency_key="k")
    broker.hold(receipt.id, "ann")
    return receipt.id


def everything(broker: Broker) -> tuple[object, ...]:
    items = [broker.get(item.id) for item in broker.find(status="any").items]
    stats = [broker.stats(queue) for queue in ("jobs", "others")]
    return items, stats, broker.groups(), broker.feed(), broker.audit(), broker.list_operations()


def beside(count: int) -> list[Put]:
    return [Put("others", (NewItem(b"1", JSON, is_plain=True),))] * count


@pytest.mark.parametrize("name", CALLS)
def test_refusal_after_a_change_leaves_nothing_and_the_calls_beside_it_are_done(
    broker: Broker, dead: ItemId, waiting: ItemId, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    call = CALLS[name](broker, dead, waiting)
    rule = CALL_RULES[type(call)]

    def refuse(state: State, call: Call) -> None:
        rule(state, call)
        raise InvalidInput("too late")

    before = everything(broker)
    with monkeypatch.context() as patch:
        patch.setitem(CALL_RULES, type(call), refuse)
        with pytest.raises(StoreFailed, match="refused after its first change: too late"):
            broker.core.committer.commit([call])
        assert everything(broker) == before
        first, refused, last = broker.core.committer.commit([*beside(1), call, *beside(1)])
    assert isinstance(refused, StoreFailed)
    assert len({receipt.id for (receipt,) in (first, last)}) == broker.stats("others").pending == 2
    found = broker.find(status="any", queue="jobs").items
    assert [broker.get(item.id) for item in found] == before[0]
    assert broker.audit() == before[4]
    assert not isinstance(broker.core.committer.commit([call])[0], Exception), "and then it is done"
    assert everything(broker)[0] != before[0] or name == "operation"


@pytest.mark.parametrize(
    "mistake",
    [
        msgspec.json.decode,
        Fraction,
    ],  # both refuse their arguments; a function of the test would count as a signal handler
    ids=["in C", "in Python"],
)
def test_mistake_in_a_rule_is_the_error_of_that_call_alone(
    broker: Broker,
    kind: str,
    dead: ItemId,
    waiting: ItemId,
    monkeypatch: pytest.MonkeyPatch,
    mistake: Callable[..., object],
) -> None:
    monkeypatch.setitem(CALL_RULES, ManualChange, mistake)  # type: ignore[misc]
    store: Any = broker.core.store
    writer = store._engine._writer if kind == "postgres" else None
    calls: list[Call] = [*beside(1), Unhold("ann", (waiting,)), change(Verb.REDRIVE, dead), *beside(1)]
    first, unheld, failed, last = broker.core.committer.commit(calls)
    assert isinstance(failed, StoreFailed)
    assert isinstance(failed.__cause__, TypeError)
    assert unheld == 1
    assert len({receipt.id for (receipt,) in (first, last)}) == broker.stats("others").pending == 2
    assert (broker.stats("jobs").dead, broker.stats("jobs").pending) == (1, 1)
    if kind == "postgres":
        assert store._engine._writer is writer, "the connection is kept"
