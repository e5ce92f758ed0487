"""Clearing a queue: what is dropped, what is removed permanently, and what stays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from redrive import Broker
from redrive.broker.flows import clearance
from redrive.errors import ConfirmationMismatch, InvalidInput, QueueNotFound
from redrive.testing import FakeClock, memory_broker


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def broker(clock: FakeClock) -> Iterator[Broker]:
    with memory_broker(clock) as broker:
        broker.create_queue("jobs", keep_completed="30d", keep_dropped="7d", retry={"attempts": 1})
        yield broker


def _count(broker: Broker, status: str, **more: Any) -> int:
    return broker.count(queue="jobs", status=status, **more)


def test_pending_items_are_dropped_and_leased_ones_stay(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clearance, "CLEARED_TOGETHER", 2)
    broker.put_many("jobs", range(5))
    broker.lease("jobs")
    seen: list[int] = []
    result = broker.clear_queue("jobs", progress=seen.append)
    assert (result.matched, result.total, result.cleared, result.skipped) == ({"pending": 4}, 4, 4, {})
    assert seen == [2, 4]
    assert result.undo_until is not None
    assert (_count(broker, "pending"), _count(broker, "active"), _count(broker, "archived", dropped=True)) == (0, 1, 4)


def test_dropped_items_are_not_dropped_again_and_are_removed_permanently(broker: Broker) -> None:
    broker.put_many("jobs", range(3))
    broker.clear_queue("jobs")
    assert broker.clear_queue("jobs", ["pending", "archived"]).total == 0
    result = broker.clear_queue("jobs", "archived", final=True, confirm=3)
    assert (result.cleared, result.undo_until, _count(broker, "archived")) == (3, None, 0)


def test_item_of_another_caller_is_skipped(broker: Broker) -> None:
    broker.put_many("jobs", range(2))
    flow = clearance.clear_queue(broker.core, "jobs", "pending")
    effect = next(flow)
    while type(getattr(effect, "query", None)).__name__ != "FindItems":
        effect = flow.send(broker.core.read(effect.query))  # type: ignore[union-attr]
    page = broker.core.read(effect.query)  # type: ignore[union-attr]
    broker.lease("jobs")
    effect = flow.send(page)
    with pytest.raises(StopIteration) as end:
        flow.send(broker.core.committer.commit(effect.calls))  # type: ignore[union-attr]
    assert (end.value.value.cleared, end.value.value.skipped) == (1, {"item_active": 1})


def test_completed_items_go_by_when_they_were_completed(broker: Broker, clock: FakeClock) -> None:
    broker.put_many("jobs", range(2))
    clock.advance("10d")
    (first, _) = broker.lease("jobs", 2)
    broker.complete(first)
    clock.advance("2d")
    assert broker.clear_queue("jobs", "completed", final=True, older_than="3d", dry_run=True).total == 0
    assert broker.clear_queue("jobs", "completed", final=True, older_than="1d").cleared == 1
    assert _count(broker, "completed") == 0


def test_dead_items_go_by_when_they_died(broker: Broker, clock: FakeClock) -> None:
    broker.put_many("jobs", range(2))
    for days in ("3d", "0s"):
        (lease,) = broker.lease("jobs")
        broker.fail(lease, "down")
        clock.advance(days)
    result = broker.clear_queue(None, "dead", final=True, older_than="1d")
    assert (result.matched, result.cleared, _count(broker, "dead")) == ({"dead": 1}, 1, 1)


def test_wrong_number_clears_nothing(broker: Broker) -> None:
    broker.put_many("jobs", range(3))
    with pytest.raises(ConfirmationMismatch, match="clearing queue 'jobs'"):
        broker.clear_queue("jobs", confirm=2)
    assert broker.clear_queue("jobs", confirm=2, dry_run=True).matched == {"pending": 3}
    assert _count(broker, "pending") == 3


@pytest.mark.parametrize("statuses", ["active", ["pending", "gone"], 3, [None]])
def test_status_that_cannot_be_cleared_is_refused(broker: Broker, statuses: Any) -> None:
    with pytest.raises(InvalidInput, match="status"):
        broker.clear_queue("jobs", statuses)


def test_unknown_queue_is_refused(broker: Broker) -> None:
    with pytest.raises(QueueNotFound):
        broker.clear_queue("none")
