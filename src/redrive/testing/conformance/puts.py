"""Put: ids, options, atomicity, queue size; put in a transaction of the caller."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from redrive import Broker, new_item
from redrive.errors import InvalidInput, ItemNotFound, QueueFull, QueueNotFound
from redrive.model.duration import SECOND
from redrive.model.item import Counters
from redrive.testing.conformance.actions import kill, places, take, take_all, values
from redrive.testing.conformance.suite import Suite
from redrive.testing.fake_clock import FakeClock


class PutConformance(Suite):
    """Puts of one item, or of many."""

    def test_put_item_is_pending_and_untouched(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        receipt = broker.put("jobs", {"to": "ada"}, headers={"trace": "7"})
        item = broker.get(receipt.id)
        assert not receipt.duplicate
        assert (item.id, item.queue, item.status) == (receipt.id, "jobs", "pending")
        assert (item.value, item.content_type, dict(item.headers)) == (
            {"to": "ada"},
            "application/json",
            {"trace": "7"},
        )
        assert (item.put_at, item.ready_at, item.priority) == (clock.now(), clock.now(), 5)
        assert (item.counters, item.history, item.deaths) == (Counters(), (), ())
        assert (item.source_id, item.origin_id, item.origin_queue) == (None, None, None)
        assert (item.expire_deadline, item.held_by, item.dead_reason, item.result) == (None, (), None, None)

    def test_items_of_one_put_keep_their_order_whatever_their_options(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        mixed = ["a", new_item("b", headers={"h": "x"}), b"c", new_item("d", idempotency_key="k"), "e", b"f"]
        broker.put_many("jobs", mixed)
        assert values(take_all(broker)) == ["a", "b", b"c", "d", "e", b"f"]

    def test_put_of_many_takes_a_list(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        for one in ("abc", b"abc", {"a": 1}):
            with pytest.raises(InvalidInput, match="put_many takes a list of values"):
                broker.put_many("jobs", one)
        with pytest.raises(InvalidInput, match="at most 10,000 items"):
            broker.put_many("jobs", range(10_001))
        assert places(broker.stats("jobs")) == {}

    def test_ids_are_32_hexadecimal_digits_and_unique(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        ids = [broker.put("jobs", 0).id for _ in range(20)]
        ids += [receipt.id for receipt in broker.put_many("jobs", range(500))]
        assert len(set(ids)) == 520
        assert all(len(id) == 32 and set(id) <= set("0123456789abcdef") for id in ids)

    def test_eight_digits_of_an_id_tell_items_apart(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        ids = [receipt.id for receipt in broker.put_many("jobs", range(200))]
        assert len({id[:8] for id in ids}) == 200

    def test_put_many_keeps_the_order(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        receipts = broker.put_many("jobs", range(300))
        leases = take_all(broker)
        assert values(leases) == list(range(300))
        assert [lease.id for lease in leases] == [receipt.id for receipt in receipts]

    def test_put_many_of_nothing_puts_nothing(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        assert broker.put_many("jobs", []) == ()
        assert take_all(broker) == []

    def test_put_many_takes_options_for_each_item(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put_many("jobs", ["plain", new_item("first", priority=9), new_item("later", delay="1m")])
        assert values(take_all(broker)) == ["first", "plain"]

    def test_put_many_is_all_or_none(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        with pytest.raises(InvalidInput):
            broker.put_many("jobs", [1, 2, float("nan")])
        assert places(broker.stats("jobs")) == {}

    @pytest.mark.parametrize("priority", range(10))
    def test_priority_is_kept(self, broker: Broker, priority: int) -> None:
        broker.create_queue("jobs")
        assert broker.get(broker.put("jobs", 1, priority=priority).id).priority == priority

    def test_delayed_item_is_scheduled(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        item = broker.get(broker.put("jobs", 1, delay="1m30s").id)
        assert (item.status, item.ready_at) == ("pending", clock.now() + 90 * SECOND)

    def test_enqueue_at_is_the_instant_it_becomes_ready(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        at = datetime.fromtimestamp(clock.now() / SECOND, UTC) + timedelta(hours=2)
        item = broker.get(broker.put("jobs", 1, enqueue_at=at).id)
        assert item.ready_at == clock.now() + 7200 * SECOND
        assert take_all(broker) == []
        clock.advance("2h")
        assert take(broker).id == item.id

    def test_enqueue_at_in_the_past_means_now(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", "first")
        late = broker.put("jobs", "second", enqueue_at=datetime(2001, 1, 1, tzinfo=UTC))
        assert broker.get(late.id).ready_at == clock.now()
        assert values(take_all(broker)) == ["first", "second"]

    def test_expiry_of_an_item_goes_before_that_of_its_queue(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", expire_timeout="10s")
        assert broker.get(broker.put("jobs", 1).id).expire_deadline == clock.now() + 10 * SECOND
        assert broker.get(broker.put("jobs", 1, expire_timeout="3s").id).expire_deadline == clock.now() + 3 * SECOND

    def test_expire_at_is_the_instant_it_expires(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", expire_timeout="10s")
        at = datetime.fromtimestamp(clock.now() / SECOND, UTC) + timedelta(hours=2)
        items = [new_item("alone", expire_at=at), new_item("keyed", expire_at=at, idempotency_key="k", delay="1s")]
        ids = [receipt.id for receipt in broker.put_many("jobs", items)]
        assert [broker.get(id).expire_deadline for id in ids] == [clock.now() + 7200 * SECOND] * 2
        clock.advance("1h59m59.999999s")
        assert broker.run_maintenance().expired == 0
        clock.advance(0.000001)
        assert broker.run_maintenance().expired == 2
        assert [broker.get(id).dead_reason for id in ids] == ["expired"] * 2

    def test_item_that_is_put_after_it_expired_is_a_dead_letter(self, broker: Broker) -> None:
        broker.create_queue("jobs", expire_timeout="1h")
        epoch, late = datetime(1970, 1, 1, tzinfo=UTC), datetime(2001, 1, 1, tzinfo=UTC)
        ids = [broker.put("jobs", 1, expire_at=at, idempotency_key=str(at)).id for at in (epoch, late)]
        assert take_all(broker) == []
        assert [broker.get(id).dead_reason for id in ids] == ["expired"] * 2
        again = broker.put("jobs", 1, expire_at=late, idempotency_key=str(late))
        assert (again.id, again.duplicate) == (ids[1], True)

    def test_redrive_after_expire_at_takes_the_expiry_of_the_queue(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", expire_timeout="10s")
        receipt = broker.put("jobs", 1, expire_at=datetime(2001, 1, 1, tzinfo=UTC))
        broker.run_maintenance()
        broker.redrive(receipt.id)
        assert broker.get(receipt.id).expire_deadline == clock.now() + 10 * SECOND

    def test_headers_may_hold_any_text(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        headers = {"Ключ": "значение", "empty": "", "emoji": "🦆", "tab": "a\tb\nc"}
        broker.put("jobs", 1, headers=headers)
        assert dict(take(broker).headers) == headers

    def test_get_of_an_id_that_was_never_put(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        with pytest.raises(ItemNotFound, match="never put in this namespace"):
            broker.get("0123456789abcdef" * 2)


class SizeConformance(Suite):
    """`max_size` limits pending, failed and active items."""

    def test_put_into_a_full_queue_is_refused(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_size=2)
        broker.put_many("jobs", [1, 2])
        with pytest.raises(QueueFull, match="2 of max_size 2, 1 more refused") as refusal:
            broker.put("jobs", 3)
        assert refusal.value.retryable
        assert values(take_all(broker)) == [1, 2]

    def test_put_many_that_does_not_fit_puts_nothing(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_size=3)
        broker.put("jobs", 1)
        with pytest.raises(QueueFull):
            broker.put_many("jobs", [2, 3, 4])
        broker.put_many("jobs", [2, 3])
        assert values(take_all(broker)) == [1, 2, 3]

    def test_active_failed_scheduled_and_held_items_count(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_size=4, retry={"attempts": 3, "cooldown": "1m"})
        broker.put_many("jobs", ["failed", "active", new_item("later", delay="1h"), new_item("held", held_by="me")])
        broker.fail(take(broker), "boom")
        take(broker)
        assert places(broker.stats("jobs")) == {"pending": 2, "failed": 1, "active": 1}
        with pytest.raises(QueueFull):
            broker.put("jobs", 5)

    def test_dead_archived_and_completed_items_do_not_count(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_size=1, keep_completed="1d")
        kill(broker)
        broker.archive(kill(broker).id)
        broker.put("jobs", 1)
        broker.complete(take(broker))
        assert places(broker.stats("jobs")) == {"completed": 1, "dead": 1, "archived": 1}
        broker.put("jobs", 2)

    def test_completion_makes_room(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_size=1)
        broker.put("jobs", 1)
        broker.complete(take(broker))
        broker.put("jobs", 2)

    def test_raised_limit_holds_at_once(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_size=1)
        broker.put("jobs", 1)
        broker.update_queue("jobs", max_size=2)
        broker.put("jobs", 2)
        broker.update_queue("jobs", max_size=1)
        with pytest.raises(QueueFull):
            broker.put("jobs", 3)

    def test_known_key_is_no_addition_to_a_full_queue(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_size=1)
        first = broker.put("jobs", 1, idempotency_key="k")
        again = broker.put("jobs", 1, idempotency_key="k")
        assert (again.id, again.duplicate) == (first.id, True)

    def test_born_failed_item_is_refused_by_a_full_queue(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_size=1, retry={"attempts": 3})
        broker.put("jobs", 1)
        with pytest.raises(QueueFull):
            broker.put_failed("jobs", 2, "boom")

    def test_born_dead_item_needs_no_place(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_size=1)
        broker.put("jobs", 1)
        broker.put_failed("jobs", 2, "boom")
        assert places(broker.stats("jobs")) == {"pending": 1, "dead": 1}

    def test_retry_and_redrive_of_the_dead_need_room(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_size=1)
        one, two = kill(broker).id, kill(broker).id
        broker.put("jobs", 3)
        for verb in (broker.retry, broker.redrive):
            with pytest.raises(QueueFull):
                verb(one)
        broker.complete(take(broker))
        assert broker.retry(one).status == "pending"
        with pytest.raises(QueueFull):
            broker.redrive(two)
        assert (broker.stats("jobs").pending, broker.stats("jobs").dead) == (1, 1)


class PutOptionsRefused(Suite):
    """Options that cannot be stored are refused, and nothing is put."""

    @pytest.mark.parametrize(
        "options",
        [
            {"delay": -1},
            {"delay": "-1s"},
            {"delay": "tomorrow"},
            {"delay": float("nan")},
            {"delay": float("inf")},
            {"delay": "36526d"},
            {"delay": 10**30},
            {"delay": True},
            {"delay": ""},
            {"delay": "5 parsecs"},
            {"expire_timeout": -1},
            {"expire_timeout": "x"},
            {"enqueue_at": datetime(2026, 1, 1)},
            {"enqueue_at": datetime(1969, 12, 31, tzinfo=UTC)},
            {"enqueue_at": datetime(9000, 1, 1, tzinfo=UTC)},
            {"enqueue_at": "2026-01-01"},
            {"enqueue_at": datetime(2030, 1, 1, tzinfo=UTC), "delay": "1s"},
            {"expire_at": datetime(2026, 1, 1)},
            {"expire_at": datetime(9000, 1, 1, tzinfo=UTC)},
            {"expire_at": "2026-01-01"},
            {"expire_at": datetime(2030, 1, 1, tzinfo=UTC), "expire_timeout": "1s"},
            {"priority": -1},
            {"priority": 10},
            {"priority": 5.0},
            {"priority": True},
            {"priority": "high"},
            {"headers": {"a\0b": "x"}},
            {"headers": {"a": "x\0"}},
            {"headers": {"a": "\ud800"}},
            {"headers": {"": "x"}},
            {"headers": {"a": 1}},
            {"headers": {1: "a"}},
            {"headers": {"a": "x" * 70_000}},
            {"idempotency_key": ""},
            {"idempotency_key": "a\0b"},
            {"idempotency_key": "\udfff"},
            {"idempotency_key": "k" * 257},
            {"idempotency_key": 7},
            {"held_by": ""},
            {"held_by": "a\0b"},
            {"max_attempts": -1},
            {"max_attempts": 1.5},
            {"max_losses": -1},
            {"retry": {"attempts": -1}},
            {"max_attempts": 2, "retry": {"attempts": 3}},
            {"content_type": "text/plain"},
        ],
        ids=lambda options: repr(options)[:60],
    )
    def test_bad_option_of_put_is_refused(self, broker: Broker, options: dict[str, Any]) -> None:
        broker.create_queue("jobs")
        with pytest.raises(InvalidInput) as refusal:
            broker.put("jobs", "value", **options)
        assert len(str(refusal.value)) > 10
        assert places(broker.stats("jobs")) == {}


class TransactionConformance(Suite):
    """Puts in a transaction of the program. `own_connection` accepts BEGIN, COMMIT and ROLLBACK."""

    def connection(self, request: pytest.FixtureRequest) -> Any:
        """Return the connection of the program, on a store that supports transactions."""
        self.require("supports_transactions")
        return request.getfixturevalue("own_connection")

    def test_item_exists_when_the_transaction_commits(self, broker: Broker, request: pytest.FixtureRequest) -> None:
        connection = self.connection(request)
        broker.create_queue("jobs")
        connection.execute("BEGIN")
        receipt = broker.put("jobs", {"n": 1}, transaction=connection, headers={"h": "x"}, priority=7)
        connection.execute("COMMIT")
        item = broker.get(receipt.id)
        assert (item.value, dict(item.headers), item.priority) == ({"n": 1}, {"h": "x"}, 7)
        assert values(take_all(broker)) == [{"n": 1}]

    def test_item_does_not_exist_before_the_commit(self, broker: Broker, request: pytest.FixtureRequest) -> None:
        connection = self.connection(request)
        broker.create_queue("jobs")
        connection.execute("BEGIN")
        broker.put("jobs", 1, transaction=connection)
        assert places(broker.stats("jobs")) == {}
        connection.execute("COMMIT")
        assert places(broker.stats("jobs")) == {"pending": 1}

    def test_item_does_not_exist_after_a_rollback(self, broker: Broker, request: pytest.FixtureRequest) -> None:
        connection = self.connection(request)
        broker.create_queue("jobs")
        connection.execute("BEGIN")
        broker.put("jobs", 1, transaction=connection, idempotency_key="k")
        connection.execute("ROLLBACK")
        assert places(broker.stats("jobs")) == {}
        assert not broker.put("jobs", 2, idempotency_key="k").duplicate

    def test_many_items_keep_their_order(self, broker: Broker, request: pytest.FixtureRequest) -> None:
        connection = self.connection(request)
        broker.create_queue("jobs")
        broker.put("jobs", 0)
        connection.execute("BEGIN")
        broker.put_many("jobs", [1, new_item(2), 3], transaction=connection)
        connection.execute("COMMIT")
        broker.put("jobs", 4)
        assert values(take_all(broker)) == [0, 1, 2, 3, 4]

    def test_scheduled_item_falls_due(self, broker: Broker, clock: FakeClock, request: pytest.FixtureRequest) -> None:
        connection = self.connection(request)
        broker.create_queue("jobs")
        connection.execute("BEGIN")
        broker.put("jobs", 1, delay="1m", transaction=connection)
        connection.execute("COMMIT")
        assert take_all(broker) == []
        clock.advance("1m")
        assert values(take_all(broker)) == [1]

    def test_known_key_puts_nothing(self, broker: Broker, request: pytest.FixtureRequest) -> None:
        connection = self.connection(request)
        broker.create_queue("jobs")
        first = broker.put("jobs", 1, idempotency_key="k")
        connection.execute("BEGIN")
        again = broker.put("jobs", 1, idempotency_key="k", transaction=connection)
        connection.execute("COMMIT")
        assert (again.id, again.duplicate) == (first.id, True)
        assert places(broker.stats("jobs")) == {"pending": 1}

    def test_refused_put_leaves_the_transaction_usable(self, broker: Broker, request: pytest.FixtureRequest) -> None:
        connection = self.connection(request)
        broker.create_queue("jobs", max_size=1)
        connection.execute("BEGIN")
        with pytest.raises(QueueNotFound):
            broker.put("nowhere", 1, transaction=connection)
        broker.put("jobs", 1, transaction=connection)
        with pytest.raises(QueueFull):
            broker.put("jobs", 2, transaction=connection)
        connection.execute("COMMIT")
        assert values(take_all(broker)) == [1]

    def test_connection_without_a_transaction_is_refused(self, broker: Broker, request: pytest.FixtureRequest) -> None:
        connection = self.connection(request)
        broker.create_queue("jobs")
        with pytest.raises(InvalidInput):
            broker.put("jobs", 1, transaction=connection)
        assert places(broker.stats("jobs")) == {}

    @pytest.mark.parametrize("connection", [object(), "jobs.db", 7, True], ids=["object", "text", "number", "flag"])
    def test_anything_else_is_refused(self, broker: Broker, connection: Any) -> None:
        broker.create_queue("jobs")
        with pytest.raises(InvalidInput):
            broker.put("jobs", 1, transaction=connection)
        assert places(broker.stats("jobs")) == {}
