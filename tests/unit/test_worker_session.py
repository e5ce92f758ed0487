"""The exchange of outcomes for leases, and the dispatcher that lives by it, where the store makes trouble."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from redrive import App, Broker, connect
from redrive.broker.worker_session import Buried, Completed, Failed, Lost, Released, Returned, open_worker_session
from redrive.contract import Call
from redrive.contract.item_calls import LeaseItems
from redrive.contract.queries import GetOverdue
from redrive.errors import InvalidName, LeaseLost, OutcomeUnknown, QueueNotFound, StoreUnavailable
from redrive.model.duration import SECOND
from redrive.model.failure import failure_from_fields
from redrive.model.item import Settled
from redrive.testing import FakeClock
from redrive.testing.fake_clock import PATIENCE_SECONDS
from redrive.worker.worker import Worker

FAILURE = failure_from_fields("Boom", "no")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def broker(clock: FakeClock) -> Iterator[Broker]:
    with connect("memory://", clock=clock, maintenance=False) as broker:
        broker.create_queue("jobs", retry={"attempts": 3, "cooldown": "1s"})
        yield broker


@pytest.fixture
def in_time() -> Iterator[Broker]:
    """A broker for workers that pause: its time goes by."""
    with connect("memory://", maintenance=False) as broker:
        broker.create_queue("jobs")
        yield broker


def test_ends_and_leases_are_one_transaction(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.put_many("jobs", range(8))
    counter = open_worker_session(broker, "w")
    first = counter.step([], {"jobs": 6}).leases
    batches: list[Any] = []
    store = broker.core.store
    commit = store.commit
    monkeypatch.setattr(store, "commit", lambda calls, *rest: batches.append(calls) or commit(calls, *rest))
    ends = [Completed(), Failed(FAILURE), Released(0, "busy"), Returned(), Buried(note="no"), Lost(FAILURE)]
    exchanged = counter.step(list(zip(first, ends, strict=True)), {"jobs": 2})
    assert len(batches) == 1
    assert [each.status for each in exchanged.settled] == [None, "failed", "pending", "pending", "dead", "pending"]
    assert [lease.value for lease in exchanged.leases] == [3, 6]  # what never ran has its old place
    assert [each.counters.losses for each in exchanged.settled] == [0, 0, 0, 0, 0, 1]


def test_end_that_comes_late_is_refused_alone(broker: Broker) -> None:
    broker.put_many("jobs", range(2))
    counter = open_worker_session(broker, "w")
    gone, held = counter.step([], {"jobs": 2}).leases
    broker.drop(gone.id, force=True)
    refused, settled = counter.step([(gone, Completed()), (held, Completed())], {}).settled
    assert isinstance(refused, LeaseLost)
    assert isinstance(settled, Settled)


def test_end_is_judged_by_the_newest_settings(broker: Broker) -> None:
    broker.put("jobs", 1)
    counter = open_worker_session(broker, "w")
    (lease,) = counter.step([], {"jobs": 1}).leases
    broker.fail(broker.put("jobs", 2) and broker.lease("jobs")[0], "seen")  # this broker knows the settings now
    with_other_settings = broker.core._queues["jobs"]
    broker.update_queue("jobs", retry={"attempts": 1})
    broker.core.cache_queue(with_other_settings)
    (settled,) = counter.step([(lease, Failed(FAILURE))], {}).settled
    assert settled.dead_reason == "retries_exhausted"


def test_leases_that_ran_out_are_swept_first(broker: Broker, clock: FakeClock) -> None:
    broker.put("jobs", 1)
    broker.lease("jobs")
    clock.advance("2m")
    (lease,) = open_worker_session(broker, "w").step([], {"jobs": 5}).leases
    assert lease.losses == 1


def test_queue_that_is_gone_is_told(broker: Broker) -> None:
    broker.put("jobs", 1)
    exchanged = open_worker_session(broker, "w").step([], {"nowhere": 1, "jobs": 1})
    assert isinstance(exchanged.refused["nowhere"], QueueNotFound)
    assert len(exchanged.leases) == 1


def test_what_was_leased_is_told_though_the_second_judgement_cannot_be_had(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.put_many("jobs", range(4))
    counter = open_worker_session(broker, "w")
    done, failed = counter.step([], {"jobs": 2}).leases
    seen = broker.get_queue("jobs")
    broker.update_queue("jobs", retry={"attempts": 1})
    broker.core.cache_queue(seen)
    store = broker.core.store
    commits = [store.commit]

    def once(*given: Any) -> Any:
        if not commits:
            raise StoreUnavailable("memory", "away")
        return commits.pop()(*given)

    monkeypatch.setattr(store, "commit", once)
    exchanged = counter.step([(done, Completed()), (failed, Failed(FAILURE))], {"jobs": 2})
    assert isinstance(exchanged.settled[0], Settled)
    assert isinstance(exchanged.settled[1], StoreUnavailable)
    assert [lease.value for lease in exchanged.leases] == [2, 3]


def test_queue_that_cannot_be_swept_costs_no_other_its_leases(
    broker: Broker, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_queue("other")
    broker.put("other", 1)
    broker.put("jobs", 1)
    broker.lease("jobs")
    clock.advance("2m")
    store = broker.core.store
    read = store.read

    def away(query: Any) -> Any:
        if isinstance(query, GetOverdue):
            raise StoreUnavailable("memory", "away")
        return read(query)

    monkeypatch.setattr(store, "read", away)
    exchanged = open_worker_session(broker, "w").step([], {"jobs": 1, "other": 1})
    assert len(exchanged.leases) == 1
    assert isinstance(exchanged.refused["jobs"], StoreUnavailable)


def test_end_that_no_call_can_be_made_of_is_refused_alone(broker: Broker) -> None:
    broker.put_many("jobs", range(3))
    counter = open_worker_session(broker, "w")
    first, second, third = counter.step([], {"jobs": 3}).leases
    ends = [(first, Completed()), (second, Buried(to="not a name!")), (third, Completed())]
    settled, refused, also_settled = counter.step(ends, {}).settled
    assert isinstance(refused, InvalidName)
    assert isinstance(settled, Settled)
    assert isinstance(also_settled, Settled)


def test_ring_ends_one_pause(broker: Broker, clock: FakeClock) -> None:
    counter = open_worker_session(broker, "w")
    counter.wake()
    counter.pause(SECOND)
    thread = threading.Thread(target=counter.pause, args=(SECOND,), daemon=True)
    thread.start()
    clock.until_waiting()
    assert thread.is_alive()
    clock.advance("1s")
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


@pytest.mark.parametrize("committed", [True, False], ids=["it was committed", "it was not"])
def test_everything_is_done_once_though_answers_are_cut_off(
    in_time: Broker, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    """What was leased without the worker's knowing is found, and what was settled is not settled twice."""
    seen: Counter[int] = Counter()
    trouble = _every(3, lambda: OutcomeUnknown("memory", "cut off"), committed)
    monkeypatch.setattr(in_time.core.store, "commit", trouble(in_time.core.store.commit))
    _work_through(in_time, seen)
    assert seen == Counter(range(300))
    assert in_time.stats("jobs").active == 0


def test_everything_is_done_once_though_the_store_is_away(in_time: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[int] = Counter()
    trouble = _every(3, lambda: StoreUnavailable("memory", "away"), False)
    monkeypatch.setattr(in_time.core.store, "commit", trouble(in_time.core.store.commit))
    _work_through(in_time, seen)
    assert seen == Counter(range(300))


def _work_through(broker: Broker, seen: Counter[int]) -> None:
    app = App()
    jobs = app.queue("jobs")

    @jobs.task
    def count(n: int) -> None:
        seen[n] += 1

    with app.override_broker(broker):
        count.put_many(count.item(n) for n in range(300))
        Worker(app, broker=broker, concurrency=2).run(until_idle=True)
    stats = broker.stats("jobs")
    assert (stats.pending, stats.failed, stats.dead) == (0, 0, 0)


def _every(number: int, error: Callable[[], Exception], committed: bool) -> Callable[..., Any]:
    """Commits, of which every so-many-th that leases or ends deliveries answers with an error."""

    def around(commit: Callable[..., Any]) -> Callable[..., Any]:
        met = 0

        def troubled(calls: list[Call], *rest: Any) -> Any:
            nonlocal met
            if any(isinstance(call, LeaseItems) for call in calls):
                met += 1
                if met % number == 0:
                    if committed:
                        commit(calls, *rest)
                    raise error()
            return commit(calls, *rest)

        return troubled

    return around
