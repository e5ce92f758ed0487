"""Guards on methods: the object is not captured, and retries call the method of an object that the program names."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redrive import Broker
from redrive.capture import Captured, DeadLetterQueue, UnboundMethodError
from redrive.errors import InvalidInput
from redrive.testing.conformance.suite import Suite
from redrive.testing.fake_clock import FakeClock


class MethodGuardConformance(Suite):
    """The guarantees of a guard on a method."""

    def shop(self, dlq: DeadLetterQueue) -> Any:
        """Return a class with guarded methods of every kind, whose calls fail while it is closed."""

        class Shop:
            is_open = False

            def __init__(self, city: str) -> None:
                self.city = city

            @dlq.guard(name="charge", key=lambda self, order: f"{self.city}-{order}", on_failure="handle")
            def charge(self, order: int) -> str:
                if not Shop.is_open:
                    raise ConnectionError("closed")
                return f"{self.city} charged {order}"

            @dlq.guard(name="ship", key=lambda self, order, **_: f"ship-{order}", on_failure="handle")
            async def ship(self, order: int, *, fast: bool = False) -> str:
                if not Shop.is_open:
                    raise ConnectionError("closed")
                return f"{self.city} shipped {order} {fast}"

            @classmethod
            @dlq.guard(name="count", key=lambda cls, year: f"count-{year}", on_failure="handle")
            def count(cls, year: int) -> str:
                if not cls.is_open:
                    raise ConnectionError("closed")
                return f"{cls.__name__} counted {year}"

            @dlq.guard(name="count-outside", key=lambda cls, year: f"outside-{year}", on_failure="handle")
            @classmethod
            def count_outside(cls, year: int) -> str:
                return cls.count.__wrapped__(cls, year)  # type: ignore[attr-defined, no-any-return]

            @staticmethod
            @dlq.guard(name="price", on_failure="handle")
            def price(item: str) -> str:
                if not Shop.is_open:
                    raise ConnectionError("closed")
                return f"price of {item}"

            @dlq.guard(name="price-outside", on_failure="handle")
            @staticmethod
            def price_outside(item: str) -> str:
                return Shop.price.__wrapped__(item)  # type: ignore[attr-defined, no-any-return]

        return Shop

    def test_retry_calls_the_method_of_the_object_that_was_bound(self, broker: Broker, clock: FakeClock) -> None:
        dlq = DeadLetterQueue(broker)
        shop_type = self.shop(dlq)
        bound, other = shop_type("Rome"), shop_type("Oslo")
        for method in (bound.charge, bound.ship, shop_type.count, shop_type.count_outside):
            dlq.bind(method)
        dlq.bind(bound.charge)  # a second bind of the same object is no error
        assert other.charge(7) == Captured("Oslo-7")
        assert asyncio.run(other.ship(8, fast=True)) == Captured("ship-8")
        assert shop_type.count(2026) == Captured("count-2026")
        assert shop_type.count_outside(2026) == Captured("outside-2026")
        assert isinstance(other.price("tea"), Captured)
        assert isinstance(shop_type.price_outside("tea"), Captured)
        assert dlq.get_task("Oslo-7").task == {"function": "charge", "arguments": {"order": 7}}  # type: ignore[union-attr]
        assert not dlq.retry_task("Oslo-7")["success"]
        shop_type.is_open = True
        assert dlq.retry_task("Oslo-7")["result"] == "Rome charged 7"
        clock.advance("1h")
        dlq.run_due_tasks()
        results = {task.task["function"]: task.result for task in dlq.list_tasks("completed")}
        assert results == {
            "charge": "Rome charged 7",
            "ship": "Rome shipped 8 True",
            "count": "Shop counted 2026",
            "count-outside": "Shop counted 2026",
            "price": "price of tea",
            "price-outside": "price of tea",
        }
        assert bound.charge(9) == "Rome charged 9"

    def test_failure_of_a_method_without_an_object_is_raised_with_what_to_do(self, broker: Broker) -> None:
        dlq = DeadLetterQueue(broker)

        class Mail:
            @dlq.guard(name="send", key=lambda self, to: to)
            def send(self, to: str) -> None:
                raise ConnectionError("down")

        mail = Mail()
        with pytest.raises(ConnectionError, match="down") as caught:
            mail.send("ann")
        assert "call dlq.bind(thing.method) once" in " ".join(caught.value.__notes__)
        assert dlq.list_tasks() == []
        assert str(UnboundMethodError("send")) in " ".join(caught.value.__notes__)
        dlq.bind(mail.send)
        with pytest.raises(ConnectionError):
            Mail().send("ann")
        assert [task.task_id for task in dlq.list_tasks()] == ["ann"]

    def test_guard_of_a_bound_method_is_its_retry(self, broker: Broker) -> None:
        dlq = DeadLetterQueue(broker)

        class Door:
            is_open = False

            def enter(self, who: str) -> str:
                if not self.is_open:
                    raise TimeoutError
                return f"{who} is in"

        door = Door()
        enter = dlq.guard(name="enter", key=lambda who: who, on_failure="handle")(door.enter)
        assert enter("ann") == Captured("ann")
        door.is_open = True
        assert dlq.retry_task("ann")["result"] == "ann is in"

    def test_what_cannot_be_bound_is_refused(self, broker: Broker) -> None:
        dlq, other = DeadLetterQueue(broker), DeadLetterQueue(broker, "other")
        shop_type = self.shop(dlq)
        first, second = shop_type("Rome"), shop_type("Oslo")
        dlq.bind(first.charge)
        with pytest.raises(InvalidInput, match="charge is bound to another object already"):
            dlq.bind(second.charge)
        with pytest.raises(InvalidInput, match="charge is guarded by the queue 'captured', not by 'other'"):
            other.bind(first.charge)
        unguarded: tuple[Any, ...] = (shop_type.charge, first.price, print, [].append, None)
        for wrong in unguarded:
            with pytest.raises(InvalidInput, match="bind takes a guarded method of an object"):
                dlq.bind(wrong)
