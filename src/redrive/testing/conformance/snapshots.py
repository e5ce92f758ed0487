"""Operations take what was there when they started, each item once, whatever others do meanwhile."""

from __future__ import annotations

import pytest

from redrive import Broker
from redrive.errors import OperationNotFound
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.deliveries import Background, dead_queue, kill, take, take_all
from redrive.testing.conformance.many import die, finish, found, perform
from redrive.testing.conformance.suite import OpenBroker, Suite


class SnapshotConformance(Suite):
    """What died or was put after the start is not touched, and nothing is changed twice."""

    def test_who_dies_later_is_not_touched(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker)
        die(broker, 3)
        operation = broker.start("redrive", queue="morgue")
        kill(broker, "later")
        finished = finish(broker, clock, operation)
        assert (finished.changed, finished.expected, found(broker)) == (3, 3, ["later"])

    def test_what_is_put_later_is_not_touched(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put_many("jobs", range(3))
        operation = broker.start("bury", queue="jobs")
        broker.put("jobs", "later")
        assert finish(broker, clock, operation).changed == 3
        assert found(broker, status="pending") == ["later"]

    def test_listed_item_that_dies_again_is_not_touched(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        ids = die(broker, 3)
        operation = broker.start("redrive", ids=tuple(ids))
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
        operation = broker.start("redrive", rate=10)
        for _ in range(60):
            broker.step()
            for lease in take_all(broker):
                broker.fail(lease, "boom")
            clock.advance("1s")
        operation = broker.operation(operation.id)
        assert (operation.status, operation.changed, operation.met) == ("finished", 40, 40)
        items = [broker.get(id) for id in ids]
        assert {(item.counters.redrives, len(item.deaths)) for item in items} == {(1, 2)}
        assert len(found(broker)) == 40

    def test_somebody_faster_is_not_counted(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        ids = die(broker, 4)
        operation = broker.start("redrive", queue="jobs")
        broker.archive(ids[0])
        broker.redrive(ids[1])
        finished = finish(broker, clock, operation)
        assert (finished.changed, finished.left_out, finished.expected) == (2, {}, 4)

    def test_two_operations_at_once_change_each_item_once(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        ids = die(broker, 60)
        operations = [broker.start("redrive", queue="jobs", rate=20) for _ in range(2)]
        ended = [finish(broker, clock, operation) for operation in operations]
        assert sum(operation.changed for operation in ended) == 60
        assert {operation.status.value for operation in ended} == {"finished"}
        assert {broker.get(id).counters.redrives for id in ids} == {1}

    def test_two_brokers_drive_one_operation(self, open_broker: OpenBroker, clock: FakeClock) -> None:
        self.require("shared")
        one, two = open_broker(), open_broker()
        one.create_queue("jobs")
        one.put_many("jobs", range(3_000))
        perform(one, clock, "bury", queue="jobs")
        operation = one.start("redrive", queue="jobs")
        drivers = [Background(lambda broker=broker: broker.drive(operation.id)) for broker in (one, two)]  # type: ignore[misc]
        ended = [driver.result() for driver in drivers]
        final = one.operation(operation.id)
        assert (final.status, final.changed) == ("finished", 3_000)
        assert {driven.id for driven in ended} == {operation.id}
        assert one.count(status="pending", min_redrives=1, max_redrives=1) == 3_000
        assert len(two.feed(operation=operation.id, limit=1_000).entries) == 1_000

    def test_operation_goes_on_after_reopening(self, open_broker: OpenBroker, clock: FakeClock) -> None:
        self.require("durable")
        broker = open_broker()
        broker.create_queue("jobs")
        die(broker, 30)
        operation = broker.start("redrive", queue="jobs", rate=10)
        broker.step()
        broker.close()
        broker = open_broker()
        assert 0 < broker.operation(operation.id).changed < 30
        assert finish(broker, clock, operation).changed == 30
        assert finish(broker, clock, broker.undo_operation(operation.id)).changed == 30

    def test_namespaces_do_not_see_each_others_operations(self, open_broker: OpenBroker, clock: FakeClock) -> None:
        one, two = open_broker(), open_broker(namespace="other")
        for broker in (one, two):
            broker.create_queue("jobs")
            die(broker, 2)
        operation = one.start("redrive", queue="jobs")
        assert two.operations() == ()
        with pytest.raises(OperationNotFound):
            two.operation(operation.id)
        two.step()
        assert (finish(one, clock, operation).changed, found(two)) == (2, [0, 1])
