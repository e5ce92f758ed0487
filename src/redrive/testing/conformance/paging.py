"""Pages of what was found: order, cursors, and items that change between two pages."""

from __future__ import annotations

import pytest

from redrive import Broker, new_item
from redrive.errors import InvalidInput
from redrive.model.filter import MAX_EXAMINED, Filter, Order
from redrive.model.item import Status
from redrive.store import CountItems, FindItems, Store
from redrive.testing.conformance.deliveries import dead_queue, kill, take, take_all
from redrive.testing.conformance.many import die, find_all, found, ids_of
from redrive.testing.conformance.suite import OpenBroker, Suite


class PageConformance(Suite):
    """Order, pages and cursors."""

    def test_dead_letters_come_in_the_order_of_their_deaths(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put_many("jobs", range(5))
        leases = take_all(broker)
        for n in (3, 0, 4, 1, 2):
            broker.fail(leases[n], "boom")
        assert [item.value for item in broker.find(order="oldest").items] == [3, 0, 4, 1, 2]
        assert [item.value for item in broker.find(order=Order.NEWEST).items] == [2, 1, 4, 0, 3]
        assert [item.value for item in broker.find(status=None).items] == [4, 3, 2, 1, 0]
        with pytest.raises(InvalidInput):
            broker.find(order="sideways")

    def test_archive_and_restore_keep_the_order(self, broker: Broker) -> None:
        dead_queue(broker)
        ids = die(broker, 4)
        broker.archive([ids[2], ids[0]])
        assert found(broker, status="archived") == [0, 2]
        broker.restore([ids[0], ids[2]])
        assert found(broker) == [0, 1, 2, 3]

    def test_who_dies_again_is_the_newest(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        ids = die(broker, 3)
        broker.redrive(ids[0])
        broker.fail(take(broker), "boom")
        assert found(broker) == [1, 2, 0]

    @pytest.mark.parametrize("order", ["newest", "oldest"])
    @pytest.mark.parametrize("status", ["dead", "archived", "pending", None])
    def test_pages_make_up_the_whole(self, broker: Broker, order: str, status: str | None) -> None:
        dead_queue(broker)
        ids = die(broker, 30)
        broker.archive(ids[::3])
        broker.put_many("jobs", range(30, 45))
        whole = broker.find(status=status, order=order, limit=1_000)
        assert whole.cursor is None
        for limit in (1, 4, len(whole.items), 46):
            assert find_all(broker, limit=limit, status=status, order=order) == list(whole.items)
        assert broker.count(status=status) == len(whole.items)
        assert broker.find(status=status, order=order, limit=len(whole.items)).cursor is None

    @pytest.mark.parametrize("order", ["newest", "oldest"])
    def test_dead_letter_that_stays_appears_exactly_once_whatever_others_do(self, broker: Broker, order: str) -> None:
        dead_queue(broker)
        ids = die(broker, 120)
        stay = set(ids_of(map(broker.get, ids[::3])))
        others = [id for n, id in enumerate(ids) if n % 3]
        seen, cursor = [], None
        for turn in range(1_000):
            page = broker.find(order=order, limit=6, cursor=cursor)
            seen += [id for id in ids_of(page.items) if id in stay]
            if (cursor := page.cursor) is None:
                break
            if turn < 12:  # each time 80 items die again, and half of them are put aside or restored
                broker.redrive(others)
                broker.bury_by_hand(others)
                (broker.restore if turn % 2 else broker.archive)(others[::2])
        assert cursor is None, "the walk does not end"
        assert len(seen) == len(set(seen)) == len(stay)

    def test_pending_item_that_stays_appears_exactly_once_whatever_others_do(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        receipts = broker.put_many("jobs", [new_item(n, priority=9 if n % 3 else 0) for n in range(300)])
        stay, seen, cursor = {receipt.id for receipt in receipts[::3]}, [], None
        for _ in range(40):
            page = broker.find(status="pending", order="newest", limit=20, cursor=cursor)
            seen += [item.id for item in page.items if item.id in stay]
            if (cursor := page.cursor) is None:
                break
            for n, lease in enumerate(broker.lease("jobs", 8)):
                broker.complete(lease) if n % 2 else broker.release(lease)
            broker.put_many("jobs", [new_item("new", priority=9)] * 5)
        assert len(seen) == len(set(seen)) == len(stay)

    def test_rare_match_among_very_many_is_found_by_cursors(self, broker: Broker, store: Store) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", "needle", headers={"tenant": "a"})
        for _ in range(2):
            broker.put_many("jobs", range(MAX_EXAMINED))
        where = Filter(status=Status.PENDING, headers={"tenant": "a"})
        page = store.read(FindItems(where))
        assert page.items == ()
        assert page.cursor is not None
        counted = store.read(CountItems(where))
        assert counted.cursor is not None
        assert [item.value for item in broker.find(where).items] == ["needle"]
        assert broker.count(where) == 1

    @pytest.mark.parametrize("cursor", ["", "nonsense", "0", "-1", "é", "a" * 4_000])
    def test_cursor_that_is_none_is_refused(self, broker: Broker, cursor: str) -> None:
        broker.create_queue("jobs")
        die(broker, 2)
        with pytest.raises(InvalidInput):
            broker.find(cursor=cursor)

    def test_cursor_of_another_kind_of_query_is_refused(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        die(broker, 2)
        broker.put_many("jobs", [1, 2])
        by_death = broker.find(limit=1).cursor
        by_put = broker.find(limit=1, status="pending").cursor
        with pytest.raises(InvalidInput):
            broker.find(cursor=by_put)
        with pytest.raises(InvalidInput):
            broker.find(status="pending", cursor=by_death)

    def test_limit_has_bounds(self, broker: Broker) -> None:
        for limit in (0, -1, 1_001):
            with pytest.raises(InvalidInput):
                broker.find(limit=limit)
        assert broker.find(limit=1_000).items == ()

    def test_cursor_goes_on_where_the_item_of_the_page_is_gone(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        ids = die(broker, 4)
        page = broker.find(order="oldest", limit=2)
        broker.drop(ids[:2])
        assert [item.value for item in broker.find(order="oldest", cursor=page.cursor).items] == [2, 3]

    def test_namespaces_do_not_find_each_others_items(self, open_broker: OpenBroker) -> None:
        one, two = open_broker(), open_broker(namespace="other")
        for broker in (one, two):
            broker.create_queue("jobs")
        ids = die(one, 3)
        kill(two, "mine", error="other")
        assert found(two, status=None) == found(two) == ["mine"]
        assert found(two, words="boom") == found(two, ids=tuple(ids)) == []
        assert [group.count for group in two.groups()] == [1]
        assert {entry.id for entry in two.feed().entries}.isdisjoint(ids)
