"""Dead letters that programs make and send, and entries of the feed about handled dead letters."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from redrive import Broker
from redrive.contract.item_calls import NewItem, Put
from redrive.contract.replies import REPLY_TO
from redrive.mailbox import (
    DeadLetter,
    Discard,
    DLQConsumer,
    InvalidParameterError,
    LoopGroup,
    Mailbox,
    MainLoop,
    MainLoopRequest,
    MainLoopResult,
    Replay,
    SerializationError,
    replay,
)
from redrive.model.feed import FeedKind
from redrive.model.ids import Token
from redrive.model.payload import JSON
from redrive.testing.conformance.mailbox_loops import Ask, Boxes, failing
from redrive.testing.conformance.suite import Suite
from redrive.testing.fake_clock import FakeClock

LETTER: DeadLetter[Ask] = DeadLetter(
    message_id="from-another-system/17",
    body=MainLoopRequest("hello", UUID(int=7), datetime(2026, 1, 2, tzinfo=UTC)),
    source_mailbox="requests",
    delivery_count=5,
    last_error="upstream is gone",
    last_error_type="acme.errors.UpstreamError",
    dead_lettered_at=datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
    first_received_at=datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
    request_id=UUID(int=7),
    reply_to="replies",
    trace_id="0af7651916cd43dd8448eb211c80319c",
    reason="retries_exhausted",
    redrive_count=2,
)


RAW = b'{"requst": "hello"}'
"""The body of a request in JSON, from a sender with another schema."""


@dataclass
class Picky:
    """A type of bodies whose constructor raises an error that no decoder foresees."""

    word: str

    def __post_init__(self) -> None:
        {"fits": 1}[self.word]


class LetterConformance(Suite):
    """Dead letters that a program sends."""

    @pytest.fixture
    def dlq_boxes(self, broker: Broker, clock: FakeClock) -> Boxes:
        """Return mailboxes with a dead-letter policy that is applied."""
        boxes = Boxes(broker, clock)
        boxes.replies.receive()
        boxes.run(len, dlq=boxes.policy)
        return boxes

    def test_letter_that_was_sent_is_received_with_every_field(self, dlq_boxes: Boxes) -> None:
        dlq_boxes.dead.send(LETTER)
        received = dlq_boxes.letter()
        (failure,) = received.failures
        assert (failure.type, failure.text) == ("acme.errors.UpstreamError", "upstream is gone")
        assert replace(received, failures=(), fingerprint="", error_class="") == LETTER
        assert received.fingerprint == failure.fingerprint

    def test_letter_of_another_store_comes_back_equal(self, dlq_boxes: Boxes) -> None:
        dlq_boxes.send("x")
        dlq_boxes.run(failing(KeyError("id")), 3, dlq=dlq_boxes.policy)
        (message,) = dlq_boxes.dead.receive()
        message.acknowledge()
        dlq_boxes.dead.send(message.body)
        assert dlq_boxes.letter() == message.body

    def test_same_letter_is_there_once_and_the_next_death_of_its_message_beside_it(self, dlq_boxes: Boxes) -> None:
        first = dlq_boxes.dead.send(LETTER)
        assert dlq_boxes.dead.send(LETTER) == first
        dlq_boxes.dead.send(replace(LETTER, dead_lettered_at=datetime(2026, 2, 1, tzinfo=UTC)))
        assert dlq_boxes.dead.approximate_count() == 2

    def test_sent_letter_is_a_dead_letter_and_is_replayed_to_its_mailbox(self, dlq_boxes: Boxes) -> None:
        id = dlq_boxes.dead.send(LETTER)
        assert [item.id for item in dlq_boxes.broker.find().items] == [id]
        assert [group.title for group in dlq_boxes.broker.groups()] == ["UpstreamError: upstream is gone"]
        consumer = DLQConsumer(mailbox=dlq_boxes.dead, handler=lambda letter: Replay)
        consumer.run(max_iterations=1, wait_time_seconds=0)
        (message,) = dlq_boxes.requests.receive()
        assert (message.body, message.delivery_count) == (LETTER.body, 1)
        message.acknowledge(reply=MainLoopResult(LETTER.body.request_id, 5))
        assert [answer.output for answer in dlq_boxes.answers()] == [5]

    def test_letter_of_a_message_that_never_failed(self, dlq_boxes: Boxes) -> None:
        sent = replace(LETTER, last_error_type="", last_error="expired", reason="expired", trace_id=None)
        dlq_boxes.dead.send(sent)
        received = dlq_boxes.letter()
        assert (received.reason, received.last_error, received.failures) == ("expired", "expired", ())

    def test_letter_that_cannot_be_one_is_refused_and_not_there(self, dlq_boxes: Boxes) -> None:
        with pytest.raises(InvalidParameterError, match="reason is one of buried, undecodable"):
            dlq_boxes.dead.send(replace(LETTER, reason="tired"))
        with pytest.raises(InvalidParameterError, match="priority is not for dead letters"):
            dlq_boxes.dead.send(LETTER, priority=9)
        with pytest.raises(SerializationError, match=r"at \$.delivery_count does not fit"):
            dlq_boxes.dead.send(replace(LETTER, delivery_count="often"))  # type: ignore[arg-type]
        with pytest.raises(SerializationError, match="is dict, not a DeadLetter"):
            dlq_boxes.dead.send(asdict(LETTER))  # type: ignore[arg-type]
        assert dlq_boxes.dead.approximate_count() == 0

    def test_feed_says_that_a_dead_letter_is_done_dropped_or_redriven(self, dlq_boxes: Boxes, broker: Broker) -> None:
        for action in (None, Discard, Replay):
            dlq_boxes.dead.send(replace(LETTER, message_id=str(action)))
            consumer = DLQConsumer(mailbox=dlq_boxes.dead, handler=lambda letter, action=action: action)  # type: ignore[misc]
            consumer.run(max_iterations=1, wait_time_seconds=0)
        kinds = [entry.kind for entry in broker.feed().entries]
        wanted = [FeedKind.DONE, FeedKind.DROPPED, FeedKind.REDRIVEN]
        assert [kind for kind in kinds if kind in wanted] == wanted

    def test_feed_does_not_say_done_of_a_message_that_was_redriven(self, dlq_boxes: Boxes, broker: Broker) -> None:
        dlq_boxes.dead.send(LETTER)
        broker.redrive([item.id for item in broker.find().items])
        (message,) = dlq_boxes.requests.receive()
        message.acknowledge(reply=MainLoopResult(LETTER.body.request_id, 5))
        assert FeedKind.DONE not in [entry.kind for entry in broker.feed().entries]


class UndecodableConformance(Suite):
    """Messages that are not of the type of their mailbox, as dead letters of its policy."""

    @pytest.fixture
    def undecodable(self, broker: Broker, clock: FakeClock) -> Boxes:
        """Return mailboxes with one dead letter, whose message could not be decoded."""
        boxes = Boxes(broker, clock)
        boxes.replies.receive()
        boxes.run(len, dlq=boxes.policy)
        broker.submit(Put("requests", (NewItem(RAW, JSON, {REPLY_TO: "replies"}),)))
        boxes.run(len, dlq=boxes.policy)
        return boxes

    def test_undecodable_message_is_a_letter_with_its_bytes_and_is_answered(self, undecodable: Boxes) -> None:
        letter: DeadLetter[Any] = undecodable.letter()
        assert (letter.body, letter.reason, letter.source_mailbox) == (RAW, "undecodable", "requests")
        assert (letter.last_error_type.rpartition(".")[2], letter.error_class) == ("SerializationError", "poison")
        assert (letter.delivery_count, letter.first_received_at is None) == (1, False)
        assert "missing required field" in letter.last_error
        (answer,) = undecodable.replies.receive()
        assert "missing required field" in str(answer.error)

    def test_undecodable_letter_is_counted_shown_as_depth_and_handled(self, undecodable: Boxes) -> None:
        group = LoopGroup(
            [MainLoop(requests=undecodable.requests, handler=len)], dlq=[undecodable.dead], dlq_threshold=1
        )
        assert (group.health()["status"], group.health()["dlq"]["depth"]) == ("degraded", 1)
        seen: list[Any] = []
        consumer: DLQConsumer[Ask] = DLQConsumer(
            mailbox=undecodable.dead, handler=lambda letter: seen.append(letter.body)
        )
        consumer.run(max_iterations=1, wait_time_seconds=0)
        assert (seen, consumer.counts) == ([RAW], {"processed": 1})
        assert group.health()["dlq"]["depth"] == undecodable.dead.approximate_count() == 0

    def test_undecodable_letter_may_be_transformed_and_replayed(self, undecodable: Boxes) -> None:
        assert replay(undecodable.dead, transform=lambda body: replace(body, request="?")).failed == 1
        result = replay(
            undecodable.dead,
            where=lambda letter: letter.reason == "undecodable",
            transform=lambda body: MainLoopRequest(json.loads(body)["requst"]),  # type: ignore[arg-type]
        )
        assert result.replayed == 1
        (message,) = undecodable.requests.receive()
        assert message.body.request == "hello"

    def test_item_that_was_put_into_a_dead_letter_mailbox_is_a_letter_without_a_reason(
        self, undecodable: Boxes
    ) -> None:
        undecodable.broker.put("requests-dlq", "never died", priority=9)
        (message,) = undecodable.dead.receive()
        letter: DeadLetter[Any] = message.body
        assert (letter.body, letter.source_mailbox) == (b'"never died"', "requests-dlq")
        assert (letter.reason, letter.last_error, letter.failures, letter.delivery_count) == ("", "", (), 0)
        message.acknowledge()
        assert undecodable.dead.approximate_count() == 1

    def test_letters_are_purged_once_each(self, undecodable: Boxes) -> None:
        assert undecodable.dead.approximate_count() == 1
        assert undecodable.dead.purge(1) == 1

    def test_letter_that_is_not_delivered_any_more_is_counted_and_purged(self, undecodable: Boxes) -> None:
        (message,) = undecodable.dead.receive()
        undecodable.broker.bury(Token(message.receipt_handle), note="it killed its consumers")
        assert undecodable.dead.receive() == []
        assert undecodable.dead.approximate_count() == 1
        assert undecodable.dead.purge(1) == 1
        assert undecodable.dead.approximate_count() == 0

    def test_type_that_raises_anything_makes_the_message_undecodable(self, broker: Broker) -> None:
        mailbox: Mailbox[Picky, None] = Mailbox(broker, "picky", body=Picky)
        mailbox.send(Picky("fits"))
        broker.put("picky", {"word": "raises"}, priority=9)
        (message,) = mailbox.receive(max_messages=10)
        assert message.body == Picky("fits")
        (item,) = broker.find(queue="picky").items
        assert item.death is not None
        assert "KeyError" in item.death.cause.title
