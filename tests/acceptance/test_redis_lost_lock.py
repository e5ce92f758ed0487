"""A unit of work that loses the lock of its namespace, or fails, before each of its reads: it runs again on what others
have written, or is an error of its calls alone. A call that was committed before it in the same batch keeps its result.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from tests.acceptance.places import places
from tests.servers.redis import Server
from tests.sizes import THOROUGH

from redrive import Broker, Lease, connect, new_item
from redrive.contract import Call
from redrive.contract.item_calls import Put
from redrive.errors import NotFound, OutcomeUnknown, RedriveError, StoreError, StoreFailed
from redrive.model.ids import ItemId
from redrive.stores.redis import RedisStore
from redrive.testing.conformance.actions import kill


class Work(NamedTuple):
    """A broker whose unit of work is interrupted, and what it works on."""

    broker: Broker
    dead: Sequence[ItemId]
    waiting: ItemId
    lease: Lease


OPERATIONS: dict[str, Callable[[Work], object]] = {
    "redrive": lambda work: work.broker.redrive(work.dead),
    "move": lambda work: work.broker.move(work.dead, "others"),
    "archive": lambda work: work.broker.archive(work.dead),
    "drop": lambda work: work.broker.drop([work.waiting]),
    "bury by hand": lambda work: work.broker.bury_items([work.waiting]),
    "complete by hand": lambda work: work.broker.complete_items([work.waiting]),
    "hold": lambda work: work.broker.hold([work.waiting], "ada"),
    "unhold": lambda work: work.broker.unhold("ann"),
    "death that moves": lambda work: work.broker.bury(work.lease),
    "put failed": lambda work: work.broker.put_failed("jobs", 2, "boom", idempotency_key="k"),
    "lease by id": lambda work: work.broker.lease_by_id(work.dead[0], include_dead=True),
    "operation": lambda work: work.broker.run_operation(work.broker.start_operation("redrive", queue="jobs").id),
    "import": lambda work: work.broker.import_items(list(work.broker.export(status="dead")), queue="others"),
    "update": lambda work: work.broker.update_queue("jobs", lease_timeout="5m"),
    "deletion": lambda work: work.broker.delete_queue("jobs", confirm=len(work.dead) + 1),
    "maintenance": lambda work: work.broker.run_maintenance(),
}


def change_the_same(other: Broker, dead: Sequence[ItemId]) -> None:
    other.redrive(dead)
    other.complete_items([item.id for item in other.find(queue="jobs", status="any").items])


def delete_the_queue(other: Broker, dead: Sequence[ItemId]) -> None:
    other.delete_queue("jobs", confirm=len(dead) + 1)


CHANGES = (change_the_same, delete_the_queue)


QUERIES: dict[str, Callable[[Work], object]] = {
    "get": lambda work: work.broker.get(work.dead[0]),
    "find": lambda work: work.broker.find(status="any", queue="jobs"),
    "words": lambda work: work.broker.find(words="boom"),
    "held": lambda work: work.broker.find(status="any", held_by="ann"),
    "prefix": lambda work: work.broker.find(status="any", id_prefix=work.dead[0][:8]),
    "groups": lambda work: work.broker.groups(),
    "stats": lambda work: work.broker.list_stats(),
    "feed": lambda work: work.broker.feed(),
    "operations": lambda work: work.broker.list_operations(),
    "export": lambda work: list(work.broker.export(status="any")),
    "health": lambda work: work.broker.health(),
}


class Fault:
    """Does something before the read of this number in each unit of work, or in the first one alone."""

    def __init__(self, store: RedisStore, number: int, strike: Callable[[], object], *, always: bool) -> None:
        self.struck = 0
        self._store, self._number, self._strike, self._always = store, number, strike, always
        self._reads: int | None = None
        """None: no unit of work reads now."""
        self._acquire, self._run = store._lock._acquire, store._client.run

    def attach(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(self._store._lock, "_acquire", self._begin)
        monkeypatch.setattr(self._store._lock, "is_held", self._end(self._store._lock.is_held))
        monkeypatch.setattr(self._store._lock, "apply", self._end(self._store._lock.apply))
        monkeypatch.setattr(self._store._client, "run", self._read)

    def attach_to_queries(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._reads = 0
        monkeypatch.setattr(self._store._client, "run", self._read)

    def _begin(self, token: str) -> Any:
        self._reads = 0
        return self._acquire(token)

    def _end(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def ended(*values: Any, **options: Any) -> Any:
            self._reads = None
            return step(*values, **options)

        return ended

    def _read(self, *values: Any) -> Any:
        if self._reads is not None:
            self._reads += 1
            if self._reads == self._number and (self._always or not self.struck):
                self.struck += 1
                self._strike()
        return self._run(*values)


@contextlib.contextmanager
def prepared(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Work, str, list[Any]]]:
    """Work whose every commit begins with a put to another queue. Also the URL, and the results of these puts."""
    url = f"{server.url}?prefix=lost_{uuid4().hex}"
    with connect(url, maintenance=False, actor="ada") as broker:
        broker.create_queue("morgue")
        broker.create_queue("others")
        broker.create_queue("jobs", archive_after="0s", retry={"attempts": 3})
        broker.create_queue("moving", dead_queue="morgue")
        dead = [kill(broker, n).id for n in range(3)]
        waiting = broker.put("jobs", "waits", idempotency_key="k").id
        broker.hold(waiting, "ann")
        broker.put("moving", 1)
        (lease,) = broker.lease("moving")
        results = list[Any]()
        commit = broker.core.store.commit

        def with_put(calls: Sequence[Call], now: Any = None) -> Any:
            done = commit([*calls, Put("others", (new_item("beside"),))], now)
            results.append(done.results.pop())
            return done

        with monkeypatch.context() as patch:
            patch.setattr(broker.core.store, "commit", with_put)
            yield Work(broker, dead, waiting, lease), url, results
    server.remove(url.partition("=")[2])


def store_of(work: Work) -> RedisStore:
    store = work.broker.core.store
    assert isinstance(store, RedisStore)
    return store


def meet(fault: Fault, name: str, work: Work, monkeypatch: pytest.MonkeyPatch) -> RedriveError | None:
    """Return the error of the operation."""
    with monkeypatch.context() as patch:
        fault.attach(patch)
        try:
            OPERATIONS[name](work)
        except RedriveError as error:
            return error
    return None


def lose_lock(how: str, server: Server, work: Work, other: Broker, change: Callable[..., None]) -> None:
    with contextlib.closing(server.client()) as client:
        if how == "expired":
            client.delete(store_of(work)._keys.lock)
        else:
            client.client_kill_filter(_type="normal", skipme=True)
    with contextlib.suppress(RedriveError):
        change(other, work.dead)


def fail() -> None:
    raise RuntimeError("a mistake")


def check_puts(url: str, results: Sequence[Any]) -> None:
    assert all(isinstance(result, tuple) for result in results), results
    puts = [item for item in places(url) if item.queue == "others" and item.payload == b'"beside"']
    assert len(puts) == len(results)


@pytest.mark.parametrize("how", ["expired", "killed"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_unit_of_work_that_lost_the_lock_runs_again_and_no_committed_call_learns_of_it(
    name: str, how: str, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = CHANGES if THOROUGH or how == "expired" else CHANGES[:1]
    struck_at = 0
    for number, change in ((number, change) for number in itertools.count(1) for change in changes):
        with prepared(redis_server, monkeypatch) as (work, url, results), connect(url, maintenance=False) as other:
            strike = partial(lose_lock, how, redis_server, work, other, change)
            fault = Fault(store_of(work), number, strike, always=False)
            error = meet(fault, name, work, monkeypatch)
            if not fault.struck:
                break
            struck_at = number
            assert not isinstance(error, OutcomeUnknown | StoreError), f"before read {number}: {error!r}"
            check_puts(url, results)
    assert struck_at, "it reads nothing"


@pytest.mark.parametrize("name", OPERATIONS)
def test_error_before_a_read_is_that_of_the_calls_of_its_unit_alone(
    name: str, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in itertools.count(1):
        with prepared(redis_server, monkeypatch) as (work, url, results):
            before = work.broker.stats("jobs")
            fault = Fault(store_of(work), number, fail, always=True)
            error = meet(fault, name, work, monkeypatch)
            if not fault.struck:
                break
            check_puts(url, results)
            if number == 1:
                assert isinstance(error, StoreFailed) or name == "maintenance"
                assert work.broker.stats("jobs").dead == before.dead
    assert number > 1, "it reads nothing"


@pytest.mark.parametrize("name", QUERIES)
def test_query_that_others_change_between_its_reads_raises_no_unexpected_error(
    name: str, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    struck_at = 0
    for number, change in ((number, change) for number in itertools.count(1) for change in CHANGES):
        with prepared(redis_server, monkeypatch) as (work, url, _), connect(url, maintenance=False) as other:
            fault = Fault(store_of(work), number, partial(change, other, work.dead), always=False)
            with monkeypatch.context() as patch, contextlib.suppress(NotFound):
                fault.attach_to_queries(patch)
                QUERIES[name](work)
        if not fault.struck:
            break
        struck_at = number
    assert struck_at, "it reads nothing"


def test_unexpected_error_as_a_part_is_written_is_not_that_of_a_committed_call(
    redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with prepared(redis_server, monkeypatch) as (work, url, results):
        with monkeypatch.context() as patch:
            patch.setattr(store_of(work)._lock, "apply", lambda *_, **__: fail())
            with pytest.raises(OutcomeUnknown, match="a mistake"):
                work.broker.redrive(work.dead)
        check_puts(url, results)
        assert len(results) == 1
