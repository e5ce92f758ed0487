"""Dead items that are leased by id: manual changes, operations and brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from redrive import Broker, Dead, DeadReason, RetryVerdict
from redrive.broker.worker_session import Buried, Failed, Lost, Outcome, Released, Returned, open_worker_session
from redrive.contract.admin_calls import StartOperation, StepOperation
from redrive.contract.item_calls import ReturnLease
from redrive.contract.maintenance_calls import Import
from redrive.errors import IdempotencyConflict, ItemActive
from redrive.model.duration import SECOND
from redrive.model.filter import Filter
from redrive.model.ids import ItemId
from redrive.model.item import Item, Settled
from redrive.model.state_machine import Verb
from redrive.testing.conformance.actions import die, kill, places, take
from redrive.testing.conformance.lease_by_id import run
from redrive.testing.conformance.leased_dead_letters import KILLED, dead_item
from redrive.testing.conformance.suite import StoreDriver, StorePair, StorePairSuite, StoreSuite, only
from redrive.testing.fake_clock import FakeClock

RETRIED: dict[str, Any] = {"retry": {"attempts": 9, "cooldown": "1m"}, "max_attempts": 0, "max_losses": 0}
"""Settings of a queue that retries every failure."""


class LeasedDeadLetterChanges(StoreSuite):
    """Other changes of the item are refused, unless they revoke the lease."""

    def leased(self, direct: StoreDriver, broker: Broker) -> Item:
        """Return a dead item that is leased."""
        broker.create_queue("jobs")
        broker.create_queue("other")
        dead = dead_item(broker)
        run(direct, dead.id, include_dead=True)
        return dead

    @pytest.mark.parametrize("verb", ["redrive", "retry", "archive", "drop", "undo"])
    def test_change_manually_needs_force(self, broker: Broker, direct: StoreDriver, verb: str) -> None:
        dead = self.leased(direct, broker)
        with pytest.raises(ItemActive):
            getattr(broker, verb)(dead.id)
        assert broker.get(dead.id).status == "active"

    @pytest.mark.parametrize("verb", [Verb.REDRIVE, Verb.RETRY, Verb.ARCHIVE, Verb.MOVE])
    def test_operation_passes_over_it(self, broker: Broker, direct: StoreDriver, verb: Verb) -> None:
        dead = self.leased(direct, broker)
        die(broker, 6, ValueError("boom"))
        to = "other" if verb is Verb.MOVE else None
        operation = direct.do(StartOperation(verb=verb, where=Filter(queue="jobs"), actor="ada", to=to))
        after = direct.do(StepOperation(operation.id, 0))
        assert (after.changed, dict(after.skipped)) == (6, {"item_active": 1})
        assert (broker.get(dead.id).status, broker.count(queue="jobs")) == ("active", 1)

    @pytest.mark.parametrize("verb", ["redrive", "retry"])
    def test_forced_back_to_work_it_is_no_longer_a_dead_letter(
        self, broker: Broker, direct: StoreDriver, verb: str
    ) -> None:
        dead = self.leased(direct, broker)
        assert getattr(broker, verb)(dead.id, force=True).status == "pending"
        assert (broker.stats("jobs").dead_letters, broker.groups()) == (0, ())
        last = broker.get(dead.id).history[-1]
        assert (last.event, last.from_status, last.from_dead_letter) == ("redriven", "dead", True)
        assert broker.undo(dead.id).status == "dead"

    def test_forced_into_the_archive_it_is_restored_as_dead(self, broker: Broker, direct: StoreDriver) -> None:
        dead = self.leased(direct, broker)
        direct.change(Verb.ARCHIVE, dead.id, force=True)
        assert places(broker.stats("jobs")) == {"archived": 1}
        settled = broker.restore(dead.id)
        assert (settled.status, settled.dead_reason) == ("dead", "policy")
        assert broker.get(dead.id).ended_at == dead.ended_at

    def test_forced_to_another_queue_it_is_dead_there(self, broker: Broker, direct: StoreDriver) -> None:
        dead = self.leased(direct, broker)
        settled = broker.move(dead.id, "other", force=True)
        assert (settled.status, settled.dead_reason, settled.ready_at) == ("dead", "policy", None)
        item = broker.get(dead.id)
        assert (item.queue, item.status, item.ended_at, item.deaths) == ("other", "dead", dead.ended_at, dead.deaths)
        assert (broker.stats("jobs").dead_letters, broker.stats("other").dead_letters) == (0, 1)
        assert run(direct, item.id, include_dead=True).queue == "other"
        assert broker.redrive(item.id, force=True).queue == "other"

    @pytest.mark.parametrize(("verb", "left"), [("drop", {"archived": 1}), ("complete_items", {})])
    def test_forced_out_it_leaves_its_group(
        self, broker: Broker, direct: StoreDriver, verb: str, left: dict[str, int]
    ) -> None:
        dead = self.leased(direct, broker)
        getattr(broker, verb)(dead.id, force=True)
        assert (places(broker.stats("jobs")), broker.stats("jobs").dead_letters, broker.groups()) == (left, 0, ())

    def test_retention_waits_for_its_lease(self, broker: Broker, direct: StoreDriver, clock: FakeClock) -> None:
        broker.create_queue("jobs", keep_dead="1h")
        dead = dead_item(broker)
        lease = run(direct, dead.id, timeout=9000 * SECOND, include_dead=True)
        clock.advance("2h")
        broker.run_maintenance()
        assert broker.get(dead.id).status == "active"
        direct.do(ReturnLease(lease.token))
        broker.run_maintenance()
        assert (places(broker.stats("jobs")), broker.groups()) == ({}, ())

    def test_full_queue_and_old_deadline_do_not_refuse_it(
        self, broker: Broker, direct: StoreDriver, clock: FakeClock
    ) -> None:
        broker.create_queue("jobs", max_size=1, expire_timeout="1s")
        broker.put("jobs", 0)
        clock.advance("1s")
        broker.run_maintenance()
        (dead,) = broker.find().items
        broker.put("jobs", 1)
        lease = broker.lease_by_id(dead.id, include_dead=True)
        assert (lease.dead_reason, places(broker.stats("jobs"))) == ("expired", {"pending": 1, "active": 1})
        assert broker.complete(lease).status is None

    def test_key_that_another_item_has_taken_refuses_it(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", idempotency_timeout="1m")
        dead = dead_item(broker, idempotency_key="k")
        clock.advance("1h")
        other = broker.put("jobs", 2, idempotency_key="k").id
        with pytest.raises(IdempotencyConflict, match=other):
            broker.lease_by_id(dead.id, include_dead=True)
        broker.complete(take(broker))
        assert broker.lease_by_id(dead.id, include_dead=True).id == dead.id

    def test_imported_elsewhere_it_is_dead(self, broker: Broker, direct: StoreDriver) -> None:
        dead = self.leased(direct, broker)
        source = msgspec.structs.replace(broker.get(dead.id), id=ItemId("f" * 32))
        (receipt,) = direct.do(Import("other", (source,), "ada"))
        item = direct.get(receipt.id)
        assert (item.status, item.dead_reason, item.deaths) == ("dead", "policy", dead.deaths)

    def test_failure_that_is_put_under_its_key_is_written_down(self, broker: Broker, direct: StoreDriver) -> None:
        broker.create_queue("jobs")
        dead = dead_item(broker, idempotency_key="k")
        lease = run(direct, dead.id, include_dead=True)
        assert broker.put_failed("jobs", {"word": "unicorn"}, "again", idempotency_key="k").duplicate
        item = broker.get(dead.id)
        assert (item.status, len(item.history), item.dead_reason) == ("active", 2, "policy")
        assert broker.fail(lease, "boom").status == "dead"
        assert [entry.event for entry in broker.get(dead.id).history] == ["failed"] * 3


class LeasedDeadLetterElsewhere(StorePairSuite):
    """Leased dead items that came from another store, or move there."""

    def test_item_that_died_in_its_dead_queue_stays_there(self, pair: StorePair, clock: FakeClock) -> None:
        pair.create_queues()
        kill(pair.source)
        pair.source.run_maintenance()
        dead = pair.target.fail(take(pair.target, "morgue"), "boom", final=True)
        before = pair.target.get(dead.id)
        lease = pair.target.lease_by_id(dead.id, include_dead=True)
        assert pair.target.get(dead.id).home_store == before.home_store
        assert pair.target.fail(lease, "boom").queue == "morgue"
        pair.target.lease_by_id(dead.id, include_dead=True)
        assert pair.target.redrive(dead.id, force=True).queue == "morgue"

    def test_item_that_is_forced_to_another_store_is_dead_there(self, pair: StorePair, clock: FakeClock) -> None:
        pair.source.create_queue("jobs")
        pair.target.create_queue("jobs")
        dead = dead_item(pair.source)
        pair.source.lease_by_id(dead.id, include_dead=True)
        settled = pair.source.move(dead.id, pair.there("jobs"), force=True)
        moving = pair.source.get(dead.id)
        assert (settled.status, moving.status, moving.dead_reason) == ("moving", "moving", None)
        assert pair.source.run_maintenance().moved == 1
        item = only(pair.target)
        assert (item.status, item.dead_reason, item.deaths) == ("dead", "policy", dead.deaths)
        assert (pair.source.stats("jobs").dead_letters, pair.target.stats("jobs").dead_letters) == (0, 1)


class LeasedDeadLetterBrokers(StoreSuite):
    """The item is dead again, regardless of the broker that settles the delivery."""

    @pytest.mark.parametrize("by_token", [False, True])
    @pytest.mark.parametrize(
        "end",
        [
            lambda broker, lease: broker.fail(lease, "boom"),
            lambda broker, lease: broker.fail(lease, "boom", verdict=RetryVerdict.after("1s")),
            lambda broker, lease: broker.fail(lease, "boom", verdict=Dead(DeadReason.POLICY, "morgue")),
            lambda broker, lease: broker.release(lease, delay="1s"),
            lambda broker, lease: broker.release(lease, counted=False),
            lambda broker, lease: broker.bury(lease, note="no"),
            lambda broker, lease: broker.report_lost(lease, "gone"),
        ],
        ids=["fail", "fail and retry", "fail to another queue", "release", "release uncounted", "bury", "lost"],
    )
    def test_broker_leaves_it_dead(self, broker: Broker, end: Callable[..., Settled], by_token: bool) -> None:
        broker.create_queue("morgue")
        broker.create_queue("jobs", **RETRIED)
        dead = dead_item(broker)
        lease = broker.lease_by_id(dead.id, include_dead=True)
        settled = end(broker, lease.token if by_token else lease)
        assert (settled.id, settled.status, settled.dead_reason) == (dead.id, "dead", "policy")
        assert (broker.get(dead.id).deaths, broker.stats("jobs").dead_letters) == (dead.deaths, 1)

    def test_sweep_leaves_it_dead(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", **RETRIED)
        dead = dead_item(broker)
        broker.lease_by_id(dead.id, include_dead=True, lease_timeout="1s", worker="w1")
        clock.advance("1s")
        assert broker.lease("jobs") == []
        item = broker.get(dead.id)
        assert (item.status, item.counters.losses, item.deaths) == ("dead", 1, dead.deaths)
        assert (item.history[-1].event, item.history[-1].worker) == ("lost", "w1")

    @pytest.mark.parametrize(
        "end",
        [
            Failed(KILLED),
            Failed(KILLED, after=SECOND),
            Released(SECOND),
            Returned(),
            Buried(DeadReason.UNKNOWN_HANDLER, failure=KILLED, to="morgue"),
            Lost(KILLED),
        ],
        ids=["failed", "failed and retried", "released", "returned", "buried elsewhere", "lost"],
    )
    def test_worker_leaves_it_dead(self, broker: Broker, end: Outcome) -> None:
        broker.create_queue("morgue")
        broker.create_queue("jobs", **RETRIED)
        dead = dead_item(broker)
        broker.lease_by_id(dead.id, include_dead=True, worker="w1")
        session = open_worker_session(broker, "w1")
        (lease,) = session.list_leases()
        (settled,) = session.step([(lease, end)], {"jobs": 5}).settled
        assert (settled.id, settled.status, settled.dead_reason) == (dead.id, "dead", "policy")
        assert broker.get(dead.id).deaths == dead.deaths

    def test_forced_failure_leaves_it_dead(self, broker: Broker) -> None:
        broker.create_queue("jobs", **RETRIED)
        dead = dead_item(broker)
        broker.lease_by_id(dead.id, include_dead=True)
        assert broker.fail_items(dead.id, "no", force=True).dead_reason == "policy"
        broker.lease_by_id(dead.id, include_dead=True)
        assert broker.bury_items(dead.id, force=True).dead_reason == "policy"

    def test_async_broker_does_the_same(self, connect_async: Any, clock: FakeClock) -> None:
        async def play() -> None:
            async with connect_async(clock=clock, maintenance=False) as broker:
                await broker.create_queue("jobs")
                id = (await broker.put("jobs", 1)).id
                await broker.bury_items(id)
                assert (await broker.fail(await broker.lease_by_id(id, include_dead=True), "boom")).status == "dead"
                lease, refusal = await broker.lease_by_id([id, id], include_dead=True)
                assert isinstance(refusal, ItemActive)
                assert (await broker.complete(lease)).status is None

        asyncio.run(play())
