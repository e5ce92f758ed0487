"""Names: what they may be, and that namespaces never see each other."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import Broker
from redrive.errors import InvalidInput, InvalidName, ItemNotFound, LeaseLost, QueueNotFound
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.deliveries import kill, take, take_all, values
from redrive.testing.conformance.suite import OpenBroker, Suite

BAD_NAMES: list[Any] = [
    "",
    " ",
    "a b",
    "a\0b",
    "\0",
    "a/b",
    "a@b",
    "ä",
    "🦆",
    "\ud800",
    "-x",
    ".x",
    "a\n",
    "x" * 129,
    "'; DROP TABLE items; --",
    None,
    7,
    b"jobs",
    ["jobs"],
]
GOOD_NAMES = ["a", "A", "0", "_", "jobs.eu-west:high_1", "x" * 128, "SELECT", "null"]


class NameConformance(Suite):
    """Names of queues."""

    @pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: ascii(name)[:20])
    def test_bad_name_of_a_queue_is_refused_everywhere(self, broker: Broker, name: Any) -> None:
        for call in (
            lambda: broker.create_queue(name),
            lambda: broker.update_queue(name, max_size=1),
            lambda: broker.get_queue(name),
            lambda: broker.delete_queue(name),
            lambda: broker.pause_queue(name),
            lambda: broker.resume_queue(name),
            lambda: broker.stats(name),
            lambda: broker.put(name, 1),
            lambda: broker.put_many(name, [1]),
            lambda: broker.put_failed(name, 1, "boom"),
            lambda: broker.lease(name),
        ):
            with pytest.raises(InvalidName, match="queue"):
                call()
        assert broker.list_queues() == ()

    @pytest.mark.parametrize(
        "name", [name for name in BAD_NAMES if name is not None], ids=lambda name: ascii(name)[:20]
    )
    def test_bad_name_of_a_dead_queue_is_refused(self, broker: Broker, name: Any) -> None:
        with pytest.raises(InvalidInput):
            broker.create_queue("jobs", dead_queue=name)
        assert broker.list_queues() == ()

    @pytest.mark.parametrize("name", GOOD_NAMES, ids=lambda name: name[:20])
    def test_good_name_is_taken_as_it_is(self, broker: Broker, name: str) -> None:
        assert broker.create_queue(name).name == name
        broker.put(name, 1)
        assert values(take_all(broker, name)) == [1]

    def test_names_differ_by_case(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.create_queue("JOBS")
        broker.put("jobs", 1)
        assert take_all(broker, "JOBS") == []


class NamespaceConformance(Suite):
    """Namespaces on one store never see each other."""

    def test_queues_of_another_namespace_do_not_exist(self, open_broker: OpenBroker) -> None:
        one, two = open_broker("one"), open_broker("two")
        one.create_queue("jobs", max_size=1)
        assert two.list_queues() == ()
        with pytest.raises(QueueNotFound, match="in namespace 'two'"):
            two.put("jobs", 1)
        two.create_queue("jobs", max_size=2)
        assert one.get_queue("jobs").settings.max_size == 1

    def test_items_of_another_namespace_are_not_given(self, open_broker: OpenBroker) -> None:
        one, two = open_broker("one"), open_broker("two")
        for broker in (one, two):
            broker.create_queue("jobs")
        one.put("jobs", "one")
        assert take_all(two) == []
        assert values(take_all(one)) == ["one"]

    def test_items_of_another_namespace_cannot_be_reached_by_id(self, open_broker: OpenBroker) -> None:
        one, two = open_broker("one"), open_broker("two")
        for broker in (one, two):
            broker.create_queue("jobs")
        dead = kill(one).id
        pending = one.put("jobs", 1).id
        for id in (dead, pending):
            with pytest.raises(ItemNotFound):
                two.get(id)
            for change in (two.retry, two.redrive, two.drop, two.done, two.archive, two.bury_by_hand):
                with pytest.raises(ItemNotFound):
                    change(id)
        assert two.hold([pending], "me") == 0
        assert (one.get(dead).status, one.get(pending).held_by) == ("dead", None)

    def test_leases_of_another_namespace_cannot_be_settled(self, open_broker: OpenBroker) -> None:
        one, two = open_broker("one"), open_broker("two")
        for broker in (one, two):
            broker.create_queue("jobs")
        one.put("jobs", 1)
        lease = take(one)
        for use in (two.complete, two.extend, two.release):
            with pytest.raises(LeaseLost):
                use(lease)
        with pytest.raises(LeaseLost):
            two.fail(lease, "boom")
        one.complete(lease)

    def test_upkeep_of_one_namespace_leaves_the_other_alone(self, open_broker: OpenBroker, clock: FakeClock) -> None:
        one, two = open_broker("one"), open_broker("two")
        for broker in (one, two):
            broker.create_queue("jobs", expire_timeout="1s", keep_dead="1s")
        id = one.put("jobs", 1).id
        clock.advance("1s")
        assert two.step().expired == 0
        assert one.get(id).status == "pending"
        assert one.step().expired == 1
        clock.advance("2s")
        two.step()
        assert one.get(id).status == "dead"

    def test_audit_of_another_namespace_is_not_shown(self, open_broker: OpenBroker) -> None:
        one, two = open_broker("one"), open_broker("two")
        one.create_queue("jobs")
        one.drop(kill(one).id)
        assert two.audit() == ()

    def test_hold_of_another_namespace_is_not_let_go(self, open_broker: OpenBroker) -> None:
        one, two = open_broker("one"), open_broker("two")
        one.create_queue("jobs")
        one.put("jobs", 1, held_by="breaker")
        assert two.unhold("breaker") == 0
        assert take_all(one) == []

    def test_dead_queue_is_one_of_the_same_namespace(self, open_broker: OpenBroker) -> None:
        one, two = open_broker("one"), open_broker("two")
        one.create_queue("morgue")
        with pytest.raises(InvalidInput, match="dead_queue 'morgue' does not exist"):
            two.create_queue("jobs", dead_queue="morgue")

    def test_death_record_names_the_namespace(self, open_broker: OpenBroker) -> None:
        broker = open_broker("one")
        broker.create_queue("jobs")
        assert broker.get(kill(broker).id).deaths[0].namespace == "one"
