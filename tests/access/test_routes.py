"""Every route × every role × own and foreign namespaces and queues: answered or refused, as a table says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from itertools import product
from typing import Any, NamedTuple

import pytest
from tests.access.world import FOREIGN, OWN, SECRET, Side, World, everywhere, in_another_namespace, limited
from tests.servers.asgi import Answer, Client

from redrive import connect_async
from redrive.auth import store_call_authorization
from redrive.auth.caller import KnownLeases
from redrive.auth.principal import Principal, Role
from redrive.capture import flows
from redrive.contract import Query
from redrive.contract.queries import GetItems
from redrive.server.application import application
from redrive.server.asgi import Server
from redrive.server.authentication import NoAuthentication
from redrive.server.broker_pool import BrokerPool
from redrive.server.routes import store_api
from redrive.server.routes.system import PAGES
from redrive.server.routes.table import ROUTES

HERE, ALL, ANY = "in the queue", "in all queues", "in any"
ADMIN = "admin"
ON_CALL = "operator admin"
WORKS = "consumer admin"
PUTS = "producer requester consumer admin"
LOOKS = "viewer operator admin"
CAPTURES = "capturer consumer admin"
AWAITS = "requester operator admin"
REFUSED = {"forbidden", "item_not_found", "lease_lost", "operation_not_found", "result_unavailable"}
ITEM = {"payload": 1}
FAILED = {"task_id": "t", "task": 1, "error": "down"}
STORE_ROUTES = ("store.about", "store.commit", "store.read", "store.watch")
NOT_MESSAGEPACK = b"\xc1"


class Sample(NamedTuple):
    """A call of a route, who may make it, and where."""

    route: str
    make: Callable[[Side], Mapping[str, Any]]
    roles: str
    where: str


def of_items(route: str, id: str = "id", roles: str = ON_CALL, **more: Any) -> Sample:
    return Sample(route, lambda s: {"ids": [getattr(s, id)], **more}, roles, HERE)


def of_operation(route: str, operation: str, roles: str = ON_CALL, **more: Any) -> Sample:
    return Sample(route, lambda s: {"id": getattr(s, operation), **more}, roles, HERE)


SAMPLES = (
    Sample("queues.create", lambda s: {"name": f"{s.side}-new"}, ADMIN, HERE),
    Sample("queues.create", lambda s: {"name": "own-new", "settings": {"dead_queue": s.dead_queue}}, ADMIN, HERE),
    Sample("queues.update", lambda s: {"name": s.queue, "settings": {"max_attempts": 3}}, ADMIN, HERE),
    Sample("queues.update", lambda s: {"name": "own-jobs", "settings": {"dead_queue": s.dead_queue}}, ADMIN, HERE),
    Sample("queues.list", lambda s: {}, LOOKS, ANY),
    Sample("queues.stats", lambda s: {}, LOOKS, ANY),
    Sample("queues.info", lambda s: {"name": s.queue}, LOOKS, HERE),
    Sample("queues.pause", lambda s: {"name": s.queue}, ON_CALL, HERE),
    Sample("queues.resume", lambda s: {"name": s.queue}, ON_CALL, HERE),
    Sample("queues.delete", lambda s: {"name": s.third_queue}, ADMIN, HERE),
    Sample("items.by_key", lambda s: {"queue": s.queue, "keys": ["k"]}, ON_CALL, HERE),
    Sample("queue.stats", lambda s: {"queue": s.queue}, LOOKS, HERE),
    Sample("queue.clear", lambda s: {"queue": s.queue, "statuses": ["pending"], "dry_run": True}, ADMIN, HERE),
    Sample("queue.produce", lambda s: {"queue": s.queue, "items": [ITEM]}, PUTS, HERE),
    Sample("queue.lease", lambda s: {"queue": s.queue}, WORKS, HERE),
    of_items("items.lease", roles=WORKS),
    of_items("items.lease", "letter_id", roles=ADMIN, include_dead=True),
    Sample("queue.complete", lambda s: {"queue": s.queue, "items": [{"token": s.token}]}, WORKS, HERE),
    Sample("queue.complete", lambda s: {"queue": "own-jobs", "items": [{"token": s.token}]}, WORKS, HERE),
    Sample(
        "queue.complete",
        lambda s: {"queue": "own-jobs", "items": [{"token": s.own_token, "puts": [{"queue": s.queue, **ITEM}]}]},
        WORKS,
        HERE,
    ),
    Sample("queue.retry", lambda s: {"queue": s.queue, "items": [{"token": s.token, "error": "e"}]}, WORKS, HERE),
    Sample("queue.retry", lambda s: {"queue": "own-jobs", "items": [{"token": s.token, "dead": True}]}, WORKS, HERE),
    Sample("queue.extend", lambda s: {"queue": "own-jobs", "items": [{"token": s.token}]}, WORKS, HERE),
    Sample("items.list", lambda s: {"queue": s.queue}, LOOKS, HERE),
    Sample("items.list", lambda s: {"queue": s.queue, "redacted": False}, ADMIN, HERE),
    Sample("items.get", lambda s: {"id": s.id}, LOOKS, HERE),
    Sample("items.get", lambda s: {"id": s.id, "redacted": False}, ADMIN, HERE),
    Sample("items.get_many", lambda s: {"ids": [s.id]}, LOOKS, ANY),
    Sample("items.get_many", lambda s: {"ids": [s.own_id], "redacted": False}, ADMIN, ANY),
    Sample("items.result", lambda s: {"id": s.done_id}, AWAITS, HERE),
    Sample("items.result", lambda s: {"id": s.gone_id}, AWAITS, HERE),
    of_items("items.delete", roles=ADMIN),
    of_items("items.retry"),
    of_items("items.done"),
    of_items("items.fail", error="e"),
    of_items("items.bury"),
    of_items("items.move", to="own-third"),
    Sample("items.move", lambda s: {"ids": [s.own_id], "to": s.third_queue}, ON_CALL, HERE),
    of_items("items.reschedule"),
    of_items("items.undo"),
    of_items("items.hold", held_by="x"),
    of_items("items.unhold", held_by="x"),
    Sample("items.unhold", lambda s: {"held_by": "x"}, ON_CALL, ALL),
    Sample("items.import", lambda s: {"queue": s.queue, "items": [{"source_id": "ab" * 16, **ITEM}]}, ADMIN, HERE),
    Sample("dead.find", lambda s: {"queue": s.dead_queue}, LOOKS, HERE),
    Sample("dead.find", lambda s: {}, LOOKS, ALL),
    Sample("dead.find", lambda s: {"queue": s.dead_queue, "words": "x"}, ON_CALL, HERE),
    Sample("dead.find", lambda s: {"queue": s.dead_queue, "headers": {"a": "b"}}, ON_CALL, HERE),
    Sample("dead.groups", lambda s: {"queue": s.dead_queue}, LOOKS, HERE),
    Sample("dead.groups", lambda s: {}, LOOKS, ALL),
    Sample("dead.search", lambda s: {"queue": s.dead_queue, "words": "x"}, ON_CALL, HERE),
    of_items("dead.redrive", "letter_id"),
    Sample("dead.redrive", lambda s: {"ids": [s.own_letter_id], "to": s.third_queue}, ON_CALL, HERE),
    Sample("dead.redrive", lambda s: {"queue": s.dead_queue}, ON_CALL, ALL),
    Sample("dead.redrive", lambda s: {"queue": "own-dead", "to": s.third_queue}, ON_CALL, HERE),
    of_items("dead.archive", "letter_id"),
    Sample("dead.archive", lambda s: {"queue": s.dead_queue}, ON_CALL, HERE),
    of_items("dead.restore", "letter_id"),
    Sample("dead.restore", lambda s: {"queue": s.dead_queue}, ON_CALL, HERE),
    of_items("dead.purge", "letter_id", ADMIN),
    Sample("dead.purge", lambda s: {"queue": s.dead_queue, "dry_run": True}, ADMIN, HERE),
    Sample("operations.start", lambda s: {"verb": "archive", "queue": s.dead_queue}, ON_CALL, HERE),
    Sample("operations.start", lambda s: {"verb": "redrive", "queue": s.dead_queue}, ON_CALL, ALL),
    Sample("operations.start", lambda s: {"verb": "undo", "queue": s.queue}, ON_CALL, ALL),
    Sample("operations.start", lambda s: {"verb": "archive", "all": True}, ON_CALL, ALL),
    Sample(
        "operations.start",
        lambda s: {"verb": "move", "queue": s.queue, "to": "own-third", "dry_run": True},
        ON_CALL,
        HERE,
    ),
    Sample("operations.start", lambda s: {"verb": "purge", "queue": s.dead_queue, "confirm": 0}, ADMIN, HERE),
    Sample("operations.start", lambda s: {"verb": "move", "queue": "own-jobs", "to": s.third_queue}, ON_CALL, HERE),
    Sample("operations.list", lambda s: {}, LOOKS, ANY),
    of_operation("operations.info", "operation", LOOKS),
    of_operation("operations.cancel", "operation"),
    of_operation("operations.cancel", "purge"),
    of_operation("operations.pause", "operation"),
    of_operation("operations.resume", "operation"),
    of_operation("operations.resume", "purge", ADMIN),
    of_operation("operations.set_rate", "operation", rate=5),
    of_operation("operations.set_rate", "purge", ADMIN, rate=5),
    # One of his own that has not ended is no call that could be made; one that has is forbidden, as another test says.
    Sample("operations.undo", lambda s: {"id": s.operation}, ON_CALL, HERE),
    Sample("breakers.list", lambda s: {"queue": s.queue}, LOOKS, HERE),
    Sample("breakers.list", lambda s: {}, LOOKS, ANY),
    Sample("breakers.open", lambda s: {"queue": s.queue}, ON_CALL, HERE),
    Sample("breakers.close", lambda s: {"queue": s.queue}, ON_CALL, HERE),
    Sample("capture.enqueue", lambda s: {"queue": s.queue, **FAILED}, CAPTURES, HERE),
    Sample("capture.list", lambda s: {"queue": s.queue}, LOOKS, HERE),
    Sample("capture.list", lambda s: {"queue": s.queue, "category": "network"}, ON_CALL, HERE),
    Sample("capture.list", lambda s: {"queue": s.queue, "policy": "never"}, ON_CALL, HERE),
    Sample("capture.get", lambda s: {"queue": s.queue, "task_id": s.id}, LOOKS, HERE),
    Sample("capture.retry", lambda s: {"queue": s.queue, "task_id": s.id}, ON_CALL, HERE),
    Sample("capture.archive", lambda s: {"queue": s.dead_queue, "task_id": s.letter_id}, ON_CALL, HERE),
    Sample("capture.restore", lambda s: {"queue": s.dead_queue, "task_id": s.letter_id}, ON_CALL, HERE),
    Sample("capture.clear", lambda s: {"queue": s.dead_queue}, ADMIN, HERE),
    Sample("capture.statistics", lambda s: {"queue": s.queue}, LOOKS, HERE),
    Sample("feed.read", lambda s: {"queue": s.queue}, LOOKS, HERE),
    Sample("feed.read", lambda s: {}, LOOKS, ANY),
    Sample("audit.list", lambda s: {}, LOOKS, ALL),
    Sample("workers.list", lambda s: {}, LOOKS, ANY),
    Sample("moves.list", lambda s: {}, LOOKS, ALL),
    Sample("tokens.create", lambda s: {"name": "x", "roles": ["admin"]}, ADMIN, ALL),
    Sample("tokens.list", lambda s: {}, ADMIN, ALL),
    Sample("tokens.revoke", lambda s: {"name": "x"}, ADMIN, ALL),
)


class Caller(NoAuthentication):
    """Somebody who calls, whoever the test says it is."""

    principal: Principal

    async def identify(self, headers: dict[bytes, bytes]) -> Principal:
        return self.principal


class Place:
    """A server with both sides in its store. After a call that changed something it is made anew."""

    def __init__(self) -> None:
        self.server: Server | None = None
        self.caller = Caller()

    async def call(self, sample: Sample, principal: Principal, side: str, **headers: str) -> Answer:
        if self.server is None:
            await self.open()
        assert self.server is not None
        self.caller.principal = principal
        call = sample.make(self.world.sides[side])
        answer = await Client(self.server, **headers).call(sample.route, **call)
        if answer.status == 200:
            await self.close()
        return answer

    async def open(self) -> None:
        brokers = BrokerPool(lambda namespace: connect_async("memory://", namespace=namespace, maintenance=False))
        self.server = Server(brokers, (*ROUTES, *store_api.routes()), self.caller, pages=PAGES)
        self.world = World((await brokers.at("default")).core)
        own = self.world.sides[OWN]
        for side in self.world.sides.values():
            side.own_token, side.own_id, side.own_letter_id = own.token, own.id, own.letter_id

    def reads(self, kind: type[Query]) -> list[Query]:
        """Queries of this kind that the store is asked from now on."""
        store = self.world.broker.core.store
        asked: list[Query] = []
        read = store.read

        def counted(query: Query) -> Any:
            if isinstance(query, kind):
                asked.append(query)
            return read(query)

        store.read = counted  # type: ignore[method-assign]
        return asked

    async def close(self) -> None:
        if self.server is not None:
            await self.server.close()
            self.server = None


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    place = Place()
    yield place
    await place.close()


def names(sample: Sample) -> str:
    return f"{sample.route} {sample.where}"


@pytest.mark.parametrize("sample", SAMPLES, ids=names)
async def test_route_answers_those_who_may(sample: Sample, place: Place) -> None:
    for role, side in product(Role, (OWN, FOREIGN)):
        may = role in sample.roles.split()
        within = {HERE: side == OWN, ALL: False, ANY: True}[sample.where]
        for principal, expected in (
            (everywhere(role), may),
            (limited(role), may and within),
            (in_another_namespace(role), False),
        ):
            answer = await place.call(sample, principal, side)
            assert answer.status != 500, answer
            refused = answer.status != 200 and answer.json["code"] in REFUSED
            assert refused is not expected, (role, side, principal.queues, principal.namespaces, answer)


def test_route_names_the_permission_that_it_takes() -> None:
    """The document and the page say it: a role that may call a route has it, and one that has it may call the route."""
    for route in ROUTES:
        may = {role for sample in SAMPLES if sample.route == route.name for role in sample.roles.split()}
        assert may == {role for role in Role if everywhere(role).may(route.permission, "default", "own-jobs")}, (
            route.name
        )


async def test_breakers_of_other_queues_are_not_listed(place: Place) -> None:
    await place.open()
    assert place.server is not None
    for side in place.world.sides.values():
        place.world.broker.open_breaker(side.queue)
    for principal, seen in (
        (limited(Role.VIEWER), ["own-jobs"]),
        (everywhere(Role.VIEWER), ["foreign-jobs", "own-jobs"]),
    ):
        place.caller.principal = principal
        answer = await Client(place.server).call("breakers.list")
        assert [each["queue"] for each in answer.json["breakers"]] == seen


async def test_items_of_other_queues_are_not_among_many(place: Place) -> None:
    await place.open()
    assert place.server is not None
    own, foreign = (place.world.sides[side] for side in (OWN, FOREIGN))
    client = Client(place.server)
    for principal in (limited(Role.VIEWER), limited(Role.OPERATOR)):
        place.caller.principal = principal
        found = (await client.ok("items.get_many", ids=[foreign.id, own.id, foreign.letter_id]))["items"]
        assert [item and item["id"] for item in found] == [None, own.id, None]
        assert found[1].get("hidden", False) is (principal == limited(Role.VIEWER))


@pytest.mark.parametrize(
    ("route", "key", "own"),
    [
        ("operations.list", "operations", {"own-dead"}),
        ("feed.read", "entries", {"own-jobs"}),
        ("workers.list", "workers", {"own-jobs"}),
        ("queues.list", "queues", {"own-jobs", "own-dead", "own-third"}),
        ("queues.stats", "stats", {"own-jobs", "own-dead", "own-third"}),
    ],
)
async def test_list_of_a_caller_in_some_queues_is_about_these(
    route: str, key: str, own: set[str], place: Place
) -> None:
    await place.open()
    assert place.server is not None
    place.caller.principal = limited(Role.VIEWER)
    listed = (await Client(place.server).ok(route))[key]
    queues = [each.get("queues") or [each.get("queue") or each.get("where", each).get("queue", each.get("name"))]
              for each in listed]  # fmt: skip
    assert {name for names in queues for name in names} == own
    place.caller.principal = everywhere(Role.VIEWER)
    assert len((await Client(place.server).ok(route))[key]) > len(listed)


async def test_refusal_does_not_name_the_queue_that_an_id_is_in(place: Place) -> None:
    for sample in SAMPLES:
        for role in Role:
            answer = await place.call(sample, limited(role), FOREIGN)
            if answer.status == 200 or "ids" not in sample.make(place.world.sides[FOREIGN]):
                continue
            assert "foreign-" not in answer.body.decode() or "to" in sample.make(place.world.sides[FOREIGN]), answer


@pytest.mark.parametrize(
    ("route", "item"),
    [("queue.complete", {}), ("queue.retry", {"error": "no"}), ("queue.retry", {"dead": True}), ("queue.extend", {})],
)
async def test_consumer_of_some_queues_settles_what_it_leased_without_a_look_up(
    route: str, item: dict[str, Any], place: Place
) -> None:
    await place.open()
    assert place.server is not None
    place.caller.principal = limited(Role.CONSUMER)
    client = Client(place.server)
    looked_up = place.reads(GetItems)
    side = place.world.sides[OWN]
    (leased,) = (await client.call("queue.lease", queue=side.queue)).json["items"]
    settled = await client.call(route, queue=side.queue, items=[{"token": leased["token"], **item}])
    assert settled.status == 200
    assert looked_up == []
    of_another_server = side.token
    assert (await client.call("queue.extend", queue=side.queue, items=[{"token": of_another_server}])).status == 200
    assert len(looked_up) == 1


async def test_item_that_has_moved_to_a_foreign_queue_since_it_was_located_is_not_leased(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.open()
    assert place.server is not None

    def located_before_it_moved(*arguments: Any) -> None:
        pass

    monkeypatch.setattr(store_call_authorization, "check_item", located_before_it_moved)
    place.caller.principal = limited(Role.CONSUMER)
    own, foreign = place.world.sides[OWN], place.world.sides[FOREIGN]
    answer = await Client(place.server).call("items.lease", ids=[foreign.id, own.id])
    refused, leased = answer.json["results"]
    assert (answer.status, refused["error"]["code"], leased["id"]) == (404, "item_not_found", own.id)
    item = place.world.broker.get(foreign.id)
    assert (item.status, item.counters.attempts) == ("pending", 0)


def test_lease_is_known_in_the_namespace_where_it_was_given() -> None:
    known = KnownLeases()
    lease = World().sides[OWN].lease
    known.add("default", [lease])
    assert known.queue_of("default", lease.token) == lease.queue
    assert known.queue_of("another", lease.token) is None
    assert KnownLeases().queue_of("default", lease.token) is None


async def test_namespace_is_not_even_opened_for_those_who_have_no_business_there(place: Place) -> None:
    await place.open()
    assert place.server is not None
    for route in ("store.about", "store.commit", "store.read", "store.watch", "queues.list"):
        place.caller.principal = Principal("ann", frozenset({Role.VIEWER}), namespaces=("team-*",))
        client = Client(place.server, **{"redrive-namespace": "elsewhere"})
        answer = await client.send("POST", f"/v1/{route}", b"{}" if route == "queues.list" else b"\x80")
        assert answer.status == 403, answer
        assert "elsewhere" not in place.server.brokers.open
    place.caller.principal = Principal("ann", frozenset({Role.OPERATOR}))
    client = Client(place.server, **{"redrive-namespace": "redrive-tokens"})
    assert (await client.call("queues.list")).status == 403


@pytest.mark.parametrize("role", [Role.CAPTURER, Role.CONSUMER])
async def test_capture_creates_no_queue_for_those_who_may_not_manage_it(role: Role, place: Place) -> None:
    await place.open()
    assert place.server is not None
    place.caller.principal = everywhere(role)
    client = Client(place.server)
    answer = await client.call("capture.enqueue", queue="own-new", **FAILED)
    assert (answer.status, answer.json["code"]) == (404, "queue_not_found")
    place.caller.principal = limited(Role.ADMIN)
    assert (await client.call("capture.enqueue", queue="own-new", **FAILED)).status == 200
    assert (await client.call("capture.enqueue", queue="foreign-new", **FAILED)).status == 403
    place.caller.principal = everywhere(role)
    assert (await client.call("capture.enqueue", queue="own-new", **FAILED)).json["duplicate"]
    names = {queue.name for queue in place.world.broker.list_queues()}
    assert ("own-new" in names, "foreign-new" in names) == (True, False)


@pytest.mark.parametrize(("role", "is_created"), [(Role.CAPTURER, False), (Role.ADMIN, True)])
async def test_queue_that_is_deleted_during_a_capture_is_created_only_for_those_who_may_manage_it(
    role: Role, is_created: bool, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.open()
    assert place.server is not None
    broker, capture, deleted = place.world.broker, flows.capture, list[str]()
    broker.create_queue("own-new")
    place.caller.principal = everywhere(role)

    def deletes_first(*args: Any) -> Any:
        if not deleted:
            deleted.append("own-new")
            broker.delete_queue("own-new")
        return capture(*args)

    monkeypatch.setattr(flows, "capture", deletes_first)
    answer = await Client(place.server).call("capture.enqueue", queue="own-new", **FAILED)
    assert answer.status == (200 if is_created else 404)
    assert ("own-new" in {queue.name for queue in broker.list_queues()}) is is_created


@pytest.mark.parametrize("route", ["capture.retry", "capture.archive", "capture.restore", "capture.clear"])
async def test_audit_of_capture_names_the_caller(route: str, place: Place) -> None:
    await place.open()
    assert place.server is not None
    client = Client(place.server)
    place.caller.principal = everywhere(Role.ADMIN)
    item_id = (await client.ok("capture.enqueue", queue="own-new", max_retries=0, **FAILED))["item_id"]
    if route == "capture.restore":
        place.world.broker.archive([item_id], actor="world")
    is_clear = route == "capture.clear"
    place.caller.principal = everywhere(Role.ADMIN if is_clear else Role.OPERATOR)
    named = {} if is_clear else {"task_id": "t"}
    answer = await client.call(route, queue="own-new", actor="mallory", **named)
    assert answer.status == 200, answer
    entry = place.world.broker.audit(1)[0]
    verb = "drop" if is_clear else route.removeprefix("capture.")
    assert (entry.actor, entry.verb, entry.queue) == ("ann", verb, "own-new")


async def test_viewer_sees_a_captured_task_without_what_is_in_it(place: Place) -> None:
    await place.open()
    assert place.server is not None
    client = Client(place.server)
    place.caller.principal = everywhere(Role.ADMIN)
    said = {"task_id": SECRET, "task": {"x": SECRET}, "metadata": {"x": SECRET}, "extra": {"x": SECRET}}
    await client.ok("capture.enqueue", queue="own-new", error="no route to host", **said)
    (task,) = (await client.ok("capture.list", queue="own-new"))["tasks"]
    assert (task["task_id"], task["task"], task["metadata"]) == (SECRET, {"x": SECRET}, {"x": SECRET})
    place.caller.principal = everywhere(Role.VIEWER)
    by_task_id = await client.call("capture.get", queue="own-new", task_id=SECRET)
    assert (by_task_id.status, by_task_id.json["code"]) == (403, "forbidden")
    unused = await client.call("capture.get", queue="own-new", task_id="unused")
    assert unused.json == by_task_id.json
    shown = await client.ok("capture.get", queue="own-new", task_id=task["item_id"])
    listed = await client.ok("capture.list", queue="own-new")
    assert SECRET not in str(shown) + str(listed)
    assert (shown["hidden"], shown["task_id"], shown["error_category"]) == (True, task["item_id"], "network")
    assert listed["tasks"] == [shown]


@pytest.mark.parametrize("role", Role)
async def test_door_of_the_store_opens_for_every_role_of_the_namespace(role: Role, place: Place) -> None:
    """What is done inside has its own table: `test_calls.py`."""
    await place.open()
    assert place.server is not None
    for principal, status in ((everywhere(role), 400), (limited(role), 400), (in_another_namespace(role), 403)):
        place.caller.principal = principal
        for route in STORE_ROUTES:
            answer = await Client(place.server).send("POST", f"/v1/{route}", NOT_MESSAGEPACK)
            assert answer.status == (200 if status == 400 and route == "store.about" else status), (route, answer)


@pytest.mark.parametrize("role", Role)
async def test_page_shows_what_the_role_may_see(role: Role, place: Place) -> None:
    await place.open()
    assert place.server is not None
    for principal in (everywhere(role), limited(role), in_another_namespace(role)):
        place.caller.principal = principal
        looks = principal == everywhere(role) and role in LOOKS.split()
        for path in PAGES:
            answer = await Client(place.server).send("GET", path)
            assert answer.status == (200 if looks or path != "/metrics" else 403), (path, principal, answer)
            if path == "/health":
                assert ("namespaces" in answer.json) is looks


async def test_every_route_of_a_server_is_in_a_table() -> None:
    server = application("memory://")
    served = [route.name for route in server.routes]
    assert sorted(served) == sorted({sample.route for sample in SAMPLES} | set(STORE_ROUTES))
    assert server._pages == PAGES
    await server.close()
