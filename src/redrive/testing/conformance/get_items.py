"""GetItems: many items in one query, in the order of their ids."""

from __future__ import annotations

import pytest

from redrive import Broker
from redrive.contract.admin_calls import DeleteQueue
from redrive.contract.item_calls import ReturnLease
from redrive.contract.queries import GetItems, GetLeasedItem
from redrive.errors import InvalidInput, LeaseLost
from redrive.model.ids import ItemId
from redrive.testing.conformance.actions import Boom, dead_queue, kill, take
from redrive.testing.conformance.suite import OpenBroker, StoreDriver, StoreSuite

UNKNOWN = ItemId("0" * 31 + "1")


class GetItemsConformance(StoreSuite):
    """Items of every status, former ids, unknown ids, and several ids of one item."""

    def test_each_item_is_the_one_that_get_returns(self, broker: Broker) -> None:
        broker.create_queue("jobs", retry={"attempts": 2, "cooldown": "1h"}, keep_completed="1h")
        dead = kill(broker, "dead", error=Boom("x")).id
        archived = broker.archive(kill(broker, "archived").id).id
        ids = [dead, archived, *(r.id for r in broker.put_many("jobs", ["completed", "failed", "active", "pending"]))]
        broker.complete(take(broker), result=1)
        broker.fail(take(broker), "boom")
        take(broker)
        assert broker.get_many(ids) == [broker.get(id) for id in ids]
        assert broker.get_many(reversed(ids), redacted=False) == [broker.get(id, redacted=False) for id in ids[::-1]]

    def test_id_of_nothing_gives_none_in_its_place(self, direct: StoreDriver) -> None:
        direct.queue()
        first, second = direct.put(b"a", b"b")
        assert direct.read(GetItems((first, UNKNOWN, second))) == (direct.get(first), None, direct.get(second))
        assert direct.read(GetItems((UNKNOWN,))) == (None,)
        assert direct.read(GetItems(())) == ()

    def test_former_ids_find_the_item_where_it_is_now(self, broker: Broker) -> None:
        dead_queue(broker)
        other = broker.put("morgue", "other").id
        settled = kill(broker, "x")
        assert settled.source_id is not None
        moved = broker.get(settled.id)
        assert broker.get_many([settled.source_id, other, settled.id, settled.source_id]) == [
            moved,
            broker.get(other),
            moved,
            moved,
        ]

    def test_items_of_a_deleted_queue_and_of_other_namespaces_are_not_found(
        self, direct: StoreDriver, open_broker: OpenBroker
    ) -> None:
        direct.queue("gone")
        (id,) = direct.put(b"a", queue="gone")
        with open_broker("elsewhere") as elsewhere:
            assert elsewhere.get_many([id]) == [None]
        direct.do(DeleteQueue("gone", 1, "ada"))
        assert direct.read(GetItems((id,))) == (None,)

    def test_item_of_a_lease_is_the_one_that_get_returns(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a")
        lease = direct.take()
        assert direct.read(GetLeasedItem(lease.token)) == direct.get(lease.id)
        direct.do(ReturnLease(lease.token))
        with pytest.raises(LeaseLost):
            direct.read(GetLeasedItem(lease.token))

    def test_more_than_a_call_takes_are_refused(self, broker: Broker) -> None:
        with pytest.raises(InvalidInput, match="1,000"):
            broker.get_many([UNKNOWN] * 1001)
        with pytest.raises(InvalidInput):
            broker.get_many(["what"])
