"""A stored value that cannot be read stops nothing but its item or its queue, on every store with a real database: it
is shown as damaged, skipped and counted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import psycopg
import pytest
from tests.servers.mounted import Mounts
from tests.servers.redis import Server
from tests.until import until

from redrive import Broker, Item, connect, connect_async
from redrive.broker.core import Core
from redrive.broker.flow import Flow
from redrive.broker.flows import deliveries
from redrive.broker.maintenance import LONGEST_PAUSE, settle_overdue
from redrive.cli.commands import doctor
from redrive.clock import Instant
from redrive.contract.admin_calls import ManualChange
from redrive.errors import RedriveError, StoreDamaged
from redrive.model.duration import MILLISECOND
from redrive.model.gate import DAMAGED_GATE
from redrive.model.ids import ItemId, parse_id
from redrive.model.item import Status
from redrive.stores.redis.keys import Keys, digits, short
from redrive.stores.relational.state import SqlState
from redrive.stores.rules.dispatch import CALL_RULES
from redrive.testing.conformance.actions import kill
from redrive.testing.fake_clock import FakeClock

OF_ITEM = (
    *("redrive_finished.status", "redrive_finished.dead_reason", "redrive_finished.held_by", "redrive_death.data"),
    *("redrive_history.data", "redrive_item.headers", "redrive_item.overrides"),
)
"""Values of one item, in the stores that have tables."""
READ_BY_OPERATIONS = ("redrive_finished.status", "redrive_finished.held_by")
"""What a change of many dead letters in one statement reads of them."""
OF_QUEUE = ("redrive_queue.settings", "redrive_queue.gates", "redrive_queue.breakers")
OF_OTHERS = (
    *("redrive_dead_letter.reason", "redrive_dead_letter.fingerprint", "redrive_dead_letter.error_type"),
    *("redrive_dead_letter.error_class", "redrive_feed.kind", "redrive_feed.detail", "redrive_audit.ids"),
    "redrive_operation.data",
)
KEYS_OF_ITEM = ("c", "s", "h", "d")
KEYS_OF_QUEUE = ("queues", "info")
KEYS_OF_OTHERS = ("groups", "feed", "audit", "operations")
BINARY = ("redrive_death.data", "redrive_history.data", "redrive_feed.detail", "redrive_operation.data")


class Prepared(NamedTuple):
    """A store with dead letters in one queue, one of which is to be damaged, and work in another."""

    url: str
    victim: ItemId
    rest: list[ItemId]


def prepared(url: str) -> Prepared:
    with opened(url) as broker:
        broker.create_queue("jobs")
        broker.create_queue("others")
        dead = [kill(broker, n).id for n in range(8)]
        broker.redrive([dead.pop()])
        broker.start_operation("redrive", queue="others")
        broker.put_many("others", range(3))
    return Prepared(url, dead[0], dead[1:])


def opened(url: str) -> Broker:
    return connect(url, maintenance=False, clock=FakeClock(), actor="ada")


def use(store: Prepared) -> tuple[Item | None, RedriveError | None, int]:
    """Use everything. Return the damaged item, the refusal of its redrive, and how many an operation skipped."""
    with opened(store.url) as broker:
        found = broker.find(status="any", limit=100).items
        assert {item.id for item in found} >= set(store.rest), "nothing else disappears"
        list(broker.export(status="any"))
        broker.plan_operation("redrive", queue="jobs")
        broker.groups()
        broker.feed()
        broker.audit()
        broker.list_operations()
        broker.list_queues()
        broker.list_stats()
        broker.health()
        broker.run_maintenance()
        assert len(broker.lease("others", 3)) == 3
        broker.put("jobs", 1)
        broker.put("others", 9)
        broker.fail(broker.lease("others")[0], "boom")
        first, *others = broker.redrive([store.victim, *store.rest[:2]])
        assert not any(isinstance(result, RedriveError) for result in others)
        operation = broker.run_operation(broker.start_operation("redrive", queue="jobs").id)
        assert operation.status == "finished"
        left = {item.id for item in broker.find(queue="jobs", status="dead", limit=100).items}
        assert not left & set(store.rest), "all others are redriven"
        broker.run_maintenance()
        shown = next((item for item in found if item.id == store.victim), None)
        return shown, first if isinstance(first, RedriveError) else None, sum(operation.skipped.values())


def condition(column: str, id: ItemId) -> str:
    if column in OF_QUEUE:
        return "name = 'jobs'"
    return f"item_no = {parse_id(id)[0]}" if column in OF_ITEM else "true"


def damage_file(store: Prepared, column: str, value: bytes) -> None:
    table, _, name = column.partition(".")
    given = "?" if column in BINARY else "CAST(? AS TEXT)"
    file = apsw.Connection(store.url.removeprefix("sqlite:///"))
    file.execute(f"UPDATE {table} SET {name} = {given} WHERE {condition(column, store.victim)}", (value,))
    assert file.changes()
    file.close()


def damage_postgres(store: Prepared, column: str, value: Any) -> None:
    table, _, name = column.partition(".")
    url, _, schema = store.url.partition("?schema=")
    with psycopg.connect(url, options=f"-c search_path={schema}") as connection:
        where = condition(column, store.victim)
        assert connection.execute(f"UPDATE {table} SET {name} = %s WHERE {where}", (value,)).rowcount


@pytest.fixture(scope="module")
def mounts() -> Iterator[Mounts]:
    mounts = Mounts()
    yield mounts
    mounts.close()


@pytest.fixture
def sqlite(tmp_path: Path) -> Prepared:
    return prepared(f"sqlite:///{tmp_path}/jobs.db")


@pytest.fixture
def postgres_store(postgres_url: str) -> Prepared:
    return prepared(postgres_url)


@pytest.fixture
def redis_store(redis_url: str) -> Prepared:
    return prepared(redis_url)


def check(store: Prepared, place: str, *, is_of_item: bool, is_skipped: bool) -> None:
    """Use everything. An operation skips and counts an item if it must read the value."""
    shown, refusal, skipped = use(store)
    if is_of_item:
        assert shown is not None
        assert place in str(shown.damage)
        assert refusal is None or (isinstance(refusal, StoreDamaged) and store.victim in refusal.place)
    assert skipped == is_skipped


@pytest.mark.parametrize("value", ["nowhere", b"d\xe5ad"], ids=["word", "no text"])
@pytest.mark.parametrize("column", [*OF_ITEM, *OF_QUEUE, *OF_OTHERS])
def test_damaged_value_in_sqlite(sqlite: Prepared, column: str, value: str | bytes) -> None:
    raw = (value.encode() if isinstance(value, str) else value) if column != "redrive_finished.held_by" else b"["
    damage_file(sqlite, column, raw)
    check(sqlite, column.partition(".")[0], is_of_item=column in OF_ITEM, is_skipped=column in READ_BY_OPERATIONS)
    if column in OF_QUEUE:
        check_queue(sqlite)


@pytest.mark.parametrize("column", [*OF_ITEM, *OF_QUEUE, *OF_OTHERS])
def test_damaged_value_in_postgres(postgres_store: Prepared, column: str) -> None:
    damage_postgres(postgres_store, column, b"nowhere" if column in BINARY else "[nowhere")
    check(
        postgres_store, column.partition(".")[0], is_of_item=column in OF_ITEM, is_skipped=column in READ_BY_OPERATIONS
    )
    if column in OF_QUEUE:
        check_queue(postgres_store)


@pytest.mark.parametrize("value", [b"\xc1", b"nowhere", b""], ids=["no MessagePack", "another value", "empty"])
@pytest.mark.parametrize("kind", [*KEYS_OF_ITEM, *KEYS_OF_QUEUE, *KEYS_OF_OTHERS])
def test_damaged_value_in_redis(redis_server: Server, redis_store: Prepared, kind: str, value: bytes) -> None:
    keys = Keys(redis_store.url.partition("prefix=")[2], "default")
    with redis_server.client() as client:
        damage_key(client, keys, kind, digits(short(parse_id(redis_store.victim)[0])), value)
    is_of_item = kind in KEYS_OF_ITEM
    check(redis_store, f"key {kind}:", is_of_item=is_of_item, is_skipped=is_of_item)
    if kind == "queues":
        check_queue(redis_store, gives=True)  # scripts read their own copy of the settings


def damage_key(client: Any, keys: Keys, kind: str, body: str, value: bytes) -> None:
    """Change a value of one item, or of `jobs`, or values of a kind, from where they are MessagePack."""
    match kind:
        case "c":
            client.set(keys.of(kind, body), client.get(keys.of(kind, body))[:32] + value)
        case "s":
            client.set(keys.of(kind, body), value)
        case "h" | "d":
            client.lset(keys.of(kind, body), 0, value)
        case "queues" | "info":
            client.hset(keys.of(kind), "jobs", value)
        case "groups" | "operations":
            key = keys.of("groups", "jobs") if kind == "groups" else keys.of(kind)
            assert client.hkeys(key)
            client.hset(key, mapping=dict.fromkeys(client.hkeys(key), value))
        case "audit":
            client.lset(keys.of(kind), 0, value)
        case "feed":
            ((member, score),) = client.zrange(keys.of(kind), 0, 0, withscores=True)
            client.zrem(keys.of(kind), member)
            client.zadd(keys.of(kind), {member[:32] + value: score})


def check_queue(store: Prepared, *, gives: bool = False) -> None:
    """A queue whose settings are damaged takes items, keeps what it has, and gives none until they are set again."""
    with opened(store.url) as broker:
        before = broker.stats("jobs")
        assert any("settings of queue 'jobs' are damaged" in warning for warning in broker.health().warnings)
        assert [gate.name for gate in broker.get_queue("jobs").gates] == [DAMAGED_GATE]
        assert gives or broker.lease("jobs") == []
        broker.put("jobs", 1)
        broker.run_maintenance()
        assert broker.stats("jobs").pending == before.pending + 1
        broker.update_queue("jobs", lease_timeout="1m", keep_completed="0s", keep_dropped="7d")
        assert not broker.get_queue("jobs").gates
        assert broker.lease("jobs")


@pytest.mark.parametrize("column", ["redrive_death.data", "redrive_finished.status", "redrive_item.headers"])
def test_damaged_item_can_be_dropped(sqlite: Prepared, column: str) -> None:
    damage_file(sqlite, column, b"{")
    with opened(sqlite.url) as broker:
        broker.drop([sqlite.victim])
        assert broker.get(sqlite.victim).status == "archived"
        assert sum(group.count for group in broker.groups()) == len(sqlite.rest)


def test_item_whose_headers_are_damaged_is_given_to_no_worker_and_dies(sqlite: Prepared) -> None:
    with opened(sqlite.url) as broker:
        broker.create_queue("mails", max_losses=1, lease_timeout="1m")
        waiting = broker.put("mails", 1, headers={"a": "b"}).id
        other = broker.put("mails", 2).id
    damage_file(sqlite._replace(victim=waiting), "redrive_item.headers", b"{")
    clock = FakeClock()
    with connect(sqlite.url, maintenance=False, clock=clock) as broker:
        assert [lease.id for lease in broker.lease("mails", 2)] == [other]
        clock.advance("2m")
        broker.run_maintenance()
        assert broker.get(waiting).status == "dead"
        assert broker.get(waiting).damage == "redrive_item"


def test_server_names_the_damaged_item(sqlite: Prepared, mounts: Mounts) -> None:
    damage_file(sqlite, "redrive_finished.status", b"nowhere")
    url = mounts.mount(lambda namespace: connect_async(sqlite.url, namespace=namespace, store_name="main"))
    with connect(url) as broker:
        (refusal,) = broker.redrive([sqlite.victim])
        assert isinstance(refusal, StoreDamaged)
        assert refusal.place == f"redrive_finished of item {sqlite.victim}"
        assert broker.get(sqlite.victim).damage == "redrive_finished"
    mounts.unmount(url)


def test_error_that_a_program_keeps_locks_no_table(sqlite: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its traceback has the frame of a statement that was not read to its end."""

    def fail(state: SqlState, call: ManualChange) -> None:
        rows = state.batch.execute("SELECT item_no FROM redrive_item")
        assert rows.fetchone()
        Status("nowhere")

    with opened(sqlite.url) as broker:
        with monkeypatch.context() as patch:
            patch.setitem(CALL_RULES, ManualChange, fail)  # type: ignore[misc]
            with pytest.raises(StoreDamaged) as kept:
                broker.archive([sqlite.victim])
        broker.put("jobs", 1)
        assert kept.value.__cause__ is not None


def damage_state(store: Prepared, server: Server | None) -> None:
    """Damage the status of the item, on any store."""
    if server is not None:
        with server.client() as client:
            keys = Keys(store.url.partition("prefix=")[2], "default")
            damage_key(client, keys, "s", digits(short(parse_id(store.victim)[0])), b"\xc1")
    elif store.url.startswith("sqlite"):
        damage_file(store, "redrive_finished.status", b"nowhere")
    else:
        damage_postgres(store, "redrive_finished.status", "nowhere")


@pytest.mark.parametrize("kind", ["sqlite", "postgres_store", "redis_store"])
def test_retention_removes_all_but_the_damaged_item_and_doctor_names_it(
    kind: str, request: pytest.FixtureRequest, redis_server: Server
) -> None:
    store: Prepared = request.getfixturevalue(kind)
    with opened(store.url) as broker:
        broker.update_queue("jobs", keep_dead="1d")
    damage_state(store, redis_server if kind == "redis_store" else None)
    clock = FakeClock()
    clock.advance("2d")
    with connect(store.url, maintenance=False, clock=clock) as broker:
        broker.run_maintenance()
        found = [item for item in broker.find(status="any", limit=100).items if item.queue == "jobs"]
        assert store.victim in {item.id for item in found}
        assert not {item.id for item in found} & set(store.rest)
        (check,) = doctor.damage(broker)
        assert check.state == "fail"
        assert "is damaged" in check.finding


def test_item_whose_content_is_damaged_in_redis_is_given_to_no_worker(
    redis_store: Prepared, redis_server: Server
) -> None:
    with opened(redis_store.url) as broker:
        broker.create_queue("mails")
        first, second = broker.put("mails", 1).id, broker.put("mails", 2).id
        keys = Keys(redis_store.url.partition("prefix=")[2], "default")
        with redis_server.client() as client:
            damage_key(client, keys, "c", digits(short(parse_id(first)[0])), b"\xc1")
        assert [lease.id for lease in broker.lease("mails", 2)] == [second]


PAUSES = 30
KEY_OF_DUE = {"operation": "operations", "item that expires": "c", "leased item": "s"}


class LeapingClock(FakeClock):
    """A clock in which each wait ends when it is due, and is counted, up to a limit."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.pauses: list[int] = []
        self._limit = limit

    def wait(self, event: threading.Event, until: Instant | None) -> None:
        if until is None or event.is_set() or len(self.pauses) == self._limit:
            event.wait()
            return
        pause = max(10 * MILLISECOND, until - self.now())
        self.pauses.append(pause)
        self.advance(timedelta(microseconds=pause))


@pytest.mark.parametrize("damaged", ["operation", "item that expires", "leased item"])
@pytest.mark.parametrize("kind", ["sqlite", "postgres_store", "redis_store"])
def test_maintenance_pauses_for_longer_and_longer_while_damage_stays_due(
    kind: str, damaged: str, request: pytest.FixtureRequest, redis_server: Server
) -> None:
    store: Prepared = request.getfixturevalue(kind)
    with opened(store.url) as broker:
        broker.run_operation(broker.list_operations()[0].id)
        broker.create_queue("mails", lease_timeout="1s")
        timeout = "1s" if damaged == "item that expires" else None
        item = broker.put("mails", 1, headers={"a": "b"}, expire_timeout=timeout).id
        if damaged == "operation":
            broker.start_operation("redrive", queue="jobs")
        elif damaged == "leased item":
            broker.lease("mails")
    if kind == "redis_store":
        keys = Keys(store.url.partition("prefix=")[2], "default")
        with redis_server.client() as client:
            body = digits(short(parse_id(item)[0]))
            damage_key(client, keys, KEY_OF_DUE[damaged], body, b"\xc1")
    else:
        column = "redrive_operation.data" if damaged == "operation" else "redrive_item.headers"
        if kind == "sqlite":
            damage_file(store._replace(victim=item), column, b"{")
        else:
            damage_postgres(store._replace(victim=item), column, b"{" if damaged == "operation" else "{")
    clock = LeapingClock(PAUSES)
    clock.advance("2s")
    with connect(store.url, clock=clock):
        until(lambda: len(clock.pauses) == PAUSES)
    assert clock.pauses[-20:] == [LONGEST_PAUSE] * 20


def test_lease_does_not_ask_again_and_again_while_a_damaged_item_stays_overdue(
    redis_store: Prepared, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps: list[str | None] = []

    def settle(core: Core, queue: str | None = None) -> Flow[tuple[int, int]]:
        sweeps.append(queue)
        assert len(sweeps) <= 10 * deliveries.MAX_SWEEPS
        return settle_overdue(core, queue)

    monkeypatch.setattr(deliveries, "settle_overdue", settle)
    clock = LeapingClock(1_000)
    with connect(redis_store.url, maintenance=False, clock=clock) as broker:
        broker.create_queue("mails", lease_timeout="1s")
        id = broker.put("mails", 1).id
        broker.lease("mails")
        keys = Keys(redis_store.url.partition("prefix=")[2], "default")
        with redis_server.client() as client:
            damage_key(client, keys, "s", digits(short(parse_id(id)[0])), b"\xc1")
        clock.advance("2s")
        assert broker.lease("mails", wait="3s") == []
        assert sweeps


@pytest.mark.parametrize("kind", ["sqlite", "postgres_store"])
def test_doctor_names_entries_of_the_feed_whose_kind_is_damaged(kind: str, request: pytest.FixtureRequest) -> None:
    store: Prepared = request.getfixturevalue(kind)
    if kind == "sqlite":
        damage_file(store, "redrive_feed.kind", b"nowhere")
    else:
        damage_postgres(store, "redrive_feed.kind", "nowhere")
    with opened(store.url) as broker:
        assert any("of the feed whose kind is damaged" in problem for problem in broker.core.store.examine())
