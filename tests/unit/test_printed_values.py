"""What a person sees who prints a value."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
import pytest

from redrive import Broker, FeedEntry, FeedKind
from redrive.model.text import to_rfc3339
from redrive.testing import FakeClock, memory_broker

START = "2026-07-01 03:12:55 UTC"


@pytest.fixture
def broker() -> Iterator[Broker]:
    with memory_broker(FakeClock(datetime(2026, 7, 1, 3, 12, 55, tzinfo=UTC))) as broker:
        broker.create_queue("dead-orders")
        broker.create_queue("orders", dead_queue="dead-orders")
        broker.put_many("orders", [1, 2])
        for lease in broker.lease("orders", 2, worker="w1"):
            broker.fail(lease, f"no product {lease.value}")
        yield broker


def test_group(broker: Broker) -> None:
    (group,) = broker.groups()
    assert str(group) == (
        f"2 × Error: no product <n> (permanent)\n"
        f"  in dead-orders 2; first {START}, last {START}\n"
        f"  fingerprint {group.fingerprint}, newest item {group.sample}\n"
        f"  {group.advice}"
    )


def test_page(broker: Broker) -> None:
    first, rest = broker.find(limit=1), broker.find()
    assert str(first) == (
        f"1 item; there are more: pass on page.cursor\n  {first.items[0].id} dead-orders pending Error: no product 2"
    )
    assert str(rest).splitlines()[0] == "2 items"
    assert str(broker.find(queue="orders")) == "0 items"


def test_plan(broker: Broker) -> None:
    assert str(broker.plan_operation("redrive")) == (
        "redrive: 2 of 2 items would be changed\n  then in: orders 2\n  2 × Error: no product <n>"
    )
    assert str(broker.plan_operation("redrive", to="nowhere")) == (
        "redrive: 0 of 2 items would be changed\n  left out: queue_not_found 2"
    )


def test_operation(broker: Broker) -> None:
    operation = broker.start_operation("redrive", canary=1, rate=500, note="mended", actor="ann")
    assert str(broker.run_operation(operation.id)) == (
        f"redrive {operation.id}: watching, 1 of 2 changed, at most 500 per second, canaries 1 of 1\n"
        f"  by ann at {START}: mended"
    )
    (lease,) = broker.lease("orders")
    broker.fail(lease, "no product 1")
    stopped = broker.run_operation(operation.id)
    assert str(stopped).splitlines()[1] == f"  problem: {stopped.problem}"


def test_item_and_what_happened_to_it(broker: Broker) -> None:
    item = broker.find(order="oldest", limit=1).items[0]
    assert str(item.death) == f"{START} retries_exhausted in orders after 1 attempt: Error: no product 1"
    assert str(item.history[0]) == f"{START} failed in orders, delivery 1 by w1: Error: no product 1"
    assert str(broker.feed(after=0, limit=1)) == (
        f"1 entry; there are more\n  {START} dead in orders, item {item.id}: Error: no product 1"
    )
    back = broker.redrive(item.id, actor="ann", note="mended")
    assert str(broker.get(back.id).history[-1]) == f"{START} redriven in dead-orders, delivery 1 by ann: mended"
    (entry,) = broker.feed(kinds="redriven").entries
    assert str(entry) == f"{START} redriven in dead-orders by ann, item {back.id}"
    assert str(broker.audit()[0]) == f"{START} ann: redrive, 1 item in dead-orders: mended"


def test_entry_of_a_breaker() -> None:
    entry = FeedEntry(
        1,
        FakeClock(datetime(2026, 7, 1, 3, 12, 55, tzinfo=UTC)).now(),
        FeedKind.BREAKER_OPENED,
        "orders",
        title="20 failures within 1m",
        breaker="network",
    )
    assert str(entry) == f"{START} breaker_opened in orders for network: 20 failures within 1m"
    manual = msgspec.structs.replace(entry, actor="ann", title=None)
    assert str(manual) == f"{START} breaker_opened in orders for network by ann"


def test_stats(broker: Broker) -> None:
    assert (
        str(broker.stats("orders"))
        == "orders: pending 0, failed 0, active 0, dead_letters 0, archived 0, completed_total 0"
    )
    assert str(broker.stats("dead-orders")) == (
        "dead-orders: pending 2, failed 0, active 0, dead_letters 2, archived 0, completed_total 0; "
        "the oldest has waited for 0s"
    )


def test_instant_for_programs_has_microseconds() -> None:
    assert to_rfc3339(1_782_875_575_000_123) == "2026-07-01T03:12:55.000123Z"
