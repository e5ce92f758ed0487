"""An operation, and a change of many items, do to each what a change of it alone does, though a store may do many at
once."""

from __future__ import annotations

import re
from typing import Any

import pytest

from redrive import Broker, RedriveError
from redrive.model.item import Item
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.deliveries import take
from redrive.testing.conformance.many import find_all, perform
from redrive.testing.conformance.suite import OpenBroker, Suite

QUEUES = ("morgue", "jobs", "mails", "other")
STATUS = {"restore": "archived", "purge": "archived", "undo": "pending", "bury": "pending", "move": "pending"}
_NAMES = re.compile(r"[0-9a-f]{32}|namespace='\w+'|operation='[^']*'|number=\d+")


def fill(broker: Broker, clock: FakeClock) -> None:
    """Items of every kind: headers, expiry, priorities, deaths of several causes, redrives, an archive, leases."""
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
    broker.redrive(dead[1::5])
    for lease in broker.lease("morgue", 2, lease_timeout="1d"):
        broker.fail(lease, "in the morgue")
    broker.lease("morgue", 2, lease_timeout="1d")
    broker.put_many("jobs", range(3))
    broker.put("jobs", "held", held_by="breaker", delay="1h")
    clock.advance("1m")


def told(broker: Broker) -> Any:
    """All that can be seen, without ids, numbers and names of operations."""
    items = find_all(broker, status=None, order="oldest")
    # A twin that moved many at once may have drawn their ids in another order.
    seen: list[Any] = [sorted(_plain(item) for item in items)]
    seen += [[(item.value, item.queue) for item in find_all(broker, status=status)] for status in ("dead", "archived")]
    seen += [find_values(broker, words=word) for word in ("alpha", "beta", "n")]
    seen += [_plain(group) for group in broker.groups()]
    seen += [broker.stats(queue) for queue in QUEUES]
    seen += [[(entry.kind, entry.queue, entry.actor, entry.at) for entry in broker.feed(limit=1_000).entries]]
    return seen


def find_values(broker: Broker, **conditions: Any) -> list[Any]:
    """The values of what is found, in order."""
    return [item.value for item in find_all(broker, **conditions)]


def _plain(value: Any) -> str:
    return _NAMES.sub("", repr(value).replace("operation=None", ""))


class TwinConformance(Suite):
    """One namespace changes by hand, the other by an operation; or one item by item, the other all at once."""

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
            ("bury_by_hand", {"note": "by hand"}),
            ("bury_by_hand", {"force": True}),
            ("fail_by_hand", {"error": "by hand"}),
            ("move", {"to": "other"}),
            ("move", {"to": "jobs", "force": True}),
            ("purge", {}),
            ("drop", {}),
            ("drop", {"force": True}),
            ("done", {}),
            ("done", {"force": True}),
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
        """Every item; some under an id that it had before as well, one twice, and one that is unknown."""
        items = sorted(find_all(broker, status=None), key=lambda item: (repr(item.value), item.queue, item.put_at))
        moved = [item.earlier_ids[0] for item in items if item.earlier_ids]
        ids = [str(item.id) for item in items]
        if verb.endswith("_by_hand"):  # what is listed twice is judged once
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
        """Change items by hand, as a person would."""
        change = broker.bury_by_hand if verb == "bury" else getattr(broker, verb)
        change([item.id for item in items], actor="ada", **options)
