"""put(within=…): the item exists if and only if the caller's own transaction commits."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import Broker, new_item
from redrive.errors import InvalidInput, QueueFull, QueueNotFound
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.deliveries import places, take_all, values
from redrive.testing.conformance.suite import Suite


class TransactionConformance(Suite):
    """Puts in a transaction of the program's own. `own_connection` takes BEGIN, COMMIT and ROLLBACK."""

    def connection(self, request: pytest.FixtureRequest) -> Any:
        """The program's own connection, on a store that has such."""
        self.require("transactions")
        return request.getfixturevalue("own_connection")

    def test_item_exists_when_the_transaction_commits(self, broker: Broker, request: pytest.FixtureRequest) -> None:
        connection = self.connection(request)
        broker.create_queue("jobs")
        connection.execute("BEGIN")
        receipt = broker.put("jobs", {"n": 1}, within=connection, headers={"h": "x"}, priority=7)
        connection.execute("COMMIT")
        item = broker.get(receipt.id)
        assert (item.value, dict(item.headers), item.priority) == ({"n": 1}, {"h": "x"}, 7)
        assert values(take_all(broker)) == [{"n": 1}]

    def test_item_does_not_exist_before_the_commit(self, broker: Broker, request: pytest.FixtureRequest) -> None:
        connection = self.connection(request)
        broker.create_queue("jobs")
        connection.execute("BEGIN")
        broker.put("jobs", 1, within=connection)
        assert places(broker.stats("jobs")) == {}
        connection.execute("COMMIT")
        assert places(broker.stats("jobs")) == {"pending": 1}

    def test_item_does_not_exist_after_a_rollback(self, broker: Broker, request: pytest.FixtureRequest) -> None:
        connection = self.connection(request)
        broker.create_queue("jobs")
        connection.execute("BEGIN")
        broker.put("jobs", 1, within=connection, idempotency_key="k")
        connection.execute("ROLLBACK")
        assert places(broker.stats("jobs")) == {}
        assert not broker.put("jobs", 2, idempotency_key="k").duplicate

    def test_many_items_keep_their_order(self, broker: Broker, request: pytest.FixtureRequest) -> None:
        connection = self.connection(request)
        broker.create_queue("jobs")
        broker.put("jobs", 0)
        connection.execute("BEGIN")
        broker.put_many("jobs", [1, new_item(2), 3], within=connection)
        connection.execute("COMMIT")
        broker.put("jobs", 4)
        assert values(take_all(broker)) == [0, 1, 2, 3, 4]

    def test_scheduled_item_falls_due(self, broker: Broker, clock: FakeClock, request: pytest.FixtureRequest) -> None:
        connection = self.connection(request)
        broker.create_queue("jobs")
        connection.execute("BEGIN")
        broker.put("jobs", 1, delay="1m", within=connection)
        connection.execute("COMMIT")
        assert take_all(broker) == []
        clock.advance("1m")
        assert values(take_all(broker)) == [1]

    def test_known_key_puts_nothing(self, broker: Broker, request: pytest.FixtureRequest) -> None:
        connection = self.connection(request)
        broker.create_queue("jobs")
        first = broker.put("jobs", 1, idempotency_key="k")
        connection.execute("BEGIN")
        again = broker.put("jobs", 1, idempotency_key="k", within=connection)
        connection.execute("COMMIT")
        assert (again.id, again.duplicate) == (first.id, True)
        assert places(broker.stats("jobs")) == {"pending": 1}

    def test_refused_put_leaves_the_transaction_usable(self, broker: Broker, request: pytest.FixtureRequest) -> None:
        connection = self.connection(request)
        broker.create_queue("jobs", max_size=1)
        connection.execute("BEGIN")
        with pytest.raises(QueueNotFound):
            broker.put("nowhere", 1, within=connection)
        broker.put("jobs", 1, within=connection)
        with pytest.raises(QueueFull):
            broker.put("jobs", 2, within=connection)
        connection.execute("COMMIT")
        assert values(take_all(broker)) == [1]

    def test_connection_without_a_transaction_is_refused(self, broker: Broker, request: pytest.FixtureRequest) -> None:
        connection = self.connection(request)
        broker.create_queue("jobs")
        with pytest.raises(InvalidInput):
            broker.put("jobs", 1, within=connection)
        assert places(broker.stats("jobs")) == {}

    @pytest.mark.parametrize("connection", [object(), "jobs.db", 7, True], ids=["object", "text", "number", "flag"])
    def test_anything_else_is_refused(self, broker: Broker, connection: Any) -> None:
        broker.create_queue("jobs")
        with pytest.raises(InvalidInput):
            broker.put("jobs", 1, within=connection)
        assert places(broker.stats("jobs")) == {}
