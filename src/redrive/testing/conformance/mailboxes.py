"""Mailboxes: typed messages with visibility, receipt handles and replies, on every store."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, TypedDict, TypeVar
from uuid import UUID, uuid4

import msgspec
import pytest

from redrive import Broker
from redrive.errors import (
    Closed,
    ConfirmationMismatch,
    InvalidInput,
    InvalidPayload,
    LeaseLost,
    QueueFull,
)
from redrive.mailbox import (
    InvalidParameterError,
    Mailbox,
    MailboxClosedError,
    MailboxError,
    MailboxFullError,
    ReceiptHandleExpiredError,
    SerializationError,
)
from redrive.testing.conformance.actions import Background
from redrive.testing.conformance.suite import Suite
from redrive.testing.fake_clock import FakeClock

T = TypeVar("T")


class PostalAddress(msgspec.Struct):
    """A struct inside another type."""

    city: str
    zip: str | None = None


class Paint(TypedDict):
    """A typed dictionary."""

    color: str


@dataclass
class Purchase:
    """The body of most messages in these tests."""

    number: int
    at: datetime = datetime(2026, 1, 1, 12, 30, 0, 123456, tzinfo=UTC)
    request_id: UUID = field(default_factory=uuid4)
    address: PostalAddress | None = None


@dataclass
class Envelope(Generic[T]):
    """A generic type."""

    content: T
    tags: list[str] = field(default_factory=list)


BODIES: list[tuple[Any, Any]] = [
    (Purchase, Purchase(1, address=PostalAddress("Ulm"))),
    (Envelope[Purchase], Envelope(Purchase(2), ["a"])),
    (list[Purchase], [Purchase(3), Purchase(4)]),
    (Paint, {"color": "red"}),
    (UUID, UUID("6f1f7ac2-0b1f-4d6c-9d53-0d1c8b1f4a11")),
    (datetime, datetime(2026, 2, 3, 4, 5, 6, 789, tzinfo=UTC)),
    (dict[str, float], {"a": 0.1, "ü": -1e300}),
    (None, {"any": ["JSON", 1, None]}),
    (None, b"\x00\xff"),
]


def only_message(messages: Any) -> Any:
    """Return the only message that was received."""
    (message,) = messages
    return message


class MailboxConformance(Suite):
    """The invariants of a mailbox, one by one. Only the test moves the clock."""

    @pytest.fixture
    def orders(self, broker: Broker) -> Mailbox[Purchase, int]:
        """Return a mailbox of orders whose replies are numbers."""
        return Mailbox(broker, "orders", body=Purchase, reply=int)

    @pytest.mark.parametrize(("kind", "body"), BODIES, ids=[str(kind)[-24:] for kind, _ in BODIES])
    def test_data_comes_back_equal(self, broker: Broker, kind: Any, body: Any) -> None:
        mailbox: Mailbox[Any, None] = Mailbox(broker, "any", body=kind)
        mailbox.send(body)
        assert only_message(mailbox.receive()).body == body

    def test_message_says_what_is_known_of_it(self, orders: Mailbox[Purchase, int], clock: FakeClock) -> None:
        sent_at = datetime.fromtimestamp(clock.now() / 1_000_000, UTC)
        id = orders.send(order := Purchase(1), headers={"color": "red"})
        clock.advance("5s")
        only_message(orders.receive()).nack()
        clock.advance("5s")
        message = only_message(orders.receive())
        assert (message.id, message.body, message.headers) == (id, order, {"color": "red"})
        assert (message.delivery_count, message.failures, message.is_finalized) == (2, 0, False)
        assert (message.enqueued_at - sent_at).total_seconds() == 0
        assert (message.first_received_at - sent_at).total_seconds() == 5
        assert (message.reply_to, message.request_id) == (None, str(order.request_id))
        assert message.receipt_handle not in repr(message)

    def test_message_is_in_exactly_one_state(self, orders: Mailbox[Purchase, int], broker: Broker) -> None:
        orders.send(Purchase(1))
        assert orders.approximate_count() == 1
        message = only_message(orders.receive())
        assert (orders.receive(), orders.approximate_count()) == ([], 1)
        message.nack()
        message = only_message(orders.receive())
        message.acknowledge()
        assert (orders.receive(), orders.approximate_count()) == ([], 0)
        assert broker.stats("orders").completed_total == 1

    def test_handles_are_fresh_and_unique(self, orders: Mailbox[Purchase, int]) -> None:
        for n in range(3):
            orders.send(Purchase(n))
        handles = set()
        for _ in range(3):
            messages = orders.receive(max_messages=3)
            handles |= {message.receipt_handle for message in messages}
            for message in messages:
                message.nack()
        assert len(handles) == 9

    def test_delivery_counts_grow_by_one(self, broker: Broker) -> None:
        mailbox: Mailbox[int, None] = Mailbox(broker, "numbers", body=int, settings={"max_attempts": 0})
        mailbox.send(1)
        for n in range(1, 8):
            message = only_message(mailbox.receive())
            assert message.delivery_count == n
            message.nack()

    def test_message_is_invisible_until_its_visibility_timeout_and_then_delivered_again(
        self, orders: Mailbox[Purchase, int], clock: FakeClock
    ) -> None:
        orders.send(Purchase(1))
        late = only_message(orders.receive(visibility_timeout=10))
        clock.advance("9s")
        assert orders.receive() == []
        late.extend_visibility(10)
        clock.advance("9s")
        assert orders.receive() == []
        clock.advance("1s")
        assert only_message(orders.receive()).delivery_count == 2
        for use in (late.acknowledge, late.nack, lambda: late.extend_visibility(5)):
            with pytest.raises(ReceiptHandleExpiredError) as lost:
                use()
            assert isinstance(lost.value, LeaseLost)

    def test_nacked_message_is_delivered_again_after_its_delay(
        self, orders: Mailbox[Purchase, int], clock: FakeClock
    ) -> None:
        orders.send(Purchase(1))
        only_message(orders.receive()).nack(visibility_timeout=60)
        clock.advance("59s")
        assert orders.receive() == []
        clock.advance("1s")
        assert only_message(orders.receive()).delivery_count == 2

    def test_messages_come_in_order_and_by_priority(self, orders: Mailbox[Purchase, int]) -> None:
        for n in range(4):
            orders.send(Purchase(n))
        orders.send(Purchase(9), priority=9)
        assert [message.body.number for message in orders.receive(max_messages=10)] == [9, 0, 1, 2, 3]

    def test_nothing_is_lost_among_consumers_that_come_and_go(
        self, orders: Mailbox[Purchase, int], clock: FakeClock
    ) -> None:
        for n in range(30):
            orders.send(Purchase(n))
        seen: Counter[int] = Counter()
        for round in range(4):
            for message in orders.receive(max_messages=10, visibility_timeout=5):
                if (message.body.number + round) % 3:
                    message.acknowledge()
                    seen[message.body.number] += 1
            clock.advance("6s")
        while messages := orders.receive(max_messages=10):
            for message in messages:
                message.acknowledge()
                seen[message.body.number] += 1
        assert seen == Counter(range(30))

    def test_delay_and_idempotency_key_are_those_of_the_broker(
        self, orders: Mailbox[Purchase, int], clock: FakeClock
    ) -> None:
        order = Purchase(1)
        first = orders.send(order, delay="1m", idempotency_key="k")
        assert orders.send(order, idempotency_key="k") == first
        assert orders.receive() == []
        clock.advance("1m")
        assert only_message(orders.receive()).id == first

    def test_visibility_of_zero_gives_messages_whose_handles_have_expired(self, orders: Mailbox[Purchase, int]) -> None:
        orders.send(Purchase(1))
        message = only_message(orders.receive(visibility_timeout=0))
        assert message.is_finalized
        with pytest.raises(ReceiptHandleExpiredError):
            message.acknowledge()
        assert only_message(orders.receive()).delivery_count == 2

    def test_wait_ends_with_the_first_message(self, orders: Mailbox[Purchase, int], clock: FakeClock) -> None:
        consumer = Background(lambda: orders.receive(wait_time_seconds=20))
        clock.until_waiting()
        orders.send(Purchase(1))
        assert only_message(consumer.result()).body.number == 1

    def test_message_that_cannot_be_decoded_is_dead_and_others_are_received(
        self, orders: Mailbox[Purchase, int], broker: Broker
    ) -> None:
        orders.send(Purchase(1))
        broker.put("orders", {"number": "one"}, priority=9)
        broker.put("orders", b"\xff", priority=9)
        assert [message.body.number for message in orders.receive(max_messages=10)] == [1]
        dead = broker.find(queue="orders", order="oldest").items
        assert [item.dead_reason for item in dead] == ["undecodable", "undecodable"]
        assert dead[0].death is not None
        assert "expected `int`, got `str`" in dead[0].death.cause.title

    def test_body_of_another_type_is_refused_where_it_is_sent(self, orders: Mailbox[Purchase, int]) -> None:
        for wrong, path in ((Purchase("one"), "$.number"), ("text", "$"), (Purchase(1, address=5), "$.address")):  # type: ignore[arg-type]
            with pytest.raises(SerializationError) as refused:
                orders.send(wrong)  # type: ignore[arg-type]
            assert (refused.value.path, isinstance(refused.value, InvalidPayload)) == (path, True)
        orders.send(Purchase(1))
        with pytest.raises(SerializationError):
            only_message(orders.receive()).acknowledge(reply="one")
        assert orders.approximate_count() == 1

    def test_type_that_cannot_be_told_apart_is_refused_when_the_mailbox_is_opened(self, broker: Broker) -> None:
        for kind in (Purchase | PostalAddress, Purchase | Envelope[int], object()):
            with pytest.raises(InvalidInput):
                Mailbox(broker, "orders", body=kind)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("arguments", "range"),
        [
            ({"max_messages": 0}, "1 to 10"),
            ({"max_messages": 11}, "1 to 10"),
            ({"max_messages": True}, "1 to 10"),
            ({"max_messages": "3"}, "1 to 10"),
            ({"visibility_timeout": -1}, "0 to 43,200"),
            ({"visibility_timeout": 43_201}, "0 to 43,200"),
            ({"visibility_timeout": float("nan")}, "0 to 43,200"),
            ({"wait_time_seconds": 21}, "0 to 20"),
            ({"wait_time_seconds": None}, "0 to 20"),
        ],
    )
    def test_argument_out_of_its_range_is_refused(
        self, orders: Mailbox[Purchase, int], arguments: dict[str, Any], range: str
    ) -> None:
        with pytest.raises(InvalidParameterError, match=range) as refused:
            orders.receive(**arguments)
        assert isinstance(refused.value, InvalidInput)
        orders.send(Purchase(1))
        message = only_message(orders.receive())
        with pytest.raises(InvalidParameterError, match="0 to 43,200"):
            message.nack(visibility_timeout=43_201)
        with pytest.raises(InvalidParameterError, match="0 to 43,200"):
            message.extend_visibility(-1)
        message.acknowledge()

    @pytest.mark.parametrize("option", [{"held_by": "me"}, {"max_attempts": 1}, {"retry": None}, {"dealy": 1}])
    def test_option_that_messages_do_not_have_is_refused_by_its_name(
        self, orders: Mailbox[Purchase, int], option: dict[str, Any]
    ) -> None:
        for send in (orders.send, orders.request):
            with pytest.raises(InvalidInput, match=f"a message has no option '{next(iter(option))}'"):
                send(Purchase(1), **option)
        assert orders.approximate_count() == 0

    def test_full_mailbox_refuses(self, broker: Broker) -> None:
        mailbox: Mailbox[int, None] = Mailbox(broker, "small", body=int, settings={"max_size": 1})
        mailbox.send(1)
        with pytest.raises(MailboxFullError) as full:
            mailbox.send(2)
        assert isinstance(full.value, QueueFull)
        assert (full.value.queue, full.value.max_size, full.value.retryable) == ("small", 1, True)

    def test_closed_mailbox_gives_nothing_and_takes_nothing(
        self, orders: Mailbox[Purchase, int], broker: Broker
    ) -> None:
        orders.send(Purchase(1))
        with orders:
            assert not orders.closed
        orders.close()
        assert orders.closed
        assert orders.receive(wait_time_seconds=20) == []
        for use in (lambda: orders.send(Purchase(2)), lambda: orders.request(Purchase(2)), orders.approximate_count):
            with pytest.raises(MailboxClosedError) as closed:
                use()
            assert isinstance(closed.value, Closed | MailboxError)
        assert broker.stats("orders").pending == 1

    def test_receive_of_a_mailbox_that_is_closed_ends_and_others_wait_on(
        self, orders: Mailbox[Purchase, int], broker: Broker, clock: FakeClock
    ) -> None:
        other: Mailbox[Purchase, int] = Mailbox(broker, "orders", body=Purchase)
        closed, waits = (Background(lambda each=each: each.receive(wait_time_seconds=20)) for each in (orders, other))  # type: ignore[misc]
        clock.until_waiting()
        orders.close()
        assert closed.result() == []
        other.send(Purchase(1))
        assert len(waits.result()) == 1

    def test_purge_removes_what_was_confirmed_and_nothing_that_is_held(
        self, orders: Mailbox[Purchase, int], broker: Broker
    ) -> None:
        for n in range(5):
            orders.send(Purchase(n))
        held = only_message(orders.receive())
        only_message(orders.receive()).nack(visibility_timeout=60)
        with pytest.raises(ConfirmationMismatch):
            orders.purge(5)
        assert orders.purge(4) == 4
        assert orders.approximate_count() == 1
        held.acknowledge()
        assert orders.purge(0) == 0

    def test_mailbox_is_a_queue_like_any_other(self, orders: Mailbox[Purchase, int], broker: Broker) -> None:
        id = orders.send(Purchase(7))
        assert broker.get(id).value["number"] == 7
        broker.bury_items(id)
        assert orders.receive() == []
        broker.redrive(id)
        assert only_message(orders.receive()).delivery_count == 1
        broker.update_queue("orders", lease_timeout="7s")
        assert Mailbox(broker, "orders", settings={"lease_timeout": "9s"}).approximate_count() == 1
        assert broker.get_queue("orders").settings.lease_timeout == 7_000_000
