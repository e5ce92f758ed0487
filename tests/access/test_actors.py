"""The audit names the caller, regardless of the name in the call: for every route that changes something."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.access.test_routes import FAILED, ITEM, Place
from tests.access.world import OWN, Side, World, everywhere, limited
from tests.servers.asgi import Client

from redrive import Broker
from redrive.auth.principal import TOKENS_NAMESPACE, Permission, Principal, Role
from redrive.contract.queries import ListOperations, ListRegistrations
from redrive.server.routes.table import ROUTES

FORGED = "mallory"
READING = {Permission.READ, Permission.READ_PAYLOADS, Permission.READ_RESULTS}
ADMIN, OPERATOR = Role.ADMIN, Role.OPERATOR
Call = Mapping[str, Any]


class Change(NamedTuple):
    """A call that changes something and is audited, and what has to be there before."""

    call: Callable[[Side], Call]
    role: Role = OPERATOR
    before: Callable[[Broker, Side], Any] = lambda broker, side: None


def of(id: str, role: Role = OPERATOR, before: Any = None, **more: Any) -> Change:
    call: Callable[[Side], Call] = lambda s: {"ids": [getattr(s, id)], **more}  # noqa: E731
    return Change(call, role) if before is None else Change(call, role, before)


def of_operation(before: Any = None, **more: Any) -> Change:
    call: Callable[[Side], Call] = lambda s: {"id": s.operation, **more}  # noqa: E731
    return Change(call) if before is None else Change(call, OPERATOR, before)


def captured(broker: Broker, side: Side) -> None:
    side.task = broker.put_failed(side.third_queue, 1, "down", max_attempts=9).id  # type: ignore[attr-defined]


def archived(broker: Broker, side: Side) -> None:
    broker.archive(side.letter_id, actor="world")


def ended(broker: Broker, side: Side) -> None:
    broker.resume_operation(side.operation, actor="world")
    broker.run_operation(side.operation)


AUDITED: dict[str, Change] = {
    "queues.update": Change(lambda s: {"name": s.queue, "settings": {"max_attempts": 9}}, ADMIN),
    "queues.pause": Change(lambda s: {"name": s.queue}),
    "queues.resume": Change(lambda s: {"name": s.queue}, before=lambda b, s: b.pause_queue(s.queue, actor="world")),
    "queues.delete": Change(lambda s: {"name": s.third_queue, "confirm": 0}, ADMIN),
    "queue.clear": Change(lambda s: {"queue": s.queue, "confirm": 1}, ADMIN),
    "items.delete": of("id", ADMIN),
    "items.retry": of("task", before=captured),
    "items.done": of("id"),
    "items.fail": of("id", error="e"),
    "items.bury": of("id"),
    "items.move": of("id", to="own-third"),
    "items.reschedule": of("id", delay="1m"),
    "items.undo": of("letter_id", before=lambda b, s: b.redrive(s.letter_id, actor="world")),
    "items.import": Change(lambda s: {"queue": s.queue, "items": [{"source_id": "ab" * 16, **ITEM}]}, ADMIN),
    "dead.redrive": of("letter_id"),
    "dead.archive": of("letter_id"),
    "dead.restore": of("letter_id", before=archived),
    "dead.purge": of("letter_id", ADMIN, archived),
    "operations.start": Change(lambda s: {"verb": "archive", "queue": s.dead_queue}),
    "operations.cancel": of_operation(),
    "operations.pause": of_operation(lambda b, s: b.resume_operation(s.operation, actor="world")),
    "operations.resume": of_operation(),
    "operations.set_rate": of_operation(rate=5),
    "operations.undo": of_operation(ended),
    "breakers.open": Change(lambda s: {"queue": s.queue}),
    "breakers.close": Change(lambda s: {"queue": s.queue}, before=lambda b, s: b.open_breaker(s.queue, actor="world")),
    "capture.retry": Change(lambda s: {"queue": s.third_queue, "task_id": s.task}, before=captured),  # type: ignore[attr-defined]
    "capture.archive": Change(lambda s: {"queue": s.dead_queue, "task_id": s.letter_id}),
    "capture.restore": Change(lambda s: {"queue": s.dead_queue, "task_id": s.letter_id}, before=archived),
    "capture.clear": Change(lambda s: {"queue": s.dead_queue}, ADMIN),
    "tokens.create": Change(lambda s: {"name": "shop", "roles": ["producer"]}, ADMIN),
    "tokens.revoke": Change(lambda s: {"name": FORGED}, ADMIN),
}
"""Routes whose changes the audit records. Those of tokens name nobody: the caller is known."""
UNAUDITED: dict[str, tuple[Callable[[Side], Call], Role]] = {
    "queues.create": (lambda s: {"name": "own-new"}, ADMIN),
    "queue.produce": (lambda s: {"queue": s.queue, "items": [ITEM]}, Role.PRODUCER),
    "queue.lease": (lambda s: {"queue": s.queue, "worker": FORGED}, Role.CONSUMER),
    "items.lease": (lambda s: {"ids": [s.id], "worker": FORGED}, Role.CONSUMER),
    "queue.complete": (lambda s: {"queue": s.queue, "items": [{"token": s.token}]}, Role.CONSUMER),
    "queue.retry": (lambda s: {"queue": s.queue, "items": [{"token": s.token, "error": "e"}]}, Role.CONSUMER),
    "queue.extend": (lambda s: {"queue": s.queue, "items": [{"token": s.token}]}, Role.CONSUMER),
    "items.hold": (lambda s: {"ids": [s.id], "held_by": "x"}, OPERATOR),
    "items.unhold": (lambda s: {"ids": [s.id], "held_by": "x"}, OPERATOR),
    "capture.enqueue": (lambda s: {"queue": s.third_queue, **FAILED}, Role.CAPTURER),
}
"""Routes that change something and leave no row in the audit: the work of programs, in the feed and the history."""
NAMES_NOBODY = {"tokens.create", "tokens.list", "tokens.revoke"}


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    place = Place()
    await place.open()
    yield place
    await place.close()


def test_every_route_that_changes_something_is_in_a_table() -> None:
    changing = {route.name for route in ROUTES if route.permission not in READING}
    assert AUDITED.keys() | UNAUDITED.keys() == changing - {"tokens.list"}
    with_actor = {route.name for route in ROUTES if "actor" in getattr(route.request_type, "__struct_fields__", ())}
    assert with_actor == AUDITED.keys() - NAMES_NOBODY


def all_that_is_written(world: World) -> str:
    """Everything that names who did something, of the namespace."""
    core = world.broker.core
    page = world.broker.find(status="any", archived=True, limit=1000)
    kept = (
        world.broker.audit(1000),
        world.broker.feed(after=0, limit=1000),
        page,
        core.read(ListOperations()),
        core.read(ListRegistrations("worker")),
        world.broker.list_queues(),
    )
    return str([msgspec.to_builtins(each) for each in kept])


def callers(role: Role) -> list[Principal]:
    """Those who may do everything too: to be let in is one thing, to be named is another."""
    return [everywhere(ADMIN)] if role is ADMIN else [everywhere(ADMIN), everywhere(role)]


@pytest.mark.parametrize("route", AUDITED)
async def test_audit_names_the_caller(route: str, place: Place) -> None:
    change = AUDITED[route]
    for principal in callers(change.role):
        await place.close()
        await place.open()
        assert place.server is not None
        world, side = place.world, place.world.sides[OWN]
        place.caller.principal, client = everywhere(ADMIN), Client(place.server)
        if route == "tokens.revoke":
            await client.ok("tokens.create", name=FORGED, roles=["producer"])
        change.before(world.broker, side)
        in_tokens = route in NAMES_NOBODY
        audit = (await place.server.brokers.at(TOKENS_NAMESPACE)).audit if in_tokens else world.awaited.audit
        newest = max((entry.number for entry in await audit(1)), default=0)
        place.caller.principal = principal
        forged = {} if in_tokens else {"actor": FORGED}
        await client.ok(route, **change.call(side), **forged)
        entries = [entry for entry in await audit(100) if entry.number > newest]
        assert entries, "nothing was audited"
        assert {entry.actor for entry in entries} == {"ann"}
        assert FORGED not in all_that_is_written(world)


@pytest.mark.parametrize("route", UNAUDITED)
async def test_work_is_not_audited_and_bears_the_name_of_the_token(route: str, place: Place) -> None:
    assert place.server is not None
    call, role = UNAUDITED[route]
    before = place.world.broker.audit(1000)
    place.caller.principal = limited(role)
    await Client(place.server).ok(route, **call(place.world.sides[OWN]))
    assert place.world.broker.audit(1000) == before
    written = all_that_is_written(place.world).replace(f"ann/{FORGED}", "")
    assert FORGED not in written
