"""An operation does to each item what the same change by hand does, though a store may do many at once."""

from __future__ import annotations

import re
from typing import Any

import pytest

from redrive import Broker
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
    """One namespace changes by hand, the other by an operation."""

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
