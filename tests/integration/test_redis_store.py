"""What the store on Redis does where the conformance suite cannot look: batches of several kinds, round trips, locks
that were left behind, what changes between two looks, and a full memory."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from tests.servers.redis import Server

from redrive import Dead, DeadReason, RetryVerdict, Status, connect
from redrive.clock import Instant
from redrive.contract import Call
from redrive.contract.admin_calls import (
    CreateQueue,
    DeleteQueue,
    Hold,
    ManualChange,
    ManualTarget,
    SetPaused,
    StartOperation,
    StepOperation,
    Unhold,
)
from redrive.contract.item_calls import (
    Complete,
    Extend,
    LeaseByIds,
    LeaseItems,
    NewItem,
    Put,
    ReturnLease,
    Settle,
    StaleSettings,
)
from redrive.contract.maintenance_calls import ApplyRetention, FinishMove, Import, Receive
from redrive.contract.queries import (
    FindItems,
    GetIdempotencyOwners,
    GetItem,
    GetItems,
    GetQueue,
    GetStats,
    ListMoves,
    ListMoveTargets,
    ListOpenMoves,
    ListStats,
    ReadFeed,
)
from redrive.errors import (
    InvalidInput,
    OutcomeUnknown,
    PayloadTooLarge,
    QueueFull,
    QueueNotFound,
    RedriveError,
    SchemaTooNew,
    SchemaTooOld,
    StoreUnavailable,
    WrongStatus,
)
from redrive.mailbox import Mailbox, MailboxConnectionError
from redrive.model.failure import failure_from_exception
from redrive.model.filter import Filter
from redrive.model.gate import BREAKER_GATE, Gate
from redrive.model.ids import ItemId
from redrive.model.item import Lease, Result, Settled
from redrive.model.judge import OutcomeKind
from redrive.model.queue import QueueSettings
from redrive.model.state_machine import Verb
from redrive.stores.memory import MemoryStore
from redrive.stores.redis import redis_client
from redrive.stores.redis import store as redis_store
from redrive.stores.redis.keys import FIRST_FORMAT, FORMAT, score_of
from redrive.stores.redis.state import RedisState
from redrive.stores.redis.store import RedisStore
from redrive.stores.rules.state import State
from redrive.testing import FakeClock
from redrive.testing.conformance.gates import change_of

SECOND = 1_000_000
Opened = Callable[..., RedisStore]


@pytest.fixture
def opened(redis_server: Server) -> Iterator[Opened]:
    """Opens stores of one namespace, and closes them."""
    prefix = f"test_{uuid4().hex}"
    with contextlib.ExitStack() as stack:

        def open_store(**options: object) -> RedisStore:
            store = RedisStore(redis_server.url, prefix=prefix, **options)  # type: ignore[arg-type]
            stack.callback(store.close)
            return store

        yield open_store
    redis_server.remove(prefix)


@pytest.fixture
def store(opened: Opened) -> RedisStore:
    return opened()


def test_puts_that_run_together_are_refused_one_by_one(store: RedisStore) -> None:
    """One that is too large, and those for which there is no room, are refused alone; the rest keep their order."""
    limits = QueueSettings(max_payload_size=10, max_size=3)
    store.commit([CreateQueue("jobs", limits), CreateQueue("others", QueueSettings())])

    def put(queue: str, payload: bytes, **options: object) -> Put:
        return Put(queue, (NewItem(payload, "x", is_plain=not options, **options),))  # type: ignore[arg-type]

    results = store.commit(
        [
            put("jobs", b"1"),
            put("others", b"a"),
            put("nowhere", b"-"),
            put("jobs", b"22222222222"),
            put("jobs", b"3"),
            put("others", b"b", headers={"k": "v"}),
            put("others", b"c"),
            put("jobs", b"4"),
            put("jobs", b"5"),
        ]
    ).results

    refusals = {place: type(result) for place, result in enumerate(results) if not isinstance(result, tuple)}
    assert refusals == {2: QueueNotFound, 3: PayloadTooLarge, 8: QueueFull}
    leased = store.commit([LeaseItems("jobs", 10), LeaseItems("others", 10)]).results
    assert [[lease.payload for lease in result.leases] for result in leased] == [[b"1", b"3", b"4"], [b"a", b"b", b"c"]]
    assert [lease.id for lease in leased[0].leases] == [results[place][0].id for place in (0, 4, 7)]


@pytest.mark.parametrize("problem", [StoreUnavailable("redis", "away"), OutcomeUnknown("redis", "cut")])
def test_calls_before_puts_that_break_off_are_not_said_to_have_failed(
    problem: RedriveError, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Puts that are refused together are put one by one, by a second script."""
    store.commit([CreateQueue("jobs", QueueSettings(max_payload_size=10)), CreateQueue("others", QueueSettings())])
    run_write, runs = redis_client.RedisClient.run_write, itertools.count(1)

    def once(self: redis_client.RedisClient, *args: Any) -> Any:
        if next(runs) > 1:
            raise problem
        return run_write(self, *args)

    puts = [
        Put(queue, (NewItem(payload, "x", is_plain=True),))
        for queue, payload in (("others", b"a"), ("jobs", b"1"), ("jobs", b"22222222222"))
    ]
    with monkeypatch.context() as patched:
        patched.setattr(redis_client.RedisClient, "run_write", once)
        (receipt,), *broken = store.commit(puts).results
    assert broken == [problem, problem]
    assert store.read(GetItem(receipt.id)).payload == b"a"
    assert store.read(GetStats("jobs")).pending == 0


def item(payload: bytes = b"1", **options: object) -> NewItem:
    return NewItem(payload, "text/plain", **options)  # type: ignore[arg-type]


def leases(store: RedisStore | MemoryStore, queue: str, count: int, **settings: object) -> tuple[int, list[Lease]]:
    """The version of a new queue, and leases on items in it."""
    version: int = store.commit([CreateQueue(queue, QueueSettings(**settings))]).results[0].version  # type: ignore[arg-type]
    store.commit([Put(queue, tuple(item(idempotency_key=f"key {number}") for number in range(count)))])
    return version, list(store.commit([LeaseItems(queue, count)]).results[0].leases)


def bury(lease: Lease, version: int, to: str | None = None, note: str | None = None) -> Settle:
    return Settle(lease.token, OutcomeKind.BURIED, Dead(DeadReason.POLICY, to=to), version, note=note)


# Batches of several kinds


def test_retention_passes_over_what_its_batch_removed(opened: Opened) -> None:
    clock = FakeClock()
    store = opened(clock=clock)
    version, (first, second) = leases(store, "jobs", 2, keep_dead=10 * SECOND)
    store.commit([bury(first, version), bury(second, version)])
    clock.advance(20)
    ((dropped,), removed) = store.commit(
        [ManualChange(Verb.DROP, (ManualTarget(first.id),), "me"), ApplyRetention()]
    ).results
    assert isinstance(dropped, Settled)
    assert removed == 1
    assert store.read(GetStats("jobs")).dead_letters == 0


def test_words_are_found_of_an_item_that_its_batch_looked_at_before(store: RedisStore) -> None:
    version, (lease,) = leases(store, "jobs", 1)
    store.commit([bury(lease, version, note="timeout")])
    started = StartOperation(verb=Verb.REDRIVE, where=Filter(words="timeout"), actor="me")
    operation = store.commit([started]).results[0]
    refused = ManualChange(Verb.RESTORE, (ManualTarget(lease.id),), "me")
    ((problem,), after) = store.commit([refused, StepOperation(operation.id, 0)]).results
    assert isinstance(problem, WrongStatus)
    assert after.changed == 1
    assert store.read(GetItem(lease.id)).status is Status.PENDING


def test_digits_that_many_moved_items_had_before_hide_none_that_has_them_now(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.stores.redis.state.MAX_EXAMINED", 12)
    with connect(redis_url) as broker:
        for name in ("jobs", "others"):
            broker.create_queue(name)
        broker.move([receipt.id for receipt in broker.put_many("jobs", range(200))], "others")
        moved = {item.id for item in broker.find(status="pending", limit=500).items}
        for digit in "01234567":
            found = {item.id for item in broker.find(status="pending", id_prefix=digit, limit=500).items}
            assert found == {id for id in moved if id[0] == digit}


def test_queue_that_is_made_anew_knows_nothing_of_the_one_that_its_batch_deleted(store: RedisStore) -> None:
    store.commit([CreateQueue("jobs", QueueSettings())])
    ((before,),) = store.commit([Put("jobs", (item(idempotency_key="k"),))]).results
    again = item(idempotency_key="k", source_id=before.id)
    batch: list[Call] = [DeleteQueue("jobs", 1, "me"), CreateQueue("jobs", QueueSettings()), Put("jobs", (again,))]
    removed, _, (receipt,) = store.commit(batch).results
    assert (removed, receipt.duplicate) == (1, False)
    assert store.read(GetStats("jobs")).pending == 1


def test_failure_without_a_verdict_is_refused(store: RedisStore) -> None:
    store.commit([CreateQueue("jobs", QueueSettings())])
    (refused,) = store.commit([Put("jobs", (item(failure=failure_from_exception(ValueError("x"))),))]).results
    assert isinstance(refused, InvalidInput)
    assert store.read(GetStats("jobs")).pending == 0


def test_history_of_an_item_that_failed_outside_while_it_was_leased_is_removed_with_it(
    redis_url: str, redis_server: Server
) -> None:
    with connect(redis_url) as broker, contextlib.closing(redis_server.client()) as client:
        broker.create_queue("jobs")
        broker.put("jobs", 1, idempotency_key="k")
        (lease,) = broker.lease("jobs")
        assert broker.put_failed("jobs", 1, "outside", idempotency_key="k").duplicate
        histories = f"*{redis_url.partition('prefix=')[2]}*:h:*"
        assert len(list(client.scan_iter(histories))) == 1
        broker.complete(lease)
        assert list(client.scan_iter(histories)) == []


def test_feed_tells_an_empty_note_as_it_is(store: RedisStore) -> None:
    version, (lease,) = leases(store, "jobs", 1)
    store.commit([Settle(lease.token, OutcomeKind.RELEASED, RetryVerdict(0, Status.PENDING), version, note="")])
    (entry,) = store.read(ReadFeed()).entries
    assert entry.title == ""


def test_stale_verdict_needs_no_second_look_that_could_fail(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    version, (lease,) = leases(store, "jobs", 1)

    def lost(*_: object) -> None:
        raise StoreUnavailable("redis", "the connection is lost")

    late = Settle(lease.token, OutcomeKind.FAILED, RetryVerdict(0, Status.FAILED), version - 1)
    with monkeypatch.context() as patch:
        patch.setattr(store._client, "run", lost)
        receipts, stale = store.commit([Put("jobs", (item(),)), late]).results
    assert len(receipts) == 1
    assert isinstance(stale, StaleSettings)
    assert stale.queue.version == version


# Many items


def count_trips(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Counts the requests to the server from now on; `next` gives how many there were."""
    trips: list[None] = []
    send = store._client._with_retries

    def counted(*args: object, **options: object) -> object:
        trips.append(None)
        return send(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(store._client, "_with_retries", counted)
    return (len(trips) for _ in itertools.count())


def test_many_items_share_their_round_trips(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each item would take longer than a lock lasts if the server is far away."""
    count = 120
    store.commit([CreateQueue("dead", QueueSettings()), CreateQueue("other", QueueSettings())])
    version, taken = leases(store, "jobs", count)
    trips = count_trips(store, monkeypatch)
    died = store.commit([bury(lease, version, to="dead") for lease in taken]).results
    (redriven,) = store.commit(
        [ManualChange(Verb.REDRIVE, tuple(ManualTarget(each.id) for each in died), "me")]
    ).results
    assert all(isinstance(each, Settled) for each in redriven)
    found = store.read(FindItems(Filter(queue="jobs", status=Status.PENDING), limit=count)).items
    for duplicate in (False, True):
        (receipts,) = store.commit([Import("other", found, "me")]).results
        assert [receipt.duplicate for receipt in receipts] == [duplicate] * count
    keys = tuple(f"key {number}" for number in range(count))
    assert len(store.read(GetIdempotencyOwners("jobs", keys))) == count
    store.commit([ManualChange(Verb.DROP, tuple(ManualTarget(receipt.id) for receipt in receipts), "me")])
    assert next(trips) < count / 2


def test_items_that_a_query_names_share_one_round_trip(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    _, taken = leases(store, "jobs", 120)
    ids = tuple(lease.id for lease in taken)
    trips = count_trips(store, monkeypatch)
    assert [item.id for item in store.read(GetItems(ids))] == [*ids]
    assert next(trips) == 2  # and one for the queues


def test_stats_of_many_queues_share_one_round_trip(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.commit([CreateQueue(f"q{number}", QueueSettings()) for number in range(200)])
    trips = count_trips(store, monkeypatch)
    assert len(store.read(ListStats())) == 200
    assert next(trips) == 2  # and one for the queues themselves, as with every query


@pytest.mark.parametrize(("written", "score"), [(b"1.7e+15", 1_700_000_000_000_000), (b"9007199254740991", 2**53 - 1)])
def test_score_is_read_however_the_server_writes_it(written: bytes, score: int) -> None:
    assert score_of(written) == score


# Turns and servers that are replaced


def test_process_that_does_not_know_that_it_has_the_lock_releases_it(
    opened: Opened, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = opened(), opened()
    store.commit([CreateQueue("jobs", QueueSettings())])
    monkeypatch.setattr(redis_client, "REPLICA_SECONDS", 0.001)
    other._client.wait_replicas = 1  # there is none
    with pytest.raises(StoreUnavailable):
        other.commit([SetPaused("jobs", True, "me")])
    with contextlib.closing(redis_server.client()) as client:
        assert client.get(store._keys.lock) is None


@pytest.mark.parametrize("create", [True, False])
def test_namespace_of_a_development_version_is_refused_untouched(
    create: bool, opened: Opened, redis_server: Server
) -> None:
    keys = opened()._keys
    opened().commit([CreateQueue("jobs", QueueSettings()), Put("jobs", (item(),))])
    with contextlib.closing(redis_server.client()) as client:
        client.hset(keys.meta, "format", FIRST_FORMAT - 1)
        before = {key: client.dump(key) for key in client.scan_iter(f"{keys.root}*")}
        with pytest.raises(SchemaTooOld) as caught:
            opened(create=create)
        assert {key: client.dump(key) for key in client.scan_iter(f"{keys.root}*")} == before
    assert f"({keys.root}*) has schema {FIRST_FORMAT - 1}, from before the first release" in str(caught.value)
    assert "Use a new store" in str(caught.value)


def test_format_of_an_older_namespace_is_raised_by_the_first_dead_item_that_is_leased(
    opened: Opened, redis_server: Server
) -> None:
    store = opened()
    keys = store._keys
    store.commit([CreateQueue("jobs", QueueSettings(search=False))])
    ((receipt,),) = store.commit([Put("jobs", (item(),))]).results
    with contextlib.closing(redis_server.client()) as client:
        client.hset(keys.meta, "format", FIRST_FORMAT)
        store = opened()
        (leases,) = store.commit([LeaseByIds((receipt.id,))]).results
        version = store.read(GetQueue("jobs")).version
        store.commit([Settle(leases[0].token, OutcomeKind.BURIED, Dead(), version)])
        assert client.hget(keys.meta, "format") == str(FIRST_FORMAT).encode()
        store.commit([LeaseByIds((receipt.id,), include_dead=True)])
        assert client.hget(keys.meta, "format") == str(FORMAT).encode()


@pytest.mark.parametrize("how", ["held", "put", "settled", "second holder"])
def test_format_of_an_older_namespace_is_raised_by_the_first_lasting_or_second_holder(
    opened: Opened, redis_server: Server, how: str
) -> None:
    store = opened()
    keys = store._keys
    store.commit([CreateQueue("jobs", QueueSettings())])
    with contextlib.closing(redis_server.client()) as client:
        client.hset(keys.meta, "format", FIRST_FORMAT)
        store = opened()
        held = msgspec.structs.replace(item(), held_by="ann", is_plain=False)
        (_, (second,)) = store.commit([Put("jobs", (held,)), Put("jobs", (item(),))]).results
        store.commit([Hold((second.id,), "ann"), Unhold("ann")])
        version, (leases,) = store.read(GetQueue("jobs")).version, store.commit([LeaseByIds((second.id,))]).results
        assert client.hget(keys.meta, "format") == str(FIRST_FORMAT).encode()
        settled = Settle(leases[0].token, OutcomeKind.FAILED, RetryVerdict(held_by=("ann",)), version)
        calls: dict[str, list[Call]] = {
            "held": [ReturnLease(leases[0].token), Hold((second.id,), "ann", lasting=True)],
            "put": [Put("jobs", (msgspec.structs.replace(held, hold_is_lasting=True),))],
            "settled": [settled],
            "second holder": [ReturnLease(leases[0].token), *(Hold((second.id,), name) for name in ("ann", "bob"))],
        }
        for call in calls[how]:
            store.commit([call])
        assert client.hget(keys.meta, "format") == str(FORMAT).encode()


@pytest.mark.parametrize("verb", [Verb.ARCHIVE, Verb.DROP])
def test_format_of_an_older_namespace_is_raised_by_the_first_item_archived_alive(
    opened: Opened, redis_server: Server, verb: Verb
) -> None:
    store = opened()
    keys = store._keys
    store.commit([CreateQueue("jobs", QueueSettings(search=False))])
    ((first,), (second,)) = store.commit([Put("jobs", (item(),)), Put("jobs", (item(),))]).results
    with contextlib.closing(redis_server.client()) as client:
        client.hset(keys.meta, "format", FIRST_FORMAT)
        store = opened()
        (leases,) = store.commit([LeaseByIds((first.id,))]).results
        store.commit([bury(leases[0], store.read(GetQueue("jobs")).version)])
        store.commit([ManualChange(Verb.ARCHIVE, (ManualTarget(first.id),), "me")])
        assert client.hget(keys.meta, "format") == str(FIRST_FORMAT).encode()
        store.commit([ManualChange(verb, (ManualTarget(second.id),), "me")])
        assert client.hget(keys.meta, "format") == str(FORMAT).encode()


@pytest.mark.parametrize("by_script", [True, False])
def test_words_of_an_older_namespace_are_found_and_its_format_is_raised_by_the_first_death_without_stored_ones(
    by_script: bool, opened: Opened, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Format 7 stored the words of every death."""
    store = opened()
    keys = store._keys
    version, (first, second) = leases(store, "jobs", 2)
    with contextlib.closing(redis_server.client()) as client, monkeypatch.context() as patch:
        client.hset(keys.meta, "format", FIRST_FORMAT)
        patch.setattr(redis_store, "is_fast_path", lambda call: False)
        patch.setattr(RedisState, "index_words", State.index_words)
        store.commit([bury(first, version, note="timeout")])
        (stored,) = client.scan_iter(f"{keys.root}w:*")
        assert client.hget(keys.meta, "format") == str(FIRST_FORMAT).encode()
        patch.undo()
        if not by_script:
            patch.setattr(redis_store, "is_fast_path", lambda call: False)
        store.commit([bury(second, version, note="timeout")])
        assert client.hget(keys.meta, "format") == str(FORMAT).encode()
        assert list(client.scan_iter(f"{keys.root}w:*")) == [stored]
    found = store.read(FindItems(Filter(words="timeout"), limit=10)).items
    assert {each.id for each in found} == {first.id, second.id}


def test_format_of_an_older_namespace_is_raised_by_the_first_gate(opened: Opened, redis_server: Server) -> None:
    store = opened()
    keys = store._keys
    store.commit([CreateQueue("jobs", QueueSettings())])
    with contextlib.closing(redis_server.client()) as client:
        client.hset(keys.meta, "format", FIRST_FORMAT)
        store = opened()
        for gate in (None, Gate(BREAKER_GATE, Instant(0))):
            assert client.hget(keys.meta, "format") == str(FIRST_FORMAT).encode()
            store.commit([change_of(store.read(GetQueue("jobs")), gate=gate)])
        assert client.hget(keys.meta, "format") == str(FORMAT).encode()


def test_namespace_of_a_newer_release_is_refused_untouched(opened: Opened, redis_server: Server) -> None:
    keys = opened()._keys
    with contextlib.closing(redis_server.client()) as client:
        client.hset(keys.meta, "format", FORMAT + 1)
        with pytest.raises(SchemaTooNew, match=f"has schema {FORMAT + 1} and this Redrive knows up to {FORMAT}"):
            opened()
        assert client.hgetall(keys.meta) == {b"format": str(FORMAT + 1).encode()}


def test_lock_by_the_clock_of_another_server_is_ignored(store: RedisStore, redis_server: Server) -> None:
    store.commit([CreateQueue("jobs", QueueSettings())])
    with contextlib.closing(redis_server.client()) as client:
        for call in (Put("jobs", (item(),)), SetPaused("jobs", True, "me")):
            client.set(store._keys.lock, f"0123456789abcdef - {9_000_000_000_000_000:016d}")
            store.commit([call])
            assert client.get(store._keys.lock) is None


def test_queues_are_read_again_where_a_replica_had_not_got_the_last_change(
    opened: Opened, redis_server: Server
) -> None:
    store, other = opened(), opened()
    store.commit([CreateQueue("jobs", QueueSettings())])
    with contextlib.closing(redis_server.client()) as client:
        kept = {key: client.dump(key) for key in map(store._keys.of, ("meta", "queues", "info"))}
        for paused in (True, False):
            store.commit([SetPaused("jobs", paused, "me")])
        for key, value in kept.items():
            assert value is not None
            client.restore(key, 0, value, replace=True)
    other.commit([CreateQueue("new", QueueSettings())])  # as many changes as `store` has seen
    (queue,) = store.commit([SetPaused("new", True, "me")]).results
    assert queue.paused


# Moves between stores


def moving(name: str) -> MemoryStore:
    """A store of that name, with an item on its way to the queue `a` of another one."""
    source = MemoryStore(FakeClock(), name=name)
    version, (lease,) = leases(source, "jobs", 1)
    source.commit([bury(lease, version, to="a@redis")])
    return source


def test_open_moves_of_names_that_look_alike_when_joined_are_kept_apart(store: RedisStore) -> None:
    store.commit([CreateQueue("a", QueueSettings()), CreateQueue("a:b", QueueSettings())])
    (move,) = moving("b:c").read(ListMoves())
    store.commit([Receive("a", move, "b:c")])
    assert [each.queue for each in store.read(ListOpenMoves("b:c"))] == ["a"]
    assert store.read(ListOpenMoves("c")) == ()


def test_items_that_leave_at_one_instant_are_listed_in_the_order_in_which_they_left(store: RedisStore) -> None:
    version, taken = leases(store, "jobs", 3)
    left = [taken[2], taken[0], taken[1]]
    store.commit([bury(lease, version, to="far@there") for lease in left])
    assert [move.item.id for move in store.read(ListMoves())] == [lease.id for lease in left]


def test_last_item_for_a_destination_may_arrive_between_two_looks(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    version, (lease,) = leases(store, "jobs", 1)
    store.commit([bury(lease, version, to="far@there")])
    assert [each.to for each in store.read(ListMoveTargets())] == ["far@there"]
    look = RedisState.destinations

    def arrives_meanwhile(state: RedisState) -> list[str]:
        found = look(state)
        store.commit([FinishMove((lease.id,))])
        return found

    monkeypatch.setattr(RedisState, "destinations", arrives_meanwhile)
    assert store.read(ListMoveTargets()) == ()


# A full memory


@pytest.fixture
def small() -> Iterator[Server]:
    server = Server()
    yield server
    server.destroy()


def test_full_server_takes_nothing_new_and_can_be_worked_off_and_cleared(small: Server) -> None:
    store = RedisStore(small.url)
    store.commit([CreateQueue("dead", QueueSettings())])
    version, taken = leases(store, "jobs", 8, keep_completed=60 * SECOND)
    store.commit([bury(taken[7], version)])
    fill(small)
    new: tuple[Call, ...] = (
        Put("jobs", (item(),)),
        Put("jobs", (item(source_id=ItemId("0" * 32)),)),
        CreateQueue("more", QueueSettings()),
    )
    for call in new:
        with pytest.raises(StoreUnavailable, match="its memory is full"):
            store.commit([call])
    store.close()

    store = RedisStore(small.url)
    followed = Complete(taken[1].token, puts=(Put("jobs", (item(),)),))
    refused, completed, followed_refused = store.commit(
        [Put("jobs", (item(),)), Complete(taken[0].token, Result(b"done", "text/plain")), followed]
    ).results
    assert isinstance(refused, StoreUnavailable)
    assert isinstance(followed_refused, StoreUnavailable)
    assert isinstance(store.commit([followed]).results[0], StoreUnavailable)  # without a put beside it
    assert completed.status is Status.COMPLETED
    (deadline,) = store.commit([Extend(taken[1].token, 90 * SECOND)]).results
    assert deadline > Instant(taken[1].deadline)
    for call in (
        Complete(taken[2].token),
        bury(taken[3], version),
        bury(taken[4], version, to="dead"),
        Settle(taken[5].token, OutcomeKind.FAILED, RetryVerdict(0, Status.FAILED), version),
    ):
        assert isinstance(store.commit([call]).results[0], Settled)
    ((dropped,),) = store.commit([ManualChange(Verb.DROP, (ManualTarget(taken[7].id),), "me")]).results
    assert isinstance(dropped, Settled)
    assert store.commit([DeleteQueue("dead", 1, "me")]).results == [1]
    stats = store.read(GetStats("jobs"))
    assert (stats.completed, stats.dead, stats.failed, stats.active, stats.pending) == (2, 1, 1, 2, 0)
    store.close()


def test_full_server_completes_and_buries_with_the_reply_and_refuses_a_reply_alone(small: Server) -> None:
    with connect(small.url, maintenance=False) as broker:
        questions: Mailbox[str, str] = Mailbox(broker, "questions", body=str, reply=str)
        answers: Mailbox[str, None] = Mailbox(broker, "answers", body=str)
        for text in ("one", "two", "three"):
            questions.send(text, reply_to=answers)
        first, second, third = questions.receive(max_messages=3)
        fill(small)
        first.acknowledge(reply="yes")
        broker.bury(second._lease)
        with pytest.raises(MailboxConnectionError, match="memory is full"):
            third.reply("perhaps")
        with contextlib.closing(small.client()) as client:
            client.config_set("maxmemory", "0")
        assert [(reply.reply_for, reply.error is None) for reply in answers.receive(max_messages=10)] == [
            (first.id, True),
            (second.id, False),
        ]
        stats = broker.stats("questions")
        assert (stats.active, stats.dead, stats.completed_total) == (1, 1, 1)


def fill(server: Server) -> None:
    """From now on the server refuses what takes memory."""
    with contextlib.closing(server.client()) as client:
        client.config_set("maxmemory", "1mb")
