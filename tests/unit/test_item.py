"""Items and leases in a log: what they are, on one line, without what does not belong there."""

from __future__ import annotations

import msgspec

from redrive.model.item import Overrides
from redrive.testing import memory_broker


def test_item_is_told_in_one_line() -> None:
    with memory_broker() as broker:
        broker.create_queue("emails")
        id = broker.put("emails", {"to": "ann@example.com"}).id
        assert str(broker.get(id)) == f"Item(id='{id}', queue='emails', status='pending', attempts=0)"
        broker.fail(broker.lease("emails")[0], "boom")
        assert f"{broker.get(id)}" == (
            f"Item(id='{id}', queue='emails', status='dead', attempts=1, dead_reason='retries_exhausted')"
        )
        assert "ann@example.com" in repr(broker.get(id))


def test_lease_is_told_without_its_token() -> None:
    with memory_broker() as broker:
        broker.create_queue("emails")
        broker.put("emails", 1)
        (lease,) = broker.lease("emails", worker="w1")
        assert str(lease) == f"Lease(id='{lease.id}', queue='emails', attempts=1, worker='w1')"
        assert lease.token not in str(lease)


def test_settings_of_an_item_that_are_no_longer_known_are_ignored() -> None:
    stored = {"max_attempts": 2, "retry_attempts": 3}
    for codec in (msgspec.json, msgspec.msgpack):
        assert codec.decode(codec.encode(stored), type=Overrides) == Overrides(2)
