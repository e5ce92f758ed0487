"""Find: every condition alone and combined, counts that agree, pages while items change."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from redrive import Broker, new_item
from redrive.contract.queries import CountItems, FindItems
from redrive.errors import InvalidInput, QueueNotFound
from redrive.model.filter import MAX_EXAMINED, Filter, Order
from redrive.model.item import Status
from redrive.store import Store
from redrive.testing.conformance.actions import Boom, dead_queue, die, find_all, found, ids_of, kill, take, take_all
from redrive.testing.conformance.suite import OpenBroker, Suite
from redrive.testing.fake_clock import FakeClock


class FilterConformance(Suite):
    """One condition at a time, then several."""

    def test_found_by_each_status(self, broker: Broker) -> None:
        broker.create_queue("jobs", retry={"attempts": 2, "cooldown": "1h"}, keep_completed="1h")
        kill(broker, "dead")
        broker.archive(kill(broker, "archived").id)
        broker.put_many("jobs", ["completed", "failed", "active", "pending"])
        broker.complete(take(broker))
        broker.fail(take(broker), "boom")
        take(broker)
        for status in ("dead", "archived", "completed", "failed", "active", "pending"):
            assert found(broker, status=status) == [status]
        in_use = ["active", "completed", "dead", "failed", "pending"]
        assert sorted(found(broker, status=None)) == in_use
        assert sorted(found(broker, status=None, archived=True)) == sorted([*in_use, "archived"])

    def test_found_item_is_the_item_that_get_gives(self, broker: Broker) -> None:
        dead_queue(broker)
        dead = kill(broker, {"n": 1}, error=Boom("x"))
        assert broker.find().items == (broker.get(dead.id),)
        assert broker.find(status=None).items == (broker.get(dead.id),)

    def test_dead_letters_in_a_dead_queue_are_found_as_dead(self, broker: Broker) -> None:
        dead_queue(broker)
        kill(broker, "in place", "morgue")
        kill(broker, "moved")
        broker.put("morgue", "put there")
        assert found(broker) == ["in place", "moved"]
        assert found(broker, status="pending") == ["moved", "put there"]
        assert found(broker, queue="morgue") == ["in place", "moved"]
        assert found(broker, queue="jobs") == []

    def test_dead_letter_in_work_is_still_found_until_it_is_completed(self, broker: Broker) -> None:
        dead_queue(broker)
        kill(broker, "x")
        lease = take(broker, "morgue")
        assert found(broker) == ["x"]
        broker.complete(lease)
        assert found(broker) == []

    def test_found_by_queue_and_by_the_queue_it_was_put_into(self, broker: Broker) -> None:
        dead_queue(broker)
        broker.create_queue("mails", dead_queue="morgue")
        broker.create_queue("plain")
        for queue in ("jobs", "mails", "plain"):
            kill(broker, queue, queue)
        assert found(broker, queue="morgue") == ["jobs", "mails"]
        assert found(broker, queue="plain") == ["plain"]
        assert found(broker, origin_queue="mails") == ["mails"]
        assert found(broker, origin_queue="plain") == ["plain"]
        assert found(broker, queue="morgue", origin_queue="plain") == []

    def test_found_by_reason(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", expire_timeout="1h")
        kill(broker, "final")
        broker.put("jobs", "buried")
        broker.bury(take(broker))
        broker.put("jobs", "expired")
        clock.advance("1h")
        broker.run_maintenance()
        assert found(broker, reason="final_error") == ["final"]
        assert found(broker, reason="buried") == ["buried"]
        assert found(broker, reason="expired") == ["expired"]
        assert found(broker, reason="worker_lost") == []

    @pytest.mark.parametrize("name", ["redrive.testing.conformance.actions.Boom", "redrive.Boom", "Boom"])
    def test_found_by_error_type(self, broker: Broker, name: str) -> None:
        broker.create_queue("jobs")
        kill(broker, "boom", error=Boom("x"))
        kill(broker, "value", error=ValueError("Boom"))
        assert found(broker, error_type=name) == ["boom"]
        assert found(broker, error_type="ValueError") == ["value"]
        assert found(broker, error_type="conformance.Boom") == []

    def test_found_by_error_class(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        kill(broker, "network", error=ConnectionError("x"))
        kill(broker, "validation", error=ValueError("x"))
        assert found(broker, error_class="network") == ["network"]
        assert found(broker, error_class="validation") == ["validation"]
        assert found(broker, error_class="resource") == []

    def test_found_by_fingerprint(self, broker: Broker) -> None:
        dead_queue(broker)
        die(broker, 3, "disk 7 is full")
        kill(broker, "other", error="no route")
        kill(broker, "same", error="disk 9 is full")
        fingerprints = {item.value: item.deaths[-1].cause.fingerprint for item in find_all(broker)}
        assert found(broker, fingerprint=fingerprints["same"]) == [0, 1, 2, "same"]
        assert found(broker, fingerprint=fingerprints["same"], queue="morgue") == [0, 1, 2, "same"]
        assert found(broker, fingerprint=fingerprints["same"], queue="jobs") == []
        assert found(broker, fingerprint="0" * 16) == []

    def test_found_by_the_time_of_the_death(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        started = clock.now()
        for hour in range(4):
            kill(broker, hour)
            clock.advance("1h")
        second = datetime.fromtimestamp(started / 1e6, UTC).replace(hour=1)
        assert found(broker, where=Filter(since=clock.now())) == []
        assert found(broker, since=second) == [1, 2, 3]
        assert found(broker, until=second) == [0]
        assert found(broker, since=second, until="1h") == [1, 2]
        assert found(broker, since="2h") == [2, 3]
        assert found(broker, since="90m") == [3]

    def test_found_by_the_time_of_the_put_where_it_is_not_dead(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        for hour in range(3):
            broker.put("jobs", hour)
            clock.advance("1h")
        assert found(broker, status="pending", since="2h") == [1, 2]
        assert found(broker, status="pending", until="2h") == [0]

    def test_found_by_attempts_at_the_death(self, broker: Broker) -> None:
        broker.create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue", retry={"attempts": 3})
        kill(broker, "once")
        broker.put("jobs", "thrice")
        for _ in range(3):
            broker.run_maintenance()
            broker.fail(take(broker), "boom")
        assert found(broker, min_attempts=1) == ["once", "thrice"]
        assert found(broker, min_attempts=2) == found(broker, min_attempts=3) == ["thrice"]
        assert found(broker, min_attempts=4) == []

    def test_found_by_redrives(self, broker: Broker) -> None:
        dead_queue(broker)
        again = kill(broker, "again")
        kill(broker, "once")
        broker.redrive(again.id)
        broker.fail(take(broker), "boom")
        assert found(broker, min_redrives=1) == ["again"]
        assert found(broker, max_redrives=0) == ["once"]
        assert found(broker, min_redrives=2) == []

    def test_found_by_headers(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        headers: list[dict[str, str]] = [{}, {"tenant": "a"}, {"tenant": "a", "zone": "x"}, {"tenant": "b"}]
        broker.put_many("jobs", [new_item(n, headers=found) for n, found in enumerate(headers)])
        for lease in take_all(broker):
            broker.fail(lease, "boom")
        assert found(broker, headers={"tenant": "a"}) == [1, 2]
        assert found(broker, headers={"tenant": "a", "zone": "x"}) == [2]
        assert found(broker, headers={"zone": "y"}) == []

    def test_found_by_who_holds_it(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put_many("jobs", [new_item("a", held_by="breaker"), new_item("b", held_by="person"), "c"])
        assert found(broker, status="pending", held=True) == ["a", "b"]
        assert found(broker, status="pending", held=False) == ["c"]
        assert found(broker, status="pending", held_by="person") == ["b"]

    def test_all_conditions_must_be_met(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker)
        for n, (error, tenant) in enumerate(
            [(Boom("x"), "a"), (ValueError("x"), "a"), (Boom("x"), "b"), (Boom("x"), "a")]
        ):
            broker.put("jobs", n, headers={"tenant": tenant})
            broker.fail(take(broker), error)
            clock.advance("1h")
        conditions: dict[str, Any] = {"error_type": "Boom", "headers": {"tenant": "a"}}
        assert found(broker, **conditions) == [0, 3]
        conditions |= {"queue": "morgue", "origin_queue": "jobs", "reason": "retries_exhausted", "min_attempts": 1}
        assert found(broker, **conditions) == [0, 3]
        assert found(broker, **conditions, since="2h", max_redrives=0, error_class="permanent") == [3]
        assert found(broker, **conditions, words="boom x", until="2h") == [0]
        assert found(broker, **conditions, status="archived") == []

    def test_archived_items_are_found_under_the_cause_of_their_death(self, broker: Broker) -> None:
        dead_queue(broker)
        broker.archive(kill(broker, "moved", error=ValueError("x")).id)
        broker.archive(kill(broker, "in place", "morgue", error=ValueError("x")).id)
        conditions: dict[str, Any] = {"status": "archived", "error_type": "ValueError", "reason": "final_error"}
        assert found(broker, **conditions) == ["moved", "in place"]
        assert found(broker, **conditions, error_class="validation", since="1h") == ["moved", "in place"]
        assert found(broker) == []

    def test_filter_and_conditions_are_alternatives(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        kill(broker, "x")
        assert [item.value for item in broker.find(Filter(queue="jobs")).items] == ["x"]
        assert broker.count(Filter(status=Status.PENDING)) == 0
        with pytest.raises(InvalidInput):
            broker.find(Filter(), queue="jobs")
        with pytest.raises(InvalidInput, match="origin_queue"):
            broker.find(colour="red")  # type: ignore[call-arg]
        mistakes: list[dict[str, Any]] = [{"status": "blue"}, {"reason": "x"}, {"error_class": "x"}, {"since": "soon"}]
        for wrong in mistakes:
            with pytest.raises(InvalidInput):
                broker.count(**wrong)

    def test_queue_that_does_not_exist_is_not_an_empty_answer(self, broker: Broker) -> None:
        with pytest.raises(QueueNotFound):
            broker.find(queue="nowhere")
        with pytest.raises(QueueNotFound):
            broker.count(queue="nowhere")


class PageConformance(Suite):
    """Order, pages and cursors of results."""

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
            if turn < 12:  # 80 items die again in each turn, and half of them are archived or restored
                broker.redrive(others)
                broker.bury_items(others)
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
