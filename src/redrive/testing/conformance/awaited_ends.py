"""Awaited ends: a caller that awaits the result of an item is woken when the item ends, under any id that it had."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from redrive import Broker
from redrive.contract.item_calls import Complete, Settle
from redrive.errors import ResultNotKept, TaskFailed
from redrive.model.death import DeadReason
from redrive.model.duration import SECOND
from redrive.model.ids import ItemId, result_topic
from redrive.model.item import Result
from redrive.model.judge import Dead, OutcomeKind
from redrive.task.result_handle import await_result
from redrive.testing.conformance.actions import Background, take
from redrive.testing.conformance.suite import OpenBroker, StoreDriver, StoreSuite
from redrive.testing.fake_clock import PATIENCE_SECONDS, FakeClock


def awaiting(broker: Broker, id: ItemId, clock: FakeClock | None = None, count: int = 1) -> Background[Result]:
    """Await the result of an item in another thread, and return once `count` callers wait for it.

    With the clock of the broker, also wait until its notifier has polled, and waits for that clock or a wake-up.
    """
    caller = Background(lambda: broker.run_flow(await_result(broker.core, "task", id, "10m")))
    notify, give_up = broker.core.notify, time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < give_up:
        if clock is not None:
            clock.until_waiting()
        if len(notify._waiters.get(result_topic(id), ())) >= count and not notify._bell.is_set():
            return caller
        threading.Event().wait(0.001)
    raise AssertionError("the caller does not wait")


Past = Callable[[Broker], ItemId]
"""A function that puts an item which is in "jobs" in the end, and returns its first id."""


def _moved(broker: Broker) -> ItemId:
    """Put an item that is moved to "jobs" and never died."""
    id = broker.put("entry", 1).id
    broker.move(id, "jobs")
    return id


def _redriven(broker: Broker) -> ItemId:
    """Put an item that died in "jobs" and was redriven from "morgue": it has three ids."""
    broker.update_queue("jobs", dead_queue="morgue")
    id = broker.put("jobs", 1).id
    broker.redrive(broker.bury(take(broker)).id)
    return id


End = Callable[[Broker, FakeClock], Iterator[None]]
"""A generator that ends the item in "jobs". It moves the clock only before its `yield`."""


def _result_is_kept(broker: Broker, clock: FakeClock) -> Iterator[None]:
    yield
    broker.complete(take(broker), result=42, keep_result="1h")


def _item_is_kept(broker: Broker, clock: FakeClock) -> Iterator[None]:
    broker.update_queue("jobs", keep_completed="1h")
    yield
    broker.complete(take(broker), result=42)


def _both_are_kept(broker: Broker, clock: FakeClock) -> Iterator[None]:
    broker.update_queue("jobs", keep_completed="1h")
    yield
    broker.complete(take(broker), result=42, keep_result="1h")


def _result_is_kept_after_a_retry(broker: Broker, clock: FakeClock) -> Iterator[None]:
    broker.update_queue("jobs", retry={"attempts": 2})
    broker.fail(take(broker), "boom")
    clock.advance("1h")
    yield
    broker.complete(take(broker), result=42, keep_result="1h", puts=[("entry", 2)])


def _fails(broker: Broker, clock: FakeClock) -> Iterator[None]:
    yield
    broker.fail(take(broker), "boom", final=True)


def _fails_after_a_retry(broker: Broker, clock: FakeClock) -> Iterator[None]:
    broker.update_queue("jobs", retry={"attempts": 2})
    broker.fail(take(broker), "boom")
    clock.advance("1h")
    yield
    broker.fail(take(broker), "boom")


def _is_buried(broker: Broker, clock: FakeClock) -> Iterator[None]:
    yield
    broker.bury(take(broker))


def _dies_with_others(broker: Broker, clock: FakeClock) -> Iterator[None]:
    broker.put_many("jobs", range(9))
    leases, version = broker.lease("jobs", 10), broker.get_queue("jobs").version
    yield
    died = Dead(DeadReason.BURIED)
    broker.core.committer.commit([Settle(each.token, OutcomeKind.BURIED, died, version) for each in leases])


def _is_released_too_often(broker: Broker, clock: FakeClock) -> Iterator[None]:
    broker.update_queue("jobs", max_attempts=1)
    yield
    broker.release(take(broker))


def _worker_is_reported_lost(broker: Broker, clock: FakeClock) -> Iterator[None]:
    yield
    broker.report_lost(take(broker), "killed")


def _lease_expires(broker: Broker, clock: FakeClock) -> Iterator[None]:
    take(broker, lease_timeout="1s")
    clock.advance("1s")
    yield
    broker.run_maintenance()


def _next_lease_sweeps(broker: Broker, clock: FakeClock) -> Iterator[None]:
    take(broker, lease_timeout="1s")
    clock.advance("1s")
    yield
    assert broker.lease("jobs") == []


def _item_expires(broker: Broker, clock: FakeClock) -> Iterator[None]:
    clock.advance("2h")
    yield
    broker.run_maintenance()


def _is_buried_manually(broker: Broker, clock: FakeClock) -> Iterator[None]:
    id = current_id(broker)
    yield
    broker.bury_items(id)


def _is_buried_manually_while_active(broker: Broker, clock: FakeClock) -> Iterator[None]:
    id = take(broker).id
    yield
    broker.bury_items(id, force=True)


def _fails_manually(broker: Broker, clock: FakeClock) -> Iterator[None]:
    id = current_id(broker)
    yield
    broker.fail_items(id, "boom")


def _operation_buries(broker: Broker, clock: FakeClock) -> Iterator[None]:
    operation = broker.start_operation("bury", queue="jobs", status="pending")
    yield
    broker.run_operation(operation.id)


def _redrive_is_undone(broker: Broker, clock: FakeClock) -> Iterator[None]:
    broker.redrive(broker.bury(take(broker)).id)
    id = current_id(broker)
    yield
    broker.undo(id)


def _is_dropped(broker: Broker, clock: FakeClock) -> Iterator[None]:
    broker.update_queue("jobs", dead_queue=None, on_dead="drop")
    yield
    broker.bury(take(broker))


def _leaves_for_another_store(broker: Broker, clock: FakeClock) -> Iterator[None]:
    lease, version = take(broker), broker.get_queue("jobs").version
    yield
    verdict = Dead(DeadReason.BURIED, "morgue@elsewhere")
    broker.submit(Settle(lease.token, OutcomeKind.BURIED, verdict, version))


RESULTS: tuple[End, ...] = (_result_is_kept, _item_is_kept, _both_are_kept, _result_is_kept_after_a_retry)
DEATHS: tuple[End, ...] = (
    _fails, _fails_after_a_retry, _is_buried, _dies_with_others, _is_released_too_often, _worker_is_reported_lost,
    _lease_expires, _next_lease_sweeps, _item_expires, _is_buried_manually, _is_buried_manually_while_active,
    _fails_manually, _operation_buries, _redrive_is_undone, _is_dropped, _leaves_for_another_store,
)  # fmt: skip
"""All ways in which an item dies."""


def current_id(broker: Broker) -> ItemId:
    """Return the id of the only item in "jobs"."""
    (item,) = broker.find(queue="jobs", status="any").items
    return item.id


class AwaitConformance(StoreSuite):
    """The end of an item wakes a caller that awaits it. The clock does not move, so that the caller cannot poll."""

    @pytest.mark.parametrize("end", [*RESULTS, *DEATHS], ids=lambda end: end.__name__[1:])
    @pytest.mark.parametrize("past", [_moved, _redriven], ids=lambda past: past.__name__[1:])
    def test_woken_by_every_end_under_the_first_id_and_the_last(
        self, broker: Broker, clock: FakeClock, past: Past, end: End
    ) -> None:
        broker.create_queue("entry", expire_timeout="2h")
        broker.create_queue("morgue")
        broker.create_queue("jobs", max_losses=1, expire_timeout="2h")
        first_id = past(broker)
        ending = end(broker, clock)
        next(ending)
        callers = [awaiting(broker, id, clock) for id in (first_id, broker.get(first_id).id)]
        assert next(ending, None) is None
        for caller in callers:
            if end in RESULTS:
                assert caller.result().value == 42
            else:
                with pytest.raises(ResultNotKept if end is _is_dropped else TaskFailed):
                    caller.result()

    def test_all_that_await_an_item_are_woken(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        id = broker.put("jobs", 1).id
        callers = [awaiting(broker, id, clock, count) for count in range(1, 5)]
        broker.complete(take(broker), result=42, keep_result="1h")
        assert [caller.result().value for caller in callers] == [42] * 4

    @pytest.mark.parametrize("end", ["result", "death"])
    def test_woken_by_another_process(self, open_broker: OpenBroker, clock: FakeClock, end: str) -> None:
        self.require("supports_processes")
        one, two = open_broker(), open_broker()
        one.create_queue("jobs")
        caller = awaiting(one, one.put("jobs", 1).id, clock)
        if end == "result":
            two.complete(take(two), result=42, keep_result="1h")
            clock.advance("100ms")  # polls other processes; the caller itself polls every second
            assert caller.result().value == 42
        else:
            two.bury(take(two))
            clock.advance("100ms")
            with pytest.raises(TaskFailed):
                caller.result()

    def test_commit_names_the_topic_of_each_item_that_ended(self, direct: StoreDriver) -> None:
        direct.queue()
        kept, dead, done = direct.put(b"a", b"b", b"c")
        by_id = {lease.id: lease for lease in direct.lease(limit=3)}
        result = Result(b"1", "application/json")
        commit = direct.commit(Complete(by_id[kept].token, result, keep_result=SECOND))
        assert result_topic(kept) in commit.arrivals
        bury = Settle(by_id[dead].token, OutcomeKind.BURIED, Dead(DeadReason.BURIED), direct.version())
        assert result_topic(dead) in direct.commit(bury).arrivals
        assert result_topic(done) not in direct.commit(Complete(by_id[done].token)).arrivals
