"""Editing and redriving many dead letters: batches, rate, canaries, refusals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from redrive import Broker, EditedRedrive
from redrive.broker.flows import edited_redrive
from redrive.clock import Instant
from redrive.contract.queries import FindItems, GetItem, GetItems
from redrive.errors import InvalidInput
from redrive.model.duration import SECOND
from redrive.testing import FakeClock, memory_broker

EDIT = {"mended": True}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def broker(clock: FakeClock) -> Iterator[Broker]:
    with memory_broker(clock) as broker:
        broker.create_queue("jobs", retry={"attempts": 1})
        yield broker


@pytest.fixture
def waits(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How long it waited, each time; the clock is advanced instead."""
    waited: list[int] = []

    def wait(core: Any, until: Instant) -> Iterator[Any]:
        yield from ()
        waited.append(until - clock.now())
        clock.advance(waited[-1] / SECOND)

    monkeypatch.setattr(edited_redrive, "wait_until", wait)
    return waited


@pytest.fixture
def reads(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Counter[type]:
    """Queries of the store, by type."""
    counted: Counter[type] = Counter()
    read = broker.core.store.read

    def count(query: Any) -> Any:
        counted[type(query)] += 1
        return read(query)

    monkeypatch.setattr(broker.core.store, "read", count)
    return counted


def _die(broker: Broker, count: int) -> list[str]:
    broker.put_many("jobs", [{"n": n} for n in range(count)])
    for lease in broker.lease("jobs", count):
        broker.fail(lease, "down")
    return [item.id for item in broker.find(queue="jobs", order="oldest", limit=1000).items]


def test_many_items_are_edited_with_few_reads(broker: Broker, reads: Counter[type]) -> None:
    ids = _die(broker, 300)
    reads.clear()
    seen: list[int] = []
    done = broker.redrive_edited(ids, edit=EDIT, progress=lambda now: seen.append(now.changed))
    assert (done.total, done.changed, done.untouched, done.skipped, done.problem) == (300, 300, 0, {}, None)
    assert seen == [250, 300]
    assert reads[GetItem] == 0
    assert reads[GetItems] == 4  # 100 at a time, in batches of 250
    assert reads[FindItems] == 0
    assert {lease.value["mended"] for lease in broker.lease("jobs", 300)} == {True}


def test_rate_spreads_the_batches(broker: Broker, waits: list[int]) -> None:
    done = broker.redrive_edited(_die(broker, 6), edit=EDIT, rate=20)
    assert (done.changed, waits) == (6, [SECOND // 10] * 3)


def test_item_that_cannot_be_edited_stays_dead(broker: Broker) -> None:
    ids = [*_die(broker, 2), "0" * 32]
    broker.put("jobs", b"bytes")
    broker.fail(broker.lease("jobs")[0], "down")
    (raw,) = (item.id for item in broker.find(queue="jobs").items if item.id not in ids)
    done = broker.redrive_edited([*ids, raw], edit=EDIT)
    assert (done.changed, done.skipped, done.untouched) == (2, {"item_not_found": 1, "invalid_payload": 1}, 0)
    assert done.refusals["invalid_payload"][0] == raw
    assert broker.get(raw).status == "dead"


@pytest.mark.parametrize(
    ("completed", "changed", "problem"), [(2, 9, None), (1, 3, "2 of 3 canaries died again (2 × ")]
)
def test_canaries_decide_over_the_rest(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, completed: int, changed: int, problem: str | None
) -> None:
    def work(core: Any, until: Instant) -> Iterator[Any]:
        yield from ()
        for place, lease in enumerate(broker.lease("jobs", 10)):
            broker.complete(lease) if place < completed else broker.fail(lease, "again")

    monkeypatch.setattr(edited_redrive, "wait_until", work)
    seen: list[int | None] = []

    def progress(now: EditedRedrive) -> None:
        seen.append(now.ended_canaries)

    done = broker.redrive_edited(_die(broker, 9), edit=EDIT, canary=3, canary_success_ratio=0.6, progress=progress)
    assert (done.changed, done.untouched) == (changed, 9 - changed)
    assert done.problem is problem if problem is None else str(done.problem).startswith(problem)
    assert seen[:3] == [None, 0, 3]


def test_canaries_that_do_not_end_stop_the_rest(broker: Broker, waits: list[int]) -> None:
    done = broker.redrive_edited(_die(broker, 5), edit=EDIT, canary=2, wait="1s")
    assert (done.changed, done.untouched) == (2, 3)
    assert done.problem == "2 of 2 canaries have not ended in the time given"
    assert sum(waits) == SECOND


def test_gone_canary_has_completed_unless_the_feed_has_its_death(broker: Broker, waits: list[int]) -> None:
    ids = _die(broker, 3)
    broker.update_queue("jobs", on_dead="drop")
    flow: list[str] = []

    def progress(now: EditedRedrive) -> None:
        if not flow:
            flow.append("worked")
            broker.fail(broker.lease("jobs")[0], "gone")

    done = broker.redrive_edited(ids, edit=EDIT, canary=1, progress=progress)
    assert (done.changed, done.untouched) == (1, 2)
    assert "died again" in str(done.problem)


def test_options_are_checked_before_anything_changes(broker: Broker) -> None:
    ids = _die(broker, 2)
    wrong: dict[str, Any] = {"rate": 0, "canary": 1000, "canary_success_ratio": 0, "progress": 3, "edit": 3}
    for name, value in wrong.items():
        with pytest.raises(InvalidInput):
            broker.redrive_edited(ids, **{"edit": EDIT, name: value})
    assert broker.stats("jobs").dead == 2
