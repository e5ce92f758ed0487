"""Operations change what existed when they started, each item once, exactly as single changes would."""

from __future__ import annotations

import re
from typing import Any

import pytest

from redrive import Broker, RedriveError
from redrive.errors import OperationNotFound
from redrive.model.item import Item
from redrive.testing.conformance.actions import (
    Background,
    dead_queue,
    die,
    find_all,
    finish,
    found,
    kill,
    perform,
    take,
    take_all,
)
from redrive.testing.conformance.suite import OpenBroker, Suite
from redrive.testing.fake_clock import FakeClock


class SnapshotConformance(Suite):
    """Items that died or were put after the start are not changed, and no item is changed twice."""

    def test_who_dies_later_is_not_touched(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker)
        die(broker, 3)
        operation = broker.start_operation("redrive", queue="morgue")
        kill(broker, "later")
        finished = finish(broker, clock, operation)
        assert (finished.changed, finished.expected, found(broker)) == (3, 3, ["later"])

    def test_what_is_put_later_is_not_touched(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put_many("jobs", range(3))
        operation = broker.start_operation("bury", queue="jobs")
        broker.put("jobs", "later")
        assert finish(broker, clock, operation).changed == 3
        assert found(broker, status="pending") == ["later"]

    def test_listed_item_that_dies_again_is_not_touched(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        ids = die(broker, 3)
        operation = broker.start_operation("redrive", ids=tuple(ids))
        broker.redrive(ids[1])
        broker.fail(take(broker), "boom")
        assert finish(broker, clock, operation).changed == 2
        assert found(broker) == [1]

    @pytest.mark.parametrize("to_dead_queue", [False, True])
    def test_redrive_ends_while_workers_fail_the_same_items_again(
        self, broker: Broker, clock: FakeClock, to_dead_queue: bool
    ) -> None:
        broker.create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue" if to_dead_queue else None)
        ids = die(broker, 40)
        operation = broker.start_operation("redrive", rate=10)
        for _ in range(60):
            broker.run_maintenance()
            for lease in take_all(broker):
                broker.fail(lease, "boom")
            clock.advance("1s")
        operation = broker.get_operation(operation.id)
        assert (operation.status, operation.changed, operation.examined) == ("finished", 40, 40)
        items = [broker.get(id) for id in ids]
        assert {(item.counters.redrives, len(item.deaths)) for item in items} == {(1, 2)}
        assert len(found(broker)) == 40

    def test_somebody_faster_is_not_counted(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        ids = die(broker, 4)
        operation = broker.start_operation("redrive", queue="jobs")
        broker.archive(ids[0])
        broker.redrive(ids[1])
        finished = finish(broker, clock, operation)
        assert (finished.changed, finished.skipped, finished.expected) == (2, {}, 4)

    def test_two_operations_at_once_change_each_item_once(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        ids = die(broker, 60)
        operations = [broker.start_operation("redrive", queue="jobs", rate=20) for _ in range(2)]
        ended = [finish(broker, clock, operation) for operation in operations]
        assert sum(operation.changed for operation in ended) == 60
        assert {operation.status.value for operation in ended} == {"finished"}
        assert {broker.get(id).counters.redrives for id in ids} == {1}

    def test_two_brokers_drive_one_operation(self, open_broker: OpenBroker, clock: FakeClock) -> None:
        self.require("supports_processes")
        one, two = open_broker(), open_broker()
        one.create_queue("jobs")
        one.put_many("jobs", range(3_000))
        perform(one, clock, "bury", queue="jobs")
        operation = one.start_operation("redrive", queue="jobs")
        drivers = [Background(lambda broker=broker: broker.run_operation(operation.id)) for broker in (one, two)]  # type: ignore[misc]
        ended = [driver.result() for driver in drivers]
        final = one.get_operation(operation.id)
        assert (final.status, final.changed) == ("finished", 3_000)
        assert {driven.id for driven in ended} == {operation.id}
        assert one.count(status="pending", min_redrives=1, max_redrives=1) == 3_000
        assert len(two.feed(operation=operation.id, limit=1_000).entries) == 1_000

    def test_operation_goes_on_after_reopening(self, open_broker: OpenBroker, clock: FakeClock) -> None:
        self.require("is_durable")
        broker = open_broker()
        broker.create_queue("jobs")
        die(broker, 30)
        operation = broker.start_operation("redrive", queue="jobs", rate=10)
        broker.run_maintenance()
        broker.close()
        broker = open_broker()
        assert 0 < broker.get_operation(operation.id).changed < 30
        assert finish(broker, clock, operation).changed == 30
        assert finish(broker, clock, broker.undo_operation(operation.id)).changed == 30

    def test_namespaces_do_not_see_each_others_operations(self, open_broker: OpenBroker, clock: FakeClock) -> None:
        one, two = open_broker(), open_broker(namespace="other")
        for broker in (one, two):
            broker.create_queue("jobs")
            die(broker, 2)
        operation = one.start_operation("redrive", queue="jobs")
        assert two.list_operations() == ()
        with pytest.raises(OperationNotFound):
            two.get_operation(operation.id)
        two.run_maintenance()
        assert (finish(one, clock, operation).changed, found(two)) == (2, [0, 1])


QUEUES = ("morgue", "jobs", "mails", "other")
STATUS = {"restore": "archived", "purge": "archived", "undo": "pending", "bury": "pending", "move": "pending"}
_NAMES = re.compile(r"[0-9a-f]{32}|namespace='\w+'|operation='[^']*'|number=\d+")


def fill(broker: Broker, clock: FakeClock) -> None:
    """Put items of every kind: headers, expiry, priorities, deaths of several causes, redrives, archive, leases."""
    broker.create_queue("morgue", retry={"attempts": 2, "cooldown": "1h"})
    broker.create_queue("jobs", dead_queue="morgue", expire_timeout="1d")
    broker.create_queue("mails", max_size=30)
    broker.create_queue("other", search=False)
    for n in range(12):
        for queue in ("jobs", "mails"):
            broker.put(queue, {"n": n}, headers={"n": str(n)} if n % 2 else None, priority=9, max_attempts=7)
            broker.fail(take(broker, queue), ("alpha", ValueError("beta"), "gamma 7")[n % 3])
        clock.advance("7m")
    dead = [item.id for item in find_all(broker, order="oldest")]
    broker.archive(dead[::5])
    broker.drop(dead[3::5])
    broker.redrive(dead[1::5])
    for lease in broker.lease("morgue", 2, lease_timeout="1d"):
        broker.fail(lease, "in the morgue")
    broker.lease("morgue", 2, lease_timeout="1d")
    broker.put_many("jobs", range(3))
    broker.put("jobs", "held", held_by="breaker", delay="1h")
    clock.advance("1m")


def told(broker: Broker) -> Any:
    """Return all visible state, without ids, numbers and names of operations."""
    items = find_all(broker, status=None, archived=True, order="oldest")
    # A bulk move may have allocated the new ids in another order.
    seen: list[Any] = [sorted(_plain(item) for item in items)]
    seen += [[(item.value, item.queue) for item in find_all(broker, status=status)] for status in ("dead", "archived")]
    seen += [find_values(broker, words=word) for word in ("alpha", "beta", "n")]
    seen += [_plain(group) for group in broker.groups()]
    seen += [broker.stats(queue) for queue in QUEUES]
    seen += [[(entry.kind, entry.queue, entry.actor, entry.at) for entry in broker.feed(limit=1_000).entries]]
    return seen


def find_values(broker: Broker, **conditions: Any) -> list[Any]:
    """Return the values of the items that are found, in order."""
    return [item.value for item in find_all(broker, **conditions)]


def _plain(value: Any) -> str:
    return _NAMES.sub("", repr(value).replace("operation=None", ""))


class BulkEquivalenceConformance(Suite):
    """Equal results of manual changes and an operation, and of changes of single items and of many in one call."""

    @pytest.mark.parametrize(
        ("verb", "options"),
        [
            ("redrive", {}),
            ("redrive", {"to": "other"}),
            ("redrive", {"force": True}),
            ("retry", {}),
            ("archive", {}),
            ("restore", {}),
            ("undo", {}),
            ("bury_items", {"note": "by hand"}),
            ("bury_items", {"force": True}),
            ("fail_items", {"error": "by hand"}),
            ("move", {"to": "other"}),
            ("move", {"to": "jobs", "force": True}),
            ("purge", {}),
            ("drop", {}),
            ("drop", {"force": True}),
            ("complete_items", {}),
            ("complete_items", {"force": True}),
        ],
    )
    def test_change_of_many_does_what_a_change_of_each_does(
        self, open_broker: OpenBroker, verb: str, options: dict[str, Any]
    ) -> None:
        clocks = FakeClock(), FakeClock()
        one_by_one, at_once = (
            open_broker(name, clock=clock) for name, clock in zip(("one", "two"), clocks, strict=True)
        )
        for broker, clock in zip((one_by_one, at_once), clocks, strict=True):
            fill(broker, clock)
        alone = [
            result
            for id in self.listed(one_by_one, verb)
            for result in getattr(one_by_one, verb)([id], actor="ada", **options)
        ]
        together = getattr(at_once, verb)(self.listed(at_once, verb), actor="ada", **options)
        assert [_plain(result) for result in together] == [_plain(result) for result in alone]
        assert {isinstance(result, RedriveError) for result in together} == {False, True}
        for one, two in zip(told(one_by_one), told(at_once), strict=True):
            assert one == two

    def test_hold_of_many_does_what_a_hold_of_each_does(self, open_broker: OpenBroker) -> None:
        clocks = FakeClock(), FakeClock()
        one_by_one, at_once = (
            open_broker(name, clock=clock) for name, clock in zip(("one", "two"), clocks, strict=True)
        )
        for broker, clock in zip((one_by_one, at_once), clocks, strict=True):
            fill(broker, clock)
        held = sum(one_by_one.hold([id], "ada") for id in self.listed(one_by_one))
        assert at_once.hold(self.listed(at_once), "ada") == held > 1
        assert told(one_by_one) == told(at_once)
        released = sum(one_by_one.unhold("ada", [id]) for id in self.listed(one_by_one)[::2])
        assert at_once.unhold("ada", self.listed(at_once)[::2]) == released > 1
        assert told(one_by_one) == told(at_once)

    def listed(self, broker: Broker, verb: str = "hold") -> list[str]:
        """Return the ids of all items; also former ids of some, one id twice, and an unknown one."""
        items = sorted(
            find_all(broker, status=None, archived=True), key=lambda item: (repr(item.value), item.queue, item.put_at)
        )
        moved = [item.earlier_ids[0] for item in items if item.earlier_ids]
        ids = [str(item.id) for item in items]
        if verb in ("bury_items", "fail_items"):  # these verbs judge an item once per batch, though it is listed twice
            return [*ids, "f" * 32]
        return [*moved[:3], *ids, ids[4], *moved[3:6], "f" * 32]

    @pytest.mark.parametrize(
        ("verb", "options"),
        [
            ("redrive", {}),
            ("redrive", {"to": "other"}),
            ("retry", {}),
            ("archive", {}),
            ("restore", {}),
            ("undo", {}),
            ("bury", {}),
            ("move", {"to": "other"}),
            ("purge", {}),
        ],
    )
    def test_operation_does_what_the_same_change_by_hand_does(
        self, open_broker: OpenBroker, verb: str, options: dict[str, Any]
    ) -> None:
        clocks = FakeClock(), FakeClock()
        by_hand, in_bulk = (open_broker(name, clock=clock) for name, clock in zip(("one", "two"), clocks, strict=True))
        fill(by_hand, clocks[0])
        fill(in_bulk, clocks[1])
        assert told(by_hand) == told(in_bulk)
        status = STATUS.get(verb, "dead")
        self.change(by_hand, verb, find_all(by_hand, status=status, order="oldest"), **options)
        confirm = {"confirm": in_bulk.count(status=status)} if verb == "purge" else {}
        operation = perform(in_bulk, clocks[1], verb, status=status, actor="ada", **options, **confirm)
        assert operation.changed > 1
        for one, two in zip(told(by_hand), told(in_bulk), strict=True):
            assert one == two, operation

    def change(self, broker: Broker, verb: str, items: list[Item], **options: Any) -> None:
        """Change items manually."""
        change = broker.bury_items if verb == "bury" else getattr(broker, verb)
        change([item.id for item in items], actor="ada", **options)
