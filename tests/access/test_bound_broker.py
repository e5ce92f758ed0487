"""A broker that is bound to a caller: every method passes the guard or is refused, and nothing leads around it."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.access.world import FOREIGN, OWN, SECRET, World, everywhere, limited

import redrive
from redrive import AsyncBroker, Broker, connect
from redrive.auth import store_call_authorization
from redrive.auth.bound_broker import FOR_FLOWS, BoundBroker, FlowCore, StoreIdentity, StoreNames
from redrive.auth.caller import Caller, KnownLeases
from redrive.auth.principal import Principal, Role
from redrive.broker.flow import (
    CommitCalls,
    Effect,
    OnStore,
    ReadQuery,
    TimedCommit,
    commit_calls,
    raise_if_refused,
    run_query,
)
from redrive.broker.flows.export_import import encode_line
from redrive.clock import Instant
from redrive.contract import Query
from redrive.contract.admin_calls import ManualChange, ManualTarget, SetSourceQueue
from redrive.contract.item_calls import Complete, Extend, Put
from redrive.contract.queries import GetItems, GetQueue
from redrive.errors import Forbidden, InvalidInput, ItemNotFound, LeaseLost
from redrive.model.ids import ItemId, Token
from redrive.model.item import Counters, Item, Lease, Status
from redrive.model.limits import MAX_LABEL_CHARS
from redrive.model.state_machine import Verb
from redrive.store import Commit

SOURCE = Path(redrive.__file__).parent
NO_ROLE = Principal("ann", frozenset())
IDS = ["1" * 32]
TOKEN = Token("4f0c91a27b3d000000068f1c2a3b480000112233445566aa")
ITEM = Item(ItemId(IDS[0]), "own-jobs", Status.PENDING, b"1", "application/json", {}, 5, Instant(1), Counters())
LINE = encode_line(ITEM)
Method = Callable[[AsyncBroker], Awaitable[Any]]

GUARDED: dict[str, Method] = {
    "archive": lambda b: b.archive(IDS),
    "audit": lambda b: b.audit(),
    "bury": lambda b: b.bury(TOKEN),
    "bury_items": lambda b: b.bury_items(IDS),
    "cancel_operation": lambda b: b.cancel_operation("x"),
    "clear_queue": lambda b: b.clear_queue("own-jobs"),
    "close_breaker": lambda b: b.close_breaker("own-jobs"),
    "complete": lambda b: b.complete(TOKEN),
    "complete_items": lambda b: b.complete_items(IDS),
    "count": lambda b: b.count(queue="own-jobs"),
    "create_queue": lambda b: b.create_queue("own-new"),
    "delete_queue": lambda b: b.delete_queue("own-jobs"),
    "drop": lambda b: b.drop(IDS),
    "export": lambda b: anext(b.export(queue="own-jobs")),
    "extend": lambda b: b.extend(TOKEN),
    "fail": lambda b: b.fail(TOKEN, "e"),
    "fail_items": lambda b: b.fail_items(IDS, "e"),
    "feed": lambda b: b.feed(),
    "find": lambda b: b.find(queue="own-jobs"),
    "find_by_key": lambda b: b.find_by_key("own-jobs", ["k"]),
    "get": lambda b: b.get(IDS[0]),
    "get_many": lambda b: b.get_many(IDS),
    "get_operation": lambda b: b.get_operation("x"),
    "get_queue": lambda b: b.get_queue("own-jobs"),
    "groups": lambda b: b.groups(),
    "hold": lambda b: b.hold(IDS, "x"),
    "import_items": lambda b: b.import_items([LINE], queue="own-jobs"),
    "lease": lambda b: b.lease("own-jobs"),
    "lease_by_id": lambda b: b.lease_by_id(IDS),
    "list_breakers": lambda b: b.list_breakers(),
    "list_operations": lambda b: b.list_operations(),
    "list_queues": lambda b: b.list_queues(),
    "list_stats": lambda b: b.list_stats(),
    "move": lambda b: b.move(IDS, "own-third"),
    "moves": lambda b: b.moves(),
    "open_breaker": lambda b: b.open_breaker("own-jobs"),
    "pause_operation": lambda b: b.pause_operation("x"),
    "pause_queue": lambda b: b.pause_queue("own-jobs"),
    "plan_operation": lambda b: b.plan_operation("redrive", queue="own-dead"),
    "purge": lambda b: b.purge(IDS),
    "put": lambda b: b.put("own-jobs", 1),
    "put_failed": lambda b: b.put_failed("own-jobs", 1, "e"),
    "put_many": lambda b: b.put_many("own-jobs", [1]),
    "queue": lambda b: b.queue("own-jobs").put(1),
    "redrive": lambda b: b.redrive(IDS),
    "redrive_edited": lambda b: b.redrive_edited(IDS, edit={"a": 1}),
    "release": lambda b: b.release(TOKEN),
    "report_lost": lambda b: b.report_lost(TOKEN, "gone"),
    "reschedule": lambda b: b.reschedule(IDS),
    "restore": lambda b: b.restore(IDS),
    "result": lambda b: b.result(IDS[0]),
    "resume_operation": lambda b: b.resume_operation("x"),
    "resume_queue": lambda b: b.resume_queue("own-jobs"),
    "retry": lambda b: b.retry(IDS),
    "run_operation": lambda b: b.run_operation("x"),
    "set_operation_rate": lambda b: b.set_operation_rate("x", 1),
    "start_operation": lambda b: b.start_operation("redrive", queue="own-dead"),
    "stats": lambda b: b.stats("own-jobs"),
    "undo": lambda b: b.undo(IDS),
    "undo_operation": lambda b: b.undo_operation("x"),
    "unhold": lambda b: b.unhold("x", IDS),
    "update_queue": lambda b: b.update_queue("own-jobs", max_attempts=3),
    "workers": lambda b: b.workers(),
}
"""Methods that pass the guard, each with a call that takes a right."""


async def _metrics(broker: AsyncBroker) -> Any:
    return broker.metrics


async def _hook(broker: AsyncBroker) -> Any:
    return broker.on_breaker_change(print)


REFUSED: dict[str, Method] = {
    "close": lambda b: b.close(),
    "durability": lambda b: b.durability(),
    "follow": lambda b: anext(b.follow()),
    "health": lambda b: b.health(),
    "metrics": _metrics,
    "on_breaker_change": _hook,
    "on_store": lambda b: b.on_store("there"),
    "put": lambda b: b.put("own-jobs", 1, transaction=object()),
    "put_many": lambda b: b.put_many("own-jobs", [1], transaction=object()),
    "run_maintenance": lambda b: b.run_maintenance(),
}
"""What no caller may do, with these arguments."""
INNER = {"core", "run_flow", "run_flow_in_thread", "run_flow_to_end", "submit"}


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


@pytest.fixture(scope="module")
def still_world() -> Iterator[World]:
    """One for all tests that change nothing."""
    world = World()
    yield world
    world.close()


def bound(world: World, principal: Principal) -> BoundBroker:
    return BoundBroker(world.awaited, world.caller(principal))


def used(world: World, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the store is asked and given from now on."""
    store, seen = world.broker.core.store, list[Any]()
    read, commit = store.read, store.commit

    def reads(query: Query) -> Any:
        seen.append(query)
        return read(query)

    def commits(calls: Any, *now: Any) -> Commit:
        seen.extend(calls)
        return commit(calls, *now)

    monkeypatch.setattr(store, "read", reads)
    monkeypatch.setattr(store, "commit", commits)
    return seen


def test_every_method_is_guarded_or_refused() -> None:
    methods = {name for name in dir(AsyncBroker) if not name.startswith("_")}
    assert GUARDED.keys() | REFUSED.keys() == methods - INNER


@pytest.mark.parametrize("name", GUARDED)
async def test_method_passes_the_guard(name: str, still_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = used(still_world, monkeypatch)
    with pytest.raises(Forbidden):
        await GUARDED[name](bound(still_world, NO_ROLE))
    assert seen == []


@pytest.mark.parametrize("name", REFUSED)
async def test_method_is_refused_even_for_an_admin(name: str, still_world: World) -> None:
    with pytest.raises(AttributeError, match=r"bound to a caller|StoreIdentity|StoreNames"):
        await REFUSED[name](bound(still_world, everywhere(Role.ADMIN)))
    assert not still_world.broker.core.is_closed


def test_core_of_a_bound_broker_leads_to_no_store(still_world: World) -> None:
    core = bound(still_world, everywhere(Role.ADMIN)).core
    real = still_world.broker.core
    names = {name for name in (*dir(real), *vars(real)) if not name.startswith("_")}
    assert names >= FOR_FLOWS
    for name in names - FOR_FLOWS - {"store", "stores", "queue"}:
        with pytest.raises(AttributeError, match="bound to a caller"):
            getattr(core, name)
    assert core.store == StoreIdentity("memory", "default")
    assert isinstance(core.stores, StoreNames)
    for open_to_flows in (getattr(core, name) for name in FOR_FLOWS):
        assert not isinstance(getattr(open_to_flows, "__self__", None), FlowCore)


FOR_PROGRAMS = {"add_backoff", "place", "store.durability", "stores.others", "stores.place_of"}
"""What flows take that no caller of a server runs: functions of a program, its mailboxes, and the maintenance."""


def taken_from_core(path: Path) -> Iterator[str]:
    """`x` of each `core.x` in a file; of the store and of other stores, also what is taken from them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Attribute):
            continue
        names = ast.unparse(node).split(".")
        for place, name in enumerate(names[:-1]):
            if name in ("core", "_core") and {"self", "request", "broker"}.issuperset(names[:place]):
                rest = names[place + 1 :]
                yield ".".join(rest[:2]) if rest[0] in ("store", "stores") and len(rest) > 1 else rest[0]


def test_flows_take_from_a_core_what_a_bound_broker_gives() -> None:
    known = {f"store.{name}" for name in StoreIdentity.__struct_fields__} | {
        "stores.is_known",
        "store",
        "stores",
        "queue",
    }
    flows = [*(SOURCE / "broker/flows").glob("*.py"), *(SOURCE / "capture").glob("*.py"), SOURCE / "mailbox/flows.py"]
    taken = {name for path in flows for name in taken_from_core(path)}
    assert {"clock", "queue", "store.name", "stores.is_known"} <= taken
    assert taken - FOR_FLOWS - known - FOR_PROGRAMS == set()


def test_handlers_take_no_way_around_the_guard() -> None:
    """Of the routes, the store contract alone authorizes by itself, and waits and watches are no answers."""
    for path in (SOURCE / "server/routes").glob("*.py"):
        if path.stem in ("store_api", "system"):
            continue
        text = path.read_text()
        assert "_unbound" not in text
        assert "committer" not in text
        assert "redacted=False" not in text  # what is shown so is checked by methods of the broker
        assert text.count(".unbound") == (path.stem == "feed"), path
        assert set(taken_from_core(path)) <= {"clock", "actor", "queue"}, path
        for right in ("READ_PAYLOADS", "request.caller", ".may(", ".check(", "Forbidden", "auth.result_filter"):
            allowed = right == "READ_PAYLOADS" and (
                path.stem == "table" or text.count(right) == text.count(f"permission=Permission.{right}")
            )
            assert allowed or right not in text, (path, right)


SHOWN_BY_THESE = ("export", "reveal", "reveal", "reveal", "reveal")
"""The verbs in the audit, the newest first."""


async def test_unredacted_items_are_for_those_who_manage_the_queue(world: World) -> None:
    own, foreign = world.sides[OWN], world.sides[FOREIGN]
    shown: tuple[Method, ...] = (
        lambda b: b.get(own.id, redacted=False),
        lambda b: b.get_many([own.id], redacted=False),
        lambda b: b.find(queue=own.queue, status="any", redacted=False),
        lambda b: b.find_by_key(own.queue, [f"{SECRET}-own-pending"], redacted=False),
        lambda b: anext(b.export(queue=own.queue, status="any", redacted=False)),
    )
    for show in shown:
        await show(bound(world, limited(Role.ADMIN)))
        for principal in (everywhere(Role.OPERATOR), limited(Role.OPERATOR)):
            with pytest.raises(Forbidden):
                await show(bound(world, principal))
    rows = [entry for entry in world.broker.audit(100) if entry.verb in ("reveal", "export")]
    assert [(row.actor, row.verb) for row in rows] == [(limited(Role.ADMIN).name, verb) for verb in SHOWN_BY_THESE]
    assert all(own.queue in (row.note or "") for row in rows)
    manager = bound(world, limited(Role.ADMIN))
    for call in (manager.find(status="any", redacted=False), manager.find(queue=foreign.queue, redacted=False)):
        with pytest.raises(Forbidden):
            await call


async def test_operator_edits_what_is_in_an_item_and_not_what_is_shown_of_it(world: World) -> None:
    letter = world.broker.put("own-jobs", {"password": "hunter2hunter2", "n": 1}).id
    world.broker.bury_items(letter)
    operator = bound(world, limited(Role.OPERATOR))
    assert (await operator.get(letter)).value["password"] == "[redacted]"
    edited = await operator.redrive(letter, edit={"n": 2}, to="own-third")
    assert world.broker.get(edited.id, redacted=False).value == {"password": "hunter2hunter2", "n": 2}


async def test_secrets_are_hidden_by_the_rules_of_queues_that_the_caller_may_not_see(world: World) -> None:
    world.broker.update_queue("foreign-jobs", redact={"patterns": ["ACME-[a-z]{6}"]})
    id = world.broker.put("foreign-jobs", {"x": "ACME-abcdef"}).id
    world.broker.move(id, "own-jobs")
    seen = await bound(world, limited(Role.OPERATOR)).get(id)
    assert (seen.queue, seen.value) == ("own-jobs", {"x": "[redacted]"})


async def test_setting_of_a_queue_whose_dead_go_elsewhere_is_changed_by_its_manager(world: World) -> None:
    world.broker.update_queue("own-jobs", dead_queue="foreign-dead")
    manager = bound(world, limited(Role.ADMIN))
    assert (await manager.update_queue("own-third", max_attempts=3)).settings.max_attempts == 3
    with pytest.raises(Forbidden):
        await manager.update_queue("own-third", dead_queue="foreign-dead")
    call = (await manager.update_queue("own-jobs", max_attempts=7)).settings
    assert (call.max_attempts, call.dead_queue) == (7, "foreign-dead")


def tokens_of_another_server(world: World, count: int) -> list[Lease]:
    world.broker.put_many("own-third", range(count))
    return world.broker.lease("own-third", limit=count, worker="ann/2")


@pytest.mark.parametrize("count", [1, 64, 130])
async def test_items_of_many_calls_are_located_together(
    count: int, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = tokens_of_another_server(world, count)
    seen = used(world, monkeypatch)
    together = -(-count // 64)
    consumer = bound(world, limited(Role.CONSUMER))
    await consumer.run_flow(commit_calls([Extend(lease.token) for lease in leases]))
    assert sum(isinstance(each, GetItems) for each in seen) == together
    seen.clear()
    world.authorize(limited(Role.CONSUMER), *(Complete(lease.token) for lease in leases))
    assert len(seen) == together
    seen.clear()
    await bound(world, limited(Role.OPERATOR)).retry([lease.id for lease in leases], force=True)
    assert [type(each) for each in seen] == [*[GetItems] * together, ManualChange]
    seen.clear()
    await bound(world, limited(Role.OPERATOR)).bury_items([lease.id for lease in leases], force=True)
    read_by_the_flow = -(-count // 100)
    assert sum(isinstance(each, GetItems) for each in seen) == together + read_by_the_flow


async def test_caller_without_the_right_anywhere_causes_no_query(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = used(world, monkeypatch)
    with pytest.raises(Forbidden):
        await bound(world, limited(Role.VIEWER)).retry([world.sides[OWN].id])
    assert seen == []


async def test_others_have_their_turn_while_many_calls_are_checked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_call_authorization, "TURN_SECONDS", -1.0)
    turns, done = 0, False

    async def other() -> None:
        nonlocal turns
        while not done:
            turns += 1
            await asyncio.sleep(0)

    waiting = asyncio.ensure_future(other())
    await asyncio.sleep(0)
    flow = store_call_authorization.authorize_calls(world.caller(limited(Role.PRODUCER)), [Put("own-jobs", ())] * 50)
    await world.awaited.run_flow(flow)
    done = True
    await waiting
    assert turns >= 50


async def test_settings_that_were_read_for_others_are_not_used_for_a_caller(world: World) -> None:
    world.broker.run_flow(world.broker.core.queue("foreign-jobs"))
    consumer = bound(world, limited(Role.CONSUMER))
    assert (await consumer.run_flow(consumer.core.queue("own-jobs"))).name == "own-jobs"
    with pytest.raises(Forbidden):
        await consumer.run_flow(consumer.core.queue("foreign-jobs"))


@pytest.mark.parametrize("driver", ["run_flow", "run_flow_in_thread", "run_flow_to_end"])
@pytest.mark.parametrize(
    "effect",
    [
        CommitCalls([Put("foreign-jobs", ())]),
        TimedCommit(Put("foreign-jobs", ())),
        ReadQuery(GetQueue("foreign-jobs")),
        OnStore("there", ReadQuery(GetQueue("foreign-jobs"))),
        OnStore("there", CommitCalls([SetSourceQueue("foreign-jobs", "own-jobs@here")])),
    ],
    ids=str,
)
async def test_every_driver_has_every_effect_guarded(driver: str, effect: Effect, still_world: World) -> None:
    """The store `there` is not known: an effect that is passed on ends with another error."""

    def flow() -> Any:
        answer = yield effect
        return raise_if_refused(answer[0] if isinstance(answer, list) else answer)

    for principal in (limited(Role.ADMIN), NO_ROLE):
        with pytest.raises(Forbidden):
            await getattr(bound(still_world, principal), driver)(flow())


async def test_refused_call_does_not_keep_others_from_being_made(world: World) -> None:
    own, foreign = world.sides[OWN], world.sides[FOREIGN]
    calls = [Complete(foreign.token), Complete(own.token), Put(foreign.queue, ())]
    lost, settled, forbidden = await bound(world, limited(Role.CONSUMER)).run_flow(commit_calls(calls))
    assert (type(lost), settled.id, type(forbidden)) == (LeaseLost, own.active_id, Forbidden)
    assert world.broker.get(foreign.active_id).status == "active"


async def test_lease_that_a_caller_may_not_have_is_returned(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_call_authorization, "check_item", lambda *arguments: None)  # it moved since
    foreign, own = world.sides[FOREIGN], world.sides[OWN]
    refused, leased = await bound(world, limited(Role.CONSUMER)).lease_by_id([foreign.id, own.id], worker="w")
    assert (type(refused), isinstance(leased, Lease) and leased.worker) == (ItemNotFound, "ann/w")
    item = world.broker.get(foreign.id)
    assert (item.status, item.counters.attempts) == ("pending", 0)


async def test_name_of_a_worker_is_not_too_long_with_that_of_its_token(world: World) -> None:
    consumer = bound(world, everywhere(Role.CONSUMER))
    with pytest.raises(InvalidInput, match="worker"):
        await consumer.lease("own-jobs", worker="w" * MAX_LABEL_CHARS)


class TwoStores:
    """A store with a caller, and another one that the program knows."""

    def __init__(self) -> None:
        self.broker = connect("memory://", maintenance=False, store_name="here", stores={"there": "memory://"})
        self.there: Broker = self.broker.on_store("there")
        self.there.create_queue("morgue")

    def bound(self, principal: Principal) -> BoundBroker:
        caller = Caller(principal, "default", self.broker.core, KnownLeases())
        return BoundBroker(AsyncBroker(self.broker.core), caller)


@pytest.fixture
def two_stores() -> Iterator[TwoStores]:
    two = TwoStores()
    yield two
    two.broker.close()


async def test_queue_of_another_store_is_for_those_who_may_everywhere(two_stores: TwoStores) -> None:
    for principal in (limited(Role.ADMIN), everywhere(Role.OPERATOR)):
        with pytest.raises(Forbidden):
            await two_stores.bound(principal).create_queue("own-jobs", dead_queue="morgue@there")
    assert two_stores.there.get_queue("morgue").source_queues == ()
    admin = two_stores.bound(everywhere(Role.ADMIN))
    await admin.create_queue("own-jobs", dead_queue="morgue@there")
    assert two_stores.there.get_queue("morgue").source_queues == ("own-jobs@here",)
    id = (await admin.put("own-jobs", 1)).id
    for principal, refusal in ((limited(Role.OPERATOR), Forbidden), (everywhere(Role.CONSUMER), Forbidden)):
        with pytest.raises(refusal):
            await two_stores.bound(principal).move(id, "morgue@there")
    await two_stores.bound(everywhere(Role.OPERATOR)).move(id, "morgue@there")
    assert [move.to for move in await two_stores.bound(everywhere(Role.VIEWER)).moves()] == ["morgue@there"]
    await admin.delete_queue("own-jobs", confirm=1)


async def test_dead_queue_of_another_store_is_deleted_by_an_admin(two_stores: TwoStores) -> None:
    two_stores.there.create_queue("jobs")
    two_stores.broker.create_queue("own-morgue")
    admin = two_stores.bound(everywhere(Role.ADMIN))
    assert await admin.delete_queue("own-morgue") == 0


async def test_guard_reads_for_itself_what_it_does_not_show(world: World) -> None:
    requester = bound(world, limited(Role.REQUESTER))
    own, foreign = world.sides[OWN], world.sides[FOREIGN]
    ids = (ItemId(own.id), ItemId(foreign.id))
    seen = await requester.run_flow(run_query(GetItems(ids)))
    assert [item and (item.payload, item.worker) for item in seen] == [(b"", None), None]
    with pytest.raises(Forbidden):
        await requester.run_flow(_changed(own.id))


def _changed(id: str) -> Any:
    (result,) = yield from commit_calls([ManualChange(Verb.RETRY, (ManualTarget(ItemId(id)),), "mallory")])
    if isinstance(result, Exception):
        raise result


@pytest.mark.parametrize(
    "effect",
    [
        CommitCalls([Put("own-jobs", ())]),
        TimedCommit(Put("own-jobs", ())),
        ReadQuery(GetItems(())),
        OnStore("there", ReadQuery(GetItems(()))),
    ],
    ids=lambda effect: type(effect).__name__,
)
async def test_effect_is_performed_by_the_unbound_broker_alone(effect: Effect, still_world: World) -> None:
    assert INNER - {"core"} <= vars(BoundBroker).keys()
    with pytest.raises(AttributeError):
        await bound(still_world, everywhere(Role.ADMIN))._take(effect)
