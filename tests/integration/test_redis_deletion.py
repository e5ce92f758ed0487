"""A queue on Redis is deleted at one moment, however large it is; what its items take up is freed in steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.acceptance.redis_places import Dump, places

from redrive import Broker, Receipt, connect, new_item
from redrive.errors import (
    ConfirmationMismatch,
    ItemNotFound,
    LeaseLost,
    OutcomeUnknown,
    QueueNotFound,
    StoreUnavailable,
)
from redrive.model.item import Lease
from redrive.stores.redis.namespace_lock import NamespaceLock
from redrive.stores.redis.redis_client import RedisClient
from redrive.stores.redis.store import RedisStore

MANY = 1200
"""More than one step of the maintenance frees."""
OF_ITEMS = ("c", "s", "h", "d", "w", "y", "o", "held", "moving", "group", "removed")
"""Kinds of keys that go with items."""


@pytest.fixture(params=["redis_url", "redis_cluster_url"])
def any_url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def open_broker() -> Iterator[Callable[[str], Broker]]:
    brokers: list[Broker] = []

    def open_one(url: str) -> Broker:
        brokers.append(connect(url, maintenance=False))
        return brokers[-1]

    yield open_one
    for broker in brokers:
        broker.close()


def fill(broker: Broker, many: int = 0) -> tuple[list[Receipt], Lease]:
    """A queue with items in most statuses, and one beside it. Gives those in it, and a lease that was lost."""
    broker.create_queue("kept", keep_completed="1h")
    broker.create_queue("grave")
    broker.create_queue("doomed", keep_completed="1h", retry={"attempts": 1})
    put = broker.put_many("doomed", [{"n": n} for n in range(many)])
    put = [*put, broker.put("doomed", "mine", idempotency_key="key")]
    put.append(broker.put("doomed", "held", held_by="breaker"))
    put.append(broker.put("doomed", "later", delay="1h"))
    for ending in (broker.complete, lambda lease: broker.fail(lease, ValueError("no"))):
        receipt = broker.put("doomed", "first", priority=9)
        (lease,) = broker.lease("doomed")
        assert lease.id == receipt.id
        ending(lease)
        put.append(receipt)
    put.append(broker.put("doomed", "again", priority=9))
    (lost,) = broker.lease("doomed")
    broker.retry(lost.id, force=True)
    for number in range(3):
        broker.put("kept", number, held_by="breaker" if number else None)
    return put, lost


def delete(broker: Broker, count: int) -> int:
    return broker.delete_queue("doomed", confirm=count, actor="ada")


def audited(broker: Broker) -> int:
    return sum(entry.verb == "delete_queue" for entry in broker.audit())


def check_whole(broker: Broker, put: list[Receipt]) -> None:
    """Nothing of it has gone, nobody is said to have deleted it, and it can still be confirmed."""
    assert audited(broker) == 0
    assert all(broker.get(receipt.id).queue == "doomed" for receipt in put[-8:])
    stats = broker.stats("doomed")
    assert stats.pending + stats.failed + stats.completed + stats.dead == len(put)
    assert sum(group.count for group in broker.groups()) == 1


def check_gone(broker: Broker, put: list[Receipt], lost: Lease) -> None:
    """All of it has gone, and nothing else."""
    assert audited(broker) == 1
    with pytest.raises(QueueNotFound):
        broker.stats("doomed")
    for receipt in put[-8:]:
        with pytest.raises(ItemNotFound):
            broker.get(receipt.id)
    with pytest.raises(LeaseLost) as late:
        broker.complete(lost)
    assert late.value.status is None
    assert broker.groups() == ()
    assert [item.queue for item in broker.find(status="any").items] == ["kept"] * 3
    assert broker.find(status="any", ids=[receipt.id for receipt in put[-8:]]).items == ()
    assert broker.count() == 0
    assert broker.stats("kept").pending == 3


def sweep(broker: Broker) -> int:
    """Let the maintenance do all there is to do. Gives how many steps it took."""
    for steps in itertools.count(1):
        if not broker.run_maintenance().removed:
            return steps
    raise AssertionError


def test_large_queue_goes_at_one_moment_and_is_freed_in_steps(
    any_url: str, open_broker: Callable[[str], Broker]
) -> None:
    broker, other = open_broker(any_url), open_broker(any_url)
    put, lost = fill(broker, MANY)
    assert delete(broker, len(put)) == len(put)
    check_gone(broker, put, lost)
    check_gone(other, put, lost)
    assert other.run_maintenance().removed == 1000
    check_gone(broker, put, lost)
    assert broker.run_maintenance().removed == len(put) - 1000
    assert broker.run_maintenance().removed == 0
    check_gone(broker, put, lost)


def test_nothing_of_a_deleted_queue_is_left(redis_url: str, open_broker: Callable[[str], Broker]) -> None:
    broker = open_broker(redis_url)
    put, lost = fill(broker)
    delete(broker, len(put))
    assert len(places(redis_url)) == 3
    sweep(broker)
    check_gone(broker, put, lost)
    assert len(places(redis_url)) == 3
    left = Dump(redis_url)
    assert {kind: len(left.of(kind)) for kind in OF_ITEMS if left.of(kind)} == {"c": 3, "s": 2, "held": 1}
    assert not [name for name in left.values if "doomed" in name]


def test_queue_of_the_same_name_knows_nothing_of_it(any_url: str, open_broker: Callable[[str], Broker]) -> None:
    broker = open_broker(any_url)
    put, lost = fill(broker)
    delete(broker, len(put))
    for swept in (False, True):
        broker.create_queue("doomed", keep_completed="1h")
        assert not broker.put("doomed", "another", idempotency_key="key").duplicate
        stats = broker.stats("doomed")
        assert (stats.pending, stats.dead, stats.completed, stats.put_total) == (1, 0, 0, 1)
        assert [item.value for item in broker.find(queue="doomed", status="any").items] == ["another"]
        assert broker.groups("doomed") == ()
        with pytest.raises(LeaseLost):
            broker.complete(lost)
        (lease,) = broker.lease("doomed", 10)
        broker.fail(lease, ValueError("no"))
        (group,) = broker.groups("doomed")
        assert (group.count, group.sample) == (1, lease.id)
        assert broker.delete_queue("doomed", confirm=1) == 1
        if not swept:
            sweep(broker)


def test_items_held_under_the_same_name_are_found_behind_removed_ones(
    redis_url: str, open_broker: Callable[[str], Broker]
) -> None:
    broker = open_broker(redis_url)
    broker.create_queue("doomed")
    broker.create_queue("kept")
    broker.put_many("doomed", [new_item(number, held_by="breaker") for number in range(MANY)])
    broker.put("kept", 1, held_by="breaker")
    broker.delete_queue("doomed", confirm=MANY)
    assert broker.unhold("breaker") == 1
    assert len(broker.lease("kept", 10)) == 1
    sweep(broker)
    assert places(redis_url)


@pytest.mark.parametrize("runs", [False, True])
def test_broken_off_at_any_script_it_is_whole_or_gone(
    runs: bool, redis_url: str, open_broker: Callable[[str], Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a process that is killed before or after one of its scripts."""
    broker, other = open_broker(redis_url), open_broker(redis_url)
    put, lost = fill(broker)
    evaluate = RedisClient._evaluate
    for number in itertools.count(1):
        left = itertools.count(number, -1)

        def killed(self: RedisClient, *args: Any, left: Iterator[int] = left, **options: Any) -> Any:
            if (now := next(left)) < 1:
                raise KeyboardInterrupt  # it does nothing any more
            if now > 1 or runs:
                answer = evaluate(self, *args, **options)
            if now == 1:
                raise KeyboardInterrupt
            return answer

        with monkeypatch.context() as patched:
            patched.setattr(RedisClient, "_evaluate", killed)
            try:
                delete(broker, len(put))
            except KeyboardInterrupt:
                pass
            else:
                break
        _release_lock(other)
        if any(queue.name == "doomed" for queue in other.list_queues()):
            check_whole(other, put)
        else:
            assert runs  # the last of them ran, and was not heard
            break
    assert number > 3
    check_gone(other, put, lost)
    sweep(other)
    check_gone(other, put, lost)


def _release_lock(broker: Broker) -> None:
    """As if its time were over."""
    store = broker.core.store
    assert isinstance(store, RedisStore)
    lock = store._client.request("GET", store._keys.lock)
    if lock is not None:
        store._lock.release(lock)


def test_process_that_stalls_while_others_go_on_deletes_what_was_meant_or_nothing(
    redis_url: str, open_broker: Callable[[str], Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, other = open_broker(redis_url), open_broker(redis_url)
    put, lost = fill(broker)
    apply, stalls = NamespaceLock.apply, iter([True])

    def stall(self: NamespaceLock, *args: Any, **options: Any) -> bool:
        if next(stalls, False):
            _release_lock(other)
            put.append(other.put("doomed", "meanwhile"))
        return apply(self, *args, **options)

    monkeypatch.setattr(NamespaceLock, "apply", stall)
    count = len(put)
    with pytest.raises(ConfirmationMismatch):
        delete(broker, count)
    check_whole(other, put)
    assert delete(broker, len(put)) == count + 1
    check_gone(other, put, lost)


def test_answer_that_is_lost_is_unknown_and_not_a_refusal(
    redis_url: str, open_broker: Callable[[str], Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = open_broker(redis_url)
    put, lost = fill(broker)
    apply = NamespaceLock.apply

    def unheard(self: NamespaceLock, *args: Any, **options: Any) -> bool:
        assert apply(self, *args, **options)
        raise OutcomeUnknown(self.name, "cut")

    with monkeypatch.context() as patched:
        patched.setattr(NamespaceLock, "apply", unheard)
        with pytest.raises(OutcomeUnknown):
            delete(broker, len(put))
    check_gone(broker, put, lost)


@pytest.mark.parametrize("runs", [False, True])
def test_sweep_that_is_broken_off_is_taken_up_by_another(
    runs: bool, redis_url: str, open_broker: Callable[[str], Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, other = open_broker(redis_url), open_broker(redis_url)
    put, lost = fill(broker)
    delete(broker, len(put))
    apply = NamespaceLock.apply

    def broken(self: NamespaceLock, *args: Any, **options: Any) -> bool:
        if runs:
            apply(self, *args, **options)
        raise StoreUnavailable(self.name, "killed")

    with monkeypatch.context() as patched:
        patched.setattr(NamespaceLock, "apply", broken)
        with pytest.raises(StoreUnavailable):
            broker.run_maintenance()
    check_gone(other, put, lost)
    sweep(other)
    check_gone(other, put, lost)
    assert len(places(redis_url)) == 3
    assert not Dump(redis_url).of("removed")
