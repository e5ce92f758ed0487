"""Reschedule: change the instant from which an item that waits may be leased."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from redrive import Broker
from redrive.clock import Instant, to_datetime
from redrive.contract.admin_calls import ManualChange, ManualTarget
from redrive.errors import InvalidInput, WrongStatus
from redrive.model.ids import ItemId
from redrive.model.state_machine import Verb
from redrive.testing.conformance.actions import found, take, take_all, values
from redrive.testing.conformance.manual_changes import item_in
from redrive.testing.conformance.suite import Suite
from redrive.testing.fake_clock import FakeClock


class RescheduleConformance(Suite):
    """The instant from which an item that waits may be leased."""

    def test_retry_runs_now_with_the_counters_that_it_has(self, broker: Broker, clock: FakeClock) -> None:
        id = item_in(broker, "failed")
        before = broker.get(id)
        settled = broker.reschedule(id, actor="ada", note="it is back")
        assert (settled.status, settled.ready_at, settled.counters) == ("pending", clock.now(), before.counters)
        item = broker.get(id)
        entry = item.history[-1]
        assert (entry.event, entry.actor, entry.note, entry.from_status) == (
            *("rescheduled", "ada", "it is back", "failed"),
        )
        assert (item.history[:-1], broker.audit()[0].note) == (before.history, "it is back")
        assert take(broker).counters.attempts == before.counters.attempts + 1

    @pytest.mark.parametrize("status", ["pending", "failed"])
    def test_item_is_not_leased_before_its_new_time(self, broker: Broker, clock: FakeClock, status: str) -> None:
        id = item_in(broker, status)
        at = to_datetime(Instant(clock.now() + 7_200_000_000))
        for options in ({"delay": "3h"}, {"enqueue_at": at}):
            settled = broker.reschedule(id, **options)
            assert settled.status == status
        assert (settled.ready_at, broker.get(id).ready_at) == (clock.now() + 7_200_000_000,) * 2
        clock.advance("1h59m59s")
        broker.run_maintenance()
        assert take_all(broker) == []
        clock.advance("1s")
        assert take(broker).id == id

    def test_item_that_may_be_leased_keeps_its_place(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        first = broker.put("jobs", "first").id
        clock.advance("1s")
        broker.put("jobs", "second")
        late = broker.put("jobs", "late", delay="1h").id
        clock.advance("1s")
        past = to_datetime(Instant(1_000_000))
        assert [broker.reschedule(id, enqueue_at=past).status for id in (first, late)] == ["pending"] * 2
        assert values(take_all(broker)) == ["first", "second", "late"]

    @pytest.mark.parametrize("later", ["0s", "1m"])
    def test_item_is_found_when_its_new_time_has_come(self, broker: Broker, clock: FakeClock, later: str) -> None:
        broker.create_queue("jobs")
        ids = [broker.put("jobs", n, delay=delay).id for n, delay in enumerate(("0s", "1h"))]
        broker.put("jobs", 2)
        for id in ids:
            broker.reschedule(id, delay=later)
        clock.advance(later)
        broker.run_maintenance()
        assert [broker.get(id).status for id in ids] == ["pending"] * 2
        assert sorted(found(broker, status="pending")) == [0, 1, 2]
        assert [broker.archive(id).status for id in ids] == ["archived"] * 2

    def test_hold_and_expiry_stay(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", expire_timeout="1d", retry={"attempts": 3, "cooldown": "1h"})
        id = broker.put("jobs", 1).id
        broker.fail(take(broker), "boom")
        broker.hold([id], "ann")
        before = broker.get(id)
        assert broker.reschedule(id).status == "failed"
        after = broker.get(id)
        assert (after.held_by, after.expire_deadline, take_all(broker)) == (("ann",), before.expire_deadline, [])
        broker.unhold("ann")
        assert take(broker).id == id

    @pytest.mark.parametrize(
        "options",
        [
            *({"delay": "-1s"}, {"delay": "soon"}, {"enqueue_at": "tomorrow"}, {"enqueue_at": datetime(2026, 1, 1)}),
            {"delay": "1s", "enqueue_at": datetime(2026, 1, 1, tzinfo=UTC)},
        ],
        ids=repr,
    )
    def test_bad_time_changes_nothing(self, broker: Broker, options: dict[str, Any]) -> None:
        id = item_in(broker, "failed")
        before, audit = broker.get(id), broker.audit()
        with pytest.raises(InvalidInput):
            broker.reschedule(id, **options)
        assert (broker.get(id), broker.audit()) == (before, audit)

    @pytest.mark.parametrize("status", ["pending", "dead"])
    def test_force_takes_no_item_from_its_worker(self, broker: Broker, status: str) -> None:
        id = item_in(broker, status)
        lease = broker.lease_by_id(id, include_dead=True)
        call = ManualChange(Verb.RESCHEDULE, (ManualTarget(ItemId(id)),), "ada", force=True)
        assert isinstance(broker.submit(call)[0], WrongStatus)
        broker.complete(lease)

    def test_delay_that_no_store_can_keep_is_refused_by_the_store(self, broker: Broker) -> None:
        id = ItemId(item_in(broker, "failed"))
        before = broker.get(id)
        call = ManualChange(Verb.RESCHEDULE, (ManualTarget(id, delay=2**62),), "ada")
        with pytest.raises(InvalidInput):  # a server refuses the whole call
            raise broker.submit(call)[0]
        assert broker.get(id) == before
