"""Holders of items: several on one item, lasting ones, and holds fenced by a version."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest

from redrive import Broker, Dead, DeadReason, Failure, RetryVerdict
from redrive.contract.admin_calls import (
    Hold,
    ManualChange,
    ManualTarget,
    StartOperation,
    StepOperation,
    Unhold,
    UpdateQueue,
)
from redrive.contract.base import MAINTENANCE_BATCH
from redrive.contract.item_calls import Complete, LeaseByIds, ReturnLease, Settle, StaleSettings
from redrive.contract.maintenance_calls import Expire
from redrive.errors import ItemHeld, QueueNotFound
from redrive.model.duration import SECOND
from redrive.model.filter import Filter
from redrive.model.holder import MAX_HOLDERS
from redrive.model.ids import ItemId
from redrive.model.item import Result, Settled, Status
from redrive.model.judge import OutcomeKind, Verdict
from redrive.model.queue import QueueSettings
from redrive.model.state_machine import Verb
from redrive.testing.conformance.actions import take_all, values
from redrive.testing.conformance.suite import StoreDriver, StorePair, StorePairSuite, StoreSuite
from redrive.testing.fake_clock import FakeClock

BOOM = Failure("ValueError", "boom")
NAMES = ("ann", "[", '["ann",true]', '[["ann",true],["bob",false]]', 'a "quoted" name', "ünïcode", "n\nl")
"""Names of holders; some look like the encoding of holders in a store."""


class HolderConformance(StoreSuite):
    """An item may have several holders, and can be leased when the last one is removed."""

    def test_item_is_ready_while_it_has_no_holder_in_any_order_of_holds(self, direct: StoreDriver) -> None:
        direct.queue()
        (id,) = direct.put(b"a")
        for steps in permutations([(Hold, "ann"), (Hold, "bob"), (Unhold, "ann"), (Unhold, "bob")]):
            holders: set[str] = set()
            for change, name in steps:
                after = holders | {name} if change is Hold else holders - {name}
                assert direct.do(Hold((id,), name) if change is Hold else Unhold(name)) == (after != holders)
                holders = after
                assert set(direct.get(id).held_by) == holders
                leases = direct.lease()
                assert len(leases) == (not holders), (steps, name)
                for lease in leases:
                    direct.do(ReturnLease(lease.token))
            for name in holders:
                direct.do(Unhold(name))

    def test_items_are_found_by_each_of_their_holders(self, direct: StoreDriver, broker: Broker) -> None:
        direct.queue()
        both, one, none = direct.put(b"both", b"one", b"none")
        direct.do(Hold((both, one), "ann"))
        direct.do(Hold((both,), "bob", lasting=True))
        assert {item.id for item in broker.find(status="pending", held_by="ann").items} == {both, one}
        assert {item.id for item in broker.find(status="pending", held_by="bob").items} == {both}
        assert {item.id for item in broker.find(status="pending", held=False).items} == {none}
        assert broker.count(status="any", held_by="bob") == 1
        item = direct.get(both)
        assert (set(item.held_by), item.lasting_holders) == ({"ann", "bob"}, ("bob",))

    @pytest.mark.parametrize("name", NAMES, ids=ascii)
    @pytest.mark.parametrize("lasting", [False, True], ids=["passing", "lasting"])
    def test_any_name_can_be_that_of_a_holder(self, direct: StoreDriver, name: str, lasting: bool) -> None:
        direct.queue()
        alone, second, put_so = *direct.put(b"alone", b"second"), *direct.put(b"put", held_by=name)
        direct.do(Hold((second,), "other"))
        assert direct.do(Hold((alone, second), name, lasting)) == 2
        assert (direct.get(alone).held_by, set(direct.get(second).held_by)) == ((name,), {"other", name})
        assert direct.do(Unhold(name)) == 3
        assert [direct.get(id).held_by for id in (alone, second, put_so)] == [(), ("other",), ()]
        assert [lease.payload for lease in direct.lease(limit=5)] == [b"alone", b"put"]

    def test_more_holders_than_an_item_can_have_are_passed_over(self, direct: StoreDriver) -> None:
        direct.queue()
        (id,) = direct.put(b"a")
        names = [f"holder {number} {'x' * 240}" for number in range(MAX_HOLDERS + 1)]
        assert [direct.do(Hold((id,), name)) for name in names] == [1] * MAX_HOLDERS + [0]
        assert direct.do(Hold((id,), names[0])) == 0
        assert sorted(direct.get(id).held_by) == sorted(names[:MAX_HOLDERS])
        assert [direct.do(Unhold(name)) for name in names] == [1] * MAX_HOLDERS + [0]
        assert direct.take().id == id

    @pytest.mark.parametrize("lasting", [False, True], ids=["passing", "lasting"])
    def test_unhold_of_very_many_goes_in_steps(self, direct: StoreDriver, lasting: bool) -> None:
        direct.queue()
        count = MAINTENANCE_BATCH + 1
        ids = tuple(direct.put(*(b"%d" % number for number in range(count)), held_by="ann", hold_is_lasting=lasting))
        assert direct.do(Hold(ids[: count - 1], "bob", lasting)) + direct.do(Hold(ids[count - 1 :], "bob")) == count
        for name in ("bob", "ann"):
            assert list(direct.lease(limit=5)) == []
            assert [direct.do(Unhold(name)) for _ in range(3)] == [MAINTENANCE_BATCH, 1, 0]
        assert [len(direct.lease(limit=MAINTENANCE_BATCH)) for _ in range(2)] == [MAINTENANCE_BATCH, 1]

    def test_only_the_last_unhold_wakes(self, direct: StoreDriver) -> None:
        direct.queue()
        (id,) = direct.put(b"a", held_by="ann")
        direct.do(Hold((id,), "bob"))
        assert not direct.commit(Unhold("ann")).arrivals.get("jobs")
        assert direct.commit(Unhold("bob", (id,))).arrivals["jobs"] == 1

    def test_holders_of_a_deleted_queue_are_gone(self, broker: Broker, direct: StoreDriver) -> None:
        direct.queue()
        ids = direct.put(b"a", b"b")
        for name in ("ann", "bob"):
            direct.do(Hold(tuple(ids), name, lasting=True))
        broker.delete_queue("jobs", confirm=2)
        direct.queue()
        (again,) = direct.put(b"c")
        direct.do(Hold((again,), "bob"))
        assert (direct.do(Unhold("ann")), direct.do(Unhold("bob"))) == (0, 1)

    def test_hold_is_refused_once_the_queue_has_another_version(self, direct: StoreDriver) -> None:
        direct.queue()
        (id,) = direct.put(b"a")
        version = direct.version()
        assert direct.do(Hold((id,), "ann", queue_version=("jobs", version))) == 1
        direct.do(Unhold("ann"))
        direct.do(UpdateQueue("jobs", QueueSettings(max_losses=7), version, "ada"))
        stale = direct.do(Hold((id,), "ann", queue_version=("jobs", version)))
        assert isinstance(stale, StaleSettings)
        assert (stale.queue.name, stale.queue.version) == ("jobs", direct.version())
        assert isinstance(direct.do(Hold((id,), "ann", queue_version=("gone", version))), QueueNotFound)
        assert direct.get(id).held_by == ()
        assert direct.do(Hold((id,), "ann", queue_version=("jobs", direct.version()))) == 1

    def test_hold_after_a_change_of_the_queue_in_the_same_batch_is_refused(self, direct: StoreDriver) -> None:
        direct.queue()
        (id,) = direct.put(b"a")
        version = direct.version()
        hold = Hold((id,), "ann", queue_version=("jobs", version))
        held, _ = direct.commit(hold, UpdateQueue("jobs", QueueSettings(max_losses=7), version, "ada")).results
        assert isinstance(held, StaleSettings)
        assert direct.get(id).held_by == ()

    def test_namespaces_do_not_share_holders(self, open_broker: Any) -> None:
        one, two = open_broker("one"), open_broker("two")
        for broker in (one, two):
            broker.create_queue("jobs")
            broker.put("jobs", 1, held_by="ann")
            broker.hold([item.id for item in broker.find(status="pending").items], "bob", lasting=True)
        assert (one.unhold("ann"), one.unhold("bob")) == (1, 1)
        assert (values(take_all(one)), values(take_all(two))) == ([1], [])


def _change(verb: Verb, **options: Any) -> Callable[[StoreDriver, ItemId], ItemId]:
    def change(direct: StoreDriver, id: ItemId) -> ItemId:
        settled = direct.change(verb, id, **options)
        assert isinstance(settled, Settled), settled
        return settled.id

    return change


def _judged(verdict: Verdict) -> Callable[[StoreDriver, ItemId], ItemId]:
    def bury(direct: StoreDriver, id: ItemId) -> ItemId:
        target = ManualTarget(id, verdict, direct.version(direct.get(id).queue))
        (settled,) = direct.do(ManualChange(Verb.BURY, (target,), "ada"))
        assert isinstance(settled, Settled), settled
        return settled.id

    return bury


def _edit(direct: StoreDriver, id: ItemId) -> ItemId:
    target = ManualTarget(id, payload=Result(b"edited", "text/plain"))
    (settled,) = direct.do(ManualChange(Verb.REDRIVE, (target,), "ada"))
    assert isinstance(settled, Settled), settled
    return settled.id


def _expire(direct: StoreDriver, id: ItemId) -> ItemId:
    direct.clock.advance("2h")
    settled = direct.do(Expire(id, Dead(DeadReason.EXPIRED), direct.version()))
    assert isinstance(settled, Settled), settled
    return settled.id


bury, bury_away = _judged(Dead()), _judged(Dead(to="morgue"))
retry, redrive, undo = (_change(verb) for verb in (Verb.RETRY, Verb.REDRIVE, Verb.UNDO))
archive, restore, drop = (_change(verb) for verb in (Verb.ARCHIVE, Verb.RESTORE, Verb.DROP))
move = _change(Verb.MOVE, to="other")
ALL, LASTING = ("breaker", "ann"), ("breaker",)
WAYS: dict[str, tuple[tuple[Callable[[StoreDriver, ItemId], ItemId], ...], Status, tuple[str, ...]]] = {
    "retry": ((retry,), Status.PENDING, LASTING),
    "move": ((move,), Status.FAILED, ALL),
    "archive": ((archive,), Status.ARCHIVED, ALL),
    "archive, restore": ((archive, restore), Status.FAILED, ALL),
    "drop": ((drop,), Status.ARCHIVED, ALL),
    "drop, undo": ((drop, undo), Status.FAILED, ALL),
    "death": ((bury,), Status.DEAD, LASTING),
    "expiry": ((_expire,), Status.DEAD, LASTING),
    "death, redrive": ((bury, redrive), Status.PENDING, LASTING),
    "death, retry": ((bury, retry), Status.PENDING, LASTING),
    "death, edited redrive": ((bury, _edit), Status.PENDING, LASTING),
    "death, redrive, undo": ((bury, redrive, undo), Status.DEAD, LASTING),
    "death, redrive, undo, redrive": ((bury, redrive, undo, redrive), Status.PENDING, LASTING),
    "death, move, redrive": ((bury, move, redrive), Status.PENDING, LASTING),
    "death, archive": ((bury, archive), Status.ARCHIVED, LASTING),
    "death, archive, restore, redrive": ((bury, archive, restore, redrive), Status.PENDING, LASTING),
    "death in a dead queue": ((bury_away,), Status.PENDING, LASTING),
    "death in a dead queue, redrive": ((bury_away, redrive), Status.PENDING, LASTING),
    "death in a dead queue, redrive, undo": ((bury_away, redrive, undo), Status.PENDING, LASTING),
}
"""Changes of a failed item with a lasting and a temporary holder, its status after them, and its holders."""


def held_item(direct: StoreDriver) -> ItemId:
    """Return the id of a failed item with a lasting holder "breaker", set by the verdict, and a temporary "ann"."""
    for name in ("other", "morgue"):
        direct.queue(name)
    direct.queue(expire_timeout=3600 * SECOND)
    direct.put(b"a")
    lease = direct.take()
    verdict = RetryVerdict(0, Status.FAILED, ("breaker",))
    settled = direct.do(Settle(lease.token, OutcomeKind.FAILED, verdict, direct.version(), BOOM))
    assert (settled.status, settled.counters.failures) == (Status.FAILED, 1)
    assert direct.do(Hold((lease.id,), "ann")) == 1
    assert (direct.get(lease.id).held_by, direct.get(lease.id).lasting_holders) == (ALL, LASTING)
    return lease.id


def leasable(direct: StoreDriver) -> list[bytes]:
    """Lease all eligible items, and return their payloads."""
    return [lease.payload for name in ("jobs", "other", "morgue") for lease in direct.lease(name, 5)]


class LastingHoldConformance(StoreSuite):
    """A lasting hold stays with its item until Unhold, through all changes in its store."""

    @pytest.mark.parametrize("way", WAYS)
    def test_lasting_holder_stays_whatever_happens(self, direct: StoreDriver, way: str) -> None:
        id = held_item(direct)
        steps, status, holders = WAYS[way]
        for step in steps:
            id = step(direct, id)
        item = direct.get(id)
        assert (item.status, item.held_by, item.lasting_holders) == (status, holders, LASTING)
        assert leasable(direct) == []
        assert direct.do(Unhold("breaker")) == (2 if "edited" in way else 1)
        assert (direct.get(id).status, direct.get(id).lasting_holders) == (status, ())
        assert direct.do(Unhold("ann")) == (holders == ALL)
        assert (direct.do(Unhold("breaker")), direct.get(id).held_by) == (0, ())
        assert len(leasable(direct)) == (status in (Status.PENDING, Status.FAILED))

    @pytest.mark.parametrize("way", [way for way in WAYS if WAYS[way][1] in (Status.DEAD, Status.ARCHIVED)])
    def test_item_that_is_brought_back_after_unhold_is_free(self, direct: StoreDriver, way: str) -> None:
        id = held_item(direct)
        steps, status, _ = WAYS[way]
        for step in steps:
            id = step(direct, id)
        assert [direct.do(Unhold(name, (id,))) for name in LASTING] == [1]
        direct.do(Unhold("ann"))
        id = (redrive if status is Status.DEAD else restore)(direct, id)
        assert direct.get(id).held_by == ()
        assert len(leasable(direct)) == (direct.get(id).status is not Status.DEAD)

    @pytest.mark.parametrize("by", ["call", "operation"])
    def test_of_many_that_are_redriven_only_those_with_a_lasting_holder_are_held(
        self, direct: StoreDriver, by: str
    ) -> None:
        direct.queue()
        ids = direct.put(*(b"%d" % number for number in range(12)))
        held, twice = tuple(ids[::2]), tuple(ids[::4])
        direct.do(Hold(held, "breaker", lasting=True))
        direct.do(Hold(twice, "other breaker", lasting=True))
        targets = tuple(ManualTarget(id, Dead(), direct.version()) for id in ids)
        direct.do(ManualChange(Verb.BURY, targets, "ada"))
        assert {direct.get(id).status for id in ids} == {Status.DEAD}
        if by == "call":
            direct.do(ManualChange(Verb.REDRIVE, tuple(map(ManualTarget, ids)), "ada"))
        else:
            started = direct.do(StartOperation(verb=Verb.REDRIVE, where=Filter(queue="jobs"), actor="ada"))
            assert direct.do(StepOperation(started.id, 0)).changed == 12
        assert [lease.id for lease in direct.lease(limit=20)] == ids[1::2]
        assert (direct.do(Unhold("other breaker")), list(direct.lease(limit=20))) == (3, [])
        assert direct.do(Unhold("breaker")) == 6
        assert [lease.id for lease in direct.lease(limit=20)] == ids[::2]

    @pytest.mark.parametrize("verb", [Verb.ARCHIVE, Verb.PURGE])
    def test_many_with_holders_are_archived_and_purged(self, direct: StoreDriver, verb: Verb) -> None:
        direct.queue()
        ids = tuple(direct.put(*(b"%d" % number for number in range(6))))
        for name in ("breaker", "other breaker"):
            direct.do(Hold(ids, name, lasting=True))
        direct.do(ManualChange(Verb.BURY, tuple(ManualTarget(id, Dead(), direct.version()) for id in ids), "ada"))
        for each in (Verb.ARCHIVE, verb):
            direct.do(ManualChange(each, tuple(map(ManualTarget, ids)), "ada"))
        left = 0 if verb is Verb.PURGE else 6
        assert [direct.do(Unhold(name)) for name in ("breaker", "other breaker")] == [left, left]

    def test_hold_becomes_lasting_and_stays_so(self, direct: StoreDriver) -> None:
        id = held_item(direct)
        assert direct.do(Hold((id,), "ann", lasting=True)) == 1
        assert direct.do(Hold((id,), "ann")) == 0
        assert direct.get(retry(direct, id)).lasting_holders == ALL

    def test_put_may_be_held_lastingly(self, direct: StoreDriver) -> None:
        direct.queue()
        (id,) = direct.put(b"a", held_by="ann", hold_is_lasting=True)
        assert direct.get(id).lasting_holders == ("ann",)
        assert direct.get(redrive(direct, bury(direct, id))).held_by == ("ann",)

    def test_completed_item_has_no_holders(self, direct: StoreDriver) -> None:
        direct.queue(keep_completed=3600 * SECOND)
        (id,) = direct.put(b"a", held_by="ann", hold_is_lasting=True)
        direct.change(Verb.DONE, id)
        assert (direct.get(id).status, direct.get(id).held_by) == (Status.COMPLETED, ())
        assert direct.do(Unhold("ann")) == 0

    def test_dead_item_with_a_lasting_holder_is_not_leased_by_id(self, direct: StoreDriver) -> None:
        id = bury(direct, held_item(direct))
        (refusal,) = direct.do(LeaseByIds((id,), include_dead=True))
        assert isinstance(refusal, ItemHeld)
        assert refusal.held_by == LASTING
        direct.do(Unhold("breaker"))
        (lease,) = direct.do(LeaseByIds((id,), include_dead=True))
        assert direct.do(Complete(lease.token)).status is None


class HolderTransferConformance(StorePairSuite):
    """A lasting hold ends when its item moves to another store; a temporary one moves with it."""

    def test_lasting_holder_stays_behind_when_the_item_moves(self, pair: StorePair, clock: FakeClock) -> None:
        pair.source.create_queue("jobs")
        pair.target.create_queue("inbox")
        ids = [pair.source.put("jobs", n).id for n in range(2)]
        pair.source.hold(ids, "breaker", lasting=True)
        pair.source.hold(ids[:1], "ann")
        pair.source.hold(ids[:1], "bob")
        pair.source.move(ids, pair.there("inbox"))
        assert [set(pair.source.get(id).held_by) for id in ids] == [{"ann", "bob"}, set()]
        assert pair.source.unhold("ann") == 0  # the item is moving
        clock.advance("1s")
        assert pair.source.run_maintenance().moved == 2
        assert values(take_all(pair.target, "inbox")) == [1]
        assert [pair.target.unhold(name) for name in ("breaker", "ann", "bob")] == [0, 1, 1]
        assert values(take_all(pair.target, "inbox")) == [0]
        assert pair.source.unhold("bob") == 0

    def test_lasting_holder_is_not_imported(self, pair: StorePair) -> None:
        for broker in pair:
            broker.create_queue("jobs")
        ids = [pair.source.put("jobs", n).id for n in range(2)]
        pair.source.hold(ids, "breaker", lasting=True)
        pair.source.hold(ids[:1], "ann")
        pair.target.import_items(pair.source.export(redacted=False, status="any"))
        assert values(take_all(pair.target)) == [1]
        assert (pair.target.unhold("breaker"), pair.target.unhold("ann")) == (0, 1)
