"""Dead letters that programs make and send, and entries of the feed about handled dead letters."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import UTC, datetime
from uuid import UUID

import pytest

from redrive import Broker
from redrive.mailbox import (
    DeadLetter,
    Discard,
    DLQConsumer,
    InvalidParameterError,
    MainLoopRequest,
    MainLoopResult,
    Replay,
    SerializationError,
)
from redrive.model.feed import FeedKind
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
