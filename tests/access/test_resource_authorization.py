"""Nobody gets into a namespace by a pattern, or into a queue by what an item's past or an operation says of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.access.world import OWN_QUEUES, World, everywhere, limited
from tests.servers.asgi import Answer, Client

from redrive import Verb, connect_async
from redrive.auth.principal import TOKENS_NAMESPACE, Permission, Principal, Role
from redrive.contract.admin_calls import ManualChange, ManualTarget, SetOperation, StartOperation, StepOperation
from redrive.contract.maintenance_calls import Import
from redrive.contract.queries import GetItems, GetQueue
from redrive.contract.replies import REPLY_TO
from redrive.errors import Forbidden, RedriveError
from redrive.model.filter import Filter
from redrive.model.ids import ItemId
from redrive.model.item import HistoryEntry, HistoryEvent, Item, Status
from redrive.model.operation import Operation, OperationStatus
from redrive.server.asgi import Server
from redrive.server.authentication import NoAuthentication
from redrive.server.broker_pool import BrokerPool
from redrive.server.routes import store_api
from redrive.server.routes.table import ROUTES

ADMIN = frozenset({Role.ADMIN})
OPERATOR, MANAGER = limited(Role.OPERATOR), limited(Role.ADMIN)
IN_ALL_NAMESPACES_BUT = ("re*", "*-*", "*tokens", "[!p]*", "redrive-token?", "redrive-*", "**", TOKENS_NAMESPACE)


class Place(NoAuthentication):
    """A server with both sides in its store, and whoever calls it."""

    def __init__(self, server: Server, world: World) -> None:
        self.server, self.world = server, world
        self.principal = everywhere(Role.ADMIN)

    async def identify(self, headers: dict[bytes, bytes]) -> Principal:
        return self.principal

    async def call(self, principal: Principal, route: str, namespace: str = "default", **call: Any) -> Answer:
        self.principal = principal
        return await Client(self.server, **{"redrive-namespace": namespace}).call(route, **call)

    async def made(self, principal: Principal, call: Any) -> Any:
        """The result of a call of our own client, as it is let in; or the refusal."""
        (checked,) = self.world.authorize(principal, call)
        if isinstance(checked, RedriveError):
            return checked
        return self.world.broker.core.store.commit([checked]).results[0]

    def pending(self, queue: str) -> int:
        return self.world.broker.stats(queue).pending


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    brokers = BrokerPool(lambda namespace: connect_async("memory://", namespace=namespace, maintenance=False))
    server = Server(brokers, (*ROUTES, *store_api.routes()))
    place = Place(server, World((await brokers.at("default")).core))
    server.access = place
    yield place
    await server.close()


@pytest.mark.parametrize("pattern", IN_ALL_NAMESPACES_BUT)
async def test_no_pattern_lets_an_admin_into_the_namespace_of_tokens(place: Place, pattern: str) -> None:
    for namespaces in ((pattern,), ("*", pattern)):
        regional = Principal("ann", ADMIN, namespaces=namespaces)
        assert not regional.may_enter(TOKENS_NAMESPACE)
        for namespace in ("reports", TOKENS_NAMESPACE):
            answer = await place.call(regional, "tokens.create", namespace, name="mine", roles=["admin"])
            assert answer.status == 403
            assert (await place.call(regional, "tokens.list", namespace)).status == 403
            assert (await place.call(regional, "tokens.revoke", namespace, name="ann")).status == 403
        assert (await place.call(regional, "queues.list", TOKENS_NAMESPACE)).status == 403
        (refusal,) = place.world.authorize(regional, GetQueue("own-jobs"), namespace=TOKENS_NAMESPACE)
        assert isinstance(refusal, Forbidden)
    assert TOKENS_NAMESPACE not in place.server.brokers.open


async def test_admin_of_some_queues_is_not_let_into_the_namespace_of_tokens() -> None:
    assert not Principal("ann", ADMIN, queues=OWN_QUEUES).may_enter(TOKENS_NAMESPACE)
    assert Principal("ann", ADMIN).may_enter(TOKENS_NAMESPACE)
    assert Principal("ann", ADMIN).may(Permission.MANAGE_TOKENS, TOKENS_NAMESPACE)


def forged(place: Place) -> Item:
    """An item of the caller's queue whose past says that it was brought back from a queue of others."""
    letter = place.world.broker.get(place.world.sides["own"].letter_id)
    death = msgspec.structs.replace(letter.deaths[-1], queue="foreign-jobs")
    brought = HistoryEntry(
        letter.put_at,
        HistoryEvent.REDRIVEN,
        "foreign-jobs",
        0,
        actor="x",
        from_status=Status.PENDING,
        from_dead_letter=True,
    )
    id = ItemId("9" + "0" * 31)
    return msgspec.structs.replace(
        letter,
        id=id,
        queue="own-jobs",
        idempotency_key=None,
        counters=msgspec.structs.replace(letter.counters, deliveries=0),
        deaths=(death,),
        history=(brought,),
    )


async def imported(place: Place) -> str:
    call = Import("own-jobs", (forged(place),), "x")
    (receipt,) = await place.made(MANAGER, call)
    return str(receipt.id)


async def test_undo_of_an_imported_past_does_not_lead_into_a_queue_of_others(place: Place) -> None:
    id, before = await imported(place), place.pending("foreign-jobs")
    assert (await place.call(MANAGER, "items.undo", ids=[id])).json["code"] == "forbidden"
    assert isinstance(await place.made(MANAGER, ManualChange(Verb.UNDO, (ManualTarget(ItemId(id)),), "x")), Forbidden)
    assert place.pending("foreign-jobs") == before
    assert (await place.call(everywhere(Role.ADMIN), "items.undo", ids=[id])).status == 200
    assert place.pending("foreign-jobs") == before + 1


async def test_undo_does_not_fill_the_dead_queue_of_others(place: Place) -> None:
    letter = place.world.sides["foreign"].letter_id
    place.world.broker.redrive(letter, to="own-jobs")
    for principal in (OPERATOR, MANAGER):
        assert (await place.call(principal, "items.undo", ids=[letter])).json["code"] == "forbidden"
    assert place.world.broker.get(letter).queue == "own-jobs"


async def test_own_redrive_is_undone_by_an_operator_of_the_queue(place: Place) -> None:
    letter = place.world.sides["own"].letter_id
    assert (await place.call(OPERATOR, "dead.redrive", ids=[letter])).status == 200
    assert (await place.call(OPERATOR, "items.undo", ids=[letter])).status == 200
    assert place.world.broker.get(letter).queue == "own-dead"


async def test_drop_needs_manage_and_its_undo_operate_in_the_queue(place: Place) -> None:
    letter = place.world.sides["own"].letter_id
    assert (await place.call(OPERATOR, "items.delete", ids=[letter])).json["code"] == "forbidden"
    assert (await place.call(MANAGER, "items.delete", ids=[letter])).status == 200
    assert place.world.broker.get(letter).dropped is not None
    assert (await place.call(OPERATOR, "items.undo", ids=[letter])).status == 200
    foreign = place.world.sides["foreign"].letter_id
    place.world.broker.drop(foreign)
    for principal in (OPERATOR, MANAGER):
        for call in ("items.undo", "dead.restore"):
            assert (await place.call(principal, call, ids=[foreign])).json["code"] == "item_not_found"
    assert place.world.broker.get(foreign).dropped is not None


async def test_undo_of_many_is_for_those_who_may_everywhere(place: Place) -> None:
    id, before = await imported(place), place.pending("foreign-jobs")
    where = Filter(queue="own-jobs", status=Status.PENDING)
    for principal in (OPERATOR, MANAGER):
        answer = await place.call(principal, "operations.start", verb="undo", queue="own-jobs")
        assert answer.json["code"] == "forbidden"
        seen = await place.call(principal, "operations.start", verb="undo", queue="own-jobs", dry_run=True)
        assert seen.status == 200
        assert isinstance(
            await place.made(principal, StartOperation(verb=Verb.UNDO, where=where, actor="x")), Forbidden
        )
    assert (
        await place.call(everywhere(Role.OPERATOR), "operations.start", verb="undo", queue="own-jobs")
    ).status == 200
    assert place.pending("foreign-jobs") == before
    assert place.world.broker.get(id).queue == "own-jobs"


def started(place: Place, verb: Verb, where: Filter, to: str | None = None) -> Operation:
    """An operation of somebody who may everything. It waits to be resumed."""
    call = StartOperation(verb=verb, where=where, actor="root", to=to, paused=True)
    operation: Operation = place.world.broker.submit(call)
    return operation


def taking_elsewhere(place: Place) -> list[Operation]:
    """Operations about the caller's own queues that take items to wherever others say."""
    own_dead = Filter(queue="own-dead", status=Status.DEAD)
    return [
        started(place, Verb.REDRIVE, own_dead, "foreign-jobs"),
        started(place, Verb.REDRIVE, own_dead),
        started(place, Verb.MOVE, Filter(queue="own-jobs", status=Status.PENDING), "foreign-jobs"),
        started(place, Verb.UNDO, Filter(queue="own-jobs", status=Status.PENDING)),
    ]


async def test_nobody_drives_an_operation_into_queues_of_others(place: Place) -> None:
    for operation in taking_elsewhere(place):
        for route, more in (("operations.resume", {}), ("operations.set_rate", {"rate": 5})):
            for principal in (OPERATOR, MANAGER):
                answer = await place.call(principal, route, id=operation.id, **more)
                assert answer.json["code"] == "forbidden", (route, operation)
        for call in (
            StepOperation(operation.id, 0),
            SetOperation(operation.id, "x", OperationStatus.RUNNING),
            SetOperation(operation.id, "x", rate=5.0),
        ):
            assert isinstance(await place.made(MANAGER, call), Forbidden), (call, operation)
        assert (await place.call(everywhere(Role.OPERATOR), "operations.resume", id=operation.id)).status == 200


async def test_operation_that_takes_items_out_of_ones_queue_may_be_halted(place: Place) -> None:
    for operation in taking_elsewhere(place):
        assert (await place.call(OPERATOR, "operations.info", id=operation.id)).status == 200
        assert (await place.call(OPERATOR, "operations.cancel", id=operation.id)).status == 200


async def test_operation_is_not_taken_back_out_of_queues_of_others(place: Place) -> None:
    operation = started(place, Verb.REDRIVE, Filter(queue="own-dead", status=Status.DEAD), "foreign-jobs")
    broker, before = place.world.broker, place.pending("foreign-jobs")
    broker.resume_operation(operation.id)
    broker.run_operation(operation.id)
    assert place.pending("foreign-jobs") == before + 1
    for principal in (OPERATOR, MANAGER):
        assert (await place.call(principal, "operations.undo", id=operation.id)).json["code"] == "forbidden"
    assert (await place.call(everywhere(Role.OPERATOR), "operations.undo", id=operation.id)).status == 200


async def test_letter_of_another_store_does_not_go_back_there_for_somebody_let_into_some_queues(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    letter = place.world.sides["own"].letter_id
    core = place.world.broker.core
    inner = core.store.read

    def from_afar(query: Any) -> Any:
        found = inner(query)
        if isinstance(query, GetItems):
            return tuple([item and msgspec.structs.replace(item, home_store="there") for item in found])
        return found

    monkeypatch.setattr(core.store, "read", from_afar)
    assert (await place.call(OPERATOR, "dead.redrive", ids=[letter])).json["code"] == "forbidden"
    assert isinstance(
        await place.made(OPERATOR, ManualChange(Verb.REDRIVE, (ManualTarget(ItemId(letter)),), "x")), Forbidden
    )


async def test_replies_are_not_led_into_foreign_queues_by_an_edit_or_an_import(place: Place) -> None:
    own, foreign = place.world.sides["own"], place.world.sides["foreign"]
    edited = await place.call(OPERATOR, "dead.redrive", ids=[own.letter_id], new_headers={REPLY_TO: foreign.queue})
    assert edited.json["code"] == "invalid_name"
    line = {"source_id": "f" * 32, "payload": 1, "headers": {REPLY_TO: foreign.queue}}
    imported = await place.call(MANAGER, "items.import", queue=own.queue, items=[line])
    assert imported.json["code"] == "forbidden"
    line["headers"] = {REPLY_TO: own.queue}
    assert (await place.call(MANAGER, "items.import", queue=own.queue, items=[line])).status == 200
